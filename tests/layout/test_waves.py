"""Payloads of the write path: golden bytes, round trips, and refusal of all that is damaged."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_damage import bit_flips, damaged, only_ours, truncations

from cordwood.block import BlockHeader, Buffer, Codec, Envelope
from cordwood.errors import Corrupt, Malformed
from cordwood.layout.block_header import HEADER_BYTES, pack_envelope, pack_header
from cordwood.layout.limits import BLOCK_RECORDS_MAX, BODY_BYTES_MAX
from cordwood.layout.waves import (
    ENTRIES_MAX,
    ENTRY_BYTES,
    STORE_HEAD_BYTES,
    AppendEntry,
    Refusal,
    StoreRefusal,
    amend_of,
    append_entry,
    append_head,
    is_amend,
    pack_pairs,
    pack_stored,
    read_amend,
    read_append,
    read_pairs,
    read_store,
    read_stored,
    store_head,
    stored_space,
)
from cordwood.lsn import EPOCH_MAX, LSN_MAX, make_lsn

ENTRY = AppendEntry(
    log=0x0102030405060708,
    token=0x1112131415161718,
    count=0x2122,
    codec=Codec.LZ4,
    flags=1,
    reserved=0,
    producer=0x3132333435363738,
    producer_epoch=0x41424344,
    key_bits=0,
    producer_sequence=0x5152535455565758,
    stored_bytes=3,
    raw_bytes=0x616263,
    stored_crc=0x71727374,
    raw_crc=0x01020304,
    body=b"xyz",
)
GOLDEN_ENTRY = bytes.fromhex(
    "0807060504030201" "1817161514131211" "22210000" "02" "01" "0000" "3837363534333231"
    "44434241" "00000000" "5857565554535251" "03000000" "63626100" "74737271" "04030201"
)  # fmt: skip
GOLDEN_APPEND = bytes.fromhex("0200000000000000") + 2 * (GOLDEN_ENTRY + b"xyz")

GOLDEN_STORED = bytes.fromhex(
    "0500000000000000" "01000000" "03000000"
    "0400000000000000" "0807060504030201" "01" "000000" "09000000"
)  # fmt: skip


def block(first: int, body: bytes, log: int = 5) -> bytes:
    """A block of one record as it travels."""
    header = BlockHeader(
        log=log, first=first, count=1, append_time_us=0, stored_bytes=len(body),
        raw_bytes=len(body), stored_crc=crc32c(body), raw_crc=crc32c(body),
    )  # fmt: skip
    return pack_header(header) + pack_envelope(Envelope((1, 2, 3))) + body


ENVELOPE_BYTES = len(pack_envelope(Envelope((1, 2, 3))))
BLOCKS = (
    block(make_lsn(3, 1), b"first"),
    block(make_lsn(3, 2), b""),
    block(make_lsn(3, 3), b"3rd"),
)
STORE = store_head(3, 7) + b"".join(BLOCKS)


def append(*entries: AppendEntry) -> bytes:
    return append_head(len(entries)) + b"".join(
        append_entry(each) + bytes(each.body) for each in entries
    )


def read(payload: bytes) -> list[AppendEntry]:
    return [replace(each, body=bytes(each.body)) for each in read_append(memoryview(payload))]


class TestAppend:
    def test_golden_bytes(self) -> None:
        assert append_entry(ENTRY) == GOLDEN_ENTRY
        assert append(ENTRY, ENTRY) == GOLDEN_APPEND
        assert read(GOLDEN_APPEND) == [ENTRY, ENTRY]
        assert len(GOLDEN_ENTRY) == ENTRY_BYTES

    @given(
        st.lists(
            st.builds(
                AppendEntry,
                log=st.integers(1, 2**62 - 1),
                token=st.integers(0, 2**64 - 1),
                count=st.integers(1, BLOCK_RECORDS_MAX),
                codec=st.sampled_from(Codec),
                flags=st.integers(0, 3),
                reserved=st.just(0),
                producer=st.integers(0, 2**64 - 1),
                producer_epoch=st.integers(0, 2**32 - 1),
                key_bits=st.just(0) | st.integers(1 << 31, 2**32 - 1),
                producer_sequence=st.integers(0, 2**64 - 1),
                stored_bytes=st.just(0),
                raw_bytes=st.integers(0, BODY_BYTES_MAX),
                stored_crc=st.integers(0, 2**32 - 1),
                raw_crc=st.integers(0, 2**32 - 1),
                body=st.binary(max_size=50),
            ).map(lambda entry: replace(entry, stored_bytes=len(entry.body))),
            min_size=1,
            max_size=5,
        )
    )
    def test_round_trip(self, entries: list[AppendEntry]) -> None:
        assert read(append(*entries)) == entries

    def test_every_truncation_and_every_extension_is_refused(self) -> None:
        for part in truncations(GOLDEN_APPEND):
            with pytest.raises(Malformed):
                read(part)
        with pytest.raises(Malformed, match="longer than its entries"):
            read(GOLDEN_APPEND + b"\0")

    @pytest.mark.parametrize("count", [0, 3, ENTRIES_MAX + 1, 2**32 - 1])
    def test_a_count_is_checked_before_anything_is_made_of_it(self, count: int) -> None:
        with pytest.raises(Malformed, match="claims"):
            read(append_head(count) + GOLDEN_APPEND[8:])

    @pytest.mark.parametrize(
        ("offset", "layout", "value"),
        [
            (4, "<I", 1),  # reserved in the head
            (8, "<Q", 0),  # log
            (8, "<Q", 2**62),
            (24, "<I", 0),  # records
            (24, "<I", BLOCK_RECORDS_MAX + 1),
            (28, "<B", 3),  # codec
            (29, "<B", 4),  # flags
            (30, "<H", 1),  # reserved
            (44, "<I", 1),  # reserved
            (56, "<I", 4),  # body as stored: eats the next entry
            (56, "<I", 2**32 - 1),
            (60, "<I", BODY_BYTES_MAX + 1),  # body uncompressed
        ],
    )
    def test_a_field_out_of_its_range_is_refused(
        self, offset: int, layout: str, value: int
    ) -> None:
        data = bytearray(GOLDEN_APPEND)
        struct.pack_into(layout, data, offset, value)
        with pytest.raises(Malformed):
            read(bytes(data))

    def test_what_passes_makes_a_header_that_every_storage_node_takes(self) -> None:
        """A count or a size that no header may say was numbered, and then refused by every
        node, for ever: one bad client stopped the log."""
        largest = replace(
            ENTRY, count=BLOCK_RECORDS_MAX, raw_bytes=BODY_BYTES_MAX, body=b"", stored_bytes=0
        )
        (entry,) = read(append(largest))
        header = BlockHeader(
            entry.log, make_lsn(1, 1), entry.count, 0, codec=Codec(entry.codec),
            stored_bytes=entry.stored_bytes, raw_bytes=entry.raw_bytes,
        )  # fmt: skip
        payload = store_head(1) + pack_header(header) + pack_envelope(Envelope((1,)))
        assert read_store(memoryview(payload))[1][0].header.count == BLOCK_RECORDS_MAX

    @settings(max_examples=300)
    @given(damaged((GOLDEN_APPEND,)))
    def test_damage_raises_what_is_ours(self, data: bytes) -> None:
        only_ours(read_append, data)


class TestPairs:
    def test_golden_bytes(self) -> None:
        data = bytes.fromhex(
            "0807060504030201" "0300000001000000" "0200000000000000" "0000000000000000"
        )  # fmt: skip
        assert pack_pairs([0x0102030405060708, make_lsn(1, 3), 2, 0]) == data
        assert list(read_pairs(memoryview(data))) == [(0x0102030405060708, make_lsn(1, 3)), (2, 0)]
        assert list(read_pairs(memoryview(b""))) == []

    def test_a_broken_end_and_what_is_no_lsn_are_refused_at_once(self) -> None:
        """At once: a caller acts on the first pair before it sees the last."""
        data = pack_pairs([1, 1, 2, LSN_MAX])
        for part in truncations(data):
            if len(part) % 16:
                with pytest.raises(Malformed, match="broken end"):
                    read_pairs(memoryview(part))
        with pytest.raises(Malformed, match="no LSN"):
            read_pairs(memoryview(pack_pairs([1, 1, 2, LSN_MAX + 1])))

    @given(damaged((pack_pairs([1, 2, 3, 4]),)))
    def test_damage_raises_what_is_ours(self, data: bytes) -> None:
        only_ours(lambda payload: list(read_pairs(payload)), data)


class TestStore:
    def test_golden_bytes_of_the_head(self) -> None:
        assert store_head(3, 7) == bytes.fromhex("03000000000000000700000000000000")
        assert len(store_head(1)) == STORE_HEAD_BYTES

    def test_blocks_come_back_as_they_travelled(self) -> None:
        seal, blocks = read_store(memoryview(STORE))
        assert seal == 7
        assert [bytes(each.wire) + bytes(each.body) for each in blocks] == list(BLOCKS)
        assert [each.header.first for each in blocks] == [make_lsn(3, n) for n in (1, 2, 3)]
        assert [each.wire_bytes for each in blocks] == [len(each) for each in BLOCKS]
        assert blocks[0].envelope == Envelope((1, 2, 3))
        assert bytes(blocks[2].body) == b"3rd"

    def test_every_truncation_and_every_extension_is_refused(self) -> None:
        for part in truncations(STORE):
            with pytest.raises(Malformed):
                read_store(memoryview(part))
        with pytest.raises(Malformed, match="longer than its blocks"):
            read_store(memoryview(STORE + b"\0"))

    def test_every_bit_flip_is_refused_or_is_in_a_body_or_the_seal_epoch(self) -> None:
        """A body is summed by whoever keeps it or gives it out, against its header."""
        seal_bits = range(64, 64 + 31)
        intact = [bytes(each.wire) for each in read_store(memoryview(STORE))[1]]
        for bit, data in enumerate(bit_flips(STORE)):
            try:
                seal, blocks = read_store(memoryview(data))
            except Corrupt:
                continue
            assert [bytes(each.wire) for each in blocks] == intact
            damaged_bodies = [
                each for each in blocks if crc32c(each.body) != each.header.stored_crc
            ]
            assert (seal != 7) == (bit in seal_bits)
            assert len(damaged_bodies) == (seal == 7)

    @pytest.mark.parametrize(
        ("head", "why"),
        [
            (store_head(0, 7), "out of its range"),
            (store_head(3, EPOCH_MAX + 1), "out of its range"),
            (struct.pack("<IIQ", 3, 1, 7), "out of its range"),
            (struct.pack("<IIQ", 3, 2, 7), "out of its range"),
            (store_head(4, 7), "100 bytes"),
            (store_head(2, 7), "longer than its blocks"),
            (store_head(2**32 - 1), "claims 4294967295 blocks"),
            (store_head(ENTRIES_MAX + 1), f"claims {ENTRIES_MAX + 1} blocks"),
        ],
    )
    def test_a_wrong_head_is_refused(self, head: bytes, why: str) -> None:
        with pytest.raises(Malformed, match=why):
            read_store(memoryview(head + STORE[STORE_HEAD_BYTES:]))

    def test_a_body_that_its_frame_does_not_hold_is_refused(self) -> None:
        header = BlockHeader(5, make_lsn(1, 1), 1, 0, stored_bytes=BODY_BYTES_MAX)
        payload = store_head(1) + pack_header(header) + pack_envelope(Envelope((1,)))
        with pytest.raises(Malformed, match="more body"):
            read_store(memoryview(payload + bytes(HEADER_BYTES)))

    @settings(max_examples=300)
    @given(damaged((STORE,)))
    def test_damage_raises_what_is_ours(self, data: bytes) -> None:
        only_ours(read_store, data)


HEADS = [each[: HEADER_BYTES + ENVELOPE_BYTES] for each in BLOCKS]
AMEND = store_head(3, 7, amends=True) + b"".join(HEADS)


class TestAmend:
    def test_golden_bytes_of_the_head(self) -> None:
        assert store_head(3, 7, amends=True).hex() == "03000000010000000700000000000000"

    def test_headers_and_envelopes_come_back_and_bodies_are_empty(self) -> None:
        assert is_amend(memoryview(AMEND))
        assert not is_amend(memoryview(STORE))
        seal, blocks = read_amend(memoryview(AMEND))
        assert seal == 7
        assert [bytes(each.wire) for each in blocks] == HEADS
        assert [bytes(each.body) for each in blocks] == [b""] * 3
        assert blocks[0].header.stored_bytes == 5

    def test_it_is_what_a_store_says_without_its_bodies(self) -> None:
        parts: list[Buffer] = [store_head(3, 7)]
        for head, each in zip(HEADS, BLOCKS, strict=True):
            parts += (head, each[len(head) :])
        assert b"".join(parts) == STORE
        assert b"".join(amend_of(parts)) == AMEND

    def test_neither_is_taken_for_the_other(self) -> None:
        with pytest.raises(Malformed, match="out of its range"):
            read_store(memoryview(AMEND))
        with pytest.raises(Malformed, match="out of its range"):
            read_amend(memoryview(STORE))

    def test_every_truncation_and_every_extension_is_refused(self) -> None:
        for part in truncations(AMEND):
            with pytest.raises(Malformed):
                read_amend(memoryview(part))
            is_amend(memoryview(part))
        with pytest.raises(Malformed, match="longer than its blocks"):
            read_amend(memoryview(AMEND + b"\0"))

    def test_every_bit_flip_is_refused_or_is_in_the_seal_epoch(self) -> None:
        for bit, data in enumerate(bit_flips(AMEND)):
            if bit in range(64, 64 + 31):
                assert read_amend(memoryview(data))[0] != 7
                continue
            with pytest.raises(Corrupt):
                read_amend(memoryview(data))

    @pytest.mark.parametrize("head", [(0, 1, 7), (3, 0, 7), (3, 3, 7), (3, 1, EPOCH_MAX + 1)])
    def test_a_wrong_head_is_refused(self, head: tuple[int, int, int]) -> None:
        with pytest.raises(Malformed):
            read_amend(memoryview(struct.pack("<IIQ", *head) + AMEND[STORE_HEAD_BYTES:]))

    @settings(max_examples=300)
    @given(damaged((AMEND,)))
    def test_damage_raises_what_is_ours(self, data: bytes) -> None:
        only_ours(read_amend, data)


class TestStored:
    def test_golden_bytes(self) -> None:
        refusal = StoreRefusal(4, 0x0102030405060708, Refusal.SEALED, 9)
        assert pack_stored(5, [refusal], 4 * 4096 - 1) == GOLDEN_STORED
        assert read_stored(memoryview(GOLDEN_STORED)) == (5, [refusal])
        assert stored_space(memoryview(GOLDEN_STORED)) == 3 * 4096

    @pytest.mark.parametrize(
        ("room", "told"), [(0, 0), (4095, 0), (4096, 4096), (1 << 62, (2**32 - 1) * 4096)]
    )
    def test_room_is_told_in_whole_blocks_and_never_as_more(self, room: int, told: int) -> None:
        assert stored_space(memoryview(pack_stored(1, (), room))) == told

    @given(
        st.integers(0, 2**64 - 1),
        st.lists(
            st.builds(
                StoreRefusal,
                wave=st.integers(0, 2**64 - 1),
                log=st.integers(0, 2**64 - 1),
                reason=st.sampled_from(Refusal),
                epoch=st.integers(0, 2**32 - 1),
            ),
            max_size=5,
        ),
    )
    def test_round_trip(self, wave: int, refusals: list[StoreRefusal]) -> None:
        assert read_stored(memoryview(pack_stored(wave, refusals))) == (wave, refusals)

    def test_another_length_is_refused(self) -> None:
        for part in (*truncations(GOLDEN_STORED), GOLDEN_STORED + b"\0"):
            with pytest.raises(Malformed):
                read_stored(memoryview(part))

    @pytest.mark.parametrize(
        ("offset", "layout", "value"),
        [(8, "<I", 2), (8, "<I", 2**32 - 1), (32, "<B", 0), (32, "<B", 9)],
    )
    def test_a_field_out_of_its_range_is_refused(
        self, offset: int, layout: str, value: int
    ) -> None:
        data = bytearray(GOLDEN_STORED)
        struct.pack_into(layout, data, offset, value)
        with pytest.raises(Malformed):
            read_stored(memoryview(data))

    @settings(max_examples=300)
    @given(damaged((GOLDEN_STORED, pack_stored(1, ()))))
    def test_damage_raises_what_is_ours(self, data: bytes) -> None:
        only_ours(read_stored, data)
