"""The appender alone, as tables: what nodes answer, what it decides, what it asks of its role.

No cluster and no loop: the nodes are a channel that keeps what it is given, and time stands at what
a row says."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from crc32c import crc32c

from cordwood.decisions import (
    AnsweredLate,
    AnswerLost,
    AppendsRefused,
    Decision,
    EpochDrained,
    RefusalHeard,
    RunAcknowledged,
    RunOvertaken,
    SpaceAwaited,
    TooFewNodesUp,
    WaveRetried,
    listening,
)
from cordwood.layout.body import encode_body
from cordwood.layout.waves import AppendEntry, Refusal, StoreRefusal
from cordwood.lsn import make_lsn
from cordwood.nodes import NodeId, Nodeset, Replication
from cordwood.protocol.node_states import NodeStates
from cordwood.protocol.producers import ProducerTable
from cordwood.protocol.store_times import StoreTimes
from cordwood.recovery.recover_log import Recovered
from cordwood.sequencer.appender import LogAppender
from cordwood.sequencer.run_contents import Waiting
from cordwood.sequencer.tools import AppenderTools
from cordwood.settings import MIB, SequencerSettings
from cordwood.sim.planted import find_bug, planted

LOG, EPOCH = 7, 2
NODES = (1, 2, 3, 4)


async def nothing_settled() -> dict[int, int]:
    return {}


class Nodes:
    """Storage nodes as an appender sees them: connections, free space, and stores on the way."""

    def __init__(self) -> None:
        self.up = set(NODES)
        self.free = dict.fromkeys(NODES, MIB)
        self.sent: list[tuple[int, Callable[..., None]]] = []

    def get(self, node: int) -> object | None:
        return self if node in self.up else None

    def room(self, node: int) -> int:
        return self.free[node] if node in self.up else 0

    def has_told(self, node: int) -> bool:
        return True

    is_busy = False

    def send(self, node: int, parts: Any, crc: int, settled: Callable[..., None]) -> bool:
        self.sent.append((node, settled))
        return node in self.up

    def send_amend(self, node: int, parts: Any, settled: Callable[..., None]) -> bool:
        return self.send(node, parts, 0, settled)


class Asked:
    """What the appender asks of its role, a word each."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def acknowledge(self, acks: Sequence[tuple[Any, int, int]], freed: int, records: int) -> None:
        self.words += [f"ack {token}" for _, token, _ in acks]

    def refuse(self, connection: Any, entry: AppendEntry, error: Exception) -> None:
        self.words.append(f"refuse {entry.token}: {type(error).__name__}")

    def unknown(self, connection: Any, token: int, error: Exception) -> None:
        self.words.append(f"unknown {token}")

    def release(self, log: int, audience: Sequence[NodeId], lsn: int) -> None:
        self.words.append(f"release {lsn & 0xFFFF_FFFF}")

    def on_fenced(self, log: int, epoch: int) -> None:
        self.words.append(f"fenced by {epoch}")

    def on_drained(self, log: int, epoch: int) -> None:
        self.words.append("drained")

    def hold(self, log: int) -> None:
        self.words.append("hold")

    def refuse_if_newest(self, log: int, waiting: Waiting, error: Exception) -> None:
        self.refuse(waiting.connection, waiting.entry, error)

    def on_settled(self) -> None:
        pass


class Bench:
    """An appender of one log on four nodes, three copies of each record."""

    def __init__(self) -> None:
        self.nodes, self.asked, self.now = Nodes(), Asked(), 1.0
        channel: Any = self.nodes
        tools = AppenderTools(
            channel,
            channel,
            NodeStates(),
            StoreTimes(0.1, 1.0),
            SequencerSettings(),
            lambda: self.now,
            random.Random(1),
            nothing_settled,
        )
        nodeset = Nodeset.recorded([NodeId(n) for n in NODES], [f"rack{n}" for n in NODES], {})
        self.appender = LogAppender(LOG, EPOCH, nodeset, Replication(3), 0, self.asked, tools)
        self.appender.on_recovered(Recovered(ProducerTable(), 0))
        self.waves: list[list[tuple[int, Callable[..., None]]]] = []

    def append(self, token: int) -> None:
        """One record in a tick of its own: a run."""
        body = encode_body([b"value"], timestamps_us=0)
        entry = AppendEntry(
            log=LOG, token=token, count=1, codec=0, flags=0, reserved=0, producer=0,
            producer_epoch=0, key_bits=0, producer_sequence=0, stored_bytes=len(body),
            raw_bytes=len(body), stored_crc=crc32c(body), raw_crc=crc32c(body),
            body=body,
        )  # fmt: skip
        connection: Any = None
        self.appender.enqueue(Waiting(connection, entry))
        self.appender.flush(self.now, 1_000_000)
        self._gather()

    def answer(self, wave: int, member: int, refusals: Sequence[StoreRefusal] | None = ()) -> None:
        """A member of a wave answers; by default it stored. None: its connection is gone."""
        node, settled = self.waves[wave][member]
        settled(node, refusals)
        self._gather()

    def _gather(self) -> None:
        sent, self.nodes.sent = self.nodes.sent, []
        self.waves += [sent[at : at + 3] for at in range(0, len(sent), 3)]


def lsn(esn: int) -> int:
    return make_lsn(EPOCH, esn)


def refused(reason: Refusal, epoch: int = 0) -> list[StoreRefusal]:
    return [StoreRefusal(1, LOG, reason, epoch)]


def stored_by_all(bench: Bench) -> None:
    for member in range(3):
        bench.answer(0, member)


def one_answer_is_missing(bench: Bench) -> None:
    bench.answer(0, 0)
    bench.answer(0, 1)


def a_connection_is_lost(bench: Bench) -> None:
    bench.answer(0, 1, None)


def an_old_wave_answers(bench: Bench) -> None:
    bench.answer(0, 1, None)
    bench.answer(0, 0)


def the_next_wave_stores(bench: Bench) -> None:
    bench.answer(0, 1, None)
    for member in range(3):
        bench.answer(1, member)


def all_connections_are_lost(bench: Bench) -> None:
    bench.nodes.up = set()
    for member in range(3):
        bench.answer(0, member, None)


def nodes_come_back(bench: Bench) -> None:
    all_connections_are_lost(bench)
    for node in map(NodeId, (1, 2, 3)):
        bench.nodes.up.add(node)
        bench.appender.on_peer_up(node, bench.now)


def a_node_of_others_comes(bench: Bench) -> None:
    all_connections_are_lost(bench)
    bench.nodes.up = {1, 2, 3, 9}
    bench.appender.on_peer_up(NodeId(9), bench.now)


def a_node_is_sealed(bench: Bench) -> None:
    bench.answer(0, 0, refused(Refusal.SEALED, 5))


def a_node_is_full(bench: Bench) -> None:
    bench.answer(0, 0, refused(Refusal.FULL))


def another_logs_refusal(bench: Bench) -> None:
    bench.answer(0, 0, [StoreRefusal(1, LOG + 1, Refusal.SEALED, 5)])


def the_second_run_is_first(bench: Bench) -> None:
    bench.append(2)
    for member in range(3):
        bench.answer(1, member)


def and_then_the_first(bench: Bench) -> None:
    the_second_run_is_first(bench)
    stored_by_all(bench)


def too_few_are_up(bench: Bench) -> None:
    bench.nodes.up = {1, 2}
    bench.append(2)


def no_node_has_space(bench: Bench) -> None:
    bench.nodes.free = dict.fromkeys(NODES, 0)
    bench.append(2)


def the_epoch_drains(bench: Bench) -> None:
    bench.appender.drain()
    stored_by_all(bench)


def the_epoch_ends(bench: Bench) -> None:
    bench.appender.end(9)
    stored_by_all(bench)


CASES: list[tuple[Callable[[Bench], None], list[str], list[Decision | type[Decision]]]] = [
    (stored_by_all, ["ack 1", "release 1"], [RunAcknowledged(LOG, lsn(1), lsn(1))]),
    (one_answer_is_missing, [], []),
    (a_connection_is_lost, [], [AnswerLost, WaveRetried(LOG, lsn(1), lsn(1), 2)]),
    (an_old_wave_answers, [], [AnswerLost, WaveRetried, AnsweredLate]),
    (
        the_next_wave_stores,
        ["ack 1", "release 1"],
        [AnswerLost, WaveRetried, RunAcknowledged(LOG, lsn(1), lsn(1))],
    ),
    (all_connections_are_lost, [], [AnswerLost, AnswerLost, AnswerLost]),
    (
        nodes_come_back,
        [],
        [AnswerLost, AnswerLost, AnswerLost, WaveRetried(LOG, lsn(1), lsn(1), 2)],
    ),
    (a_node_of_others_comes, [], [AnswerLost, AnswerLost, AnswerLost]),
    (a_node_is_sealed, ["fenced by 5"], [RefusalHeard]),
    (a_node_is_full, [], [RefusalHeard, WaveRetried(LOG, lsn(1), lsn(1), 2)]),
    (another_logs_refusal, [], []),
    (the_second_run_is_first, [], [RunOvertaken(LOG, lsn(2), lsn(2))]),
    (
        and_then_the_first,
        ["ack 1", "ack 2", "release 2"],
        [
            RunOvertaken,
            RunAcknowledged(LOG, lsn(1), lsn(1)),
            RunAcknowledged(LOG, lsn(2), lsn(2)),
        ],
    ),
    (too_few_are_up, ["hold"], [SpaceAwaited]),
    (no_node_has_space, ["hold"], [SpaceAwaited]),
    (
        the_epoch_drains,
        ["ack 1", "release 1", "drained"],
        [RunAcknowledged, EpochDrained(LOG, EPOCH)],
    ),
    (the_epoch_ends, ["unknown 1"], []),
]


@pytest.mark.parametrize(("events", "asked", "decided"), CASES, ids=[c[0].__name__ for c in CASES])
def test_what_an_appender_makes_of_answers(
    events: Callable[[Bench], None], asked: list[str], decided: list[Decision | type[Decision]]
) -> None:
    bench = Bench()
    bench.append(1)
    told: list[Decision] = []
    with listening(told.append):
        events(bench)
    told = [each for each in told if type(each).__name__ != "NoSpaceAnywhere"]
    assert bench.asked.words == asked
    assert [
        each if isinstance(wanted, Decision) else type(each)
        for each, wanted in zip(told, decided, strict=True)
    ] == decided


def test_without_enough_nodes_and_with_nothing_in_flight_an_entry_is_refused() -> None:
    bench = Bench()
    bench.nodes.up = {1, 2}
    told: list[Decision] = []
    with listening(told.append):
        bench.append(1)
    assert bench.asked.words == ["refuse 1: TooFewNodes"]
    kinds = [type(each) for each in told]
    assert TooFewNodesUp in kinds
    assert AppendsRefused in kinds


def test_a_wave_that_takes_too_long_goes_to_other_nodes() -> None:
    bench = Bench()
    bench.append(1)
    bench.answer(0, 0)
    bench.now += 5
    told: list[Decision] = []
    with listening(told.append):
        bench.appender.tick(bench.now)
    assert told == [WaveRetried(LOG, lsn(1), lsn(1), 2)]


@pytest.mark.parametrize(
    ("bug", "events"),
    [
        ("ack-at-one-less", one_answer_is_missing),
        ("lost-counts", a_connection_is_lost),
        ("stale-waves-count", an_old_wave_answers),
        ("acks-out-of-order", the_second_run_is_first),
        ("fenced-goes-on", a_node_is_sealed),
    ],
)
def test_a_planted_bug_breaks_its_row(bug: str, events: Callable[[Bench], None]) -> None:
    asked, decided = next(row[1:] for row in CASES if row[0] is events)
    with planted(find_bug(bug)), pytest.raises((AssertionError, ValueError)):
        test_what_an_appender_makes_of_answers(events, asked, decided)
