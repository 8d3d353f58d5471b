"""Frames: golden bytes, any chunking, and refusal of all that is damaged or too long."""

from __future__ import annotations

import contextlib
import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_damage import bit_flips, truncations

from cordwood.errors import ChecksumMismatch, Corrupt, Malformed
from cordwood.layout.frame import (
    CONTROL_BYTES_MAX,
    DATA_BYTES_MAX,
    FRAME_HEADER_BYTES,
    HELLO_BYTES_MAX,
    FrameParser,
    Kind,
    checksum,
    frame,
    frame_header,
    next_number,
)

GOLDEN = bytes.fromhex(
    "03000000" "40" "00" "0000" "0807060504030201" "739ba4d0" "616263"
)  # fmt: skip

GREETINGS = (Kind.HELLO, Kind.WELCOME, Kind.REFUSAL)
DATA = (Kind.APPEND, Kind.STORE, Kind.BLOCKS, Kind.HEADS, Kind.SHARED, Kind.REPLY)
LIMITS = {
    kind: HELLO_BYTES_MAX
    if kind in GREETINGS
    else DATA_BYTES_MAX
    if kind in DATA
    else CONTROL_BYTES_MAX
    for kind in Kind
}

Seen = list[tuple[int, int, bytes]]
frames = st.lists(
    st.tuples(st.sampled_from(Kind), st.integers(0, 2**64 - 1), st.binary(max_size=80)), max_size=8
)


def greeted() -> FrameParser:
    parser = FrameParser()
    parser.greeted = True
    return parser


def whole(kind: int, request: int, payload: bytes) -> bytes:
    return b"".join(frame(kind, request, payload))


def header(length: int, kind: int, flags: int = 0, number: int = 0) -> bytes:
    """A header whose checksum is right for no payload at all."""
    summed = struct.pack("<IBBHQ", length, kind, flags, number, 1)
    return summed + struct.pack("<I", crc32c(summed))


def feed(parser: FrameParser, *chunks: bytes) -> Seen:
    return [
        (each.kind, each.request, bytes(each.payload))
        for chunk in chunks
        for each in parser.feed(chunk)
    ]


def test_golden_bytes() -> None:
    assert whole(Kind.CALL, 0x0102030405060708, b"abc") == GOLDEN
    assert feed(greeted(), GOLDEN) == [(Kind.CALL, 0x0102030405060708, b"abc")]
    assert FRAME_HEADER_BYTES == 20


def test_a_payload_in_parts_is_summed_as_one() -> None:
    assert checksum([b"ab", b"", memoryview(b"c")]) == crc32c(b"abc") == checksum([b"abc"])
    assert frame_header(Kind.CALL, 0x0102030405060708, 3, checksum([b"a", b"bc"])) == GOLDEN[:20]


@given(frames, st.lists(st.integers(0, 60), max_size=30))
def test_any_chunking_gives_the_same_frames(sent: Seen, cuts: list[int]) -> None:
    stream = b"".join(whole(*each) for each in sent)
    chunks, at = [], 0
    for cut in cuts:
        chunks.append(stream[at : at + cut])
        at += cut
    assert feed(greeted(), *chunks, stream[at:]) == sent


@given(frames, st.lists(st.integers(1, 60), max_size=30))
def test_what_is_put_into_its_place_gives_the_same_frames(sent: Seen, cuts: list[int]) -> None:
    stream = b"".join(whole(*each) for each in sent)
    parser = greeted()
    seen: Seen = []
    at = 0
    for cut in [*cuts, *([60] * (len(stream) // 60 + len(sent) + 1))]:
        chunk, into = stream[at : at + cut], parser.receive_into()
        if into is None:
            found = parser.feed(chunk)
        else:
            assert len(into) > 0
            chunk = chunk[: len(into)]
            into[: len(chunk)] = chunk
            found = parser.placed(len(chunk)) if chunk else []
        at += len(chunk)
        seen += [(each.kind, each.request, bytes(each.payload)) for each in found]
    assert (at, seen) == (len(stream), sent)
    assert parser.receive_into() is None


def test_a_frame_put_into_its_place_is_summed_too() -> None:
    data = bytearray(whole(Kind.STORE, 1, bytes(100)))
    data[60] ^= 1
    parser = greeted()
    assert parser.feed(bytes(data[:50])) == []
    into = parser.receive_into()
    assert into is not None
    assert len(into) == len(data) - 50
    into[:] = data[50:]
    with pytest.raises(ChecksumMismatch):
        parser.placed(len(into))


@given(frames)
def test_byte_by_byte_each_frame_comes_with_its_last_byte(sent: Seen) -> None:
    parser = greeted()
    for each in sent:
        data = whole(*each)
        assert feed(parser, *(data[at : at + 1] for at in range(len(data) - 1))) == []
        assert feed(parser, data[-1:]) == [each]


def test_a_payload_points_into_what_arrived() -> None:
    data = whole(Kind.STORE, 1, bytes(1000))
    (found,) = greeted().feed(data)
    assert found.payload.obj is data


@pytest.mark.parametrize("data", [GOLDEN, whole(Kind.STOP, 9, b"")])
def test_every_bit_flip_is_refused(data: bytes) -> None:
    """A longer length is waited for; whatever comes next then fails the sum."""
    for damaged in bit_flips(data):
        parser = greeted()
        with pytest.raises(Corrupt):
            feed(parser, damaged, bytes(CONTROL_BYTES_MAX + 64))


@pytest.mark.parametrize("kind", [Kind.APPEND, Kind.STORE, Kind.BLOCKS])
def test_every_bit_flip_of_a_long_kind_gives_no_frame(kind: Kind) -> None:
    data = whole(kind, 3, b"some blocks")
    for damaged in bit_flips(data):
        parser = greeted()
        try:
            assert feed(parser, damaged) == []
        except Corrupt:
            continue
        assert struct.unpack_from("<I", damaged)[0] > len(b"some blocks")


def test_a_truncation_gives_nothing_and_what_follows_it_is_refused() -> None:
    for part in truncations(GOLDEN):
        parser = greeted()
        assert feed(parser, part) == []
        if part:
            with pytest.raises(Corrupt):
                feed(parser, GOLDEN, GOLDEN, GOLDEN)


@given(frames, st.data())
def test_after_one_flipped_bit_only_what_came_before_it_was_given(
    sent: Seen, data: st.DataObject
) -> None:
    sent = [*sent, (Kind.CALL, 1, b"last")]
    stream = b"".join(whole(*each) for each in sent)
    bit = data.draw(st.integers(0, 8 * len(stream) - 1))
    damaged = bytearray(stream)
    damaged[bit >> 3] ^= 1 << (bit & 7)
    parser, seen = greeted(), []
    try:
        for at in range(0, len(damaged), 7):
            seen += feed(parser, bytes(damaged[at : at + 7]))
    except Corrupt:
        pass
    assert seen == sent[: len(seen)]
    assert len(seen) < len(sent)


@pytest.mark.parametrize("kind", Kind)
def test_a_length_is_checked_before_anything_of_it_is_kept(kind: Kind) -> None:
    assert feed(greeted(), header(LIMITS[kind], kind)) == []
    for length in (LIMITS[kind] + 1, 2**32 - 1):
        with pytest.raises(Malformed, match=f"claims {length} bytes"):
            feed(greeted(), header(length, kind))


@pytest.mark.parametrize("cut", range(1, 20))
def test_four_gib_are_refused_with_the_last_byte_of_their_header(cut: int) -> None:
    data = header(2**32 - 1, Kind.STORE)
    parser = greeted()
    assert feed(parser, data[:cut]) == []
    with pytest.raises(Malformed, match="the limit is"):
        feed(parser, data[cut:])


def test_four_gib_behind_the_hello_in_one_chunk_are_refused_once_it_was_read() -> None:
    parser = FrameParser()
    data = whole(Kind.HELLO, 0, b"it is me") + header(2**32 - 1, Kind.STORE)
    assert feed(parser, data) == [(Kind.HELLO, 0, b"it is me")]
    parser.greeted = True
    with pytest.raises(Malformed, match="the limit is"):
        feed(parser, b"")


def test_a_damaged_frame_in_one_chunk_with_good_ones_gives_none_of_those_after_it() -> None:
    bad = bytearray(GOLDEN)
    bad[-1] ^= 1
    with pytest.raises(ChecksumMismatch, match="kind 64"):
        greeted().feed(GOLDEN + bytes(bad) + GOLDEN)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (header(0, 0), "no frame has kind 0"),
        (header(0, 255), "no frame has kind 255"),
        (header(0, Kind.CALL, flags=1), "keeps at 0"),
        (header(0, Kind.CALL, flags=128), "keeps at 0"),
        (header(0, Kind.CALL, number=2) * 2, "frame 2 came when 3 was due"),
    ],
)
def test_what_no_sender_of_ours_makes(bad: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        greeted().feed(bad)


def counted(*numbers: int, payload: bytes = b"once") -> list[bytes]:
    """Whole frames of these numbers."""
    crc = checksum([payload])
    return [
        frame_header(Kind.CALL, at, len(payload), crc, number) + payload
        for at, number in enumerate(numbers)
    ]


class TestTurns:
    def test_frames_in_their_turn_pass_and_the_count_begins_anew(self) -> None:
        numbers = [1]
        while len(numbers) < 70_000:
            numbers.append(next_number(numbers[-1]))
        assert numbers[65_534:65_536] == [65_535, 1]
        assert len(greeted().feed(b"".join(counted(*numbers)))) == 70_000

    @pytest.mark.parametrize("numbers", [(1, 1), (1, 2, 2), (1, 3), (9, 9), (1, 2, 1), (1, 65_535)])
    def test_one_that_comes_twice_or_too_early_is_refused(self, numbers: tuple[int, ...]) -> None:
        *good, bad = counted(*numbers)
        parser = greeted()
        assert len(parser.feed(b"".join(good))) == len(good)
        with pytest.raises(Malformed, match=f"frame {numbers[-1]} came when"):
            parser.feed(bad)

    def test_one_that_is_put_into_its_place_is_counted_too(self) -> None:
        good, bad = counted(1, 1, payload=bytes(100))
        parser = greeted()
        parser.feed(good + bad[:50])
        into = parser.receive_into()
        assert into is not None
        into[:] = bad[50:]
        with pytest.raises(Malformed, match="frame 1 came when 2 was due"):
            parser.placed(len(into))

    def test_who_does_not_count_is_not_counted(self) -> None:
        one, two = counted(1, 2)
        uncounted = whole(Kind.STOP, 9, b"")
        assert len(greeted().feed(uncounted + one + uncounted + uncounted + two)) == 5


class TestBeforeTheGreeting:
    @pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in GREETINGS])
    def test_nothing_but_a_greeting_passes(self, kind: Kind) -> None:
        with pytest.raises(Malformed, match="before the hello"):
            FrameParser().feed(whole(kind, 1, b"x"))
        with pytest.raises(Malformed, match="before the hello"):
            FrameParser().feed(header(2**32 - 1, kind))

    @pytest.mark.parametrize("kind", GREETINGS)
    def test_a_greeting_has_a_kilobyte_at_most(self, kind: Kind) -> None:
        most = whole(kind, 0, bytes(HELLO_BYTES_MAX))
        assert len(FrameParser().feed(most)) == 1
        with pytest.raises(Malformed, match="the limit is 1024"):
            FrameParser().feed(header(HELLO_BYTES_MAX + 1, kind))

    def test_what_follows_in_the_chunk_waits_unread(self) -> None:
        """It may be what only a greeted peer may send, or noise: nobody looked at it yet."""
        hello = whole(Kind.HELLO, 0, b"hi")
        rest = [(Kind.CALL, 1, b"a"), (Kind.STORE, 2, b"b" * 50), (Kind.STOP, 3, b"")]
        stream = b"".join(whole(*each) for each in rest)
        for cut in range(len(stream) + 1):
            parser = FrameParser()
            assert feed(parser, hello + stream[:cut]) == [(Kind.HELLO, 0, b"hi")]
            parser.greeted = True
            assert feed(parser, b"", stream[cut:]) == rest
        parser = FrameParser()
        assert feed(parser, hello + b"\xff" * 100) == [(Kind.HELLO, 0, b"hi")]

    def test_a_second_greeting_is_given_and_not_taken_for_the_first(self) -> None:
        parser = FrameParser()
        hello = whole(Kind.HELLO, 0, b"hi")
        assert feed(parser, hello + hello) == [(Kind.HELLO, 0, b"hi")]
        parser.greeted = True
        assert feed(parser, b"") == [(Kind.HELLO, 0, b"hi")]


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=200), max_size=6), st.booleans())
def test_noise_raises_what_is_ours(chunks: list[bytes], after_hello: bool) -> None:
    parser = FrameParser()
    parser.greeted = after_hello
    with contextlib.suppress(Corrupt):
        for chunk in chunks:
            assert parser.feed(chunk) == []
