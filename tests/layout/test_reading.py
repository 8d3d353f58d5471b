"""Payloads of the read path: golden bytes, round trips, and refusal of all that is damaged."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_damage import damaged, only_ours, truncations

from cordwood.block import BlockHeader, Envelope
from cordwood.errors import Malformed
from cordwood.layout.block_header import pack_envelope, pack_header
from cordwood.layout.reading import (
    BLOCKS_HEAD_BYTES,
    BlocksHead,
    GapRange,
    NodeGap,
    OneCopy,
    ReadRequest,
    ReadStatus,
    blocks_head,
    pack_gaps,
    pack_read,
    pack_reading,
    pack_stop,
    pack_window,
    read_blocks_frame,
    read_gaps,
    read_heads_frame,
    read_read,
    read_reading,
    read_shared_frame,
    read_stop,
    read_window,
    shared_head,
    shared_streams,
)
from cordwood.lsn import LSN_MAX, make_lsn

REQUEST = ReadRequest(
    stream=0x01020304,
    log=0x1112131415161718,
    start=make_lsn(1, 2),
    until=make_lsn(3, 4),
    window_high=make_lsn(5, 6),
    bytes_limit=0x2122232425262728,
    digest=True,
    version=0x31323334,
)
ONE = replace(
    REQUEST,
    digest=False,
    one_copy=OneCopy(2, 3, 0x4142434445464748, (7, 0x51525354), "eu"),
)
GOLDEN_READ = bytes.fromhex(
    "04030201" "01000000" "1817161514131211" "0200000001000000" "0400000003000000"
    "0600000005000000" "2827262524232221" "34333231" "00000000" "0000000000000000"
    "0000000000000000"
)  # fmt: skip
GOLDEN_ONE = bytes.fromhex(
    "04030201" "02000000" "1817161514131211" "0200000001000000" "0400000003000000"
    "0600000005000000" "2827262524232221" "34333231" "02" "03" "0200" "4847464544434241"
    "0200" "0000" "00000000" "07000000" "54535251" "6575"
)  # fmt: skip
PICKED = replace(ONE, heads_only=True, keys=0x80000001)
GOLDEN_PICKED = bytes.fromhex(
    "04030201" "0e000000" "1817161514131211" "0200000001000000" "0400000003000000"
    "0600000005000000" "2827262524232221" "34333231" "02" "03" "0200" "4847464544434241"
    "0200" "0000" "01000080" "07000000" "54535251" "6575"
)  # fmt: skip
TOKEN = replace(ONE, token="secrét")
GOLDEN_TOKEN = bytes.fromhex(
    "04030201" "02000000" "1817161514131211" "0200000001000000" "0400000003000000"
    "0600000005000000" "2827262524232221" "34333231" "02" "03" "0200" "4847464544434241"
    "0200" "0700" "00000000" "07000000" "54535251" "6575" "73656372c3a974"
)  # fmt: skip
GAPS = [
    GapRange(make_lsn(1, 2), make_lsn(1, 3), NodeGap.CHECKSUM_FAIL),
    GapRange(make_lsn(1, 5), make_lsn(2, 1), NodeGap.FILTERED),
]
GOLDEN_GAPS = bytes.fromhex(
    "04030201" "02000000" "0200000001000000" "0300000001000000" "01000000" "00000000"
    "0500000001000000" "0100000002000000" "02000000" "00000000"
)  # fmt: skip
GOLDEN_READING = bytes.fromhex("0403020102000000020000000100000001000000010000003433323100000000")
GOLDEN_WINDOW = bytes.fromhex("040302010000000006000000050000002827262524232221")
GOLDEN_STOP = bytes.fromhex("0403020100000000")
GOLDEN_HEAD = bytes.fromhex("0403020101000000040000000300000002000000010000000300000001000000")

BLOCK = (
    pack_header(
        BlockHeader(
            5, make_lsn(1, 1), 1, 0, stored_bytes=4, raw_bytes=4,
            stored_crc=crc32c(b"body"), raw_crc=crc32c(b"body"),
        )
    )
    + pack_envelope(Envelope((1, 2)))
    + b"body"
)  # fmt: skip
BLOCKS = GOLDEN_HEAD + BLOCK
SHARED = b"\2\0\0\0" + GOLDEN_HEAD[4:] + BLOCK + b"\7\0\0\0\x09\0\0\0"

lsns = st.integers(0, LSN_MAX)
numbers = st.integers(0, 2**32 - 1)


def test_golden_bytes() -> None:
    assert pack_read(REQUEST) == GOLDEN_READ
    assert read_read(memoryview(GOLDEN_READ)) == REQUEST
    assert pack_read(ONE) == GOLDEN_ONE
    assert read_read(memoryview(GOLDEN_ONE)) == ONE
    assert pack_read(PICKED) == GOLDEN_PICKED
    assert read_read(memoryview(GOLDEN_PICKED)) == PICKED
    assert pack_read(TOKEN) == GOLDEN_TOKEN
    assert read_read(memoryview(GOLDEN_TOKEN)) == TOKEN
    assert pack_gaps(0x01020304, GAPS) == GOLDEN_GAPS
    assert read_gaps(memoryview(GOLDEN_GAPS)) == (0x01020304, GAPS)
    damaged = ReadStatus.DAMAGED
    assert (
        pack_reading(0x01020304, damaged, make_lsn(1, 2), 0x31323334, make_lsn(1, 1))
        == GOLDEN_READING
    )
    assert read_reading(memoryview(GOLDEN_READING)) == (
        0x01020304, damaged, make_lsn(1, 2), 0x31323334, make_lsn(1, 1),
    )  # fmt: skip
    assert pack_window(0x01020304, make_lsn(5, 6), 0x2122232425262728) == GOLDEN_WINDOW
    assert read_window(memoryview(GOLDEN_WINDOW)) == (
        0x01020304, make_lsn(5, 6), 0x2122232425262728,
    )  # fmt: skip
    assert pack_stop(0x01020304) == GOLDEN_STOP
    assert read_stop(memoryview(GOLDEN_STOP)) == 0x01020304
    head = BlocksHead(0x01020304, 1, make_lsn(3, 4), make_lsn(1, 2), make_lsn(1, 3))
    assert blocks_head(head) == GOLDEN_HEAD
    assert len(GOLDEN_HEAD) == BLOCKS_HEAD_BYTES


@given(
    st.builds(
        ReadRequest,
        stream=numbers,
        log=st.integers(1, 2**62 - 1),
        start=lsns,
        until=lsns,
        window_high=lsns,
        bytes_limit=st.integers(0, 2**64 - 1),
        digest=st.just(False),
        heads_only=st.booleans(),
        keys=st.none() | numbers,
        version=numbers,
        one_copy=st.none()
        | st.builds(
            OneCopy,
            shuffle=st.integers(0, 2),
            copies=st.integers(0, 255),
            seed=st.integers(0, 2**64 - 1),
            known_down=st.sets(numbers, max_size=5).map(lambda found: tuple(sorted(found))),
            region=st.sampled_from(["", "eu", "Zürich"]),
            quiet=st.booleans(),
        ),
    )
)
def test_a_read_comes_back(request: ReadRequest) -> None:
    assert read_read(memoryview(pack_read(request))) == request


@given(numbers, st.sampled_from(ReadStatus), lsns, numbers, lsns)
def test_an_answer_comes_back(
    stream: int, status: ReadStatus, released: int, version: int, trim: int
) -> None:
    assert read_reading(memoryview(pack_reading(stream, status, released, version, trim))) == (
        stream, status, released, version, trim,
    )  # fmt: skip


def test_blocks_come_back_as_they_travelled() -> None:
    head, (block,) = read_blocks_frame(memoryview(BLOCKS))
    assert head == BlocksHead(0x01020304, 1, make_lsn(3, 4), make_lsn(1, 2), make_lsn(1, 3))
    assert bytes(block.wire) + bytes(block.body) == BLOCK
    bodiless = memoryview(BLOCKS[: -len(b"body")])
    (only,) = read_heads_frame(bodiless)[1]
    assert (only.header, bytes(only.wire), bytes(only.body)) == (block.header, block.wire, b"")
    empty = BlocksHead(3, 0, LSN_MAX + 1, LSN_MAX)
    assert read_blocks_frame(memoryview(blocks_head(empty))) == (empty, [])


def test_one_frame_for_several_streams() -> None:
    head = BlocksHead(0, 1, make_lsn(3, 4), make_lsn(1, 2), make_lsn(1, 3))
    assert shared_head(2, head) + BLOCK + shared_streams((7, 9)) == SHARED
    numbers, found, (block,) = read_shared_frame(memoryview(SHARED))
    assert numbers == (7, 9)
    assert (found.blocks, found.next) == (1, make_lsn(3, 4))
    assert bytes(block.wire) + bytes(block.body) == BLOCK


DECODERS = [
    (read_read, GOLDEN_READ),
    (read_read, GOLDEN_ONE),
    (read_reading, GOLDEN_READING),
    (read_window, GOLDEN_WINDOW),
    (read_stop, GOLDEN_STOP),
    (read_blocks_frame, BLOCKS),
    (read_read, GOLDEN_PICKED),
    (read_heads_frame, BLOCKS[: -len(b"body")]),
    (read_gaps, GOLDEN_GAPS),
    (read_shared_frame, SHARED),
]


@pytest.mark.parametrize(("decode", "data"), DECODERS)
def test_another_length_is_refused(decode, data) -> None:
    for part in (*truncations(data), data + b"\0"):
        with pytest.raises(Malformed):
            decode(memoryview(part))


@pytest.mark.parametrize(
    ("decode", "data", "offset", "layout", "value"),
    [
        (read_read, GOLDEN_READ, 4, "<I", 32),  # flags
        (read_read, GOLDEN_READ, 4, "<I", 17),  # quiet, where all are asked for
        (read_read, GOLDEN_READ, 4, "<I", 5),  # a digest without bodies
        (read_read, GOLDEN_READ, 4, "<I", 9),  # a digest of some keys
        (read_read, GOLDEN_READ, 52, "<B", 1),  # one copy's fields, where all are asked for
        (read_read, GOLDEN_READ, 56, "<Q", 1),
        (read_read, GOLDEN_ONE, 4, "<I", 0),
        (read_read, GOLDEN_ONE, 52, "<B", 3),  # shuffle
        (read_read, GOLDEN_ONE, 54, "<H", 3),  # nodes known to be down
        (read_read, GOLDEN_ONE, 64, "<H", 3),  # bytes of the region
        (read_read, GOLDEN_ONE, 66, "<H", 3),  # bytes of the token
        (read_read, GOLDEN_ONE, 68, "<I", 1),
        (read_read, GOLDEN_ONE, 72, "<I", 0x51525354),  # out of order
        (read_read, GOLDEN_ONE, 80, "<H", 0xFFFF),  # no text
        (read_read, GOLDEN_READ, 8, "<Q", 0),  # log
        (read_read, GOLDEN_READ, 8, "<Q", 2**62),
        (read_read, GOLDEN_READ, 16, "<Q", LSN_MAX + 1),
        (read_read, GOLDEN_READ, 24, "<Q", LSN_MAX + 1),
        (read_read, GOLDEN_READ, 32, "<Q", LSN_MAX + 1),
        (read_reading, GOLDEN_READING, 4, "<I", 5),  # status
        (read_reading, GOLDEN_READING, 8, "<Q", LSN_MAX + 1),
        (read_reading, GOLDEN_READING, 16, "<Q", LSN_MAX + 1),
        (read_window, GOLDEN_WINDOW, 4, "<I", 1),  # reserved
        (read_window, GOLDEN_WINDOW, 8, "<Q", LSN_MAX + 1),
        (read_stop, GOLDEN_STOP, 4, "<I", 1),  # reserved
        (read_gaps, GOLDEN_GAPS, 4, "<I", 0),  # gaps
        (read_gaps, GOLDEN_GAPS, 4, "<I", 3),
        (read_gaps, GOLDEN_GAPS, 8, "<Q", make_lsn(1, 4)),  # begins behind its end
        (read_gaps, GOLDEN_GAPS, 16, "<Q", LSN_MAX + 1),
        (read_gaps, GOLDEN_GAPS, 24, "<I", 0),  # reason
        (read_gaps, GOLDEN_GAPS, 24, "<I", 4),
        (read_gaps, GOLDEN_GAPS, 28, "<I", 1),  # reserved
        (read_blocks_frame, BLOCKS, 4, "<I", 0),  # blocks
        (read_shared_frame, SHARED, 0, "<I", 0),  # streams
        (read_shared_frame, SHARED, 0, "<I", 1),
        (read_shared_frame, SHARED, 0, "<I", 3),
        (read_shared_frame, SHARED, 0, "<I", 2**32 - 1),
        (read_blocks_frame, BLOCKS, 4, "<I", 2),
        (read_blocks_frame, BLOCKS, 4, "<I", 2**32 - 1),
        (read_blocks_frame, BLOCKS, 8, "<Q", LSN_MAX + 2),
        (read_blocks_frame, BLOCKS, 16, "<Q", LSN_MAX + 1),
    ],
)
def test_a_field_out_of_its_range_is_refused(decode, data, offset: int, layout: str, value) -> None:
    wrong = bytearray(data)
    struct.pack_into(layout, wrong, offset, value)
    with pytest.raises(Malformed):
        decode(memoryview(bytes(wrong)))


@settings(max_examples=400)
@given(st.sampled_from(DECODERS), damaged(tuple(data for _, data in DECODERS)))
def test_damage_raises_what_is_ours(decoder, data: bytes) -> None:
    only_ours(decoder[0], data)
