"""Block headers and envelopes: golden bytes, round trips, and refusal of all else."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.block import BlockHeader, BlockKind, Codec, Envelope, EnvelopeFlag
from cordwood.errors import BadSetting, ChecksumMismatch, Corrupt, Malformed
from cordwood.layout.block_header import (
    ENVELOPE_BYTES_MAX,
    ENVELOPE_FIXED_BYTES,
    HEADER_BYTES,
    pack_envelope,
    pack_header,
    pack_header_fields,
    peek_stored_bytes,
    unpack_envelope,
    unpack_header,
    unpack_header_fields,
)
from cordwood.layout.limits import BLOCK_RECORDS_MAX, BODY_BYTES_MAX
from cordwood.lsn import EPOCH_MAX, ESN_ISSUED_MAX, ESN_MAX, LSN_MAX, make_lsn

HEADER = BlockHeader(
    log=0x0102030405060708,
    first=make_lsn(7, 100),
    count=3,
    append_time_us=1_700_000_000_000_000,
    kind=BlockKind.DATA,
    codec=Codec.ZSTD,
    producer=0x1112131415161718,
    producer_epoch=0x21222324,
    producer_sequence=0x3132333435363738,
    group_first=make_lsn(7, 98),
    group_last=make_lsn(7, 105),
    stored_bytes=0x414243,
    raw_bytes=0x515253,
    stored_crc=0x61626364,
    raw_crc=0x71727374,
)
GOLDEN_HEADER = bytes.fromhex(
    "43574231" "0100" "00" "01" "0807060504030201" "6400000007000000" "03000000" "00000000"
    "00401e18240a0600" "1817161514131211" "24232221" "00000000" "3837363534333231"
    "6200000007000000" "6900000007000000" "43424100" "53525100" "64636261" "74737271"
    "60367d87"
)  # fmt: skip

ENVELOPE = Envelope(
    copyset=(3, 1, 0xFFFFFFFF),
    wave=2,
    seal_epoch=9,
    lng=make_lsn(7, 99),
    flags=EnvelopeFlag.BY_RECOVERY,
)
GOLDEN_ENVELOPE = bytes.fromhex(
    "0100" "01" "03" "02000000" "09000000" "6300000007000000" "03000000" "01000000" "ffffffff"
    "4fc27dbc"
)  # fmt: skip

BRIDGE = BlockHeader(
    log=5, first=make_lsn(2, 10), count=ESN_MAX - 9, append_time_us=0, kind=BlockKind.BRIDGE,
    group_first=make_lsn(2, 10), group_last=make_lsn(2, ESN_MAX),
)  # fmt: skip


def resealed(packed: bytes, offset: int, layout: str, value: int) -> bytes:
    """Write one field into a header and make its checksum right again."""
    covered = bytearray(packed[:-4])
    struct.pack_into(layout, covered, offset, value)
    return bytes(covered) + struct.pack("<I", crc32c(covered))


@st.composite
def headers(draw: st.DrawFn) -> BlockHeader:
    kind = draw(st.sampled_from(BlockKind))
    epoch = draw(st.integers(1, EPOCH_MAX))
    if kind is BlockKind.DATA:
        count = draw(st.integers(1, BLOCK_RECORDS_MAX))
        esn = draw(st.integers(1, ESN_ISSUED_MAX + 1 - count))
    else:
        esn = draw(st.integers(1, ESN_MAX))
        count = ESN_MAX + 1 - esn
        if kind is BlockKind.HOLE:
            count = draw(st.integers(1, count))
    last_esn = esn + count - 1
    header = BlockHeader(
        log=draw(st.integers(1, 2**62 - 1)),
        first=make_lsn(epoch, esn),
        count=count,
        append_time_us=draw(st.integers(-(2**63), 2**63 - 1)),
        kind=kind,
        producer=draw(st.integers(0, 2**64 - 1)),
        producer_epoch=draw(st.integers(0, 2**32 - 1)),
        producer_sequence=draw(st.integers(0, 2**64 - 1)),
        group_first=make_lsn(epoch, draw(st.integers(1, esn))),
        group_last=make_lsn(epoch, draw(st.integers(last_esn, ESN_MAX))),
    )
    if kind is not BlockKind.DATA:
        return header
    return replace(
        header,
        codec=draw(st.sampled_from(Codec)),
        stored_bytes=draw(st.integers(0, BODY_BYTES_MAX)),
        raw_bytes=draw(st.integers(0, BODY_BYTES_MAX)),
        stored_crc=draw(st.integers(0, 2**32 - 1)),
        raw_crc=draw(st.integers(0, 2**32 - 1)),
    )


envelopes = st.builds(
    Envelope,
    copyset=st.lists(st.integers(1, 2**32 - 1), min_size=1, max_size=16, unique=True).map(tuple),
    wave=st.integers(1, 2**32 - 1),
    seal_epoch=st.integers(0, EPOCH_MAX),
    lng=st.integers(0, LSN_MAX),
    flags=st.integers(0, 15),
)


def test_header_golden_bytes() -> None:
    assert pack_header(HEADER) == GOLDEN_HEADER
    assert unpack_header(GOLDEN_HEADER) == HEADER
    assert len(GOLDEN_HEADER) == HEADER_BYTES


def test_envelope_golden_bytes() -> None:
    assert pack_envelope(ENVELOPE) == GOLDEN_ENVELOPE
    assert unpack_envelope(GOLDEN_ENVELOPE) == (ENVELOPE, len(GOLDEN_ENVELOPE))
    assert len(GOLDEN_ENVELOPE) == ENVELOPE_FIXED_BYTES + 4 * 3


@given(headers(), st.integers(0, 9))
def test_header_round_trip(header: BlockHeader, offset: int) -> None:
    packed = pack_header(header)
    fields = unpack_header_fields(packed)
    assert pack_header_fields(*fields) == packed
    for buffer in (bytes(offset) + packed + b"more", bytearray(offset) + packed):
        assert unpack_header(buffer, offset) == header
        assert unpack_header(memoryview(buffer), offset) == header
        assert peek_stored_bytes(buffer, offset) == header.stored_bytes


@given(envelopes, st.integers(0, 9))
def test_envelope_round_trip(envelope: Envelope, offset: int) -> None:
    packed = pack_envelope(envelope)
    assert len(packed) <= ENVELOPE_BYTES_MAX
    buffer = memoryview(bytes(offset) + packed + b"more")
    assert unpack_envelope(buffer, offset) == (envelope, offset + len(packed))


def test_lone_block_is_its_own_group() -> None:
    header = unpack_header(pack_header(replace(HEADER, group_first=0, group_last=0)))
    assert (header.group_first, header.group_last) == (HEADER.first, HEADER.last)


def test_enums_come_back_as_enums() -> None:
    header = unpack_header(GOLDEN_HEADER)
    assert header.kind is BlockKind.DATA
    assert header.codec is Codec.ZSTD


@pytest.mark.parametrize("packed", [GOLDEN_HEADER, pack_header(BRIDGE)])
def test_every_header_truncation_and_bit_flip_is_refused(packed: bytes) -> None:
    for size in range(len(packed)):
        with pytest.raises(Malformed, match="100 bytes"):
            unpack_header(packed[:size])
    for bit in range(8 * len(packed)):
        flipped = bytearray(packed)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises((Malformed, ChecksumMismatch)):
            unpack_header(flipped)


def test_every_envelope_truncation_and_bit_flip_is_refused() -> None:
    for size in range(len(GOLDEN_ENVELOPE)):
        with pytest.raises(Malformed, match="cut short"):
            unpack_envelope(GOLDEN_ENVELOPE[:size])
    for bit in range(8 * len(GOLDEN_ENVELOPE)):
        flipped = bytearray(GOLDEN_ENVELOPE)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises((Malformed, ChecksumMismatch)):
            unpack_envelope(flipped)


@pytest.mark.parametrize(
    ("offset", "layout", "value", "why"),
    [
        (0, "<I", 0, "magic"),
        (4, "<H", 2, "version 2"),
        (6, "<B", 3, "kind 3"),
        (6, "<B", BlockKind.HOLE, "has a body"),
        (6, "<B", BlockKind.BRIDGE, "ends before"),
        (7, "<B", 3, "codec 3"),
        (8, "<Q", 0, "log number"),
        (8, "<Q", 2**62, "log number"),
        (16, "<Q", make_lsn(0, 100), "lsn is out of range"),
        (16, "<Q", make_lsn(7, 0), "lsn is out of range"),
        (16, "<Q", LSN_MAX + 1, "lsn is out of range"),
        (16, "<Q", LSN_MAX - 1, "lsn is out of range"),
        (16, "<Q", make_lsn(7, ESN_MAX - 1), "crosses the end"),
        (16, "<Q", make_lsn(7, ESN_MAX - 2), "reserved for the bridge"),
        (24, "<I", 0, "count is 0"),
        (24, "<I", BLOCK_RECORDS_MAX + 1, "over 65536"),
        (24, "<I", ESN_MAX, "crosses the end"),
        (28, "<I", 2, "flags"),
        (52, "<I", 1, "key bits"),
        (64, "<Q", make_lsn(7, 101), "contain"),
        (64, "<Q", make_lsn(7, 0), "leaves the epoch"),
        (64, "<Q", make_lsn(6, 1), "leaves the epoch"),
        (72, "<Q", make_lsn(7, 101), "contain"),
        (72, "<Q", make_lsn(8, 1), "leaves the epoch"),
        (80, "<I", BODY_BYTES_MAX + 1, "is over"),
        (84, "<I", BODY_BYTES_MAX + 1, "is over"),
    ],
)
def test_header_with_a_right_checksum_and_a_wrong_value(
    offset: int, layout: str, value: int, why: str
) -> None:
    with pytest.raises(Malformed, match=why):
        unpack_header(resealed(GOLDEN_HEADER, offset, layout, value))


@pytest.mark.parametrize("offset", [7, 80, 84, 88, 92])
def test_bridge_has_no_trace_of_a_body(offset: int) -> None:
    with pytest.raises(Malformed, match="has a body"):
        unpack_header(resealed(pack_header(BRIDGE), offset, "<B", 1))


@pytest.mark.parametrize(
    ("offset", "layout", "value", "why"),
    [
        (0, "<H", 2, "version 2"),
        (2, "<B", 16, "flags"),
        (3, "<B", 0, "0 copies"),
        (3, "<B", 17, "17 copies"),
        (4, "<I", 0, "wave"),
        (8, "<I", EPOCH_MAX + 1, "seal epoch"),
        (12, "<Q", LSN_MAX + 1, "lng"),
        (20, "<I", 0, "node 0"),
        (20, "<I", 1, "twice"),
    ],
)
def test_envelope_with_a_right_checksum_and_a_wrong_value(
    offset: int, layout: str, value: int, why: str
) -> None:
    with pytest.raises(Malformed, match=why):
        unpack_envelope(resealed(GOLDEN_ENVELOPE, offset, layout, value))


@settings(max_examples=300)
@given(st.binary(max_size=140), st.booleans())
def test_random_bytes_are_refused(noise: bytes, sealed: bool) -> None:
    header = b"CWB1\x01\x00" + noise.ljust(90, b"\0")[:90]
    header += struct.pack("<I", crc32c(header)) if sealed else b""
    with pytest.raises(Corrupt):
        unpack_header(noise)
    with suppress(Corrupt):
        assert pack_header(unpack_header(header)) == header
    with pytest.raises(Corrupt):
        unpack_envelope(noise)


def test_values_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadSetting):
        pack_header(replace(HEADER, producer=2**64))
    with pytest.raises(BadSetting):
        pack_envelope(replace(ENVELOPE, wave=2**32))
    with pytest.raises(BadSetting):
        pack_envelope(replace(ENVELOPE, copyset=()))
    with pytest.raises(BadSetting):
        pack_envelope(replace(ENVELOPE, copyset=tuple(range(1, 18))))
