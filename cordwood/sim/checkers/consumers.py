"""S24: consumers' positions, and the right to save them.

The metadata store records the state of a consumer at each change. Its members record the answers
that they got, and their reads record the items that they were given.

Source: docs/sources/reliability.md §3; `protocol.consumer_group`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from cordwood.lsn import format_lsn
from cordwood.sim.checkers.evidence import Evidence, last_of
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.events import PositionsReset
from cordwood.sim.history import Event, GroupChanged, PositionsSaved


def check_consumers(evidence: Evidence) -> list[Violation]:
    """S24: positions only rise, and cover only records given to members; only a log's owner saves.

    Generations never fall, and within a generation a log has one owner. If a member was told that a
    position is saved, the store had this position, and the member owned the log, at some moment
    between call and answer. Every acknowledged record below a position was given to a member; after
    a reset this counts from the reset position. A reset that was answered has happened.
    """
    found: list[Violation] = []
    groups: dict[str, list[GroupChanged]] = defaultdict(list)
    begun: dict[str, list[int]] = defaultdict(list)
    for at, event in evidence.of(GroupChanged, PositionsSaved, PositionsReset):
        if isinstance(event, GroupChanged):
            found.extend(_changed(groups[event.consumer], event))
            groups[event.consumer].append(event)
            begun[event.consumer].append(at)
        elif isinstance(event, PositionsReset):
            found.extend(_reset(groups[event.consumer], event))
        elif isinstance(event, PositionsSaved):
            found.extend(_saved(groups[event.consumer], event))
    for consumer in sorted(groups):
        found.extend(_passed_over(evidence, consumer, groups[consumer], begun[consumer]))
    return found


def _violation(text: str, lsn: int, *shown: Event) -> Violation:
    return Violation("S24", text, 0, lsn, shown)


def _changed(before: list[GroupChanged], now: GroupChanged) -> Iterator[Violation]:
    if not before:
        return
    was = before[-1]
    if now.generation < was.generation:
        text = f"{now.consumer}'s generation fell from {was.generation} to {now.generation}"
        yield _violation(text, 0, was, now)
    for log, lsn in was.positions.items():
        if now.positions.get(log, 0) < lsn and now.resets.get(log, 0) <= was.resets.get(log, 0):
            text = f"{now.consumer} went back from {format_lsn(lsn)} of {log} without a reset"
            yield _violation(text, lsn, was, now)
    if now.generation == was.generation and now.owners != was.owners:
        text = f"{now.consumer} changed owners within generation {now.generation}"
        yield _violation(text, 0, was, now)


def _saved(states: list[GroupChanged], saved: PositionsSaved) -> Iterator[Violation]:
    """Find a save that the store never held while the saver owned the log."""
    # The states since the call count, and the state that the call found.
    first = max((at for at, s in enumerate(states) if s.time_us <= saved.invoked_us), default=0)
    for log, lsn in saved.positions.items():
        if not any(
            state.positions.get(log, 0) >= lsn
            and (log not in state.owners or state.owners[log][0] == saved.member)
            for state in states[first:]
        ):
            text = f"{saved.member} saved {format_lsn(lsn)} of {log}, which it did not own"
            shown = states[-1:] or []
            yield _violation(text, lsn, *shown, saved)


def _reset(states: list[GroupChanged], reset: PositionsReset) -> Iterator[Violation]:
    """Find a reset that was answered, and did not happen between call and answer."""
    since = [at for at, state in enumerate(states) if state.time_us >= reset.invoked_us]
    for log, lsn in reset.positions.items():
        for at in since:
            before = states[at - 1].resets.get(log, 0) if at else 0
            if states[at].resets.get(log, 0) > before and states[at].positions.get(log) == lsn:
                break
        else:
            text = f"a reset of {reset.consumer} to {format_lsn(lsn)} of {log} had no effect"
            yield _violation(text, lsn, *states[-1:], reset)


def _passed_over(
    evidence: Evidence, consumer: str, states: list[GroupChanged], begun: list[int]
) -> Iterator[Violation]:
    """Acknowledged records below a position that no member was given.

    Args:
        begun: of each state, its position in the history.
    """
    given: dict[int, dict[int, int]] = defaultdict(dict)
    logs: dict[str, int] = {}
    for read in evidence.reads:
        if read.started.consumer == consumer:
            logs[str(read.log)] = read.log
            for at, item in read.items:
                last = last_of(item)
                given[read.log][last] = max(at, given[read.log].get(last, 0))
    for name in sorted(states[-1].positions):
        log = logs.get(name)
        if log is None:
            continue
        for start, stop, since, state in _stretches(name, states, begun):
            # Trimmed records are passed over, with a gap.
            first = max(start, evidence.trim_asked(log, len(evidence.events)) + 1)
            for ack in evidence.acks_within(log, first, stop - 1):
                if given[log].get(ack.lsn, -1) < since:
                    text = f"{consumer} passed {ack.payload.id}, but no member got it"
                    shown = (ack.append.end or ack.append.invoked, state)
                    yield Violation("S24", text, log, ack.lsn, shown)
                    break


def _stretches(
    log: str, states: list[GroupChanged], begun: list[int]
) -> Iterator[tuple[int, int, int, GroupChanged]]:
    """Each stretch between two resets: its first position, its last position, its place in the
    history, and its last state."""
    start, since, resets = 0, 0, 0
    for index, state in enumerate(states):
        if state.resets.get(log, 0) > resets:
            before = states[index - 1] if index else state
            yield start, before.positions.get(log, 0) if index else 0, since, before
            start, since = state.positions.get(log, 0), begun[index]
            resets = state.resets.get(log, 0)
    yield start, states[-1].positions.get(log, 0), since, states[-1]
