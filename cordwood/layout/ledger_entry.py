"""An entry of a ledger as its writer makes it: a digest, then the payload.

The digest covers the ledger, the entry, the LAC that goes with it, the running sum of payload bytes
(each 8 bytes, big-endian) and the payload. So a copy of another entry, or of this entry as another
writer would have written it, does not pass. Nodes keep entries without checking them: clients check
each copy that they read. Digests are BookKeeper's, byte by byte::

    CRC32      8 bytes: the CRC32, big-endian
    CRC32C     4 bytes, big-endian
    HMAC-SHA1  20 bytes, keyed with SHA1("mac" + password)
    DUMMY      none

A node knows a ledger by its *key*, SHA1("ledger" + password), which the first call fixes.

Source: docs/sources/bookkeeper.md (a).
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from collections.abc import Sequence

from crc32c import crc32c

from cordwood.block import Buffer
from cordwood.errors import ChecksumMismatch
from cordwood.layout.entry_run import bodies_of, heads_of
from cordwood.ledger import DigestKind

KEY_BYTES = 20

ENTRY_BYTES_MAX = 3 << 20
"""A payload: it fits a control frame with its digest and room for the rest."""

SMALL_BYTES = 4096
"""Where bodies are smaller on the average, a run is copied once more: bytes are cut up sooner."""

BODY_BYTES_MAX = ENTRY_BYTES_MAX + 20

_COVERED = struct.Struct(">qqqq")
_CRC32 = struct.Struct(">Q")
_CRC32C = struct.Struct(">I")

DIGEST_BYTES = {
    DigestKind.CRC32: 8,
    DigestKind.HMAC_SHA1: 20,
    DigestKind.CRC32C: 4,
    DigestKind.DUMMY: 0,
}


def ledger_key_of(password: bytes) -> bytes:
    """What nodes know a ledger's password by."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


class EntrySeal:
    """Makes and checks the entries of one ledger."""

    def __init__(self, ledger: int, kind: DigestKind, password: bytes) -> None:
        self._ledger = ledger
        self._kind = kind
        self._bytes = DIGEST_BYTES[kind]
        self._mac = b""
        if kind is DigestKind.HMAC_SHA1:
            self._mac = hashlib.sha1(b"mac" + password, usedforsecurity=False).digest()

    def pack(self, entry: int, lac: int, length: int, payload: Buffer) -> bytes:
        """The body that nodes keep."""
        return self._digest(entry, lac, length, payload) + bytes(payload)

    def pack_all(self, first: int, lac: int, length: int, payloads: Sequence[bytes]) -> list[bytes]:
        """The bodies of entries from `first` on that tell the same LAC.

        Args:
            length: bytes of all payloads before the first of them.
        """
        bodies = []
        for entry, payload in enumerate(payloads, first):
            length += len(payload)
            bodies.append(self._digest(entry, lac, length, payload) + payload)
        return bodies

    def read(self, entry: int, lac: int, length: int, body: Buffer) -> bytes:
        """The payload of a body.

        Raises:
            ChecksumMismatch: the copy differs from the entry that the ledger's writer wrote.
        """
        view = memoryview(body)
        payload = view[self._bytes :]
        if len(view) < self._bytes or not hmac.compare_digest(
            view[: self._bytes], self._digest(entry, lac, length, payload)
        ):
            raise ChecksumMismatch(
                f"a copy of entry {entry} of ledger {self._ledger} is not what was written"
            )
        return bytes(payload)

    def read_run(self, packed: memoryview, count: int) -> list[tuple[bytes, int]]:
        """Payloads and lengths of a run of entries, up to the first one that fails its check.

        Args:
            packed, count: that pass `layout.entry_run.is_run`.
        """
        bodies: Buffer = bodies_of(packed, count)
        if len(bodies) < SMALL_BYTES * count:
            bodies = bytes(bodies)  # One copy of all: slices of bytes are bytes.
        is_sliced = isinstance(bodies, bytes)
        found: list[tuple[bytes, int]] = []
        digest, width, at = self._digest, self._bytes, 0
        for entry, lac, length, size in heads_of(packed, count):
            start, at = at + width, at + size
            payload = bodies[start:at]
            if size < width or bodies[start - width : start] != digest(entry, lac, length, payload):
                break
            found.append((payload if is_sliced else bytes(payload), length))  # type: ignore[arg-type]
        return found

    def _digest(self, entry: int, lac: int, length: int, payload: Buffer) -> bytes:
        if self._kind is DigestKind.DUMMY:
            return b""
        head = _COVERED.pack(self._ledger, entry, lac, length)
        if self._kind is DigestKind.CRC32C:
            return _CRC32C.pack(crc32c(payload, crc32c(head)))
        if self._kind is DigestKind.CRC32:
            return _CRC32.pack(zlib.crc32(payload, zlib.crc32(head)))
        mac = hmac.new(self._mac, head, hashlib.sha1)
        mac.update(payload)
        return mac.digest()
