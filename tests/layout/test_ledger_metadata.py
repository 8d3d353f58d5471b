"""A ledger's metadata as bytes, and its key: golden bytes, round trips, damage."""

from __future__ import annotations

import struct

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from layout_damage import bit_flips, damaged, only_ours, truncations

from cordwood.errors import ChecksumMismatch, Malformed
from cordwood.layout.ledger_metadata import (
    METADATA_BYTES_MAX,
    VERSION,
    ledger_key,
    pack_ledger,
    read_ledger,
    read_ledger_key,
)
from cordwood.ledger import (
    ENTRY_MAX,
    JOINING_MAX,
    LEDGER_MAX,
    DigestKind,
    Fragment,
    LedgerMetadata,
    LedgerState,
    Striping,
    is_only_repaired,
    may_follow,
)

NEW = LedgerMetadata(7, Striping(3, 3, 2), (Fragment(0, (1, 2, 3)),))
FULL = LedgerMetadata(
    LEDGER_MAX,
    Striping(3, 2, 1),
    (Fragment(0, (1, 2, 3)), Fragment(4, (1, 2**32 - 1, 3)), Fragment(2**32, (9, 8, 7))),
    LedgerState.CLOSED,
    2**40,
    2**50,
    DigestKind.HMAC_SHA1,
    b"secret\0",
    1_700_000_000_000_000,
    {"b": b"\xff", "a": b""},
)
ALL = [
    NEW,
    NEW.recovering(),
    NEW.closed(-1, 0),
    NEW.closed(0, 0),
    NEW.with_ensemble(3, (1, 2, 4)).closed(2, 20),
    FULL,
    FULL.tiering(9),
    FULL.tiering(2**63 - 1).tiered(2**32 - 1, 2**62),
    msgspec.structs.replace(NEW, wants_tier=True),
    NEW.recovering().with_joining(4),
    NEW.closed(0, 0).with_joining(4).with_joining(2**32 - 1),
]


def sealed(body: bytes, version: int = VERSION, spare: bytes = bytes(3)) -> bytes:
    """A body under a head and sum that are right for it."""
    head = struct.pack("<B3s", version, spare)
    return head + struct.pack("<I", crc32c(body, crc32c(head))) + body


@pytest.mark.parametrize("metadata", ALL, ids=lambda each: each.state.value)
def test_ledgers_come_back(metadata: LedgerMetadata) -> None:
    assert read_ledger(pack_ledger(metadata)) == metadata


def test_the_bytes_are_these() -> None:
    """What other versions wrote must be read for ever."""
    assert pack_ledger(NEW).hex() == (
        "01000000d51be4df83a66c656467657207a87374726970696e6793030302a9667261676d656e747391920093"
        "010203"
    )  # fmt: skip
    assert pack_ledger(FULL).hex() == (
        "0100000000c5ed9f8aa66c6564676572cf7fffffffffffffffa87374726970696e6793030201a9667261676d"
        "656e74739392009301020392049301ceffffffff0392cf000000010000000093090807a57374617465a6636c"
        "6f736564a46c617374cf0000010000000000a66c656e677468cf0004000000000000a664696765737402a870"
        "617373776f7264c40773656372657400aa637265617465645f7573cf00060a24181e4000a6637573746f6d82"
        "a161c400a162c401ff"
    )  # fmt: skip


def test_what_may_follow_of_main_storage() -> None:
    """Attempts replace one another until the one in force is committed; that holds for good."""
    closed = NEW.closed(4, 40)
    one, two = closed.tiering(1), closed.tiering(2)
    done = one.tiered(7, 9)
    values = {"closed": closed, "one": one, "two": two, "done": done, "other": one.tiered(8, 9)}
    allowed = {
        ("closed", "one"), ("closed", "two"), ("one", "two"), ("two", "one"), ("one", "done"),
        ("one", "other"), *((each, each) for each in values),
    }  # fmt: skip
    for before in values:
        for after in values:
            is_allowed = may_follow(values[before], values[after])
            assert is_allowed == ((before, after) in allowed), (before, after)
    moved = msgspec.structs.replace(done, fragments=(Fragment(0, (1, 2, 4)),))
    assert may_follow(done, moved)
    assert not may_follow(NEW, one)  # closed and claimed at once
    assert not may_follow(NEW, msgspec.structs.replace(NEW, wants_tier=True))


OLDER = NEW.with_ensemble(5, (1, 2, 4)).with_ensemble(9, (1, 2, 5))
REPAIRED = OLDER.with_node(5, 0, 7).with_joining(8)


@pytest.mark.parametrize("state", ["open", "in recovery", "closed"])
def test_settled_fragments_get_other_nodes_in_any_state(state: str) -> None:
    def at(metadata: LedgerMetadata) -> LedgerMetadata:
        if state == "open":
            return metadata
        return metadata.recovering() if state == "in recovery" else metadata.closed(9, 40)

    assert may_follow(at(OLDER), at(REPAIRED))
    moved = msgspec.structs.replace(
        OLDER, fragments=(OLDER.fragments[0], Fragment(6, (1, 2, 4)), OLDER.fragments[2])
    )
    assert not may_follow(at(OLDER), at(moved))
    fewer = msgspec.structs.replace(OLDER, fragments=OLDER.fragments[:2])
    assert not may_follow(at(OLDER), at(fewer))


@pytest.mark.parametrize(
    ("after", "is_repair"),
    [
        (REPAIRED, True),
        (OLDER, True),
        (OLDER.with_node(9, 0, 7), False),
        (OLDER.with_ensemble(20, (1, 2, 6)), False),
        (OLDER.recovering(), False),
        (msgspec.structs.replace(OLDER, fragments=OLDER.fragments[::2]), False),
        (msgspec.structs.replace(OLDER, wants_tier=True), False),
    ],
)
def test_a_writer_goes_on_only_after_a_repair_of_settled_fragments(
    after: LedgerMetadata, is_repair: bool
) -> None:
    assert is_only_repaired(OLDER, after) is is_repair


def test_settled_fragments_are_all_before_the_newest_until_the_end() -> None:
    assert (OLDER.settled, OLDER.settled_last) == (OLDER.fragments[:2], 8)
    assert (OLDER.recovering().settled, OLDER.recovering().settled_last) == (OLDER.fragments[:2], 8)
    assert (OLDER.closed(9, 40).settled, OLDER.closed(9, 40).settled_last) == (OLDER.fragments, 9)
    assert (NEW.settled, NEW.settled_last) == ((), -1)


def test_nodes_that_join_come_and_go() -> None:
    """A repair or a recovery says which nodes it copies to; an end ends all of that."""
    closed = NEW.closed(4, 40)
    joining = closed.with_joining(4).with_joining(5)
    assert joining.joining == (4, 5)
    assert joining.joined() == closed
    assert NEW.recovering().with_joining(4).closed(4, 40) == closed
    for before, after in ((closed, joining), (joining, closed), (joining, joining.tiering(1))):
        assert may_follow(before, after)
    many = closed
    for node in range(1, JOINING_MAX + 2):
        many = many.with_joining(node)
    assert many.joining == tuple(range(2, JOINING_MAX + 2))
    assert read_ledger(pack_ledger(many)) == many


def test_equal_metadata_has_equal_bytes() -> None:
    turned = msgspec.structs.replace(FULL, custom={"a": b"", "b": b"\xff"})
    assert pack_ledger(turned) == pack_ledger(FULL)


@pytest.mark.parametrize("packed", [pack_ledger(NEW), pack_ledger(FULL)], ids=["new", "full"])
def test_every_truncation_and_every_flipped_bit_is_refused(packed: bytes) -> None:
    for wrong in [*truncations(packed), *bit_flips(packed), packed + b"\0"]:
        with pytest.raises((ChecksumMismatch, Malformed)):
            read_ledger(wrong)


def test_another_version_is_refused() -> None:
    body = pack_ledger(NEW)[8:]
    with pytest.raises(Malformed, match="layout 2, and this version reads 1"):
        read_ledger(sealed(body, version=2))
    with pytest.raises(Malformed, match="layout 1"):
        read_ledger(sealed(body, spare=b"\0\1\0"))
    with pytest.raises(Malformed, match="bytes"):
        read_ledger(sealed(bytes(METADATA_BYTES_MAX)))


def test_too_much_for_the_metadata_store_is_refused_before_it_is_written() -> None:
    custom = {str(n): bytes(65_536) for n in range(16)}
    with pytest.raises(Malformed, match=r"ledger 7 has 10.* bytes, and 1000000 can be"):
        pack_ledger(msgspec.structs.replace(NEW, custom=custom))


@pytest.mark.parametrize(
    "change",
    [
        {"ledger": -1},
        {"tier": [1]},
        {"state": "closed", "tier": [0]},
        {"state": "closed", "tier": [1, 2, 3, 4]},
        {"state": "closed", "tier": [1, -2]},
        {"state": "closed", "tier": [1, 2**32]},
        {"ledger": 2**63},
        {"striping": [3, 4, 2]},
        {"striping": [3, 3, 0]},
        {"striping": [3, 3]},
        {"fragments": []},
        {"fragments": [[1, [1, 2, 3]]]},
        {"fragments": [[0, [1, 2]]]},
        {"fragments": [[0, [1, 2, 2]]]},
        {"fragments": [[0, [0, 1, 2]]]},
        {"fragments": [[0, [1, 2, 3]], [0, [1, 2, 4]]]},
        {"fragments": [[0, [1, 2, 3]], [5, [1, 2, 4]], [4, [1, 2, 3]]]},
        {"state": "opening"},
        {"last": 4},
        {"length": 4},
        {"state": "in_recovery", "last": 4},
        {"state": "closed", "last": -2},
        {"state": "closed", "last": -1, "length": 3},
        {"state": "closed", "last": 3, "fragments": [[0, [1, 2, 3]], [5, [1, 2, 4]]]},
        {"digest": 9},
        {"custom": {"a": 1}},
        {"new": 1},
    ],
    ids=str,
)
def test_what_no_ledger_can_be_is_refused(change: dict[str, object]) -> None:
    value = {"ledger": 7, "striping": [3, 3, 2], "fragments": [[0, [1, 2, 3]]], **change}
    with pytest.raises(Malformed, match="cannot be read"):
        read_ledger(sealed(msgspec.msgpack.encode(value)))


def test_noise_under_a_right_sum_is_refused() -> None:
    for noise in (b"", b"\x91" * 10_000, b"\x80", b"\x81\xa1\xff\x01"):
        with pytest.raises(Malformed, match="cannot be read"):
            read_ledger(sealed(noise))


@given(damaged((pack_ledger(NEW), pack_ledger(FULL))))
def test_damage_raises_what_is_ours(data: bytes) -> None:
    only_ours(read_ledger, data)
    only_ours(read_ledger, sealed(data))


class TestFragments:
    def test_a_fragment_that_begins_at_the_same_entry_is_replaced(self):
        once = NEW.with_ensemble(5, (1, 2, 4))
        assert once.fragments == (Fragment(0, (1, 2, 3)), Fragment(5, (1, 2, 4)))
        assert once.with_ensemble(5, (1, 5, 4)).fragments == (
            Fragment(0, (1, 2, 3)), Fragment(5, (1, 5, 4)),
        )  # fmt: skip
        assert NEW.with_ensemble(0, (4, 5, 6)).fragments == (Fragment(0, (4, 5, 6)),)

    def test_an_older_fragment_stays(self):
        with pytest.raises(AssertionError, match="only the newest"):
            NEW.with_ensemble(5, (1, 2, 4)).with_ensemble(0, (1, 2, 4))

    @pytest.mark.parametrize(
        ("entry", "nodes"),
        [(0, (1, 2, 3)), (4, (1, 2, 3)), (5, (1, 2, 4)), (ENTRY_MAX, (1, 2, 4))],
    )
    def test_where_entries_lie(self, entry, nodes):
        assert NEW.with_ensemble(5, (1, 2, 4)).nodes_at(entry) == nodes


class TestKeys:
    @pytest.mark.parametrize(
        ("ledger", "key"),
        [
            (0, "00/0000/L0000"),
            (1, "00/0000/L0001"),
            (10_000, "00/0001/L0000"),
            (2**31 - 1, "21/4748/L3647"),
            (2**31, "000/0000/0021/4748/L3648"),
            (LEDGER_MAX, "922/3372/0368/5477/L5807"),
        ],
    )
    def test_keys(self, ledger, key: str):
        assert ledger_key(ledger) == key
        assert read_ledger_key(key) == ledger

    @pytest.mark.parametrize(
        "key",
        [
            "", "L0001", "00/0000/0001", "00/0000/L001", "00/0000/L0001/", "/00/0000/L0001",
            "21/4748/L3648",
            "99/9999/L9999", "000/0000/0000/0000/L0001", "922/3372/0368/5477/L5808",
            "999/9999/9999/9999/L9999", "00/00l0/L0001", "٠٠/0000/L0001", "00/0000/L0001\n",
        ],
    )  # fmt: skip
    def test_what_is_no_key_is_refused(self, key: str):
        with pytest.raises(Malformed, match="no key of a ledger"):
            read_ledger_key(key)

    @given(st.integers(0, LEDGER_MAX), st.integers(0, LEDGER_MAX))
    def test_keys_sort_as_ids_do_among_ids_of_one_length(self, one, other):
        assert read_ledger_key(ledger_key(one)) == one
        if (one < 2**31) == (other < 2**31):
            assert (ledger_key(one) < ledger_key(other)) == (one < other)
