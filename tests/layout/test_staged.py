"""Staged blocks as bytes: golden bytes, round trips, and refusal of all that is damaged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.errors import Malformed
from cordwood.layout.engine_record import RecordKind, read_engine_record
from cordwood.layout.staged import (
    PinRecord,
    PlaceRecord,
    StagedHead,
    StageRecord,
    UnstageRecord,
    pack_pin,
    pack_place,
    pack_row,
    pack_stage_head,
    pack_unstage,
    read_row,
)

ID = bytes(range(16))
HEAD = StagedHead(ID, 0x0102030405060708, 0x1112131415161718, 5, 3, 9, 0x01020304, 0x05060708, 2)
GOLDEN = bytes.fromhex(
    "000102030405060708090a0b0c0d0e0f" "0807060504030201" "1817161514131211"
    "05000000" "03000000" "09000000" "04030201" "08070605" "02" "000000"
)  # fmt: skip
IDS = st.lists(st.binary(min_size=16, max_size=16), max_size=5).map(tuple)


def record(kind: RecordKind, body: bytes):
    return read_engine_record(memoryview(bytes([kind]) + body))


def test_a_staged_block_has_these_bytes() -> None:
    assert pack_stage_head(HEAD) == GOLDEN
    found = record(RecordKind.STAGE, GOLDEN + b"xyz")
    assert found == StageRecord(HEAD, b"xyz")


def test_a_copyset_stands_behind_the_head() -> None:
    head = replace(HEAD, nodes=(1, 0x01020304), moves=0x0506)
    golden = GOLDEN[:-3] + bytes.fromhex("0206050100000004030201")
    assert pack_stage_head(head) == golden
    assert record(RecordKind.STAGE, golden + b"xyz") == StageRecord(head, b"xyz")
    assert read_row(pack_row(head, "query", 7)) == (head, "query", 7)
    place = PlaceRecord(ID, (1, 0x01020304), 0x0506)
    assert pack_place(place) == ID + bytes.fromhex("060502000100000004030201")
    assert record(RecordKind.PLACE, pack_place(place)) == place


def test_a_pin_and_its_end_have_these_bytes() -> None:
    pin = pack_pin(PinRecord("é", 7, (ID,)))
    assert pin == bytes.fromhex("07000000000000000100000002000000c3a9") + ID
    assert pack_unstage(UnstageRecord((ID, ID))) == bytes.fromhex("02000000") + ID + ID


@given(IDS, st.text(max_size=40), st.integers(0, 2**53))
def test_records_and_rows_come_back_as_they_went(stages, query, attempt) -> None:
    pin, gone = PinRecord(query, attempt, stages), UnstageRecord(stages)
    assert record(RecordKind.PIN, pack_pin(pin)) == pin
    assert record(RecordKind.UNSTAGE, pack_unstage(gone)) == gone
    assert read_row(pack_row(HEAD, query, attempt)) == (HEAD, query, attempt)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (RecordKind.STAGE, GOLDEN + b"xyz"),
        (RecordKind.PIN, pack_pin(PinRecord("query", 7, (ID, ID)))),
        (RecordKind.UNSTAGE, pack_unstage(UnstageRecord((ID, ID)))),
        (RecordKind.PLACE, pack_place(PlaceRecord(ID, (1, 2, 3), 1))),
    ],
)
def test_every_truncation_and_a_byte_too_much_is_refused(kind, body) -> None:
    for wrong in (*(body[:length] for length in range(len(body))), body + b"\0"):
        with pytest.raises(Malformed):
            record(kind, wrong)


@pytest.mark.parametrize(
    "field",
    [
        {"log": 0},
        {"records": 0},
        {"records": 70_000},
        {"codec": 3},
        {"raw_bytes": 1 << 30},
        {"nodes": (1,) * 17},
    ],
)
def test_a_head_out_of_its_range_is_refused(field) -> None:
    with pytest.raises(Malformed):
        record(RecordKind.STAGE, pack_stage_head(replace(HEAD, **field)) + b"xyz")


def test_a_query_that_is_no_text_is_refused() -> None:
    pin = bytearray(pack_pin(PinRecord("abc", 7, ())))
    pin[-1] = 0xFF
    with pytest.raises(Malformed, match="UTF-8"):
        record(RecordKind.PIN, bytes(pin))
