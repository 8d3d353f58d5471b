"""The bytes of a manifest: heads and pages as JSON that people can read, under a checksum.

::

    cordwood head 1 1f3a90c2\\n            magic, kind, version, CRC32C of all that follows
    [7, 812, 3, "node-2", …]              the fields of `tiered.Head`, in their order

Pages say `page` in place of `head`. An origin says `origin`: it is a log's number, and when the log
was made. The owner of a store says `cluster`: it is the cluster's identity. A note of the objects
that an Iceberg table names says `table`, a read lease `lease`, and a ledger's manifest `ledger`. An
entry is a list of 14 items, and a reference to a page a list of 15, in the order of their fields;
`payload` is 0 if it is missing, as in old entries. The name of a log's own object follows from the
entry, so it is left out (an empty text).

Version 2 tells of merges as well: a head has a ninth field, the turn at merging, and an entry that
took the place of others a 15th, when it did. Both are left out if they are empty, and the rest is
then version 1. A program of a version without merges reads it.

A page's name is `pages/<level>-<first>-<last>-<fence>-<crc>.json`, in hexadecimal digits: 2, 16,
16, 16 and 8 of them.

Source: docs/objects.md, "The manifest".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from crc32c import crc32c

from cordwood.block import Buffer
from cordwood.errors import ChecksumMismatch, Malformed
from cordwood.layout.object_names import OWNER, origin_name, own_name, pages_prefix
from cordwood.tiered import Entry, Head, Item, Merging, Page, PageRef, Trimmed

VERSION = 1
MERGING_VERSION = 2

_PLAIN_ENTRY = len(Entry._fields) - 1
"""Fields of an entry that took no other's place."""

_LINE = re.compile(
    rb"cordwood (head|origin|page|table|cluster|ledger|lease) (\d{1,4}) ([0-9a-f]{8})\n"
)
_LINE_BYTES_MAX = 40
_PAGE_NAME = re.compile(
    r"logs/([0-9a-f]{16})/pages/"
    r"([0-9a-f]{2})-([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{8})\.json"
)


class _Head(NamedTuple):
    """A `tiered.Head` whose items are not decoded yet."""

    log: int
    version: int
    fence: int
    holder: str
    start: int
    end: int
    levels: list[list[msgspec.Raw]]
    trims: list[Trimmed]
    merging: Merging = Merging()


_Page = tuple[int, list[msgspec.Raw]]


def pack_head(head: Head) -> bytes:
    """Write a head."""
    levels = [[_short(head.log, item) for item in items] for items in head.levels]
    fields: list[Any] = [*head[:6], levels, head.trims]
    is_plain = head.merging == Merging()
    if not is_plain:
        fields.append(head.merging)
    is_plain = is_plain and all(map(_is_plain, head.levels[0] if head.levels else ()))
    return _framed(b"head", fields, VERSION if is_plain else MERGING_VERSION)


def unpack_head(data: Buffer) -> Head:
    """Read a head; `protocol.manifest.check_head` checks its values.

    Raises:
        ChecksumMismatch, Malformed: it differs from the written head, or has a later version.
    """
    raw: _Head = _unframed(data, b"head", _Head, "a manifest's head")
    levels = tuple(
        tuple(_item(raw.log, item, level) for item in items)
        for level, items in enumerate(raw.levels)
    )
    return Head(*raw[:6], levels, tuple(raw.trims), raw.merging)


def pack_origin(log: int, created_us: int) -> bytes:
    """Write when a log was made."""
    return _framed(b"origin", [log, created_us])


def unpack_origin(log: int, data: Buffer) -> int:
    """When a log was made, µs since 1970 UTC.

    Raises:
        Corrupt: it differs from the written page.
    """
    name = origin_name(log)
    found, created_us = _unframed(data, b"origin", tuple[int, int], name)
    if found != log:
        raise Malformed(f"{name} is that of log {found}")
    return int(created_us)


class TableNote(NamedTuple):
    """The objects that an Iceberg table names.

    Attributes:
        table: its name, for people.
        named: names of objects.
        left: objects that it named before, each with the last time at which it did.
    """

    table: str
    named: list[str]
    left: list[tuple[str, int]]


def pack_table_note(note: TableNote) -> bytes:
    """Write the note of the objects that a table names."""
    return _framed(b"table", note)


def unpack_table_note(name: str, data: Buffer) -> TableNote:
    """Read the note of the objects that a table names.

    Raises:
        Corrupt: the bytes differ from the written ones.
    """
    note: TableNote = _unframed(data, b"table", TableNote, name)
    return note


def pack_lease(holder: str, names: Sequence[str]) -> bytes:
    """Write which objects a query reads; `holder` is for people."""
    return _framed(b"lease", [holder, names])


def unpack_lease(name: str, data: Buffer) -> list[str]:
    """The names of the objects that a query reads.

    Raises:
        Corrupt: the bytes differ from the written ones.
    """
    _, names = _unframed(data, b"lease", tuple[str, list[str]], name)
    return list(names)


class LedgerPart(NamedTuple):
    """An object of a ledger.

    Attributes:
        first, last: entries that it holds.
        footer_crc: CRC32C of its footer.
        size, footer_bytes: bytes of it, and of its footer.
    """

    first: int
    last: int
    footer_crc: int
    size: int
    footer_bytes: int


class LedgerManifest(NamedTuple):
    """All objects of a closed ledger, by one attempt.

    Attributes:
        creator, created_us: as in the ledger's metadata; they distinguish the ledger from another
            cluster's ledger with the same id.
        last, length: its end.
        parts: its objects, which follow one another from entry 0 to the last one.
    """

    ledger: int
    attempt: int
    creator: int
    created_us: int
    last: int
    length: int
    parts: list[LedgerPart]


def pack_ledger_manifest(manifest: LedgerManifest) -> bytes:
    """Write a ledger's manifest; equal manifests have equal bytes."""
    return _framed(b"ledger", manifest)


def unpack_ledger_manifest(name: str, data: Buffer, crc: int) -> LedgerManifest:
    """Read a ledger's manifest.

    Args:
        crc: CRC32C of all its bytes, from the ledger's metadata.
    Raises:
        ChecksumMismatch, Malformed: it is not the manifest that was written.
    """
    if crc32c(bytes(data)) != crc:
        raise ChecksumMismatch(f"{name}: its checksum is wrong")
    manifest: LedgerManifest = _unframed(data, b"ledger", LedgerManifest, name)
    following = 0
    for part in manifest.parts:
        if part.first != following or part.last < part.first or part.size <= part.footer_bytes:
            raise Malformed(f"{name}: its objects do not follow one another")
        following = part.last + 1
    if following != manifest.last + 1:
        raise Malformed(f"{name}: its objects do not end where the ledger does")
    return manifest


def pack_owner(cluster: str) -> bytes:
    """Write the owner of a store: the identity of its cluster."""
    return _framed(b"cluster", cluster)


def unpack_owner(data: Buffer) -> str:
    """The identity of the cluster that owns the store.

    Raises:
        Corrupt: it differs from the written mark.
    """
    return str(_unframed(data, b"cluster", str, OWNER))


def pack_page(log: int, page: Page) -> bytes:
    """Write a page."""
    version = VERSION if all(map(_is_plain, page.items)) else MERGING_VERSION
    return _framed(b"page", [page.level, [_short(log, item) for item in page.items]], version)


def unpack_page(log: int, data: Buffer, ref: PageRef) -> Page:
    """Read the page of a reference; `protocol.manifest.check_page` checks its values.

    Raises:
        ChecksumMismatch, Malformed: it is not the page that was written.
    """
    if len(data) != ref.size or crc32c(data) != ref.crc:
        raise ChecksumMismatch(f"{page_name(log, ref)}: its checksum or its size is wrong")
    level, items = _unframed(data, b"page", _Page, page_name(log, ref))
    return Page(level, tuple(_item(log, raw, level) for raw in items))


def page_name(log: int, ref: PageRef) -> str:
    """A page's name."""
    return (
        f"{pages_prefix(log)}{ref.level:02x}-{ref.first:016x}-{ref.last:016x}-{ref.fence:016x}"
        f"-{ref.crc:08x}.json"
    )


def parse_page_name(name: str) -> tuple[int, PageRef]:
    """The log of a page, and the values in its name; sums are 0.

    Raises:
        Malformed: it is no page's name.
    """
    match = _PAGE_NAME.fullmatch(name)
    if match is None:
        raise Malformed(f"{name!r} is no name of a page of ours")
    log, level, first, last, fence, crc = (int(each, 16) for each in match.groups())
    return log, PageRef(first, last, fence, level, crc, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def object_name(log: int, entry: Entry) -> str:
    """The name of an entry's object."""
    return entry.name or own_name(log, entry.first, entry.last, entry.fence, entry.footer_crc)


def _short(log: int, item: Item) -> Sequence[Any]:
    """The written form of an item: without the name that follows from it, and without empty
    fields."""
    if isinstance(item, Entry):
        if item.name == object_name(log, item._replace(name="")):
            item = item._replace(name="")
        return item[:_PLAIN_ENTRY] if _is_plain(item) else item
    return item


def _is_plain(item: Item) -> bool:
    return not (isinstance(item, Entry) and item.replaced_us)


def _item(log: int, raw: msgspec.Raw, level: int) -> Item:
    try:
        if level:
            return msgspec.json.decode(raw, type=PageRef)
        entry = msgspec.json.decode(raw, type=Entry)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"an item of a manifest cannot be read: {error}") from error
    return entry._replace(name=object_name(log, entry))


def _framed(what: bytes, value: Any, version: int = VERSION) -> bytes:
    text = msgspec.json.encode(value)
    start = b"%d " % version
    return b"cordwood %b %b%08x\n%b" % (what, start, crc32c(text, crc32c(start)), text)


def _unframed(data: Buffer, what: bytes, kind: Any, name: str) -> Any:
    data = bytes(data)
    match = _LINE.match(data[:_LINE_BYTES_MAX])
    if match is None or match[1] != what:
        raise Malformed(f"{name} does not begin as one of ours")
    text = data[match.end() :]
    if crc32c(text, crc32c(match[2] + b" ")) != int(match[3], 16):
        raise ChecksumMismatch(f"{name}: its checksum is wrong")
    if int(match[2]) not in (VERSION, MERGING_VERSION):
        raise Malformed(
            f"{name} has version {match[2].decode()}, and this program reads {VERSION} and "
            f"{MERGING_VERSION}: use the program that wrote it"
        )
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"{name} cannot be read: {error}") from error
