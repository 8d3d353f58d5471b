"""A ledger's metadata as bytes, and the key that it has in the metadata store.

::

    offset  bytes
    0       1      version of this layout
    1       3      reserved, 0
    4       4      CRC32C of the first four bytes and of all from offset 8 on
    8       ...    MessagePack of a `ledger.LedgerMetadata`

Integers are little-endian. A field that this version does not know is refused: a compare-and-set by
this version would drop the field for all others.

**Keys.** Ids below 2^31 have ten digits in steps of 2, 4 and 4 (`00/0000/L0001`), larger ids
nineteen in steps of 3, 4, 4, 4 and 4, so a directory has at most 10,000 entries. The last step
begins with L. Keys sort by id among ids of the same number of digits.

Source: docs/sources/bookkeeper.md (a); docs/sources/reliability.md §7.
"""

from __future__ import annotations

import re
import struct

import msgspec
from crc32c import crc32c

from cordwood.block import Buffer
from cordwood.errors import ChecksumMismatch, Malformed
from cordwood.ledger import LEDGER_MAX, LedgerMetadata

VERSION = 1

METADATA_BYTES_MAX = 1_000_000
"""The most bytes of a value of the metadata store."""

CREATED_BYTES_MAX = 500_000
"""The most bytes of a new ledger's value. This leaves room for later fragments and the end: a
ledger that cannot be ended is of no use."""

SHORT_IDS = 2**31
"""Ids below have ten digits."""

_HEAD = struct.Struct("<B3s")
_SUM = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _SUM.size

_SHORT_STEPS = (2, 4, 4)
_LONG_STEPS = (3, 4, 4, 4, 4)
_KEY = re.compile(r"(?:\d{2}|\d{3}/\d{4}/\d{4})/\d{4}/L\d{4}", re.ASCII)
_SPARE = bytes(3)

_LONG_MAP = b"\xde\0"
"""MessagePack's map of 16 bits; its length's upper byte is 0. The short map has its length in the
lower four bits of its only byte."""

_SHORT_MAP = 0x80
_SHORT_MAP_MAX = 15

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(LedgerMetadata)


def pack_ledger(metadata: LedgerMetadata, bytes_max: int = METADATA_BYTES_MAX) -> bytes:
    """A ledger's value; equal metadata has equal bytes.

    Args:
        bytes_max: CREATED_BYTES_MAX of a ledger that is made.

    Raises:
        Malformed: it is too long.
    """
    body = _encoder.encode(metadata)
    # msgspec gives a struct that may have 16 fields a long map's head. The short head, where it
    # does, is what versions with fewer fields write.
    if body[:2] == _LONG_MAP and body[2] <= _SHORT_MAP_MAX:
        body = bytes([_SHORT_MAP | body[2]]) + body[3:]
    if HEAD_BYTES + len(body) > bytes_max:
        raise Malformed(
            f"the metadata of ledger {metadata.ledger} has {HEAD_BYTES + len(body)} bytes, and "
            f"{bytes_max} can be: it has too many fragments, or too much of its creator's"
        )
    head = _HEAD.pack(VERSION, _SPARE)
    return head + _SUM.pack(crc32c(body, crc32c(head))) + body


def read_ledger(data: Buffer) -> LedgerMetadata:
    """A ledger's metadata from its value.

    Raises:
        ChecksumMismatch: a byte differs from the written one.
        Malformed: of another version, too long, or nothing that a ledger can be.
    """
    view = memoryview(data)
    if not HEAD_BYTES <= len(view) <= METADATA_BYTES_MAX:
        raise Malformed(
            f"the metadata of a ledger has {len(view)} bytes: "
            f"{HEAD_BYTES} to {METADATA_BYTES_MAX} can be"
        )
    head, body = view[: _HEAD.size], view[HEAD_BYTES:]
    (wanted,) = _SUM.unpack_from(view, _HEAD.size)
    if crc32c(body, crc32c(head)) != wanted:
        raise ChecksumMismatch("the metadata of a ledger is not what was written")
    version, spare = _HEAD.unpack(head)
    if version != VERSION or spare != _SPARE:
        raise Malformed(
            f"the metadata of a ledger has layout {version}, and this version reads {VERSION}"
        )
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"the metadata of a ledger cannot be read: {error}") from error


def ledger_key(ledger: int) -> str:
    """The key of a ledger's value, below the root of all ledgers."""
    assert 0 <= ledger <= LEDGER_MAX, "a ledger is numbered in 63 bits"
    steps = _SHORT_STEPS if ledger < SHORT_IDS else _LONG_STEPS
    digits, parts = f"{ledger:0{sum(steps)}d}", []
    for step in steps:
        parts.append(digits[:step])
        digits = digits[step:]
    return "/".join([*parts[:-1], f"L{parts[-1]}"])


def read_ledger_key(key: str) -> int:
    """The ledger that a key is of.

    Raises:
        Malformed: no ledger has this key.
    """
    if _KEY.fullmatch(key):
        ledger = int(key.replace("/", "").replace("L", ""))
        # Each ledger has one key: a small id with nineteen digits is no key of ours.
        if ledger <= LEDGER_MAX and ledger_key(ledger) == key:
            return ledger
    raise Malformed(f"{key[:100]!r} is no key of a ledger")
