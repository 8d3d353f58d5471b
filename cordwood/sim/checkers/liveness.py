"""Promises that hold after the faults have stopped: L1 appends, L2 readers, L3 recovery, L5
deadlines, L7 pace, L8 quiet.

In a run without faults they hold from the start; in a run whose faults never stopped only L5 holds.
Calls that had less time than their bound, because the history ended or the caller did not wait, are
not judged.
"""

from __future__ import annotations

import bisect
import inspect
from collections.abc import Iterator

from cordwood import errors
from cordwood.lsn import LSN_MAX
from cordwood.sim.checkers.evidence import Append, Evidence, Read, last_of
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.end_events import DiskLost, NodesBack, PaceBegan, PaceEnded
from cordwood.sim.history import (
    GIVEN_UP,
    AppendFailed,
    AppendOk,
    AppendUnknown,
    EndReason,
    Idled,
    NodeStarted,
)
from cordwood.sim.name_events import LogSought, NameLeads
from cordwood.sim.token_events import FenceAsked

APPEND_BOUND_S = 5.0
"""L1, of docs/sources/reliability.md §3."""

READER_BOUND_S = 10.0
"""L2, of the same."""

RECOVERY_BOUND_S = 10.0
"""L3: a hung member is given up after a few seconds, and each epoch takes a few round trips. The
bound is the same as for readers, which wait for the recovery."""

IDLE_CALLBACKS_MAX = 400.0
"""L8, steps a second of an idle node: it pings its peers, reads the member list and gossips, some
tens of steps a second in all. A loop that spins takes thousands."""

PACE_TIMES_MAX = 3.0
"""L7, of the same."""

PACE_FLOOR_S = 0.02
"""L7: the lowest value that counts as the usual p99. A lower p99 depends mostly on a retried wave,
or on one flush during the measurement."""

PACE_APPENDS_MIN = 50
"""L7: fewest appends to judge. With fewer, one hundredth of them is a single append."""

NEVER_US = 1 << 60

DEADLINE_SLACK_S = 1.0
"""A deadline is a timer on a loop with other work. A loop that is a second late is stuck."""

_REJECTIONS = frozenset(
    name
    for name, item in inspect.getmembers(errors, inspect.isclass)
    if issubclass(item, errors.Rejected)
)
"""Errors for a wrong request."""


def check_appends_succeed(evidence: Evidence, bound_s: float = APPEND_BOUND_S) -> list[Violation]:
    """L1: `bound_s` after the faults have stopped, every append succeeds within `bound_s`.

    Before that time, one of the appends tried since the healing must succeed, if any was tried. An
    append that soon ends with an unknown outcome does not count as a try: another sequencer took
    the log, and a caller may stop there. Appends in flight on nodes that were lost for ever are not
    judged, nor appends before the loss was reported. The return of a node counts like the end of a
    fault: an append that began up to `bound_s` after it may end with an unknown outcome, and with
    no other error. The same holds for nodes that are readmitted after their disk was lost, and for
    a log whose fencing token another client takes: a new epoch ends the epoch of the holder before.
    """
    if evidence.healed_at is None:
        return []
    bound_us = round(bound_s * 1e6)
    back_us = [event.time_us for _, event in evidence.of(NodesBack)] + _let_in_us(evidence)
    found: list[Violation] = []
    for log in evidence.logs:
        tried = [
            append
            for append in evidence.appends
            if append.invoked.log == log
            and append.invoked_at >= evidence.healed_at
            and (evidence.lost_at is None or append.end_at < evidence.lost_at)
            and not _says_nothing(append, bound_us)
            and not any(
                _is_overtaken(append, each, bound_us)
                for each in (*back_us, *_fences_us(evidence, append))
            )
        ]
        found.extend(_first_success(evidence, log, tried, bound_us))
        settled_us = evidence.time_of(evidence.healed_at) + bound_us
        for append in tried:
            if append.invoked.time_us >= settled_us:
                found.extend(_succeeds_by(evidence, append, append.invoked.time_us + bound_us))
    return found


def _let_in_us(evidence: Evidence) -> list[int]:
    """The times when nodes with lost disks started."""
    lost = {e.node for _, e in evidence.of(DiskLost) if isinstance(e, DiskLost)}
    return [
        e.time_us
        for _, e in evidence.of(NodeStarted)
        if isinstance(e, NodeStarted) and e.node in lost
    ]


def _fences_us(evidence: Evidence, append: Append) -> list[int]:
    """The times when other clients asked for the log's fencing token."""
    return [
        e.time_us
        for _, e in evidence.of(FenceAsked)
        if isinstance(e, FenceAsked)
        and e.log == append.invoked.log
        and e.client != append.invoked.client
    ]


def _says_nothing(append: Append, bound_us: int) -> bool:
    """Whether a call failed because of its caller, and not because of the cluster.

    A publish waits for its caller in between, and for every copy of the staged blocks. The end of
    the run checks that it ends at all.
    """
    invoked, end = append.invoked, append.end
    if invoked.published is not None:
        return True
    if isinstance(end, AppendOk) or end is None:
        return False
    if isinstance(end, AppendFailed) and end.error in _REJECTIONS:
        return True
    if isinstance(end, AppendUnknown) and end.error == GIVEN_UP:
        return end.time_us - invoked.time_us < bound_us
    return 0 < invoked.timeout_us < bound_us


def _is_overtaken(append: Append, back_us: int, bound_us: int) -> bool:
    """Whether an append of unknown outcome was in flight, or began soon after, when nodes came
    back."""
    end = append.end
    if not isinstance(end, AppendUnknown) or end.error == GIVEN_UP:
        return False
    return append.invoked.time_us <= back_us + bound_us and end.time_us >= back_us


def _first_success(
    evidence: Evidence, log: int, tried: list[Append], bound_us: int
) -> Iterator[Violation]:
    waited = [append for append in tried if not _is_replaced(append, bound_us)]
    if not waited:
        return
    due_us = waited[0].invoked.time_us + bound_us
    won = min(
        (evidence.time_of(a.end_at) for a in tried if isinstance(a.end, AppendOk)), default=None
    )
    if (won is None and evidence.end_us >= due_us) or (won is not None and won > due_us):
        text = f"no append succeeded within {bound_us / 1e6:g} s of the healing"
        yield Violation("L1", text, log, 0, (waited[0].invoked,))


def _is_replaced(append: Append, bound_us: int) -> bool:
    """Whether an append ended in time with an unknown outcome, as when its sequencer ends."""
    end = append.end
    if not isinstance(end, AppendUnknown) or end.error == GIVEN_UP:
        return False
    return end.time_us < append.invoked.time_us + bound_us


def _succeeds_by(evidence: Evidence, append: Append, due_us: int) -> Iterator[Violation]:
    took_us = evidence.time_of(append.end_at) - append.invoked.time_us
    if append.end is None and evidence.end_us < due_us:
        return
    if isinstance(append.end, AppendOk) and append.end.time_us <= due_us:
        return
    if append.end is None:
        what = "no answer"
    elif isinstance(append.end, AppendOk):
        what = f"an answer after {took_us / 1e6:g} s"
    else:
        what = append.end.error
    text = f"{append.invoked.payloads[0].id} got {what}, long after the healing"
    shown = (append.invoked, append.end) if append.end else (append.invoked,)
    yield Violation("L1", text, append.invoked.log, 0, shown)


def check_readers_reach_the_tail(
    evidence: Evidence, bound_s: float = READER_BOUND_S
) -> list[Violation]:
    """L2: every open reader passes an acknowledged record within `bound_s`.

    The time counts from the acknowledgement, the healing or the reader's start, whichever is the
    latest. A reader that gave up and did not come back never reaches the record. Three kinds of
    reads are not judged: reads of outsiders; reads of a consumer's members, which end without an
    event when the log goes to another member; and reads that began after nodes were lost for ever,
    which wait for these nodes where a record is missing.
    """
    if evidence.healed_at is None:
        return []
    lost_at = len(evidence.events) if evidence.lost_at is None else evidence.lost_at
    bound_us = round(bound_s * 1e6)
    healed_us = evidence.time_of(evidence.healed_at)
    found: list[Violation] = []
    last_reads: dict[str, Read] = {}
    for read in evidence.reads:
        if read.started.consumer or read.started.barred or read.started_at > lost_at:
            continue
        last_reads[read.reader] = read
        found.extend(_late(evidence, read, healed_us, bound_us))
    for read in last_reads.values():
        gave_up = read.ended is not None and read.ended.reason is EndReason.ERROR
        due_us = max(healed_us, evidence.time_of(read.ended_at)) + bound_us
        if gave_up and read.ended is not None and evidence.end_us >= due_us:
            text = f"reader {read.reader} ended with {read.ended.error} and did not read again"
            found.append(Violation("L2", text, read.log, read.passed, (read.ended,)))
    return found


def _late(evidence: Evidence, read: Read, healed_us: int, bound_us: int) -> Iterator[Violation]:
    """The first acknowledged record that a read should have passed in time and did not."""
    started_us, open_until_us = read.started.time_us, evidence.time_of(read.ended_at)
    if max(healed_us, started_us) + bound_us > open_until_us:
        return  # the promise did not hold yet
    passed: list[int] = []
    times: list[int] = []
    highest = -1
    for _, item in read.items:
        highest = max(highest, last_of(item))
        passed.append(highest)
        times.append(item.time_us)
    until = read.started.until if read.started.until is not None else LSN_MAX
    for ack in evidence.acks_within(read.log, read.started.start, until):
        acked_us = evidence.time_of(ack.append.end_at)
        due_us = max(acked_us, healed_us, started_us) + bound_us
        index = bisect.bisect_left(passed, ack.lsn)
        if due_us <= open_until_us and (index == len(passed) or times[index] > due_us):
            text = f"reader {read.reader} did not pass {ack.payload.id} in {bound_us / 1e6:g} s"
            shown = (read.started, ack.append.end or ack.append.invoked)
            yield Violation("L2", text, read.log, ack.lsn, shown)
            return


def check_recovery_finishes(
    evidence: Evidence, bound_s: float = RECOVERY_BOUND_S
) -> list[Violation]:
    """L3: every epoch except the newest is recovered within `bound_s`, even if nodes are absent.

    The time counts from the healing, or from the moment when the newest epoch was taken. The run
    chooses the absent nodes, no more than replication survives. After nodes are lost for ever the
    promise does not hold: the nodes left may be too few for any recovery.
    """
    if evidence.healed_at is None:
        return []
    lost_at = len(evidence.events) if evidence.lost_at is None else evidence.lost_at
    end_us = evidence.time_of(lost_at)
    bound_us = round(bound_s * 1e6)
    healed_us = evidence.time_of(evidence.healed_at)
    found = []
    # A log that is deleted is not recovered any more.
    passing = _deleted_logs(evidence)
    for log, store in sorted(evidence.stores.items()):
        taken_before = [taken for taken in store.taken if taken[0] < lost_at]
        if not taken_before or log in passing:
            continue
        at, newest = max(taken_before, key=lambda taken: (taken[1].epoch, -taken[0]))
        due_us = max(healed_us, newest.time_us) + bound_us
        clean = max((e.epoch for _, e in store.cleaned if e.time_us <= due_us), default=0)
        unclean = [epoch for epoch in store.owners if clean < epoch < newest.epoch]
        if unclean and end_us >= due_us:
            text = (
                f"epoch {min(unclean)} was not recovered in {bound_us / 1e6:g} s, although "
                f"a sequencer took epoch {newest.epoch}"
            )
            shown = (evidence.events[store.owners[min(unclean)]], evidence.events[at])
            found.append(Violation("L3", text, log, 0, shown))
    return found


def _deleted_logs(evidence: Evidence) -> set[int]:
    """Logs that clients delete during the run, or that were found deleted at its end."""
    return {
        event.log
        for _, event in evidence.of(NameLeads, LogSought)
        if isinstance(event, NameLeads) or (isinstance(event, LogSought) and event.is_deleted)
    }


def check_pace(
    evidence: Evidence, times_max: float = PACE_TIMES_MAX, floor_s: float = PACE_FLOOR_S
) -> list[Violation]:
    """L7: while one node is stopped or slow, p99 of appends is at most three times the usual p99.

    One client measures its appends while all is well, and again while a node is hampered and the
    other nodes had ten seconds to notice. A failed append counts as infinitely long.

    Args:
        times_max: the allowed factor, by default three.
        floor_s: the lowest value that counts as the usual p99.
    """
    usual: dict[str, int] = {}
    found: list[Violation] = []
    began: dict[str, PaceBegan] = {}
    for _, event in evidence.of(PaceBegan, PaceEnded):
        if isinstance(event, PaceBegan):
            began[event.client] = event
        elif isinstance(event, PaceEnded) and event.client in began:
            start = began.pop(event.client)
            took = _times(evidence, event.client, start.time_us, event.time_us)
            if len(took) < PACE_APPENDS_MIN:
                continue
            p99_us = took[(len(took) * 99 - 1) // 100]
            if not start.is_hampered:
                usual[event.client] = p99_us
            elif event.client in usual:
                most_us = max(usual[event.client], floor_s * 1e6) * times_max
                if p99_us > most_us:
                    text = (
                        f"{event.client}: p99 of {len(took)} appends is {p99_us / 1e6:g} s beside "
                        f"a hampered node, over {most_us / 1e6:g} s"
                    )
                    found.append(Violation("L7", text, 0, 0, (start, event)))
    return found


def _times(evidence: Evidence, client: str, start_us: int, stop_us: int) -> list[int]:
    """Durations of a client's appends that began in `[start, stop)`, in µs, ascending."""
    took = []
    for append in evidence.appends:
        invoked = append.invoked
        if invoked.client == client and start_us <= invoked.time_us < stop_us:
            is_ok = isinstance(append.end, AppendOk)
            took.append(append.end.time_us - invoked.time_us if is_ok and append.end else NEVER_US)
    return sorted(took)


def check_nothing_spins(
    evidence: Evidence, callbacks_max: float = IDLE_CALLBACKS_MAX
) -> list[Violation]:
    """L8: idle nodes do almost no work."""
    found = []
    for _, event in evidence.of(Idled):
        if isinstance(event, Idled) and event.length_us and event.nodes:
            rate = event.callbacks / (event.length_us / 1e6) / event.nodes
            if rate > callbacks_max:
                text = f"each idle node does {rate:.0f} steps a second, over {callbacks_max:g}"
                found.append(Violation("L8", text, 0, 0, (event,)))
    return found


def _last_try_ended_us(append: Append, evidence: Evidence) -> int:
    """The end of an append's last try; for an open append, the end of the history."""
    if isinstance(append.end, AppendFailed | AppendUnknown) and append.end.ended_us:
        return append.end.ended_us
    return evidence.time_of(append.end_at)


def check_deadlines(evidence: Evidence, slack_s: float = DEADLINE_SLACK_S) -> list[Violation]:
    """L5: no append, and no try of an append, lasts longer than its deadline.

    If the workload kills a client, its calls end as unknown.
    """
    found = []
    for append in evidence.appends:
        invoked = append.invoked
        if not invoked.timeout_us:
            continue
        begun_us = [invoked.time_us, *(again.time_us for _, again in append.agains)]
        ended_us = [again.ended_us for _, again in append.agains]
        ended_us.append(_last_try_ended_us(append, evidence))
        for start_us, stop_us in zip(begun_us, ended_us, strict=True):
            if stop_us - start_us > invoked.timeout_us + round(slack_s * 1e6):
                took_s = (stop_us - start_us) / 1e6
                late = "ended" if append.end else "still open"
                text = f"{invoked.payloads[0].id}: {late} {took_s:g} s after its call"
                shown = (invoked, append.end) if append.end else (invoked,)
                found.append(Violation("L5", text, invoked.log, 0, shown))
                break
    return found
