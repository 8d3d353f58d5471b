"""The WAL's bytes: golden, round trips, every truncation and every bit flip refused."""

from __future__ import annotations

import dataclasses

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from cordwood.errors import BadSetting, ChecksumMismatch, Malformed
from cordwood.layout.wal_block import (
    WAL_BODY_BYTES_MAX,
    WAL_HEADER_BYTES,
    WAL_RECORD_HEADER_BYTES,
    WAL_UNIT_BYTES,
    WalHeader,
    WalKind,
    WalRecord,
    align_down,
    align_up,
    body_checksum,
    check_wal_capacity,
    pack_holes,
    pack_wal_header,
    pack_wal_record,
    unpack_holes,
    unpack_wal_header,
    unpack_wal_record,
    wal_position,
)

HEADER = WalHeader(
    owner=7,
    capacity=128 << 20,
    epoch=3,
    sequence=9,
    graceful=True,
    trim=8192,
    scan=8300,
    durable=12288,
    resume=4096,
    window=1 << 20,
    incarnation=2,
    salt=0xA1B2C3D4,
)
HEADER_GOLDEN = (
    "436f726457414c00"  # magic
    "0100" "00" "00"  # version, graceful, reserved
    "07000000"  # owner
    "0900000000000000"  # sequence
    "0300000000000000"  # epoch
    "0000000800000000"  # capacity
    "0020000000000000"  # trim
    "6c20000000000000"  # scan
    "0030000000000000"  # durable
    "0010000000000000"  # resume
    "0000100000000000"  # window
    "02000000"  # incarnation
    "d4c3b2a1"  # salt
)  # fmt: skip

RECORD = WalRecord(
    kind=WalKind.DATA,
    length=5,
    body_crc=0x11223344,
    offset=8192,
    durable=4096,
    incarnation=2,
    is_last=True,
)
RECORD_GOLDEN = (
    "43575231"  # magic
    "00" "01" "0000"  # kind, last of its block, reserved
    "05000000"  # length
    "44332211"  # body CRC
    "0020000000000000"  # offset
    "0010000000000000"  # durable
    "02000000"  # incarnation
)  # fmt: skip
SALT = 0xA1B2C3D4


def test_header_golden_bytes() -> None:
    packed = pack_wal_header(HEADER)
    assert len(packed) == WAL_HEADER_BYTES
    assert packed.hex() == HEADER_GOLDEN + "00" * 36 + "c69d4f73"
    assert unpack_wal_header(packed) == HEADER


def test_record_golden_bytes() -> None:
    packed = pack_wal_record(RECORD, SALT)
    assert len(packed) == WAL_RECORD_HEADER_BYTES
    assert packed.hex() == RECORD_GOLDEN + "bab35de2"
    assert unpack_wal_record(packed, 0, SALT) == RECORD
    assert unpack_wal_record(b"xyz" + packed, 3, SALT) == RECORD


def test_nothing_trimmed_and_ungraceful() -> None:
    fresh = WalHeader(owner=1, capacity=1 << 20, window=WAL_UNIT_BYTES)
    packed = pack_wal_header(fresh)
    assert packed[10] == 1
    assert packed[40:48] == b"\xff" * 8
    assert unpack_wal_header(packed + bytes(WAL_UNIT_BYTES - WAL_HEADER_BYTES)) == fresh


def test_header_truncations_and_flips_are_refused() -> None:
    packed = pack_wal_header(HEADER)
    for length in range(len(packed)):
        with pytest.raises(Malformed):
            unpack_wal_header(packed[:length])
    for bit in range(8 * len(packed)):
        flipped = bytearray(packed)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((Malformed, ChecksumMismatch)):
            unpack_wal_header(flipped)


def test_record_truncations_flips_and_salts_are_refused() -> None:
    packed = pack_wal_record(RECORD, SALT)
    for length in range(len(packed)):
        assert unpack_wal_record(packed[:length], 0, SALT) is None
    for bit in range(8 * len(packed)):
        flipped = bytearray(packed)
        flipped[bit // 8] ^= 1 << bit % 8
        assert unpack_wal_record(flipped, 0, SALT) is None
    assert unpack_wal_record(packed, 0, SALT + 1) is None
    assert unpack_wal_record(packed, -1, SALT) is None


@pytest.mark.parametrize(
    "change",
    [
        {"owner": 0},
        {"capacity": (128 << 20) + 1},
        {"capacity": 8192},
        {"capacity": 1 << 47},
        {"window": 0},
        {"window": 4095},
        {"window": 1 << 28},
        {"trim": -2},
        {"scan": 1 << 63},
    ],
)
def test_headers_that_no_writer_makes(change: dict[str, int]) -> None:
    with pytest.raises(Malformed):
        unpack_wal_header(pack_wal_header(dataclasses.replace(HEADER, **change)))  # type: ignore[arg-type]


def test_a_later_version_is_named() -> None:
    packed = bytearray(pack_wal_header(HEADER))
    packed[8] = 2
    packed[124:] = crc32c(bytes(packed[:124])).to_bytes(4, "little")
    with pytest.raises(Malformed, match="version 2"):
        unpack_wal_header(packed)


@pytest.mark.parametrize(
    "change",
    [
        {"length": WAL_BODY_BYTES_MAX + 1},
        {"durable": RECORD.offset + 1},
        {"kind": WalKind.PADDING},  # 8192 + 40 + 5 is no multiple of 4096
        {"offset": (1 << 63) - 20},
    ],
)
def test_records_that_no_writer_makes(change: dict[str, int]) -> None:
    record = RECORD._replace(**change)  # type: ignore[arg-type]
    assert unpack_wal_record(pack_wal_record(record, SALT), 0, SALT) is None


@pytest.mark.parametrize(("at", "value"), [(4, 4), (5, 2), (6, 1)])
def test_unknown_kinds_and_flags_are_no_record(at: int, value: int) -> None:
    packed = bytearray(pack_wal_record(RECORD, SALT))
    packed[at] = value
    packed[36:] = crc32c(bytes(packed[:36]), SALT).to_bytes(4, "little")
    assert unpack_wal_record(packed, 0, SALT) is None


def test_padding_may_be_longer_than_any_body() -> None:
    record = WalRecord(WalKind.PADDING, (1 << 28) - 40, 0, 4096, 0, 1, True)
    assert unpack_wal_record(pack_wal_record(record, SALT), 0, SALT) == record
    assert record.stop == 4096 + (1 << 28)


@given(
    st.builds(
        WalHeader,
        owner=st.integers(1, (1 << 32) - 1),
        capacity=st.integers(19, 1 << 34).map(lambda units: units * WAL_UNIT_BYTES),
        epoch=st.integers(0, (1 << 64) - 1),
        sequence=st.integers(0, (1 << 64) - 1),
        graceful=st.booleans(),
        trim=st.integers(-1, (1 << 63) - 1),
        scan=st.integers(0, (1 << 63) - 1),
        durable=st.integers(0, (1 << 63) - 1),
        resume=st.integers(0, (1 << 63) - 1),
        window=st.integers(1, 16).map(lambda units: units * WAL_UNIT_BYTES),
        incarnation=st.integers(0, (1 << 32) - 1),
        salt=st.integers(0, (1 << 32) - 1),
    )
)
def test_headers_come_back(header: WalHeader) -> None:
    assert unpack_wal_header(pack_wal_header(header)) == header


@given(st.binary(max_size=200), st.integers(0, 50))
def test_random_bytes_are_neither(data: bytes, at: int) -> None:
    assert unpack_wal_record(data, at, SALT) is None
    with pytest.raises((Malformed, ChecksumMismatch)):
        unpack_wal_header(data)


@given(st.integers(0, 1 << 40), st.integers(16, 1 << 20))
def test_places_on_disk(offset: int, units: int) -> None:
    ring = units * WAL_UNIT_BYTES
    assert align_down(offset) <= offset <= align_up(offset) < align_down(offset) + 2 * 4096
    assert align_up(align_down(offset)) == align_down(offset)
    assert 8192 <= wal_position(offset, ring) < 8192 + ring
    assert wal_position(offset + 3 * ring, ring) == wal_position(offset, ring)
    assert wal_position(align_up(offset), ring) % WAL_UNIT_BYTES == 0


def test_capacity_is_checked() -> None:
    check_wal_capacity(8192 + (64 << 10))
    for capacity in (0, 8192, 8192 + (60 << 10), (1 << 20) + 512, 1 << 47):
        with pytest.raises(BadSetting):
            check_wal_capacity(capacity)


@given(st.lists(st.binary(max_size=20)))
def test_body_checksum_is_that_of_the_joined_parts(parts: list[bytes]) -> None:
    assert body_checksum([memoryview(part) for part in parts]) == crc32c(b"".join(parts))


def test_holes_come_back_and_odd_ones_are_refused() -> None:
    holes = [(0, 4096), (8192, 9000)]
    assert unpack_holes(pack_holes(holes)) == holes
    assert unpack_holes(b"") == []
    with pytest.raises(Malformed):
        unpack_holes(pack_holes(holes)[:-1])
    with pytest.raises(Malformed):
        unpack_holes(pack_holes([(5, 5)]))
