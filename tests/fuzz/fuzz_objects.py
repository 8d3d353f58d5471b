"""What is fuzzed of main storage: objects, manifests, and the names that lead to them.

Source: docs/sources/reliability.md §1, §7.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pyarrow as pa
from crc32c import crc32c
from fuzz_targets import target

from cordwood.layout import manifest
from cordwood.layout.body import parse_body
from cordwood.layout.object_columns import rows_to_blocks
from cordwood.layout.object_file import (
    Footer,
    ObjectIndex,
    _check_index,
    check_object,
    entry_of,
    footer_bytes,
    piece_blocks,
    read_footer,
    read_group,
)
from cordwood.layout.object_names import parse_object_name
from cordwood.protocol.manifest import check_head, check_page, find, in_order, ref_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from made_objects import Made, read_run, small_logs, written

LOG = 7

# A fuzzer bounds the address space of its process, of which Arrow's own pool reserves much more
# than it uses, and ends the process where it gets no more.
pa.set_memory_pool(pa.system_memory_pool())


@target
def manifests(data: bytes) -> None:
    """Heads, pages and names: a byte says which. Checksums are put right first."""
    which, rest = data[:1], data[1:]
    if which == b"n":
        parse_object_name(rest.decode("latin-1"))
    elif which == b"x":
        log, ref = manifest.parse_page_name(rest.decode("latin-1"))
        assert manifest.page_name(log, ref) == rest.decode("latin-1")
    elif which == b"p":
        text = b"cordwood page 1 %08x\n%b" % (crc32c(rest, crc32c(b"1 ")), rest)
        page = manifest.unpack_page(LOG, text, _ref(text))
        if page.items:
            check_page(page, ref_of(page, 1, crc32c(text), len(text)))
            again = manifest.pack_page(LOG, page)
            assert manifest.unpack_page(LOG, again, _ref(again)) == page
    else:
        text = b"cordwood head 1 %08x\n%b" % (crc32c(rest, crc32c(b"1 ")), rest)
        head = manifest.unpack_head(text)
        check_head(head)
        assert manifest.unpack_head(manifest.pack_head(head)) == head
        find(in_order(head), head.start)


def _ref(text: bytes) -> manifest.PageRef:
    return manifest.PageRef(1, 1, 1, 0, crc32c(text), len(text), 0, 0, 0, 0, 0, 0, 0, 0)


SOUND = written(small_logs(), 100)
"""A small object. It is made at once, so that no target is charged for it."""


@target
def objects(data: bytes) -> None:
    """An object's footer, its index, a row group, a body, or all of it: a byte says which.

    Checksums of footers and row groups are not put right: under one, the bytes are Arrow's to take
    apart, and crafted ones break its memory (docs/objects.md, "Damage").
    """
    which, rest = data[:1], data[1:]
    if which == b"f":
        _read(read_footer(rest, SOUND.footer_crc, len(SOUND.content)))
    elif which == b"i":
        footer = SOUND.footer
        try:
            index = msgspec.json.decode(rest, type=ObjectIndex)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        _check_index(index, footer.metadata, len(SOUND.content) - footer.bytes)
        _read(Footer(index, footer.metadata, footer.bytes))
    elif which == b"g":
        for _ in rows_to_blocks(read_group(SOUND.footer, 0, rest)):
            pass
    elif which == b"b":
        parse_body(rest)
        made = Made(LOG).block(rest)
        done = written([made])
        ((_, raw),) = read_run(done.footer.index.runs[0], done.footer, done.content)
        assert raw == rest
    else:
        footer_bytes(rest[-8:])
        check_object(rest, SOUND.footer_crc)


def _read(footer: Footer) -> None:
    for run in footer.index.runs:
        run.gap_list()
        entry_of(run, "x", 1, footer.bytes, 0)
        for piece in run.pieces:
            group = footer.index.groups[piece.group]
            content = SOUND.content[group.start : group.stop]
            for _ in piece_blocks(piece, read_group(footer, piece.group, content), log=run.log):
                pass
