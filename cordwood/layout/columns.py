"""One column of bytes inside a body: how it is written, checked and read.

A column of n values is `int32 × (n + 1)` offsets and the values back to back, as Arrow's `binary`
has it; a column that may hold nulls has a validity bitmap before it. All parts start at a multiple
of 8 and are padded with zeros. `ColumnReader` checks every byte of the structure: a part out of
bounds, a falling offset or nonzero padding is Malformed. So later code may index without checks.

Source: docs/design.md §2; Apache Arrow, "Columnar format", variable-size binary.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from operator import le

import numpy as np

from cordwood.block import Buffer
from cordwood.errors import BadSetting, Malformed, RecordTooLarge
from cordwood.layout.limits import BODY_BYTES_MAX

_PADDING = tuple(bytes(-size % 8) for size in range(8))
_TWO = struct.Struct("<ii")

HeaderPairs = Sequence[tuple[str, bytes | None]]
"""One record's headers: names and values, in the order given."""

_NUMPY_PAYS = 32
"""From this many offsets on, numpy checks them faster than a loop: in 3 µs for any number."""


def pack_offsets(sizes: Iterable[int]) -> tuple[bytes, int]:
    """Add sizes up to offsets.

    `struct.pack` writes 19 M values a second at 2,048 values and 18 M at 256. numpy's cumsum writes
    24 M and 20 M, but below 16 values a third of what `struct` writes. The gain does not pay for a
    second way.

    Returns:
        The offsets, padded, and their last: the sum of the sizes.
    Raises:
        RecordTooLarge: the sum is over BODY_BYTES_MAX.
    """
    offsets = tuple(accumulate(sizes, initial=0))
    total = offsets[-1]
    if total > BODY_BYTES_MAX:
        raise RecordTooLarge(f"a column of {total} bytes; a body has at most {BODY_BYTES_MAX}")
    packed = struct.pack(f"<{len(offsets)}i", *offsets)
    return packed + _PADDING[len(packed) & 7], total


def pack_bytes(items: Sequence[Buffer]) -> list[bytes]:
    """Write a column without nulls: offsets and bytes.

    Raises:
        RecordTooLarge: the items are over BODY_BYTES_MAX together.
        BadSetting: an item is a view of something else than bytes.
    """
    offsets, total = pack_offsets(map(len, items))
    data = b"".join(items)
    if len(data) != total:
        raise BadSetting("an item is a view whose length is not its size in bytes")
    return [offsets, data, _PADDING[total & 7]]


def pack_nullable(items: Sequence[Buffer | None]) -> list[bytes]:
    """Write a column in which None is null: validity, offsets and bytes.

    Raises:
        RecordTooLarge, BadSetting: as `pack_bytes`.
    """
    present = [b"" if item is None else item for item in items]
    if None in items:
        valid = np.fromiter((item is not None for item in items), np.bool_, len(items))
        bitmap = np.packbits(valid, bitorder="little").tobytes()
    else:
        bitmap = ((1 << len(items)) - 1).to_bytes((len(items) + 7) >> 3, "little")
    return [bitmap, _PADDING[len(bitmap) & 7], *pack_bytes(present)]


class BytesColumn:
    """A column of bytes that was checked, as views into its body.

    Attributes:
        count: values, nulls among them.
        validity: bitmap, least significant bit first, 0 for null; None if none can be.
        offsets: int32 × (count + 1), little-endian.
        data: the values back to back.
    """

    __slots__ = ("count", "data", "offsets", "validity")

    def __init__(
        self, count: int, validity: memoryview | None, offsets: memoryview, data: memoryview
    ) -> None:
        self.count = count
        self.validity = validity
        self.offsets = offsets
        self.data = data

    def __getitem__(self, index: int) -> bytes:
        """Copy out one value; a null is empty."""
        start, stop = _TWO.unpack_from(self.offsets, 4 * index)
        return bytes(self.data[start:stop])

    def is_null(self, index: int) -> bool:
        """Say whether the value is null."""
        return self.validity is not None and not self.validity[index >> 3] >> (index & 7) & 1

    def items(self, start: int, stop: int) -> list[bytes]:
        """Copy out the values `[start, stop)`; a null is empty.

        The whole range is copied once, and the values are slices of that copy: slices of bytes cost
        half as much as views of views.
        """
        offsets = struct.unpack_from(f"<{stop - start + 1}i", self.offsets, 4 * start)
        base = offsets[0]
        data = bytes(self.data[base : offsets[-1]])
        if base:
            return [data[left - base : right - base] for left, right in pairwise(offsets)]
        return [data[left:right] for left, right in pairwise(offsets)]

    def nullable_items(self, start: int, stop: int) -> Sequence[bytes | None]:
        """Copy out the values `[start, stop)`; a null is None."""
        items = self.items(start, stop)
        if self.validity is None:
            return items
        bits = np.frombuffer(self.validity, np.uint8)
        valid = np.unpackbits(bits, count=stop, bitorder="little")[start:]
        if valid.all():
            return items
        return [item if is_valid else None for item, is_valid in zip(items, valid, strict=True)]


class HeaderColumns:
    """The headers of all records, checked, as views into their body.

    Attributes:
        starts: int32 × (records + 1): record i has headers `[starts[i], starts[i + 1])`.
        names: column of UTF-8 names.
        values: column of values, which may hold nulls.
    """

    __slots__ = ("names", "starts", "values")

    def __init__(self, starts: memoryview, names: BytesColumn, values: BytesColumn) -> None:
        self.starts = starts
        self.names = names
        self.values = values

    def rows(self, start: int, stop: int) -> list[tuple[tuple[str, bytes | None], ...]]:
        """Copy out the headers of the records `[start, stop)`."""
        starts = struct.unpack_from(f"<{stop - start + 1}i", self.starts, 4 * start)
        base, end = starts[0], starts[-1]
        names = map(bytes.decode, self.names.items(base, end))
        pairs = tuple(zip(names, self.values.nullable_items(base, end), strict=True))
        return [pairs[left - base : right - base] for left, right in pairwise(starts)]


class ColumnReader:
    """Walks over the columns of a body and checks each; `at` is the start of the next column."""

    __slots__ = ("at", "view")

    def __init__(self, view: memoryview, at: int) -> None:
        self.view = view
        self.at = at

    def read_fixed(self, size: int) -> memoryview:
        """Take `size` bytes and the padding after them.

        Raises:
            Malformed: they stick out of the body, or the padding is not zero.
        """
        start, stop = self.at, self.at + size
        padding = -size & 7
        if stop + padding > len(self.view):
            raise Malformed(f"a column ends at byte {stop}, its body at {len(self.view)}")
        if padding and any(self.view[stop : stop + padding]):
            raise Malformed(f"the padding at byte {stop} of a body is not zero")
        self.at = stop + padding
        return self.view[start:stop]

    def read_offsets(self, count: int) -> tuple[memoryview, int]:
        """Take `count + 1` offsets.

        Returns:
            The offsets, and the last of them.
        Raises:
            Malformed: the first offset is not 0, or an offset is less than the offset before it.
        """
        offsets = self.read_fixed(4 * count + 4)
        if count < _NUMPY_PAYS:
            plain = struct.unpack(f"<{count + 1}i", offsets)
            first, last = plain[0], plain[-1]
            rising = all(map(le, plain, plain[1:]))
        else:
            column = np.frombuffer(offsets, "<i4")
            first, last = int(column[0]), int(column[-1])
            rising = bool((column[:-1] <= column[1:]).all())
        if first != 0 or not rising:
            raise Malformed("the offsets of a column do not rise from 0")
        return offsets, last

    def read_validity(self, count: int) -> memoryview:
        """Take a bitmap of `count` bits.

        Raises:
            Malformed: the bits after the last are not 0.
        """
        bitmap = self.read_fixed((count + 7) >> 3)
        if count & 7 and bitmap[-1] >> (count & 7):
            raise Malformed("a validity bitmap has bits past its end")
        return bitmap

    def read_bytes(self, count: int) -> BytesColumn:
        """Take a column without nulls.

        Raises:
            Malformed: as the other reads.
        """
        offsets, total = self.read_offsets(count)
        return BytesColumn(count, None, offsets, self.read_fixed(total))

    def read_nullable(self, count: int) -> BytesColumn:
        """Take a column that may hold nulls.

        Raises:
            Malformed: as the other reads.
        """
        validity = self.read_validity(count)
        offsets, total = self.read_offsets(count)
        return BytesColumn(count, validity, offsets, self.read_fixed(total))

    def read_headers(self, count: int) -> HeaderColumns:
        """Take the headers of `count` records.

        Raises:
            Malformed: as the other reads, or a name is not UTF-8.
        """
        starts, total = self.read_offsets(count)
        names = self.read_bytes(total)
        _check_utf8(names)
        return HeaderColumns(starts, names, self.read_nullable(total))


def _check_utf8(names: BytesColumn) -> None:
    """Check all names at once: their bytes together are UTF-8, and no offset is inside a character.

    Raises:
        Malformed: a string is not UTF-8.
    """
    try:
        if str(names.data, "utf-8").isascii():
            return
    except UnicodeDecodeError as error:
        raise Malformed(f"a header's name is not UTF-8: {error}") from error
    data = np.frombuffer(names.data, np.uint8)
    cuts = np.frombuffer(names.offsets, "<i4")
    if ((data[cuts[cuts < len(data)]] & 0xC0) == 0x80).any():
        raise Malformed("a header's name ends inside a character")
