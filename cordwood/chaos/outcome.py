"""The verdict on a history of real processes: the checkers' verdict and the figures of a run.

A pure function of the history, so that tests can give it bad histories.

Source: docs/sources/reliability.md §3, §6.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cordwood.block import GapKind
from cordwood.lsn import Lsn
from cordwood.sim.checkers.evidence import Evidence, Read
from cordwood.sim.history import (
    AppendInvoked,
    AppendOk,
    Event,
    FaultEased,
    FaultsHealed,
    FaultStruck,
    GapDelivered,
    RecordDelivered,
)
from cordwood.sim.verdict import Verdict, judge, violation_words

SHOWN_MAX = 5

OF_TIME = ("L1", "L2", "L3", "L5")
"""Promises that something happens within seconds, by the clock of this machine."""


@dataclass(frozen=True, slots=True)
class KindOutcome:
    """The faults of one kind.

    Attributes:
        faults: number of faults.
        stall_s: the longest time without an acknowledgement from any log's sequencer that was at
            least partly within one of these faults.
    """

    kind: str
    faults: int
    stall_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        append_stall_s: the longest time in which none of a log's appends was acknowledged.
        read_stall_s: the longest time that an acknowledged record took to reach its first reader,
            while a reader that had asked for it waited.
        lost: acknowledged records that no reader was given, by log and LSN.
        false_losses: gaps that reported a loss; no fault here loses records.
    """

    verdict: Verdict
    kinds: tuple[KindOutcome, ...]
    append_stall_s: float
    read_stall_s: float
    lost: tuple[tuple[int, int], ...]
    false_losses: int

    def problems(self) -> list[str]:
        """Broken promises, in words. A busy machine is no excuse for these."""
        violations = self.verdict.violations
        found = [violation_words(each) for each in violations if each.invariant not in OF_TIME]
        if self.lost:
            shown = ", ".join(f"{Lsn(lsn)} of log {log}" for log, lsn in self.lost[:SHOWN_MAX])
            found.append(f"{len(self.lost)} acknowledged records reached no reader: {shown}")
        if self.false_losses:
            found.append(f"{self.false_losses} losses were told, and nothing was lost")
        return found

    def missed(self, stall_max_s: float) -> list[str]:
        """Missed bounds, in words: a busy machine may be the reason.

        Args:
            stall_max_s: how long appends may stand still.
        """
        violations = self.verdict.violations
        found = [violation_words(each) for each in violations if each.invariant in OF_TIME]
        if self.append_stall_s > stall_max_s:
            found.append(
                f"appends stood still for {self.append_stall_s:.1f} s; "
                f"{stall_max_s:g} s is the most"
            )
        return found


def outcome_of(history: Sequence[Event]) -> Outcome:
    """Judge a history whose readers had time to reach the tail.

    Raises:
        Malformed: it contradicts itself.
    """
    evidence = Evidence(history)
    stalls = _append_stalls(history)
    return Outcome(
        verdict=judge(history),
        kinds=_by_kind(history, stalls),
        append_stall_s=max((stop - start for start, stop in stalls), default=0) / 1e6,
        read_stall_s=_read_stall_us(evidence) / 1e6,
        lost=tuple(_lost(evidence)),
        false_losses=sum(
            isinstance(event, GapDelivered) and event.kind is GapKind.DATA_LOSS for event in history
        ),
    )


def _append_stalls(history: Sequence[Event]) -> list[tuple[int, int]]:
    """For each log, the times between two acknowledgements, in µs, while there was a load.

    Includes every log whose load was nearly as steady as that of the busiest log.
    """
    logs: dict[int, int] = {}
    acks: dict[int, list[int]] = defaultdict(list)
    for event in history:
        if isinstance(event, AppendInvoked):
            logs[event.op] = event.log
        elif isinstance(event, AppendOk):
            acks[logs[event.op]].append(event.time_us)
        elif isinstance(event, FaultsHealed):
            break
    busiest = max(map(len, acks.values()), default=0)
    return [
        (before, after)
        for times in acks.values()
        if 4 * len(times) >= busiest
        for before, after in itertools.pairwise(times)
    ]


def _by_kind(
    history: Sequence[Event], stalls: Sequence[tuple[int, int]]
) -> tuple[KindOutcome, ...]:
    """The cost of each kind's faults; a stall counts for all faults during it."""
    open_at: dict[tuple[str, tuple[int, ...]], int] = {}
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in history:
        if isinstance(event, FaultStruck):
            open_at[event.kind, event.nodes] = event.time_us
        elif isinstance(event, FaultEased):
            since = open_at.pop((event.kind, event.nodes), event.time_us)
            spans[event.kind].append((since, event.time_us))
    struck = Counter(event.kind for event in history if isinstance(event, FaultStruck))
    long = sorted(stalls, key=lambda stall: stall[0] - stall[1])
    return tuple(
        KindOutcome(kind, faults, _worst_us(spans[kind], long) / 1e6)
        for kind, faults in sorted(struck.items())
    )


def _worst_us(spans: Sequence[tuple[int, int]], longest_first: Sequence[tuple[int, int]]) -> int:
    for start, stop in longest_first:
        if any(start < until and since < stop for since, until in spans):
            return stop - start
    return 0


def _read_stall_us(evidence: Evidence) -> int:
    """The longest wait for a record that no reader had yet and some reader had asked for.

    Time in which no open read asked for the record is not counted: a reader that begins after the
    record does not wait for it.
    """
    asking: dict[int, list[Read]] = defaultdict(list)
    given: dict[tuple[int, int], int] = {}
    for read in evidence.reads:
        if read.started.keys or read.started.heads:
            continue  # it does not ask for every record
        asking[read.log].append(read)
        for _, item in read.records():
            at = read.log, item.lsn
            given[at] = min(given.get(at, item.time_us), item.time_us)
    longest_us = 0
    for log, acks in evidence.acks.items():
        for ack in acks:
            first_us = given.get((log, ack.lsn))
            if first_us is None or ack.append.end is None:
                continue
            acked_us = ack.append.end.time_us
            if first_us - acked_us > longest_us:
                waited_us = _asked_us(evidence, asking[log], ack.lsn, acked_us, first_us)
                longest_us = max(longest_us, waited_us)
    return longest_us


def _asked_us(
    evidence: Evidence, reads: Sequence[Read], lsn: int, since_us: int, until_us: int
) -> int:
    """The part of this time, in µs, in which a read was open that asked for the record."""
    total_us = 0
    for start_us, stop_us in sorted(
        (read.started.time_us, min(until_us, evidence.time_of(read.ended_at)))
        for read in reads
        if read.started.start <= lsn and (read.started.until is None or lsn <= read.started.until)
    ):
        start_us = max(start_us, since_us)
        if start_us < stop_us:
            total_us += stop_us - start_us
            since_us = stop_us
    return total_us


def _lost(evidence: Evidence) -> list[tuple[int, int]]:
    given: dict[int, set[int]] = defaultdict(set)
    for read in evidence.reads:
        given[read.log].update(
            item.lsn for _, item in read.items if isinstance(item, RecordDelivered)
        )
    return [
        (log, ack.lsn)
        for log, acks in sorted(evidence.acks.items())
        for ack in acks
        if ack.lsn not in given[log]
    ]
