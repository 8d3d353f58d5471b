"""Requests for maintenance: what is granted, in which order, and what follows for drains."""

from __future__ import annotations

import random
from collections.abc import Set

import pytest

from cordwood.errors import BadSetting
from cordwood.impact.check import ImpactCheck, ImpactReport, Placement
from cordwood.impact.maintenance import (
    REQUESTS_MAX,
    MaintenanceSet,
    Wanted,
    advanced,
    drains_of,
    ended_drains,
    stray_drains,
    with_request,
    without_request,
)
from cordwood.nodes import Member, NodeId, Replication

SIX = {NodeId(n): Member(NodeId(n), "") for n in range(1, 7)}
GOES, DRAINED = Wanted.MAY_DISAPPEAR, Wanted.DRAINED
S = 1_000_000


def judge(
    nodes: frozenset[NodeId], away: Set[NodeId], down: Set[NodeId] = frozenset()
) -> ImpactReport:
    """A log on nodes 1 to 5, of three copies: two nodes may be absent."""
    check = ImpactCheck(SIX, nodes, away | down)
    check.add(1, [(1, 0, Placement((1, 2, 3, 4, 5), (), Replication(3)))])
    return check.report()


def asked(known: MaintenanceSet, *nodes: int, wanted: Wanted = GOES, ttl_s: int = 0,
          now_us: int = S) -> MaintenanceSet:  # fmt: skip
    return with_request(known, nodes, wanted, "a new disk", "ann", ttl_s, now_us)


def granted(known: MaintenanceSet) -> list[bool]:
    return [each.is_granted for each in known.requests]


def test_what_is_safe_is_granted_and_what_is_not_is_blocked_with_its_cause() -> None:
    found = advanced(asked(asked(asked(MaintenanceSet(), 1), 2), 3), S, judge)
    assert granted(found) == [True, True, False]
    assert "writes would stop" in found.requests[2].blocked
    assert found.absent == {1, 2}


def test_two_that_are_safe_alone_and_not_together_are_not_both_granted() -> None:
    found = advanced(asked(asked(MaintenanceSet(), 1, 2), 3, 4), S, judge)
    assert granted(found) == [True, False]
    later = advanced(without_request(found, 1), S, judge)
    assert granted(later) == [True]
    assert later.requests[0].blocked == ""


def test_what_was_granted_stays_granted() -> None:
    found = advanced(asked(MaintenanceSet(), 1, 2), S, judge)
    down = advanced(found, S, lambda nodes, away: judge(nodes, away, {NodeId(3)}))
    assert down == found


def test_requests_stack() -> None:
    found = advanced(asked(asked(MaintenanceSet(), 1, 2), 2), S, judge)
    assert granted(found) == [True, True], "node 2 is taken already"
    found = advanced(without_request(found, 1), S, judge)
    assert found.absent == {2}


def test_a_drain_asks_for_more_than_that_a_node_may_disappear() -> None:
    found = advanced(asked(asked(MaintenanceSet(), 1, 2), 1, wanted=DRAINED), S, judge)
    assert granted(found) == [True, True]
    assert found.named(DRAINED) == {1}
    found = advanced(asked(asked(MaintenanceSet(), 1, wanted=DRAINED), 1), S, judge)
    assert granted(found) == [True, True]


def test_a_node_may_disappear_by_its_drain_once_it_is_empty() -> None:
    """A drain is granted although reads need the node until it is empty."""

    def judge(nodes: frozenset[NodeId], away: Set[NodeId]) -> ImpactReport:
        check = ImpactCheck(SIX, nodes, away)
        check.add(1, [(1, 0, Placement((1, 2, 3, 4, 5), (), Replication(2)))])
        return check.report()

    found = advanced(asked(asked(MaintenanceSet(), 1), 2, wanted=DRAINED), S, judge)
    assert granted(found) == [True, True]
    found = advanced(asked(found, 2), S, judge)
    assert granted(found) == [True, True, False]
    assert "reads would stop" in found.requests[2].blocked
    assert granted(advanced(found, S, judge, {2})) == [True, True, True]


def test_a_ttl_ends_a_request() -> None:
    found = advanced(asked(MaintenanceSet(), 1, ttl_s=10, now_us=5 * S), 15 * S - 1, judge)
    assert granted(found) == [True]
    assert advanced(found, 15 * S, judge).requests == ()


def test_numbers_are_never_used_again() -> None:
    found = without_request(asked(MaintenanceSet(), 1), 1)
    assert asked(found, 1).requests[0].number == 2


def test_drains_follow_and_an_operators_own_drain_stays() -> None:
    known = advanced(asked(MaintenanceSet(), 1, 6, wanted=DRAINED), S, judge)
    drains = drains_of(known, {6})
    assert (drains.begin, drains.end, drains.noted.drained) == ((1,), (), (1,))
    assert drains_of(drains.noted, {1, 6}).begin == ()
    assert drains_of(drains.noted, {6}).begin == (1,), "an order that failed is given again"
    gone = without_request(drains.noted, 1)
    assert drains_of(gone, {1, 6}).end == (1,)
    stays = drains_of(gone, {1, 6}, {1})
    assert (stays.end, stays.noted.drained) == ((), ()), "it is empty, and would stop"
    assert ended_drains(gone, [1]).drained == ()
    again = advanced(asked(gone, 1, wanted=DRAINED), S, judge)
    assert ended_drains(again, [1]).drained == (1,), "it was asked for again meanwhile"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": ()}, "names a node"),
        ({"reason": " "}, "say a reason"),
        ({"user": ""}, "say a user"),
        ({"user": "x" * 129}, "128 characters"),
        ({"ttl_s": -1}, "TTL"),
        ({"ttl_s": 10**9}, "TTL"),
    ],
)
def test_bad_input_is_refused(change, words: str) -> None:
    given = {"nodes": (1,), "wanted": GOES, "reason": "why", "user": "ann", "ttl_s": 0, "now_us": 0}
    with pytest.raises(BadSetting, match=words):
        with_request(MaintenanceSet(), **{**given, **change})


def test_requests_have_a_bound_and_unknown_ones_are_refused() -> None:
    known = MaintenanceSet()
    for _ in range(REQUESTS_MAX):
        known = asked(known, 1)
    with pytest.raises(BadSetting, match="already"):
        asked(known, 1)
    with pytest.raises(BadSetting, match="there are 1, 2"):
        without_request(asked(asked(MaintenanceSet(), 1), 2), 9)


def test_whatever_is_asked_and_removed_writes_go_on() -> None:
    """The nodes of granted requests are never more than the log can do without."""
    chance = random.Random(3)
    for _ in range(200):
        known, now_us = MaintenanceSet(), 0
        for _ in range(12):
            now_us += S
            if known.requests and chance.random() < 0.3:
                known = without_request(known, chance.choice(known.requests).number)
            else:
                nodes = chance.sample(range(1, 7), chance.randint(1, 2))
                known = asked(known, *nodes, wanted=chance.choice(list(Wanted)),
                              ttl_s=chance.choice((0, 3)), now_us=now_us)  # fmt: skip
            known = advanced(known, now_us, judge)
            assert len({1, 2, 3, 4, 5} - known.absent) >= 3


def test_a_drain_whose_request_ended_meanwhile_is_stray() -> None:
    wanted = advanced(asked(MaintenanceSet(), 3, wanted=DRAINED), S, judge)
    noted = drains_of(wanted, set()).noted
    assert stray_drains(noted, [3]) == ()
    ended = without_request(noted, 1)
    assert stray_drains(ended, [3]) == (), "its end is still to be ordered"
    assert stray_drains(ended_drains(ended, [3]), [3]) == (3,)
