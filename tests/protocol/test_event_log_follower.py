"""Following the event log: deltas, snapshots, what is missing and what is read again."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.block import GapKind
from cordwood.errors import Corrupt
from cordwood.lsn import OLDEST, make_lsn
from cordwood.protocol.event_log import Verdict, apply, begin_anew, replay
from cordwood.protocol.event_log_follower import SNAPSHOT_EVERY, EventFollower
from cordwood.rebuilding import (
    Aborted,
    Acked,
    IsRebuilt,
    NeedsRebuild,
    RebuildEvent,
    RebuildingSet,
    Restated,
    Undrained,
)
from cordwood.sim.planted import find_bug, planted

EVERY = (1, 2, 3, 4, 5, 6)
BASE = RebuildingSet(7)
"""Of the time when events stood in the metadata store."""

EVENTS: dict[str, RebuildEvent] = {
    "lost3": NeedsRebuild(3, EVERY),
    "lost4": NeedsRebuild(4, EVERY),
    "back3": Aborted(3),
    "drain5": NeedsRebuild(5, EVERY, drain=True),
    "keep5": Undrained(5),
}


def at(esn: int, epoch: int = 1) -> int:
    return int(make_lsn(epoch, esn))


def made(text: str) -> RebuildingSet:
    """The set of `lost3@1 back3@2`: each event at its esn of epoch 1."""
    pairs = [each.split("@") for each in text.split()]
    return replay([(at(int(esn)), EVENTS[name]) for name, esn in pairs], BASE)


def follow(text: str, base: RebuildingSet = BASE) -> tuple[EventFollower, list[str]]:
    """Follow `lost3@1`, `snap(lost3@1)@2`, and gaps such as `trim..4`; what became of each."""
    follower, told = EventFollower(base), []
    for step in text.replace(") ", ")_").split(";"):
        step = step.strip()
        if ".." in step:
            kind, last = step.split("..")
            follower.on_gap(at(int(last)), GapKind(kind))
            continue
        what, esn = step.rsplit("@", 1)
        found: RebuildEvent | RebuildingSet | Restated
        if what.startswith("restated"):
            found = Restated(1, made(what[9:-1]), EVERY)
        else:
            found = made(what[5:-1]) if what.startswith("snap") else EVENTS[what]
        told.append(follower.on_record(at(int(esn)), found).name.lower())
    return follower, told


@pytest.mark.parametrize(
    ("steps", "told", "amounts_to", "is_whole"),
    [
        # Deltas count once, in their order.
        ("lost3@1", "applied", "lost3@1", True),
        ("lost3@1;lost4@2", "applied applied", "lost3@1 lost4@2", True),
        ("lost3@1;lost3@1", "applied seen", "lost3@1", True),
        ("lost3@1;back3@2;lost3@1", "applied applied seen", "lost3@1 back3@2", True),
        ("lost3@1;back3@2;lost3@3", "applied applied applied", "lost3@1 back3@2 lost3@3", True),
        # A snapshot changes nothing in a set that is whole.
        ("lost3@1;snap(lost3@1)@2;lost4@3", "applied same applied", "lost3@1 lost4@3", True),
        ("lost3@1;snap(lost3@1)@2;lost3@1", "applied same seen", "lost3@1", True),
        # Ends of epochs and holes have no records in them.
        ("lost3@1;bridge..4;lost4@5", "applied applied", "lost3@1 lost4@5", True),
        ("lost3@1;hole..4;lost4@5", "applied applied", "lost3@1 lost4@5", True),
        # What was trimmed is in the snapshot that follows, and only there.
        ("trim..4;snap(lost3@2)@5;lost4@6", "begun applied", "lost3@2 lost4@6", True),
        ("trim..4;lost4@5;snap(lost3@2 lost4@5)@6", "left_out begun", "lost3@2 lost4@5", True),
        ("trim..4;lost4@5", "left_out", "", False),
        ("lost3@1;trim..4;lost4@5", "applied left_out", "lost3@1", False),
        # A trim of what was read takes nothing away.
        ("lost3@1;trim..1;lost4@2", "applied applied", "lost3@1 lost4@2", True),
        # Nor does a lost record come to anything before the next snapshot.
        ("lost3@1;data_loss..2;back3@3", "applied left_out", "lost3@1", False),
        ("lost3@1;data_loss..2;snap(lost3@1 lost4@2)@3;back3@4", "applied begun applied",
         "lost3@1 lost4@2 back3@4", True),
    ],
)  # fmt: skip
def test_what_records_amount_to(steps: str, told: str, amounts_to: str, is_whole: bool) -> None:
    follower, found = follow(steps)
    assert found == told.split()
    assert follower.set == made(amounts_to)
    assert follower.is_whole is is_whole


@pytest.mark.parametrize(
    "steps",
    [
        "lost3@1;snap(lost4@1)@2",
        "lost3@1;back3@2;snap(lost3@1)@3",
        "lost3@1;snap(lost3@1 lost4@2)@3",
        "trim..1;snap(lost3@2)@2",
    ],
)
def test_a_snapshot_that_is_not_what_is_below_it_is_refused(steps: str) -> None:
    with pytest.raises(Corrupt, match="snapshot of the event log"):
        follow(steps)


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        # All begin anew with it: one that misses records, and one that is whole and goes further.
        ("lost3@1;data_loss..2;back3@3;restated(lost3@1)@4", "applied left_out restated"),
        ("lost3@1;lost4@2;back3@3;restated(lost3@1)@4", "applied applied applied restated"),
        ("trim..3;restated(lost3@1)@4", "restated"),
        ("lost3@1;restated(lost3@1)@4;restated(lost3@1)@4", "applied restated seen"),
    ],
)
def test_all_begin_anew_with_a_restated_set(steps: str, told: str) -> None:
    follower, found = follow(steps)
    assert found == told.split()
    assert follower.is_whole
    assert follower.set == begin_anew(Restated(1, made("lost3@1"), EVERY), at(4))
    assert (follower.set.version, follower.set.through, follower.set.restated) == (at(4), at(4), 1)
    follower.on_record(at(5), EVENTS["lost4"])
    assert {each.node for each in follower.set.lost} == {3, 4}


@pytest.mark.parametrize(
    "said",
    [Restated(1, RebuildingSet(at(4)), EVERY), Restated(2, RebuildingSet(restated=1), EVERY)],
)
def test_a_restated_set_from_elsewhere_is_refused(said: Restated) -> None:
    follower, _ = follow("lost3@1")
    follower.on_record(at(2), Restated(2, RebuildingSet(), EVERY))
    with pytest.raises(Corrupt, match="no place in the event log"):
        follower.on_record(at(4), said)
    assert not follower.is_whole


@pytest.mark.parametrize(
    ("steps", "of", "reached", "is_taken"),
    [
        ("lost3@1;data_loss..2;back3@3", "lost3@1 lost4@2 back3@3", at(3), True),
        ("lost3@1;data_loss..2;back3@3", "lost3@1 lost4@2", at(2), False),  # lags behind
        ("lost3@1", "lost3@1 lost4@2", at(2), False),  # this one is whole
    ],
)
def test_a_set_of_a_follower_that_is_whole_is_taken(
    steps: str, of: str, reached: int, is_taken: bool
) -> None:
    follower, _ = follow(steps)
    before = follower.set
    assert follower.adopt(made(of), reached) is is_taken
    assert follower.set == (made(of) if is_taken else before)
    assert follower.is_whole is (is_taken or ".." not in steps)


def test_records_that_a_taken_set_includes_are_not_applied_again() -> None:
    follower, _ = follow("lost3@1;data_loss..2")
    assert follower.adopt(made("lost3@1 lost4@2 back3@3"), at(3))
    follower.on_record(at(3), EVENTS["back3"])
    follower.on_record(at(4), EVENTS["lost3"])
    assert follower.set == made("lost3@1 lost4@2 back3@3 lost3@4")


def test_nothing_is_said_by_a_set_that_a_snapshot_contradicts() -> None:
    """For five seconds its node appended what it made of events by a set of its own."""
    follower, _ = follow("lost3@1")
    with pytest.raises(Corrupt, match="another set"):
        follower.on_record(at(2), made("lost4@1"))
    assert not follower.is_whole
    assert follower.set == made("lost3@1"), "it stays known"


@pytest.mark.parametrize(
    ("reached", "tail", "has_read"),
    [
        (at(3), at(3), True),
        (at(3), at(4), False),
        (at(2**32 - 1), at(0, 2), True),
        (at(5), at(0, 2), False),
        (OLDEST - 1, OLDEST - 1, True),
    ],
)
def test_whether_all_up_to_a_tail_was_read(reached: int, tail: int, has_read: bool) -> None:
    follower = EventFollower(BASE)
    follower.on_gap(reached, GapKind.BRIDGE)
    assert follower.has_read(tail) is has_read


def test_an_event_that_changes_nothing_is_not_for_the_log() -> None:
    follower, _ = follow("lost3@1")
    assert follower.decide(EVENTS["lost3"]) == (follower.set, Verdict.UNCHANGED)
    assert follower.decide(EVENTS["lost4"]).verdict is Verdict.TAKEN
    stale = NeedsRebuild(4, EVERY, if_version=at(9))
    assert follower.decide(stale) == (follower.set, Verdict.STALE)
    assert follower.set == made("lost3@1"), "nothing was said yet"


@pytest.mark.parametrize("is_planted", [False, True])
def test_what_is_read_again_has_no_effect(is_planted: bool) -> None:
    with planted(find_bug("event-applied-twice")) if is_planted else nullcontext():
        follower, _ = follow("lost3@1;back3@2;lost3@1")
    assert (follower.set == made("lost3@1 back3@2")) is not is_planted


@pytest.mark.parametrize("is_planted", [False, True])
def test_an_event_behind_lost_records_is_left_out(is_planted: bool) -> None:
    """The lost records may change what the event does, so the next snapshot is waited for."""
    with planted(find_bug("missing-events-passed")) if is_planted else nullcontext():
        follower, _ = follow("lost3@1;data_loss..2;back3@3")
    assert (follower.set == made("lost3@1")) is not is_planted


def test_a_snapshot_is_wanted_after_so_many_deltas() -> None:
    follower = EventFollower(BASE)
    for esn in range(1, SNAPSHOT_EVERY + 1):
        assert not follower.wants_snapshot
        follower.on_record(at(esn), EVENTS["lost3" if esn % 2 else "back3"])
    assert follower.wants_snapshot
    follower.on_record(at(SNAPSHOT_EVERY + 1), follower.set)
    assert not follower.wants_snapshot


def test_it_begins_with_any_set_of_the_log() -> None:
    """A base is refreshed now and then: whoever begins with it reads on behind it."""
    base = made("lost3@1 lost4@2")
    follower, told = follow("lost3@1;lost4@2;back3@3", base)
    assert told == ["seen", "seen", "applied"]
    assert follower.set == made("lost3@1 lost4@2 back3@3")


some_events = st.one_of(
    st.builds(NeedsRebuild, st.integers(1, 6), st.just(EVERY), st.booleans()),
    st.builds(IsRebuilt, st.integers(1, 6), st.integers(1, 6), st.integers(1, 12).map(at)),
    st.builds(Acked, st.integers(1, 6), st.integers(1, 12).map(at)),
    st.builds(Aborted, st.integers(1, 6)),
)


@given(
    st.lists(some_events, max_size=12), st.sets(st.integers(1, 12)),
    st.integers(0, 12), st.integers(0, 12), st.lists(st.integers(0, 12), max_size=3),
)  # fmt: skip
def test_whoever_follows_has_the_same_set(
    events: list[RebuildEvent], snapshots: set[int], based: int, trimmed: int, rereads: list[int]
) -> None:
    """From any base, with any part trimmed below a snapshot, and however often it reads again."""
    records: list[tuple[int, RebuildEvent | RebuildingSet]] = []
    sets = [BASE]
    for event in events:
        lsn = at(len(records) + 1)
        records.append((lsn, event))
        sets.append(apply(sets[-1], lsn, event).after)
        if len(sets) - 1 in snapshots:
            records.append((at(len(records) + 1), sets[-1]))
    first = [n for n, (_, each) in enumerate(records) if isinstance(each, RebuildingSet)]
    below = first[trimmed % len(first)] if first and trimmed else 0
    follower = EventFollower(sets[based % len(sets)])
    if below:
        follower.on_gap(records[below - 1][0], GapKind.TRIM)
    left = records[below:]
    for turn in [*rereads, len(left)]:
        for lsn, each in left[:turn]:
            follower.on_record(lsn, each)
    assert follower.is_whole
    assert follower.set == sets[-1]
