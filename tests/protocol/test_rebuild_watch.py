"""What is said of lost nodes, and what a node does that starts."""

from __future__ import annotations

import pytest

from cordwood.protocol.event_log import Verdict, apply
from cordwood.protocol.rebuild_watch import LossWatch, Start, on_start
from cordwood.rebuilding import LostNode, NeedsRebuild, RebuildingSet, TimeRange
from cordwood.sim.planted import find_bug, planted

NOBODY = RebuildingSet()


def test_a_node_is_lost_when_it_has_been_dead_for_so_long() -> None:
    watch = LossWatch(1, 10.0)
    assert watch.due(0.0, (1, 2, 3), {3}, NOBODY) == []
    assert watch.due(9.9, (1, 2, 3), {3}, NOBODY) == []
    assert watch.due(10.0, (1, 2, 3), {3}, NOBODY) == [NeedsRebuild(3, (1, 2, 3), if_version=0)]


def test_a_node_that_was_seen_meanwhile_is_counted_anew() -> None:
    watch = LossWatch(1, 10.0)
    watch.due(0.0, (1, 2, 3), {3}, NOBODY)
    watch.due(5.0, (1, 2, 3), (), NOBODY)
    watch.due(6.0, (1, 2, 3), {3}, NOBODY)
    assert watch.due(15.9, (1, 2, 3), {3}, NOBODY) == []
    assert len(watch.due(16.0, (1, 2, 3), {3}, NOBODY)) == 1


@pytest.mark.parametrize(
    ("me", "after_s", "dead"), [(3, 10.0, {3}), (1, 0.0, {3}), (1, 10.0, {1, 2, 3})]
)
def test_only_a_node_that_lives_says_it_and_only_if_it_may(me: int, after_s: float, dead) -> None:
    watch = LossWatch(me, after_s)
    for now in range(0, 100, 5):
        assert watch.due(float(now), (1, 2, 3), dead, NOBODY) == []


def test_the_living_nodes_say_it_in_turn_the_first_one_first() -> None:
    """A node that alone is cut off from the metadata store would else keep it from all others."""
    watches = {node: LossWatch(node, 10.0) for node in (1, 2, 4)}
    turns = []
    for now in range(100):
        said = [n for n, w in watches.items() if w.due(float(now), (1, 2, 3, 4), {3}, NOBODY)]
        assert len(said) == (now >= 10), "one at a time"
        turns += [node for node in said if turns[-1:] != [node]]
    assert turns == [1, 2, 4, 1, 2, 4, 1, 2, 4]


def test_what_is_said_already_is_not_said_again() -> None:
    watch = LossWatch(1, 10.0)
    watch.due(0.0, (1, 2, 3), {3}, NOBODY)
    (event,) = watch.due(10.0, (1, 2, 3), {3}, NOBODY)
    after = apply(NOBODY, 1, event).after
    assert watch.due(20.0, (1, 2, 3), {3}, after) == []


def test_an_entry_between_two_looks_counts_its_node_anew() -> None:
    """Seed 52000192: the node acked 0.2 s before a look, and was called lost at once."""
    watch = LossWatch(1, 10.0)
    watch.due(0.0, (1, 2, 3), {3}, NOBODY)
    assert len(watch.due(10.0, (1, 2, 3), {3}, NOBODY)) == 1
    watch.on_set(RebuildingSet(7, 7, (LostNode(3, 7, is_empty=True),)))
    watch.on_set(RebuildingSet(8, 7))
    assert watch.due(11.0, (1, 2, 3), {3}, NOBODY) == []
    assert watch.due(20.9, (1, 2, 3), {3}, NOBODY) == []
    assert len(watch.due(21.0, (1, 2, 3), {3}, NOBODY)) == 1


def test_a_node_that_ends_its_entry_has_time_to_be_heard() -> None:
    """It acks, or says that it is back, before it listens: until then it is seen dead."""
    watch = LossWatch(1, 10.0)
    said = RebuildingSet(7, 7, (LostNode(3, 7, is_empty=True),))
    watch.due(0.0, (1, 2, 3), {3}, NOBODY)
    for now in (10.0, 50.0, 100.0):
        assert watch.due(now, (1, 2, 3), {3}, said) == []
    assert watch.due(101.0, (1, 2, 3), {3}, NOBODY) == []
    assert watch.due(110.9, (1, 2, 3), {3}, NOBODY) == []
    assert len(watch.due(111.0, (1, 2, 3), {3}, NOBODY)) == 1


def test_a_node_that_dies_while_it_is_drained_is_lost() -> None:
    """Its drain never ended, and no rebuilding either: each waited for this donor."""
    draining = LostNode(3, 7, relocates=True, drain=True, donors=(1, 2, 3))
    watch = LossWatch(1, 10.0)
    for now in range(10):
        told = RebuildingSet(8 + now, 7, (draining,))  # the other donors tell how far they are
        watch.on_set(told)
        assert watch.due(float(now), (1, 2, 3), {3}, told) == []
    with planted(find_bug("drained-never-lost")):
        assert watch.due(10.0, (1, 2, 3), {3}, told) == []
    (event,) = watch.due(10.0, (1, 2, 3), {3}, told)
    after = apply(told, 20, event).after
    entry = after.entry(3)
    assert entry is not None
    assert (entry.relocates, entry.drain, entry.donors) == (False, True, (1, 2))
    watch.on_set(after)
    assert watch.due(40.0, (1, 2, 3), {3}, after) == []


@pytest.mark.parametrize(
    ("story", "is_lost"),
    [
        ((LostNode(4, 7, donors=(1, 2, 3, 5)),), True),
        ((LostNode(4, 7, relocates=True, drain=True, donors=(1, 2, 3, 4, 5)),), True),
        # Node 5 gave all, so nobody waits for it: it is lost once node 4 is empty.
        ((LostNode(4, 7, donors=(1, 2, 3, 5), done=(5,)),), False),
        ((LostNode(4, 7, is_empty=True),), True),
        # A third node: blocks may have no copy left.
        ((LostNode(3, 7, donors=(1, 2, 5)), LostNode(4, 7, donors=(1, 2, 5))), False),
    ],
)
def test_a_node_for_which_another_waits_is_lost_also_in_a_small_cluster(
    story: tuple[LostNode, ...], is_lost: bool
) -> None:
    """Two of five were over the share that may be rebuilt. The first one waited for the second
    one as a donor, and the second one's loss was refused: neither was ever rebuilt."""
    watch, nodes = LossWatch(1, 10.0), (1, 2, 3, 4, 5)
    known = RebuildingSet(7, 7, story)
    dead = {5} | {each.node for each in story if not each.relocates and len(story) == 1}
    watch.due(0.0, nodes, dead, known)
    (event,) = watch.due(10.0, nodes, dead, known)
    assert event.node == 5
    after, verdict = apply(known, 8, event)
    assert verdict is (Verdict.TAKEN if is_lost else Verdict.TOO_MANY)
    assert (after.entry(5) is not None) is is_lost


def test_a_drained_node_that_is_empty_is_not_missed() -> None:
    watch = LossWatch(1, 10.0)
    said = RebuildingSet(7, 7, (LostNode(3, 7, relocates=True, drain=True, is_empty=True),))
    for now in (0.0, 10.0, 100.0):
        assert watch.due(now, (1, 2, 3), {3}, said) == []


LOST = LostNode(2, 7, donors=(1, 3))
EMPTY = LostNode(2, 7, is_empty=True)


@pytest.mark.parametrize(
    ("entry", "is_blank", "anew", "start"),
    [
        (None, False, None, Start.SERVE),
        (None, True, None, Start.WAITS),
        (LOST, False, None, Start.BACK),
        (LOST, True, None, Start.WAITS),
        (EMPTY, True, None, Start.ANEW),
        (EMPTY, False, None, Start.STALE),
        (EMPTY, False, 6, Start.STALE),  # begun anew for an earlier loss, and used since
        (EMPTY, False, 7, Start.ANEW),  # a start that was cut short
        (LOST, False, LOST.version, Start.WAITS),  # the event log lost that it was empty
        (LostNode(2, 7, relocates=True, drain=True, donors=(1, 2)), False, None, Start.SERVE),
        (LostNode(2, 7, drain=True, is_empty=True), False, None, Start.SERVE),
        (LostNode(2, 7, ranges=(TimeRange(1, 2),)), False, None, Start.SERVE),
    ],
)
def test_what_a_node_does_that_starts(entry, is_blank: bool, anew: int | None, start) -> None:
    assert on_start(entry, is_known=True, is_blank=is_blank, anew=anew) is start


@pytest.mark.parametrize(
    ("entry", "is_blank", "anew", "is_dropping", "start"),
    [
        (None, False, None, False, Start.SERVE),
        (LOST, False, None, False, Start.BACK),
        (EMPTY, False, None, False, Start.KEEPS_LEDGERS),
        (EMPTY, False, 6, False, Start.KEEPS_LEDGERS),  # it was away before
        (EMPTY, False, 7, False, Start.ANEW),  # its logs are dropped, and it did not join yet
        (EMPTY, True, None, False, Start.ANEW),
        (LostNode(2, 7, drain=True, is_empty=True), False, None, False, Start.SERVE),
        # Some of its blocks are gone, so it never counts as whole.
        (None, False, None, True, Start.WAITS),
        (LOST, False, None, True, Start.WAITS),
        (EMPTY, False, 6, True, Start.KEEPS_LEDGERS),
        (LostNode(2, 7, drain=True, is_empty=True), False, None, True, Start.KEEPS_LEDGERS),
    ],
)
def test_what_a_node_does_whose_ledgers_are_wanted(
    entry, is_blank: bool, anew: int | None, is_dropping: bool, start
) -> None:
    found = on_start(
        entry, is_known=True, is_blank=is_blank, anew=anew, keeps_ledgers=True,
        is_dropping=is_dropping,
    )  # fmt: skip
    assert found is start


def test_a_new_node_may_be_empty() -> None:
    assert on_start(None, is_known=False, is_blank=True) is Start.SERVE


def test_a_node_that_is_cut_off_says_nothing_of_the_others() -> None:
    watch = LossWatch(1, 10.0)
    watch.due(0.0, (1, 2, 3, 4, 5), {2, 3, 4, 5}, NOBODY)
    assert watch.due(10.0, (1, 2, 3, 4, 5), {2, 3, 4, 5}, NOBODY) == []


@pytest.mark.parametrize(("dead", "lost"), [({3, 4, 5}, [3]), ({2, 3, 4, 5}, [])])
def test_nodes_that_were_rebuilt_are_no_part_of_the_majority(
    dead: set[int], lost: list[int]
) -> None:
    gone = tuple(LostNode(node, 1, False, False, is_empty=True) for node in (4, 5))
    rebuilding = RebuildingSet(lost=gone)
    watch = LossWatch(1, 10.0)
    watch.due(0.0, (1, 2, 3, 4, 5), dead, rebuilding)
    said = watch.due(10.0, (1, 2, 3, 4, 5), dead, rebuilding)
    assert [event.node for event in said] == lost
