"""How a follower goes on that misses records of the event log for ever."""

from __future__ import annotations

import pytest

from cordwood.nodes import Authority, Member, NodeId
from cordwood.protocol.event_log import begin_anew, replay
from cordwood.protocol.event_log_restating import (
    Adopt,
    Heard,
    Restate,
    Restating,
    WaitFor,
    furthest,
)
from cordwood.rebuilding import (
    Acked,
    IsRebuilt,
    NeedsRebuild,
    Rebalance,
    RebuildEvent,
    RebuildingSet,
    Restated,
    Transfer,
    Unrecoverable,
)

EVERY = (1, 2, 3, 4, 5)
GRACE_S = 20.0
TAIL = 9

ALL: list[tuple[int, RebuildEvent]] = [
    (1, NeedsRebuild(5, EVERY)),
    (2, IsRebuilt(5, 1, 1)),
    (3, IsRebuilt(5, 2, 1)),
    (4, IsRebuilt(5, 3, 1)),
    (5, IsRebuilt(5, 4, 1)),
    (6, Acked(5, 1)),
    (7, NeedsRebuild(4, EVERY, drain=True)),
]


def first(count: int) -> RebuildingSet:
    """The sum of the first events."""
    return replay(ALL[:count])


def member(node: int, authority: Authority = Authority.FULLY_AUTHORITATIVE) -> Member:
    return Member(NodeId(node), f"node{node}", "", authority=authority)


def heard(text: str) -> dict[int, Heard]:
    """`2:3@9 4:7@9!`: node 2 has the first three events and has reached the tail 9, and node 4 is
    whole."""
    found = {}
    for each in text.split():
        node, said = each.rstrip("!").split(":")
        count, reached = said.split("@")
        found[int(node)] = Heard(first(int(count)), int(reached), each.endswith("!"))
    return found


@pytest.mark.parametrize(
    ("mine", "base", "others", "wanted"),
    [
        # The furthest set is restated, whoever has it: the one that asks, another, the base.
        (3, 0, "2:2@9 3:1@9 4:2@9 5:0@9", Restate(first(3))),
        (3, 0, "2:2@9 3:5@9 4:2@9 5:0@9", Restate(first(5))),
        (3, 6, "2:2@9 3:5@9 4:2@9 5:0@9", Restate(first(6))),
        # A set counts also if its node lags, and the node is waited for.
        (3, 0, "2:2@9 3:5@8 4:2@9 5:0@9", WaitFor((3,))),
        (0, 0, "2:0@9 4:0@9", WaitFor((3, 5))),
        # One that is whole has them all, and nothing is restated. If it lags it is waited for.
        (3, 0, "2:2@9 3:7@9! 4:2@9", Adopt(Heard(first(7), 9, is_whole=True))),
        (3, 0, "2:2@9 3:7@8! 4:2@9 5:1@9", WaitFor((3,))),
        # Node 5 is away by the furthest set: by that of node 3, and by node 3's alone.
        (0, 0, "2:0@9 3:2@9 4:0@9", Restate(first(2))),
        (0, 0, "2:0@9 3:6@9 4:0@9", WaitFor((5,))),
    ],
)
def test_what_is_done_after_a_round(
    mine: int, base: int, others: str, wanted: Adopt | WaitFor | Restate
) -> None:
    found = Restating(GRACE_S).decide(
        0.0, Heard(first(mine), TAIL, is_whole=False), first(base),
        [member(node) for node in (2, 3, 4, 5)], heard(others),
    )  # fmt: skip
    assert found == wanted


def test_a_set_goes_on_that_is_whole_where_a_restatement_was_begun() -> None:
    """Its words may be refused by the base for ever otherwise."""
    mine = Heard(first(7), TAIL, is_whole=True)
    others = heard("2:2@9 3:7@9! 4:2@9 5:1@9")
    found = Restating(GRACE_S).decide(0.0, mine, first(1), map(member, (2, 3, 4, 5)), others)
    assert found == Restate(first(7))


@pytest.mark.parametrize(
    "authority",
    [Authority.UNDER_REPLICATED, Authority.AUTHORITATIVE_EMPTY, Authority.UNAVAILABLE],
)
def test_a_node_is_not_waited_for_of_which_an_operator_said_that_it_is_gone(
    authority: Authority,
) -> None:
    members = [member(2), member(3, authority), member(4), member(5)]
    mine = Heard(first(0), TAIL, is_whole=False)
    found = Restating(GRACE_S).decide(0.0, mine, first(0), members, heard("2:0@9 4:0@9 5:0@9"))
    assert found == Restate(first(0))


def test_a_silent_node_is_waited_for_as_long_as_for_a_lost_one() -> None:
    rule = Restating(GRACE_S)
    mine = Heard(first(0), TAIL, is_whole=False)
    members = [member(node) for node in (2, 3)]

    def at(now_s: float, others: str) -> Adopt | WaitFor | Restate:
        return rule.decide(now_s, mine, first(0), members, heard(others))

    assert at(0, "2:0@9") == WaitFor((3,))
    assert at(19, "2:0@9") == WaitFor((3,))
    assert at(19.5, "3:0@9") == WaitFor((2,))  # it was heard, and counts anew
    assert at(21, "2:0@9") == WaitFor((3,))
    assert at(40.9, "2:0@9") == WaitFor((3,))
    assert at(41, "2:0@9") == Restate(first(0))


def test_the_furthest_set_includes_the_others() -> None:
    assert furthest([first(2), first(5), first(3)]) == first(5)


# What the restated set is.


def test_donors_look_again() -> None:
    """A report of theirs, or an event that gave them more work, may be lost."""
    before = first(3)
    assert before.entry(5).done == (1, 2)
    after = begin_anew(Restated(1, before, EVERY), 20)
    entry = after.entry(5)
    assert (entry.donors, entry.done, entry.version) == ((1, 2, 3, 4), (), 1)
    assert (after.version, after.through, after.restated) == (20, 20, 1)
    # What they said of the version before is of no use any more.
    assert replay([(21, IsRebuilt(5, 3, before.version))], after).entry(5).done == ()
    done = replay([(21 + n, IsRebuilt(5, n, 20)) for n in (1, 2, 3, 4)], after)
    assert done.entry(5).is_empty


def test_a_node_that_is_called_empty_stays_so() -> None:
    after = begin_anew(Restated(1, first(5), EVERY), 20)
    assert after.entry(5) == first(5).entry(5)
    assert replay([(21, Acked(5, 1))], after).entry(5) is None


def test_a_drained_node_gives_and_a_lost_one_does_not() -> None:
    before = replay([(1, NeedsRebuild(5, EVERY)), (2, Unrecoverable(5)),
                     (3, NeedsRebuild(4, EVERY, drain=True, forced=True))])  # fmt: skip
    after = begin_anew(Restated(1, before, (*EVERY, 6)), 20)
    assert after.entry(5).donors == (1, 2, 3, 4, 6)
    assert not after.entry(5).is_recoverable
    assert after.entry(4).donors == (1, 2, 3, 4, 6)


def test_a_rebalance_goes_on() -> None:
    before = replay([(1, Rebalance((Transfer(1, 2, 5),)))])
    after = begin_anew(Restated(1, before, EVERY), 20)
    assert after.rebalancing == before.rebalancing


def test_restatements_rise_and_deltas_keep_their_number() -> None:
    once = begin_anew(Restated(1, first(3), EVERY), 20)
    later = replay([(21, NeedsRebuild(4, EVERY, forced=True))], once)
    assert later.restated == 1
    assert begin_anew(Restated(4, later, EVERY), 30).restated == 4
