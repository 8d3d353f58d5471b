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
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from cordwood.block import Buffer
from cordwood.errors import ChecksumMismatch
from cordwood.layout.entry_run import bodies_of, columns_of, heads_of
from cordwood.ledger import DigestKind

KEY_BYTES = 20

ENTRY_BYTES_MAX = 3 << 20
"""The most bytes of a payload. With its digest and the other fields it fits into a control
frame."""

SMALL_BYTES = 4096
"""If the entries of a run are smaller than this on average, the run is copied once more, because
slices of bytes are quicker than slices of views."""

BODY_BYTES_MAX = ENTRY_BYTES_MAX + 20

SUMMED_AT_ONCE = 8
"""From this many entries on, their checksums are compared all at once: numpy takes some
microseconds for any number."""

_COVERED = struct.Struct(">qqqq")
_CRC32 = struct.Struct(">Q")
_CRC32C = struct.Struct(">I")

_SUMS: dict[DigestKind, tuple[Callable[..., int], str]] = {
    DigestKind.CRC32: (zlib.crc32, ">u8"),
    DigestKind.CRC32C: (crc32c, ">u4"),
}
"""Checksum functions, which go on from the checksum of the bytes before, and a checksum's form in a
body."""

DIGEST_BYTES = {
    DigestKind.CRC32: 8,
    DigestKind.HMAC_SHA1: 20,
    DigestKind.CRC32C: 4,
    DigestKind.DUMMY: 0,
}


def ledger_key_of(password: bytes) -> bytes:
    """The key by which nodes know a ledger's password."""
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
        """The body that nodes keep: the digest, then the payload."""
        return self._digest(entry, lac, length, payload) + bytes(payload)

    def pack_all(self, first: int, lac: int, length: int, payloads: Sequence[bytes]) -> list[bytes]:
        """The bodies of consecutive entries, from `first` on, that carry the same LAC.

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

    def read_run(self, packed: memoryview, count: int) -> tuple[list[bytes], list[int]]:
        """Payloads and lengths of a run of entries, up to the first entry that fails its check.

        Args:
            packed, count: a run that passed the check of `layout.entry_run.is_run`.
        """
        is_small = len(packed) < SMALL_BYTES * count
        if is_small and count >= SUMMED_AT_ONCE and self._kind in _SUMS:
            heads = columns_of(packed, count)
            if int(heads["size"].min()) >= self._bytes:
                return self._read_summed(heads, bytes(bodies_of(packed, count)))
        return self._read_each(packed, count)

    def _read_each(self, packed: memoryview, count: int) -> tuple[list[bytes], list[int]]:
        bodies = bodies_of(packed, count)
        payloads: list[bytes] = []
        lengths: list[int] = []
        digest, width, at = self._digest, self._bytes, 0
        for entry, lac, length, size in heads_of(packed, count):
            start, at = at + width, at + size
            payload = bodies[start:at]
            if size < width or bodies[start - width : start] != digest(entry, lac, length, payload):
                break
            payloads.append(bytes(payload))
            lengths.append(length)
        return payloads, lengths

    def _read_summed(
        self, heads: npt.NDArray[np.void], bodies: bytes
    ) -> tuple[list[bytes], list[int]]:
        """As `_read_each`, with its loops in C.

        Args:
            heads, bodies: of a run in which each body has room for its digest. One copy of all
                bodies, since slices of bytes are bytes.
        """
        crc, number = _SUMS[self._kind]
        width, count, ends = self._bytes, len(heads), heads["size"].cumsum(dtype=np.int64)
        begins = ends - heads["size"]
        spans = zip((begins + width).tolist(), ends.tolist(), strict=True)
        payloads = [bodies[start:stop] for start, stop in spans]
        covered = np.empty((count, 4), ">i8")
        covered[:, 0] = self._ledger
        for column, name in enumerate(("entry", "lac", "length"), 1):
            covered[:, column] = heads[name].view("<i8")
        packed, each = covered.tobytes(), _COVERED.size
        covers = [packed[at : at + each] for at in range(0, count * each, each)]
        right = list(map(crc, payloads, map(crc, covers)))
        places = begins[:, np.newaxis] + np.arange(width)
        told = np.frombuffer(bodies, np.uint8)[places].view(number)[:, 0].tolist()
        lengths = heads["length"].tolist()
        if told != right:
            whole_to = next(at for at in range(count) if told[at] != right[at])
            del payloads[whole_to:], lengths[whole_to:]
        return payloads, lengths

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
