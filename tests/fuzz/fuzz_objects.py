"""What is fuzzed of main storage: objects, manifests, and the names that lead to them.

Source: docs/sources/reliability.md §1, §7.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from crc32c import crc32c
from fuzz_targets import target

from cordwood.layout import manifest
from cordwood.layout.body import parse_body
from cordwood.layout.object_columns import is_plain
from cordwood.layout.object_file import (
    TRAILER_BYTES,
    ObjectIndex,
    _check_index,
    entry_of,
    footer_bytes,
)
from cordwood.layout.object_names import parse_ledger_name, parse_object_name
from cordwood.layout.object_writer import _times
from cordwood.protocol.manifest import check_head, check_page, find, in_order, ref_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from made_objects import small_logs, written

LOG = 7


@target
def manifests(data: bytes) -> None:
    """Heads, pages, names, and those of ledgers: a byte says which. Checksums are put right."""
    which, rest = data[:1], data[1:]
    if which == b"n":
        parse_object_name(rest.decode("latin-1"))
    elif which == b"m":
        parse_ledger_name(rest.decode("latin-1"))
    elif which == b"l":
        text = b"cordwood ledger 1 %08x\n%b" % (crc32c(rest, crc32c(b"1 ")), rest)
        kept = manifest.unpack_ledger_manifest("ledgers/x", text, crc32c(text))
        again = manifest.pack_ledger_manifest(kept)
        assert manifest.unpack_ledger_manifest("ledgers/x", again, crc32c(again)) == kept
    elif which == b"x":
        log, ref = manifest.parse_page_name(rest.decode("latin-1"))
        assert manifest.page_name(log, ref) == rest.decode("latin-1")
    elif which == b"o":
        text = b"cordwood origin 1 %08x\n%b" % (crc32c(rest, crc32c(b"1 ")), rest)
        created_us = manifest.unpack_origin(LOG, text)
        assert manifest.unpack_origin(LOG, manifest.pack_origin(LOG, created_us)) == created_us
    elif which == b"c":
        text = b"cordwood cluster 1 %08x\n%b" % (crc32c(rest, crc32c(b"1 ")), rest)
        owner = manifest.unpack_owner(text)
        assert manifest.unpack_owner(manifest.pack_owner(owner)) == owner
    elif which == b"t":
        text = b"cordwood table 1 %08x\n%b" % (crc32c(rest, crc32c(b"1 ")), rest)
        note = manifest.unpack_table_note("tables/x", text)
        assert manifest.unpack_table_note("x", manifest.pack_table_note(note)) == note
    elif which == b"r":
        text = b"cordwood lease 1 %08x\n%b" % (crc32c(rest, crc32c(b"1 ")), rest)
        leased = manifest.unpack_lease("leases/x", text)
        assert manifest.unpack_lease("x", manifest.pack_lease("holder", leased)) == leased
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
    """An object's index, its last bytes, or a body that goes into one: a byte says which.

    What Arrow takes apart is not fuzzed: under the fuzzer it ends the process now and then, with
    sound footers too. `tests/layout/test_object_file.py` damages every byte of an object.
    """
    which, rest = data[:1], data[1:]
    if which == b"b":
        body = parse_body(rest)
        is_plain(body)
        least, most = _times(body)
        assert least <= most
    elif which == b"t":
        assert footer_bytes(rest) >= TRAILER_BYTES
    else:
        try:
            index = msgspec.json.decode(rest, type=ObjectIndex)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        _check_index(index, SOUND.footer.metadata, len(SOUND.content) - SOUND.footer.bytes)
        for run in index.runs:
            run.gap_list()
            entry_of(run, "x", 1, 1, 0)
