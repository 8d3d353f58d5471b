"""Groups in APPEND entries: golden bytes, round trips, and refusal of all that is damaged."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from cordwood.errors import Malformed
from cordwood.layout.append_group import GroupPart, pack_group, read_group
from cordwood.layout.limits import GROUP_BLOCKS_MAX
from cordwood.layout.waves import AppendEntry, AppendFlag, append_entry, append_head, read_append

GOLDEN = bytes.fromhex(
    "0200000000000000"
    "05000000" "03000000" "09000000" "04030201" "08070605" "02" "000000"
    "01000000" "00000000" "00000000" "00000000" "00000000" "00" "000000"
)  # fmt: skip
PARTS = (GroupPart(5, 3, 9, 0x01020304, 0x05060708, 2, b"xyz"), GroupPart(1, 0, 0, 0, 0, 0, b""))


def part(body: bytes, records: int = 1) -> GroupPart:
    return GroupPart(records, len(body), len(body), crc32c(body), crc32c(body), 0, body)


def entry(*parts: GroupPart, flags: int = AppendFlag.GROUP, **fields: int) -> AppendEntry:
    count = sum(each.records for each in parts)
    size = sum(each.stored_bytes for each in parts)
    return AppendEntry(7, 1, count, 0, flags, 0, 3, 4, 0, 5, size, 0, 0, 0, parts=parts, **fields)


def frame(*entries: AppendEntry) -> memoryview:
    parts = [append_head(len(entries))]
    for each in entries:
        parts += (append_entry(each), *map(bytes, each.bodies))
    return memoryview(b"".join(parts))


def test_a_group_has_these_bytes() -> None:
    assert pack_group(PARTS) == GOLDEN
    found, at = read_group(memoryview(GOLDEN + b"xyz"), 0)
    assert found == PARTS
    assert at == len(GOLDEN) + 3


@given(st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=4), min_size=1, max_size=3))
def test_groups_and_lone_blocks_come_back_as_they_went(groups) -> None:
    lone = AppendEntry(7, 2, 1, 0, 0, 0, 0, 0, 0, 0, 3, 3, 1, 1, b"one")
    tail = AppendFlag.GROUP | AppendFlag.CONDITIONAL
    sent = [entry(*map(part, bodies)) for bodies in groups]
    sent.append(entry(*map(part, groups[0]), flags=tail, expected_tail=99))
    found = read_append(frame(lone, *sent, lone))
    assert [each.parts for each in found] == [(), *(each.parts for each in sent), ()]
    assert [bytes(each.body) for each in (found[0], found[-1])] == [b"one", b"one"]
    assert found[-2].expected_tail == 99


def test_every_truncation_is_refused() -> None:
    whole = bytes(frame(entry(part(b"first"), part(b"second", 3))))
    for length in range(len(whole)):
        with pytest.raises(Malformed):
            read_append(memoryview(whole[:length]))


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, 0), (0, GROUP_BLOCKS_MAX + 1), (4, 1), (8, 0), (8, 70_000), (12, 1 << 30), (16, 1 << 30)],
    ids=["no blocks", "too many", "reserved", "no records", "many records", "stored", "raw"],
)
def test_a_field_out_of_its_range_is_refused(at: int, value) -> None:
    data = bytearray(GOLDEN + b"xyz")
    struct.pack_into("<I", data, at, value)
    with pytest.raises(Malformed):
        read_group(memoryview(bytes(data)), 0)


@pytest.mark.parametrize("field", ["count", "stored_bytes", "raw_bytes", "stored_crc", "codec"])
def test_a_group_that_is_not_the_sum_of_its_blocks_is_refused(field: str) -> None:
    wrong = entry(part(b"first"), part(b"second"))
    setattr(wrong, field, getattr(wrong, field) + 1)
    with pytest.raises(Malformed):
        read_append(frame(wrong))
