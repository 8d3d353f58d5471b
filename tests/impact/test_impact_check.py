"""What the absence of nodes would stop, beside a twin that draws every copyset."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import replace

import msgspec
import pytest

from cordwood.admin.impact_calls import epochs_of
from cordwood.errors import BadSetting
from cordwood.impact.check import (
    EXAMPLES_MAX,
    FIT,
    Finding,
    Fitness,
    ImpactCheck,
    ImpactReport,
    Placement,
    Stops,
    find_absent,
)
from cordwood.metadata.epoch_store import EpochRecord, NodesetSince
from cordwood.nodes import Authority, Member, NodeId, Replication

SIX = {NodeId(n): Member(NodeId(n), "", f"eu.r{n % 3}") for n in range(1, 7)}


def judged(
    absent: set[int], epochs: list[tuple[int, int, Placement]], *, down: set[int] = frozenset(),
    members: dict[NodeId, Member] = SIX, fitness: Fitness = FIT, leaving: set[int] = frozenset(),
    own_since: int | None = None,
) -> ImpactReport:  # fmt: skip
    away, leave = frozenset(map(NodeId, absent)), frozenset(map(NodeId, leaving))
    check = ImpactCheck(members, away, frozenset(map(NodeId, down)), fitness, leave)
    check.add(7, epochs, own_since=own_since)
    return check.report()


def at(nodes: tuple[int, ...], copies: int = 3, racks: int = 1) -> Placement:
    places = tuple(SIX[NodeId(node)].location for node in nodes)
    return Placement(nodes, places, Replication(copies, racks))


def stops(report: ImpactReport) -> set[Stops]:
    return {each.stops for each in report.findings}


def test_a_node_too_many_stops_writes_and_rebuilding_and_no_reads() -> None:
    report = judged({1}, [(1, 0, at((1, 2, 3)))])
    assert stops(report) == {Stops.WRITES, Stops.REBUILDING}
    assert "cordwood logs set" in report.findings[0].first
    assert [(each.log, each.first, each.last) for each in report.findings[0].examples] == [
        (7, 1, 0)
    ]
    assert not report.is_safe


def test_a_node_to_spare_stops_nothing() -> None:
    report = judged({1}, [(1, 0, at((1, 2, 3, 4)))])
    assert report.is_safe
    assert (report.logs, report.epochs) == (1, 1)


def test_an_old_epoch_takes_no_writes_and_may_stall_reads() -> None:
    old, new = at((1, 2, 3)), at((1, 2, 3, 4, 5, 6))
    report = judged({1, 2, 3}, [(1, 4, old), (5, 0, new)])
    found = [(each.stops, each.examples[0].last) for each in report.findings if each.placement]
    assert found == [(Stops.READS, 4), (Stops.READS, 0), (Stops.REBUILDING, 4)]
    assert report.findings[0].placement == old
    assert "one after the other" in report.findings[0].first


def test_what_is_down_already_counts_and_is_to_come_back_first() -> None:
    report = judged({1}, [(1, 0, at((1, 2, 3, 4)))], down={2})
    assert stops(report) == {Stops.WRITES, Stops.REBUILDING}
    assert all("bring back nodes 2" in each.first for each in report.findings)
    assert not any(each.already for each in report.findings)
    report = judged({1}, [(1, 0, at((1, 2, 3)))], down={2})
    assert all(each.already for each in report.findings)


def test_epochs_without_the_nodes_are_left_alone() -> None:
    assert judged({6}, [(1, 0, at((1, 2, 3)))], down={1}).is_safe


def test_racks_count_as_recorded_with_the_epoch() -> None:
    spread = at((1, 2, 4, 5), 2, 2)
    assert judged({1, 4}, [(1, 0, spread)]).findings[0].stops is Stops.WRITES
    assert judged({1}, [(1, 0, spread)]).is_safe
    moved = {n: replace(member, location="eu.r9") for n, member in SIX.items()}
    assert judged({1}, [(1, 0, spread)], members=moved).is_safe


def test_nodes_that_store_nothing_new_are_no_place() -> None:
    for change in ({"read_only": True}, {"weight": 0.0}):
        members = {**SIX, NodeId(4): replace(SIX[NodeId(4)], **change)}
        assert Stops.WRITES in stops(judged({1}, [(1, 0, at((1, 2, 3, 4)))], members=members))


def test_a_node_that_was_rebuilt_holds_nothing() -> None:
    empty = replace(SIX[NodeId(2)], authority=Authority.AUTHORITATIVE_EMPTY)
    members = {**SIX, NodeId(2): empty}
    report = judged({1, 2}, [(1, 3, at((1, 2, 3, 4, 5), 2)), (4, 0, at((3, 4, 5, 6)))],
                    members=members)  # fmt: skip
    assert Stops.READS not in stops(report)


def test_a_node_that_is_drained_is_no_place_for_copies_and_still_has_its_own() -> None:
    members = {**SIX, NodeId(3): replace(SIX[NodeId(3)], weight=0.0)}
    epochs = [(1, 3, at((1, 2, 3), 2)), (4, 0, at((1, 2, 4, 5), 2))]
    assert stops(judged({2}, epochs, members=members)) == set(), "no drain: it takes copies"
    assert stops(judged({2}, epochs, members=members, leaving={3})) == {Stops.REBUILDING}


def test_the_event_logs_recovery_waits_for_a_node_that_is_empty_by_its_own_word() -> None:
    empty = replace(SIX[NodeId(2)], authority=Authority.AUTHORITATIVE_EMPTY)
    members = {**SIX, NodeId(2): empty}

    def found(own_since: int | None, stored_empty: set[int] = frozenset()) -> set[int]:
        stored, down = frozenset(map(NodeId, stored_empty)), frozenset({NodeId(2)})
        check = ImpactCheck(members, frozenset({NodeId(1)}), down, stored_empty=stored)
        epochs = [(1, 4, at((1, 2, 3, 4), 2)), (5, 0, at((1, 2, 3, 4, 5), 2))]
        check.add(7, epochs, own_since=own_since)
        report = check.report()
        return {
            example.first
            for each in report.findings
            if each.stops is Stops.READS
            for example in each.examples
        }

    assert found(None) == set()
    assert found(5) == {5}
    assert found(4) == {1, 5}
    assert found(4, {2}) == set(), "the metadata store says so too"


def test_a_node_that_does_not_know_what_it_holds_is_no_witness() -> None:
    unsure = Fitness(unsure=frozenset({NodeId(2)}))
    report = judged({1}, [(1, 0, at((1, 2, 3, 4), 2))], fitness=unsure)
    assert stops(report) == {Stops.READS}
    assert "accept-loss" in report.findings[0].first
    assert "nodes 2 " in report.findings[0].first
    assert not report.findings[0].already
    assert judged({1}, [(1, 0, at((1, 2, 3, 4), 3))], fitness=unsure).is_safe
    assert judged({2}, [(1, 0, at((1, 2, 3, 4), 2))], fitness=unsure).is_safe


def test_a_node_without_space_is_no_place() -> None:
    full = Fitness(full=frozenset({NodeId(4)}))
    report = judged({1}, [(1, 0, at((1, 2, 3, 4)))], fitness=full)
    assert stops(report) == {Stops.WRITES, Stops.REBUILDING}
    assert all("nodes 4 take no new blocks" in each.first for each in report.findings)
    assert judged({1}, [(1, 0, at((1, 2, 3, 4, 5)))], fitness=full).is_safe


def test_a_node_that_waits_for_the_event_log_neither_stores_nor_sends() -> None:
    waits = Fitness(waiting=frozenset({NodeId(2)}))
    epochs = [(1, 0, at((1, 2, 3), 2))]
    report = judged({1}, epochs, fitness=waits)
    assert stops(report) == {Stops.WRITES, Stops.READS, Stops.REBUILDING}
    assert all("nodes 2 take no record" in each.first for each in report.findings)
    assert judged({1}, epochs, fitness=waits, own_since=1).is_safe, "it serves the event log"
    assert judged({2}, epochs, fitness=waits).is_safe


def test_an_event_log_that_cannot_be_read_is_a_finding_for_any_node() -> None:
    epochs = [(1, 4, at((1, 2, 3, 4), 3)), (5, 0, at((1, 2, 3, 4), 2))]
    assert judged({6}, epochs, down={1}, own_since=5).is_safe
    report = judged({6}, epochs, down={1, 2}, own_since=5)
    (found,) = (each for each in report.findings if each.stops is not Stops.CAPACITY)
    assert (found.stops, found.already, found.examples[0].first) == (Stops.READS, True, 5)
    assert "bring back nodes 1, 2" in found.first
    assert "a node that starts cannot read the event log" in found.first
    assert stops(judged({6}, epochs, down={1, 2})) == {Stops.CAPACITY}, "no start needs another log"


def test_a_node_that_does_not_answer_is_away() -> None:
    report = judged({1}, [(1, 0, at((1, 2, 3, 4)))], fitness=Fitness(frozenset({NodeId(2)})))
    assert report.down == (2,)
    assert stops(report) == {Stops.WRITES, Stops.REBUILDING}


def test_too_much_capacity_is_one_finding() -> None:
    report = judged({1, 2, 3}, [(1, 0, at((4, 5, 6), 1))])
    assert [each.stops for each in report.findings] == [Stops.CAPACITY]
    assert "50%" in report.findings[0].first
    assert judged({1, 2}, [(1, 0, at((3, 4, 5, 6)))]).is_safe


def test_the_verdict_is_that_of_every_copyset() -> None:
    chance = random.Random(1)
    for _ in range(300):
        nodes = tuple(sorted(chance.sample(range(1, 7), chance.randint(2, 6))))
        copies = chance.randint(1, min(3, len(nodes)))
        placement = at(nodes, copies, chance.randint(1, copies))
        sets = [
            set(some)
            for some in itertools.combinations(nodes, copies)
            if len({SIX[NodeId(n)].location for n in some}) >= placement.replication.racks
        ]
        if not sets:
            continue
        absent = set(chance.sample(range(1, 7), chance.randint(1, 3)))
        down = set(chance.sample(range(1, 7), chance.randint(0, 2))) - absent
        found = stops(judged(absent, [(1, 0, placement)], down=down)) - {Stops.CAPACITY}
        wanted = set()
        if absent & set(nodes):
            if not any(some.isdisjoint(absent | down) for some in sets):
                wanted |= {Stops.WRITES, Stops.REBUILDING}
            if any(some <= absent | down for some in sets):
                wanted |= {Stops.READS}
        assert found == wanted, (placement, absent, down)


class TestWhoIsMeant:
    def test_nodes_and_racks(self):
        assert find_absent(SIX, [1], ["eu.r2"]) == {1, 2, 5}
        assert find_absent(SIX, [], ["eu"]) == set(SIX)

    @pytest.mark.parametrize(
        ("nodes", "racks", "words"),
        [
            ([9], [], "there is no node 9; there are 1, 2, 3, 4, 5, 6"),
            ([], ["eu.r"], "no node is in rack 'eu.r'"),
            ([], [""], "no node is in rack ''"),
            ([], [], "name a node, or a rack"),
        ],
    )
    def test_bad_input_is_refused(self, nodes, racks, words: str):
        with pytest.raises(BadSetting, match=words.replace("'", ".")):
            find_absent(SIX, nodes, racks)


def test_a_hundred_thousand_logs_take_seconds_and_name_a_few() -> None:
    chance = random.Random(2)
    members = {NodeId(n): Member(NodeId(n), "", f"r{n % 8}") for n in range(1, 41)}
    nodesets = [tuple(sorted(chance.sample(range(1, 41), 12))) for _ in range(64)]
    wires = []
    for log in range(100_000):
        some = [nodesets[(log + step) % 64] for step in range(3)]
        history = tuple(
            NodesetSince(1 + 5 * step, nodes, 3, 2, {}, tuple(f"r{n % 8}" for n in nodes))
            for step, nodes in enumerate(some)
        )
        wires.append(msgspec.json.encode(EpochRecord(20, 19, 0, history)))
    began_s = time.process_time()
    check = ImpactCheck(members, frozenset({NodeId(1), NodeId(9), NodeId(17)}), frozenset())
    placements: dict[tuple[object, ...], Placement] = {}
    decoder = msgspec.json.Decoder(EpochRecord)
    for log, wire in enumerate(wires, start=1):
        check.add(log, epochs_of(decoder.decode(wire), placements))
    report = check.report()
    took_s = time.process_time() - began_s
    print(f"100,000 logs of 300,000 epochs in {took_s:.2f} s of a core")
    assert (report.logs, report.epochs) == (100_000, 300_000)
    assert len(placements) == 64
    assert all(len(each.examples) <= EXAMPLES_MAX for each in report.findings)
    assert took_s < 10


def test_findings_that_concern_most_logs_come_first() -> None:
    check = ImpactCheck(SIX, frozenset({NodeId(1)}), frozenset())
    few, many = at((1, 2, 3)), at((1, 2, 4))
    check.add(1, [(1, 0, few)])
    for log in range(2, 40):
        check.add(log, [(1, 0, many)])
    report = check.report()
    found: list[Finding] = [each for each in report.findings if each.stops is Stops.WRITES]
    assert [each.logs for each in found] == [38, 1]
    assert len(found[0].examples) == EXAMPLES_MAX
