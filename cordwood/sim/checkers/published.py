"""Batches that queries publish: S29, on the store's side."""

from __future__ import annotations

from collections.abc import Iterator

from cordwood.errors import Rejected
from cordwood.lsn import OLDEST
from cordwood.sim.checkers.evidence import Append, Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import AppendFailed, AppendOk, EndReason, Event

Sight = dict[int, tuple[int, int, Event]]
"""By append: the first and the last LSN of its records, and the event that shows them."""


def check_published(evidence: Evidence) -> list[Violation]:
    """S29: a published batch is in its logs whole, once, and after the batch before it.

    One of the tries of a batch counts. After a part of it is seen, or its publisher was told that
    it is in, a reader that reads all of one of its logs finds that log's part.
    """
    parts = [append for append in evidence.appends if append.invoked.published is not None]
    if not parts:
        return []
    seen = _seen(evidence, parts)
    found: list[Violation] = []
    for query in sorted({_of(part)[0] for part in parts}):
        batches: dict[int, list[Append]] = {}
        for part in parts:
            if _of(part)[0] == query:
                batches.setdefault(_of(part)[1], []).append(part)
        found += _query(evidence, batches, seen)
    return found


def _of(part: Append) -> tuple[str, int, int]:
    batch = part.invoked.published
    assert batch is not None, "only parts of batches are looked at"
    return batch.query, batch.batch, batch.trial


def _seen(evidence: Evidence, parts: list[Append]) -> Sight:
    """The place of a part, as acks and readers show it."""
    by_payload = {payload.id: part for part in parts for payload in part.invoked.payloads}
    seen: Sight = {}
    for part in parts:
        if isinstance(part.end, AppendOk) and part.lsns:
            seen[part.invoked.op] = (min(part.lsns), max(part.lsns), part.end)
    for read in evidence.reads:
        for _, record in read.records():
            of = by_payload.get(record.payload.id)
            if of is not None:
                op = of.invoked.op
                first, last, witness = seen.get(op, (record.lsn, record.lsn, record))
                seen[op] = (min(first, record.lsn), max(last, record.lsn), witness)
    return seen


def _query(
    evidence: Evidence, batches: dict[int, list[Append]], seen: Sight
) -> Iterator[Violation]:
    before: dict[int, tuple[int, Append]] = {}
    for number in sorted(batches):
        parts = batches[number]
        shown = [part for part in parts if part.invoked.op in seen]
        trials = sorted({_of(part)[2] for part in shown})
        if len(trials) > 1:
            yield _twice(number, shown, seen)
        elif trials or any(map(_is_told, parts)):
            yield from _missing(evidence, number, parts, trials, seen)
        for part in shown:
            first, last, witness = seen[part.invoked.op]
            log = part.invoked.log
            if last - first >= len(part.invoked.payloads):
                text = f"the log has batch {number} of {_of(part)[0]} twice"
                yield Violation("S29", text, log, last, (part.invoked, witness))
            ahead = before.get(log)
            if ahead is not None and ahead[0] > first:
                text = f"batch {number} of {_of(part)[0]} is before an earlier batch"
                events = (ahead[1].invoked, part.invoked, witness)
                yield Violation("S29", text, log, first, events)
            before[log] = max(last, before[log][0] if log in before else 0), part


def _is_told(part: Append) -> bool:
    """Whether the publisher was told that the batch is in, by this try or by one before it."""
    end = part.end
    return isinstance(end, AppendOk) or (
        isinstance(end, AppendFailed) and end.error == Rejected.__name__
    )


def _twice(number: int, shown: list[Append], seen: Sight) -> Violation:
    one = shown[0]
    other = next(part for part in shown if _of(part)[2] != _of(one)[2])
    first, _, witness = seen[other.invoked.op]
    text = f"two tries of batch {number} of {_of(one)[0]} counted"
    shown_events = (one.invoked, seen[one.invoked.op][2], other.invoked, witness)
    return Violation("S29", text, other.invoked.log, first, shown_events)


def _missing(
    evidence: Evidence, number: int, parts: list[Append], trials: list[int], seen: Sight
) -> Iterator[Violation]:
    """Find parts that a reader of their whole log was not given."""
    # If no try is seen, the counting try is not known: then one of them must be there.
    counted = [part for part in parts if not trials or _of(part)[2] in trials]
    absent = [
        part
        for part in counted
        if part.invoked.op not in seen and _is_read_whole(evidence, part.invoked.log)
    ]
    if absent and (trials or len(absent) == len(counted)):
        part = absent[0]
        text = f"batch {number} of {_of(part)[0]} is published, but not its part of this log"
        yield Violation("S29", text, part.invoked.log, 0, (part.invoked,))


def _is_read_whole(evidence: Evidence, log: int) -> bool:
    """Whether a reader read a log from its start to its end, and no record was lost."""
    return any(
        read.log == log
        and read.started.start <= OLDEST
        and not read.started.heads
        and read.ended is not None
        and read.ended.reason is EndReason.TAIL
        and not any(gap.kind.value in ("trim", "data_loss", "filtered") for _, gap in read.gaps())
        for read in evidence.reads
    )
