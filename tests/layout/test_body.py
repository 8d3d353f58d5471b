"""Bodies: golden bytes, round trips, and nothing but Corrupt for bytes that are wrong."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import lz4.block
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.block import BlockHeader, BlockKind, Codec, Record
from cordwood.errors import BadSetting, ChecksumMismatch, Corrupt, Malformed, RecordTooLarge
from cordwood.layout.block_header import pack_header, unpack_header
from cordwood.layout.body import (
    Body,
    compress,
    encode_body,
    inflate,
    open_body,
    parse_body,
    seal_body,
)
from cordwood.layout.limits import BLOCK_RECORDS_MAX, BODY_BYTES_MAX, RECORD_BYTES_MAX
from cordwood.lsn import Lsn, make_lsn

FIRST = make_lsn(3, 40)
APPENDED_US = 1_700_000_000_000_123

Headers = tuple[tuple[str, bytes | None], ...]
Row = tuple[bytes, bytes | None, int, Headers]

GOLDEN_ONE = bytes.fromhex(
    "01000000" "01" "00" "0000" "8877665544332211"  # one record, its timestamp
    "00000000" "05000000"  # value offsets
    "68656c6c6f"
)  # fmt: skip
GOLDEN_ALL = bytes.fromhex(
    "03000000" "01" "07" "0000" "0a00000000000000"  # three records, all columns
    "00000000" "01000000" "01000000" "03000000"  # value offsets
    "0a00000000000000" "0b00000000000000" "ffffffffffffffff"  # timestamps
    "05" "00000000000000"  # keys: 0 and 2 are valid
    "00000000" "02000000" "02000000" "02000000"  # key offsets
    "6b31" "000000000000"
    "00000000" "02000000" "02000000" "03000000"  # headers of each record
    "00000000" "01000000" "03000000" "03000000"  # name offsets
    "61" "c3a9" "0000000000"
    "06" "00000000000000"  # header values: 1 and 2 are valid
    "00000000" "00000000" "02000000" "02000000"  # header value offsets
    "7677" "000000000000"
    "78" "797a"
)  # fmt: skip
ROWS_ALL: list[Row] = [
    (b"x", b"k1", 10, (("a", None), ("é", b"vw"))),
    (b"", None, 11, ()),
    (b"yz", b"", -1, (("", b""),)),
]


def short_id(value: object) -> str | None:
    """Name a test by the size of its bytes, not by the bytes."""
    return f"{len(value)}B" if isinstance(value, bytes) else None


def encode(rows: Sequence[Row]) -> bytes:
    values, keys, stamps, headers = zip(*rows, strict=True)
    return encode_body(values, timestamps_us=stamps, keys=keys, headers=headers)


def block_of(raw: bytes, codec: Codec = Codec.NONE) -> tuple[BlockHeader, bytes]:
    """Seal a body and make the header that goes with it."""
    stored, stored_crc, raw_crc = seal_body(raw, codec)
    header = BlockHeader(
        log=1,
        first=FIRST,
        count=struct.unpack_from("<I", raw)[0],
        append_time_us=APPENDED_US,
        codec=codec,
        stored_bytes=len(stored),
        raw_bytes=len(raw),
        stored_crc=stored_crc,
        raw_crc=raw_crc,
    )
    return header, stored


def read_all(body: Body) -> list[Row]:
    """Read a body one value at a time, and check that `records` agrees."""
    rows = [
        (body.value(i), body.key(i), body.timestamp_us(i), body.headers(i))
        for i in range(body.count)
    ]
    assert body.records(FIRST, APPENDED_US) == [
        Record(Lsn(FIRST + i), value, key, stamp, headers, APPENDED_US)
        for i, (value, key, stamp, headers) in enumerate(rows)
    ]
    return rows


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
row_headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
int64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def row_lists(draw: st.DrawFn) -> list[Row]:
    """Rows in which each column is as often absent or constant as not."""
    keys = draw(st.sampled_from([st.none(), st.binary(max_size=9), st.none() | st.binary()]))
    headers = draw(st.sampled_from([st.just(()), row_headers]))
    stamps = draw(st.sampled_from([st.just(draw(int64)), int64]))
    rows = st.tuples(st.binary(max_size=20), keys, stamps, headers)
    # Past 32 offsets numpy checks them, below plain Python does.
    return draw(st.lists(rows, min_size=1, max_size=draw(st.sampled_from([1, 9, 70]))))


def test_golden_bytes() -> None:
    assert encode_body([b"hello"], timestamps_us=0x1122334455667788) == GOLDEN_ONE
    assert read_all(parse_body(GOLDEN_ONE)) == [(b"hello", None, 0x1122334455667788, ())]
    assert encode(ROWS_ALL) == GOLDEN_ALL
    assert read_all(parse_body(GOLDEN_ALL)) == ROWS_ALL


@settings(deadline=None)
@given(row_lists(), st.sampled_from(Codec), st.booleans(), st.data())
def test_round_trip(rows: list[Row], codec: Codec, verify: bool, data: st.DataObject) -> None:
    header, stored = block_of(encode(rows), codec)
    # One byte off, as a body lies in a frame.
    body = open_body(header, memoryview(b"-" + stored)[1:], verify=verify)
    assert read_all(body) == rows
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    assert (
        body.records(FIRST, APPENDED_US, start, stop)
        == body.records(FIRST, APPENDED_US)[start:stop]
    )
    for column in (body.values, body.keys):
        if column is not None:
            assert column.count == len(rows)


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=9))
def test_columns_without_news_are_left_out(values: list[bytes]) -> None:
    plain = encode_body(values, timestamps_us=5)
    count = len(values)
    assert plain == encode_body(
        values, timestamps_us=[5] * count, keys=[None] * count, headers=[()] * count
    )
    assert plain == encode_body([memoryview(v) for v in values], timestamps_us=5)


def test_records_are_frozen_and_typed_however_they_were_made() -> None:
    for count in (1, 3, 200):
        record = parse_body(encode_body([b"v"] * count, timestamps_us=5)).records(FIRST, 6)[-1]
        assert type(record.lsn) is Lsn
        assert str(record.lsn) == f"e3n{40 + count - 1}"
        assert type(record.value) is bytes
        assert hash(record) == hash(Record(record.lsn, b"v", None, 5, (), 6))
        with pytest.raises(AttributeError):
            record.value = b"other"  # type: ignore[misc]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("raw", [GOLDEN_ONE, GOLDEN_ALL], ids=["one", "all"])
def test_every_truncation_and_bit_flip_of_a_block_is_refused(raw: bytes, codec: Codec) -> None:
    header, stored = block_of(raw, codec)
    packed = pack_header(header) + stored

    def read(block: bytes | bytearray) -> Body:
        return open_body(unpack_header(block), memoryview(block)[100:])

    assert read(packed).count == header.count
    for size in range(len(packed)):
        with pytest.raises(Malformed):
            read(packed[:size])
    with pytest.raises(Malformed):
        read(packed + b"\0")
    for bit in range(8 * len(packed)):
        flipped = bytearray(packed)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises((Malformed, ChecksumMismatch)):
            read(flipped)


def survive(raw: bytes) -> bool:
    """Parse bytes that no checksum guards: Corrupt, or a body that can be read in full."""
    try:
        body = parse_body(raw)
    except Corrupt:
        return False
    assert len(read_all(body)) == body.count
    return True


def test_damage_under_a_right_checksum_never_escapes() -> None:
    wide = encode([(b"v" * (i % 3), b"k", i, (("é", None),)) for i in range(40)])
    # Of the wide body, for numpy's checks, every 7th bit: 0.3 s and not 2.
    for raw, step in ((GOLDEN_ONE, 1), (GOLDEN_ALL, 1), (wide, 7)):
        assert not any(survive(raw[:size]) for size in range(len(raw)))
        for bit in range(0, 8 * len(raw), step):
            flipped = bytearray(raw)
            flipped[bit >> 3] ^= 1 << (bit & 7)
            survive(bytes(flipped))


@settings(deadline=None)
@given(st.binary(max_size=120), st.integers(0, 3), st.integers(0, 7))
def test_random_bodies_never_escape(noise: bytes, count: int, flags: int) -> None:
    survive(noise)
    survive(struct.pack("<IBBHq", count, 1, flags, 0, 5) + noise)


@pytest.mark.parametrize(
    ("offset", "layout", "value", "why"),
    [
        (0, "<I", 0, "0 records"),
        (0, "<I", BLOCK_RECORDS_MAX + 1, "65537 records"),
        (0, "<I", BLOCK_RECORDS_MAX, "column ends"),
        (4, "<B", 2, "version 2"),
        (5, "<B", 8, "flags 0x8"),
        (6, "<H", 1, "reserved 1"),
        (8, "<q", 11, "differs"),
        (16, "<i", 1, "rise from 0"),
        (20, "<i", -1, "rise from 0"),
        (24, "<i", 4, "rise from 0"),
        (28, "<i", 4, "values of 4 bytes"),
        (28, "<i", 2, "values of 2 bytes"),
        (28, "<i", 2**31 - 1, "values of"),
        (56, "<B", 0b1101, "past its end"),
        (57, "<B", 1, "padding"),
        (76, "<i", 2**31 - 1, "column ends"),
        (100, "<i", 2**31 - 1, "column ends"),
        (120, "<B", 0xFF, "not UTF-8"),
        (108, "<i", 2, "inside a character"),
    ],
)
def test_golden_body_with_a_wrong_value(offset: int, layout: str, value: int, why: str) -> None:
    raw = bytearray(GOLDEN_ALL)
    struct.pack_into(layout, raw, offset, value)
    with pytest.raises(Malformed, match=why):
        parse_body(bytes(raw))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"kind": BlockKind.HOLE}, Malformed),
        ({"count": 4}, Malformed),
        ({"stored_bytes": 5}, Malformed),
        ({"raw_bytes": 5}, Malformed),
        ({"codec": Codec.LZ4}, Malformed),
        ({"stored_crc": 1}, ChecksumMismatch),
        ({"raw_crc": 1}, Malformed),
    ],
)
def test_header_that_does_not_fit_its_body(change: dict[str, int], error: type[Corrupt]) -> None:
    header, stored = block_of(GOLDEN_ALL)
    with pytest.raises(error):
        open_body(replace(header, **change), stored)  # type: ignore[arg-type]


def test_compressed_body_whose_raw_crc_is_wrong() -> None:
    header, stored = block_of(GOLDEN_ALL, Codec.ZSTD)
    with pytest.raises(ChecksumMismatch, match="uncompressed body of log 1 at e3n40"):
        open_body(replace(header, raw_crc=1), stored)


def zstd_frame(raw: bytes, *, sized: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=sized).compress(raw)


def zstd_claiming(size: int) -> bytes:
    """Make a frame header that claims `size` bytes, over one empty last block."""
    return b"\x28\xb5\x2f\xfd" + b"\xe0" + size.to_bytes(8, "little") + b"\x01\0\0"


@pytest.mark.parametrize(
    ("codec", "stored"),
    [
        (Codec.NONE, bytes(999)),
        (Codec.NONE, bytes(1001)),
        (Codec.ZSTD, zstd_frame(bytes(BODY_BYTES_MAX))),  # a bomb: 1,055 bytes for 32 MiB
        (Codec.ZSTD, zstd_claiming(1 << 40)),
        (Codec.ZSTD, zstd_claiming(1000)),  # claims what the header says, holds nothing
        (Codec.ZSTD, zstd_frame(bytes(1000), sized=False)),
        (Codec.ZSTD, zstd_frame(bytes(1000)) + b"more"),
        (Codec.ZSTD, zstd_frame(bytes(500)) + zstd_frame(bytes(500))),
        (Codec.ZSTD, zstd_frame(bytes(1000))[:-1]),
        (Codec.ZSTD, b""),
        (Codec.LZ4, lz4.block.compress(bytes(BODY_BYTES_MAX), store_size=False)),
        (Codec.LZ4, lz4.block.compress(bytes(999), store_size=False)),
        (Codec.LZ4, lz4.block.compress(bytes(1000))),  # with a size prefix
        (Codec.LZ4, b"\xff\xff\xff\x7f" + lz4.block.compress(bytes(1000), store_size=False)),
        (Codec.LZ4, b""),
    ],
    ids=short_id,
)
def test_inflate_refuses_what_is_not_exactly_as_long_as_said(codec: Codec, stored: bytes) -> None:
    with pytest.raises(Malformed):
        inflate(stored, codec, 1000)


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.LZ4])
def test_inflate_allocates_no_more_than_the_header_says(codec: Codec) -> None:
    bomb = compress(bytes(BODY_BYTES_MAX + 1), codec)
    tracemalloc.start()
    try:
        for raw_bytes in (1000, BODY_BYTES_MAX + 1):
            with pytest.raises(Malformed):
                inflate(bomb, codec, raw_bytes)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("raw_bytes", [-1, BODY_BYTES_MAX + 1, 1 << 40])
def test_inflate_refuses_sizes_over_the_limit(raw_bytes: int) -> None:
    for codec in Codec:
        with pytest.raises(Malformed):
            inflate(compress(b"", codec), codec, raw_bytes)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60), st.integers(0, 60))
def test_random_streams_never_escape(noise: bytes, raw_bytes: int) -> None:
    for codec in Codec:
        for stored in (noise, b"\x28\xb5\x2f\xfd" + noise, memoryview(noise)):
            with suppress(Malformed):
                assert len(inflate(stored, codec, raw_bytes)) == raw_bytes


@given(st.binary(max_size=2000), st.sampled_from(Codec))
def test_seal_and_inflate(raw: bytes, codec: Codec) -> None:
    stored, stored_crc, raw_crc = seal_body(raw, codec)
    assert (stored_crc, raw_crc) == (crc32c(stored), crc32c(raw))
    assert inflate(memoryview(stored), codec, len(raw)) == raw


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.LZ4])
def test_compression_pays_on_text(codec: Codec) -> None:
    rng = random.Random(1)
    lines = [
        b"GET /items/%d 200 %dms" % (rng.randrange(999), rng.randrange(99)) for _ in range(999)
    ]
    raw = encode_body(lines, timestamps_us=5)
    assert len(compress(raw, codec)) < 0.7 * len(raw)


@pytest.mark.parametrize(
    ("encoding", "error"),
    [
        (lambda: encode_body([], timestamps_us=5), BadSetting),
        (lambda: encode_body([b""], timestamps_us=2**63), BadSetting),
        (lambda: encode_body([b"", b""], timestamps_us=2**63), BadSetting),
        (lambda: encode_body([b"", b""], timestamps_us=[5, 2**63]), BadSetting),
        (lambda: encode_body([b""], timestamps_us=[5, 6]), BadSetting),
        (lambda: encode_body([b""], timestamps_us=5, keys=[]), BadSetting),
        (lambda: encode_body([b""], timestamps_us=5, headers=[(), ()]), BadSetting),
        (lambda: encode_body([b""], timestamps_us=5, headers=[[("\ud800", b"")]]), BadSetting),
        (lambda: encode_body([memoryview(bytes(8)).cast("q")], timestamps_us=5), BadSetting),
        (lambda: encode_body([b"", memoryview(bytes(8)).cast("q")], timestamps_us=5), BadSetting),
        (
            lambda: encode_body([b""], timestamps_us=5, keys=[memoryview(bytes(8)).cast("q")]),
            BadSetting,
        ),
        (lambda: encode_body([b""] * (BLOCK_RECORDS_MAX + 1), timestamps_us=5), RecordTooLarge),
        (lambda: encode_body([bytes(BODY_BYTES_MAX)], timestamps_us=5), RecordTooLarge),
        (lambda: encode_body([bytes(1 << 20)] * 32, timestamps_us=5), RecordTooLarge),
        (lambda: encode_body([bytes(1 << 20)] * 33, timestamps_us=5), RecordTooLarge),
    ],
)
def test_encode_refuses(encoding: Callable[[], bytes], error: type[Exception]) -> None:
    with pytest.raises(error):
        encoding()


def test_largest_record_and_largest_count_fit() -> None:
    raw = encode_body(
        [bytes(RECORD_BYTES_MAX)], timestamps_us=5, keys=[b""], headers=[[("", None)] * 8000]
    )
    assert len(raw) <= BODY_BYTES_MAX
    assert len(parse_body(raw).headers(0)) == 8000
    raw = encode_body([b""] * BLOCK_RECORDS_MAX, timestamps_us=5)
    assert parse_body(raw).count == BLOCK_RECORDS_MAX
