"""S24: consumers' positions, and who may save them.

The metadata store says what a consumer is from one change to the next, its members what
they were told, and their reads what they were given.

Source: docs/sources/reliability.md §3; `protocol.consumer_group`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from cordwood.lsn import format_lsn
from cordwood.sim.checkers.evidence import Evidence, last_of
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import Event, GroupChanged, PositionsSaved


def check_consumers(evidence: Evidence) -> list[Violation]:
    """S24: positions only go on, past what members were given; only a log's owner saves.

    Generations never fall, and within one a log has one owner. What a member was told is
    saved was the position of a log that was its own, at some moment between its question
    and the answer. And every acknowledged record below a position was given to a member.
    """
    found: list[Violation] = []
    groups: dict[str, list[GroupChanged]] = defaultdict(list)
    for _, event in evidence.of(GroupChanged, PositionsSaved):
        if isinstance(event, GroupChanged):
            found.extend(_changed(groups[event.consumer], event))
            groups[event.consumer].append(event)
        elif isinstance(event, PositionsSaved):
            found.extend(_saved(groups[event.consumer], event))
    for consumer in sorted(groups):
        found.extend(_passed_over(evidence, consumer, groups[consumer]))
    return found


def _violation(text: str, lsn: int, *shown: Event) -> Violation:
    return Violation("S24", text, 0, lsn, shown)


def _changed(before: list[GroupChanged], now: GroupChanged) -> Iterator[Violation]:
    if not before:
        return
    was = before[-1]
    if now.generation < was.generation:
        text = f"{now.consumer} is in generation {now.generation} after {was.generation}"
        yield _violation(text, 0, was, now)
    for log, lsn in was.positions.items():
        if now.positions.get(log, 0) < lsn:
            text = f"{now.consumer} stood at {format_lsn(lsn)} of {log} and goes back"
            yield _violation(text, lsn, was, now)
    if now.generation == was.generation and now.owners != was.owners:
        text = f"{now.consumer} has other owners in the same generation {now.generation}"
        yield _violation(text, 0, was, now)


def _saved(states: list[GroupChanged], saved: PositionsSaved) -> Iterator[Violation]:
    """A save that the store never held while the log was the saver's."""
    # In force from the last change before the question on.
    first = max((at for at, s in enumerate(states) if s.time_us <= saved.invoked_us), default=0)
    for log, lsn in saved.positions.items():
        if not any(
            state.positions.get(log, 0) >= lsn
            and (log not in state.owners or state.owners[log][0] == saved.member)
            for state in states[first:]
        ):
            text = f"{saved.member} saved {format_lsn(lsn)} of {log}, which was not its own"
            shown = states[-1:] or []
            yield _violation(text, lsn, *shown, saved)


def _passed_over(
    evidence: Evidence, consumer: str, states: list[GroupChanged]
) -> Iterator[Violation]:
    """Acknowledged records below a position that no member was given."""
    given: dict[int, set[int]] = defaultdict(set)
    logs: dict[str, int] = {}
    for read in evidence.reads:
        if read.started.consumer == consumer:
            logs[str(read.log)] = read.log
            for _, item in read.items:
                given[read.log].add(last_of(item))
    last = states[-1]
    for name, position in sorted(last.positions.items()):
        log = logs.get(name)
        if log is None:
            continue
        # What was trimmed is passed over, and said to be.
        trim = evidence.trim_asked(log, len(evidence.events))
        for ack in evidence.acks_within(log, trim + 1, position - 1):
            if ack.lsn not in given[log]:
                text = f"{ack.payload.id} is below {consumer}'s position, and it was not given"
                yield Violation(
                    "S24", text, log, ack.lsn, (ack.append.end or ack.append.invoked, last)
                )
                break
