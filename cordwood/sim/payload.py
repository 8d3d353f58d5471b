"""Payloads that identify themselves, so that a history can be checked without keeping bytes.

A payload is ``b"<client>/<sequence> <crc> " + filler``. The id is text, which makes a dump
readable. The filler is random bytes, which makes a fair test of the path. `crc` is the CRC32C, as 8
hex digits, of the id and the filler, so that a payload that was cut, joined or changed no longer
identifies.

Source: docs/sources/reliability.md §3 (S3: id and CRC inside the payload).
"""

from __future__ import annotations

import random
import re

import crc32c

from cordwood.block import Buffer
from cordwood.errors import BadSetting

_CLIENT = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_HEAD = re.compile(rb"([A-Za-z0-9._-]{1,64}/(?:0|[1-9][0-9]{0,18})) ([0-9a-f]{8}) ")
_HEAD_BYTES_MAX = 64 + 1 + 19 + 1 + 8 + 1


def make_payload(client: str, sequence: int, size: int, chance: random.Random) -> bytes:
    """Make a payload of exactly `size` bytes that `identify` knows again.

    Args:
        client: name of the appending client: letters, digits, `.`, `_`, `-`, at most 64.
        sequence: number of the payload at this client, never used twice.
        size: bytes wanted; the id and its CRC take `len(client)` and 11 to 29 more.
        chance: source of the filler.
    Raises:
        BadSetting: the client's name is not allowed, the sequence is negative, or the size is too
            small for the id.
    """
    if not _CLIENT.match(client) or not 0 <= sequence < 10**19:
        raise BadSetting(f"{client!r}/{sequence} cannot be the id of a payload")
    name = f"{client}/{sequence}".encode()
    filler_bytes = size - len(name) - 10
    if filler_bytes < 0:
        raise BadSetting(f"a payload {name.decode()} needs {len(name) + 10} bytes, not {size}")
    filler = chance.randbytes(filler_bytes)
    return b"%s %08x %s" % (name, _check(name, filler), filler)


def identify(payload: Buffer) -> str | None:
    """The id, `client/sequence`, of an undamaged payload of the simulator; None for other bytes."""
    head = _HEAD.match(bytes(payload[:_HEAD_BYTES_MAX]))
    if head is None or int(head[2], 16) != _check(head[1], payload[head.end() :]):
        return None
    return head[1].decode()


def _check(name: bytes, filler: Buffer) -> int:
    return crc32c.crc32c(filler, crc32c.crc32c(name))
