"""Events of the event log and rebuilding sets as bytes: golden bytes, round trips, damage."""

from __future__ import annotations

import struct

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from layout_damage import bit_flips, damaged, only_ours, truncations

from cordwood.errors import BadSetting, ChecksumMismatch, Malformed
from cordwood.layout.rebuild_events import (
    EVENT,
    EVENT_BYTES_MAX,
    SET,
    SET_BYTES_MAX,
    VERSION,
    Base,
    is_base,
    pack_base,
    pack_event,
    pack_restated,
    pack_set,
    read_base,
    read_event,
    read_record,
    read_set,
)
from cordwood.rebuilding import (
    NODES_MAX,
    PARTS,
    Aborted,
    Acked,
    DonorProgress,
    Gave,
    IsRebuilt,
    LostNode,
    NeedsRebuild,
    Rebalance,
    Rebalancing,
    RebuildEvent,
    RebuildingSet,
    Restated,
    TimeRange,
    Transfer,
    Undrained,
    Unrecoverable,
)

EVENTS: list[RebuildEvent] = [
    NeedsRebuild(3, (1, 2, 3)),
    NeedsRebuild(3, (1, 2, 3), True, (), 7, True, True),
    NeedsRebuild(2**32 - 1, (2**32 - 1,), ranges=(TimeRange(-5, 2**62),)),
    DonorProgress(1, 10, -(2**62), 1 << 40, 0),
    IsRebuilt(3, 1, 10, False),
    Acked(3, 10),
    Aborted(3),
    Aborted(3, 10),
    Undrained(3),
    Unrecoverable(3),
    Rebalance((Transfer(1, 2, 500_000), Transfer(3, 2, 1))),
    Gave(3, 10, 1, 1 << 40, 2, 3),
]

A_SET = RebuildingSet(
    17, 12,
    (
        LostNode(2, 12, False, True, (TimeRange(1, 2), TimeRange(4, 9)), True, (1, 3), (3,)),
        LostNode(4, 11, True, True, (), True, (1, 3, 4), (1, 4), False),
        LostNode(5, 10, is_recoverable=False, is_empty=True),
    ),
    (DonorProgress(1, 12, 99, 5, 6), DonorProgress(3, 12, 98)),
    Rebalancing(9, (Transfer(1, 2, 5),), (1, 3), (Gave(3, 9, 1, 2, 3, 4),), True),
)  # fmt: skip


def sealed(kind: int, body: bytes, version: int = VERSION, reserved: int = 0) -> bytes:
    """A body under a head and sum that are right for it."""
    head = struct.pack("<BBH", version, kind, reserved)
    return head + struct.pack("<I", crc32c(body, crc32c(head))) + body


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_come_back(event: RebuildEvent) -> None:
    assert read_event(pack_event(event)) == event


def test_sets_come_back() -> None:
    assert read_set(pack_set(A_SET)) == A_SET
    assert read_set(pack_set(RebuildingSet())) == RebuildingSet()


def test_the_bytes_are_these() -> None:
    """What other versions wrote must be read for ever."""
    ack = bytes.fromhex("010100002b7218d783a474797065a561636b6564a46e6f646503a776657273696f6e0a")
    assert pack_event(Acked(3, 10)) == ack
    assert pack_set(RebuildingSet(7)) == bytes.fromhex("010200000949bfbb81a77468726f75676807")


@pytest.mark.parametrize("packed", [pack_event(EVENTS[1]), pack_set(A_SET)], ids=["event", "set"])
def test_every_truncation_and_every_flipped_bit_is_refused(packed: bytes) -> None:
    read = read_event if packed[1] == EVENT else read_set
    for wrong in [*truncations(packed), *bit_flips(packed), packed + b"\0"]:
        with pytest.raises((ChecksumMismatch, Malformed)):
            read(wrong)


def test_an_event_that_no_node_could_read_is_not_written() -> None:
    """In the event log it would stop every node that follows the log."""
    far = 2**32 - 2
    shares = tuple(Transfer(far - at, far + 1, PARTS) for at in range(NODES_MAX))
    with pytest.raises(BadSetting, match=f"may have {EVENT_BYTES_MAX} bytes"):
        pack_event(Rebalance(shares))
    some = Rebalance(shares[:-100])
    assert read_event(pack_event(some)) == some


def test_a_set_that_no_node_could_read_is_not_written() -> None:
    donors = tuple(range(2**32 - NODES_MAX, 2**32))
    lost = tuple(LostNode(node, 1, donors=donors, done=donors) for node in range(1, 40))
    for pack in (pack_set, lambda found: pack_base(Base(found))):
        with pytest.raises(BadSetting, match=f"may have {SET_BYTES_MAX} bytes"):
            pack(RebuildingSet(1, 1, lost))


def test_another_version_or_kind_is_refused() -> None:
    body = pack_event(Acked(3, 10))[8:]
    with pytest.raises(Malformed, match="layout 2, and this version reads 1"):
        read_event(sealed(EVENT, body, version=2))
    for wrong in (sealed(SET, body), sealed(EVENT, body, reserved=1)):
        with pytest.raises(Malformed, match="another value is there"):
            read_event(wrong)
    with pytest.raises(Malformed, match="bytes"):
        read_event(sealed(EVENT, bytes(EVENT_BYTES_MAX)))


@pytest.mark.parametrize(
    "body",
    [
        {"type": "acked", "node": 0, "version": 1},
        {"type": "acked", "node": 1 << 32, "version": 1},
        {"type": "acked", "node": 1, "version": -1},
        {"type": "acked", "node": 1},
        {"type": "acked", "node": 1, "version": 1, "new": 1},
        {"type": "unheard_of", "node": 1},
        {"type": "needs_rebuild", "node": 1, "nodes": [1], "drain": True, "ranges": [[1, 2]]},
        {"type": "needs_rebuild", "node": 1, "nodes": [1], "ranges": [[2, 1]]},
        {"type": "needs_rebuild", "node": 1, "nodes": list(range(1, NODES_MAX + 2))},
        [],
        "noise",
    ],
    ids=str,
)
def test_what_no_event_is_is_refused(body: object) -> None:
    with pytest.raises(Malformed, match="cannot be read"):
        read_event(sealed(EVENT, msgspec.msgpack.encode(body)))
    with pytest.raises(Malformed, match="cannot be read"):
        read_event(sealed(EVENT, b"\x91" * 10_000))


@pytest.mark.parametrize(
    "wrong",
    [
        RebuildingSet(17, 18),
        RebuildingSet(17, 12, (LostNode(4, 11), LostNode(2, 12))),
        RebuildingSet(17, 12, (LostNode(4, 11), LostNode(4, 11))),
        RebuildingSet(17, 12, (LostNode(4, 11, donors=(2, 1)),)),
        RebuildingSet(17, 12, (LostNode(4, 11, donors=(1, 2), done=(3,)),)),
        RebuildingSet(17, 12, (LostNode(4, 11, ranges=(TimeRange(1, 4), TimeRange(5, 6))),)),
        RebuildingSet(17, 12, (), (DonorProgress(3, 12, 1), DonorProgress(1, 12, 1))),
    ],
    ids=[
        "a version to come", "entries out of order", "an entry twice", "donors out of order",
        "done and no donor", "ranges that meet", "progress out of order",
    ],
)  # fmt: skip
def test_what_no_set_is_is_refused(wrong: RebuildingSet) -> None:
    with pytest.raises(Malformed, match="cannot be what events amount to"):
        read_set(pack_set(wrong))


@given(damaged((pack_event(EVENTS[0]), pack_set(A_SET))))
def test_damage_raises_what_is_ours(data: bytes) -> None:
    only_ours(read_event, data)
    only_ours(read_set, data)


@given(st.sampled_from(EVENTS), st.integers(0, 2), st.binary(max_size=4))
def test_damage_under_a_right_sum_raises_what_is_ours(
    event: RebuildEvent, cut: int, more: bytes
) -> None:
    body = pack_event(event)[8:]
    only_ours(read_event, sealed(EVENT, body[: len(body) - cut] + more))
    only_ours(read_set, sealed(SET, body[cut:] + more))


@pytest.mark.parametrize(
    "found", [*EVENTS, A_SET, RebuildingSet()], ids=lambda each: str(each)[:40]
)
def test_a_record_is_an_event_or_a_snapshot(found: RebuildEvent | RebuildingSet) -> None:
    packed = pack_set(found) if isinstance(found, RebuildingSet) else pack_event(found)
    assert read_record(packed) == found
    assert not is_base(packed)
    with pytest.raises(Malformed):
        read_base(packed)


def test_a_base_is_no_record_and_no_set() -> None:
    """So whoever does not know of the event log goes on with no set from before it."""
    packed = pack_base(Base(A_SET))
    assert is_base(packed)
    assert read_base(packed) == Base(A_SET)
    for read in (read_set, read_event, read_record):
        with pytest.raises(Malformed):
            read(packed)


RESTATED = Restated(A_SET.restated + 2, A_SET, (1, 2, 3))


def test_a_restated_set_is_a_record_and_no_base() -> None:
    packed = pack_restated(RESTATED)
    assert read_record(packed) == RESTATED
    assert not is_base(packed)
    # Versions that know only these two refuse it, and do not take it for one of them.
    for read in (read_set, read_event, read_base):
        with pytest.raises(Malformed, match="another value is there"):
            read(packed)
    for broken in (*truncations(packed), *bit_flips(packed)):
        with pytest.raises((Malformed, ChecksumMismatch)):
            read_record(broken)


def test_a_restated_set_that_includes_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="in its own set"):
        Restated(A_SET.restated, A_SET, (1,))
    body = msgspec.msgpack.encode({"type": "restated", "number": 3, "nodes": [1],
                                   "set": {"restated": 3}})  # fmt: skip
    with pytest.raises(Malformed):
        read_record(sealed(4, body))


def test_a_fenced_base_is_refused_by_versions_that_know_no_fence() -> None:
    packed = pack_base(Base(A_SET, 3))
    assert is_base(packed)
    assert read_base(packed) == Base(A_SET, 3)
    assert packed[1] != pack_base(Base(A_SET))[1], "their base has another kind"
    for read in (read_set, read_event, read_record):
        with pytest.raises(Malformed, match="another value is there"):
            read(packed)


@pytest.mark.parametrize("fence", [0, 3])
def test_a_damaged_base_is_refused(fence: int) -> None:
    packed = pack_base(Base(A_SET, fence))
    for broken in (*truncations(packed), *bit_flips(packed)):
        with pytest.raises((Malformed, ChecksumMismatch)):
            read_base(broken)
