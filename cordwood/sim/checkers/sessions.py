"""Order as one client sees it: S9 session order, S10 pipelined order, S26 the tail."""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from operator import attrgetter

from cordwood.lsn import ESN_MAX, format_lsn
from cordwood.sim.checkers.evidence import Append, Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import TailAnswered
from cordwood.sim.position_events import ReleasedTold


def check_session_order(evidence: Evidence) -> list[Violation]:
    """S9: a record that a client appended after an acknowledgement has a higher LSN."""
    found = []
    for group in _acknowledged(evidence, lambda a: (a.invoked.log, a.invoked.client)):
        ended = sorted(group, key=attrgetter("end_at"))
        highest: Append | None = None
        index = 0
        for append in group:
            while ended[index].end_at < append.invoked_at:
                highest = _higher(highest, ended[index])
                index += 1
            if highest is not None and max(highest.lsns) > min(append.lsns):
                found.append(_out_of_order("S9", highest, append, "acknowledged before"))
    return found


def check_pipelined_order(evidence: Evidence) -> list[Violation]:
    """S10: one session's acknowledged records are in the order of their submission.

    S9 checks pairs in which one call ended before the other began.
    """
    found = []
    for group in _acknowledged(
        evidence, lambda a: (a.invoked.log, a.invoked.client, a.invoked.session)
    ):
        highest: Append | None = None
        for append in group:
            if any(a >= b for a, b in itertools.pairwise(append.lsns)):
                found.append(_out_of_order("S10", append, append, "in one call with"))
            if (
                highest is not None
                and max(highest.lsns) > min(append.lsns)
                and highest.end_at > append.invoked_at
            ):
                found.append(_out_of_order("S10", highest, append, "submitted before"))
            highest = _higher(highest, append)
    return found


def _acknowledged(evidence: Evidence, key: Callable[[Append], Hashable]) -> Iterator[list[Append]]:
    groups: dict[Hashable, list[Append]] = defaultdict(list)
    for append in evidence.appends:
        if append.lsns:
            groups[key(append)].append(append)
    return iter(groups.values())


def _higher(highest: Append | None, append: Append) -> Append:
    if highest is None or max(append.lsns) > max(highest.lsns):
        return append
    return highest


def _out_of_order(invariant: str, earlier: Append, later: Append, how: str) -> Violation:
    text = (
        f"{earlier.invoked.client} got {format_lsn(max(earlier.lsns))} for"
        f" {earlier.invoked.payloads[-1].id}, {how} {later.invoked.payloads[0].id}"
        f" at {format_lsn(min(later.lsns))}"
    )
    shown = tuple(e for e in (earlier.end, later.invoked, later.end) if e is not None)
    return Violation(invariant, text, later.invoked.log, min(later.lsns), shown)


def check_tail(evidence: Evidence) -> list[Violation]:
    """S26: a tail is released, and covers every record that was acknowledged before the call.

    For one client the tail never falls. Where times are equal, the order is not known, and nothing
    is claimed. The answer to a client that polls may be lower, and is released as well.
    """
    found: list[Violation] = []
    for at, event in evidence.of(TailAnswered, ReleasedTold):
        if isinstance(event, TailAnswered | ReleasedTold):
            found.extend(_unreleased(evidence, at, event))
    for log in sorted({answer.log for answer in evidence.tails}):
        answers = [answer for answer in evidence.tails if answer.log == log]
        found.extend(_below_acks(evidence, log, answers))
        found.extend(_falling(log, answers))
    return found


def _unreleased(
    evidence: Evidence, at: int, event: TailAnswered | ReleasedTold
) -> Iterator[Violation]:
    """Find an answer above everything that the log's sequencers had released by then.

    The beginning of an epoch, (E, 0), can be read as soon as the epoch is taken.
    """
    releases, store = evidence.releases.get(event.log), evidence.stores.get(event.log)
    if releases is None or event.lsn <= releases.highest(at):
        return
    epoch = event.lsn >> 32
    is_clean = store is not None and epoch <= store.last_clean(at)
    is_begun = store is None or (not event.lsn & ESN_MAX and epoch <= store.highest_taken(at))
    if not (is_clean or is_begun):
        text = f"{event.client} was told the tail {format_lsn(event.lsn)}, which is not released"
        yield Violation("S26", text, event.log, event.lsn, (event,))


def _below_acks(evidence: Evidence, log: int, answers: list[TailAnswered]) -> Iterator[Violation]:
    acks = sorted(evidence.acks.get(log, ()), key=lambda ack: ack.append.end_at)
    times = [evidence.time_of(ack.append.end_at) for ack in acks]
    highest: list[int] = []
    for index, ack in enumerate(acks):
        above = index == 0 or ack.lsn > acks[highest[-1]].lsn
        highest.append(index if above else highest[-1])
    for answer in answers:
        known = bisect.bisect_left(times, answer.invoked_us)
        if known and acks[highest[known - 1]].lsn > answer.lsn:
            ack = acks[highest[known - 1]]
            text = f"{answer.client} was told a tail below the acknowledged {format_lsn(ack.lsn)}"
            shown = (ack.append.end or ack.append.invoked, answer)
            yield Violation("S26", text, log, answer.lsn, shown)


def _falling(log: int, answers: list[TailAnswered]) -> Iterator[Violation]:
    """Find answers below an answer that the same client had before its call."""
    clients: dict[str, tuple[list[int], list[TailAnswered]]] = defaultdict(lambda: ([], []))
    for answer in answers:
        times, highest = clients[answer.client]
        known = bisect.bisect_left(times, answer.invoked_us)
        if known and highest[known - 1].lsn > answer.lsn:
            text = f"{answer.client}'s tail fell from {format_lsn(highest[known - 1].lsn)}"
            yield Violation("S26", text, log, answer.lsn, (highest[known - 1], answer))
        times.append(answer.time_us)
        highest.append(highest[-1] if highest and highest[-1].lsn > answer.lsn else answer)
