"""Fencing tokens, a part of S25: an append with a lower token than the log's is refused.

A token holds from the epoch on that its holder was told. So no record under a lower token is in
that epoch or a later epoch, whether it was acknowledged or seen. The log has no record of an append
that was called under a lower token after that answer.

Source: docs/design.md §3 ("A fencing token belongs to an epoch").
"""

from __future__ import annotations

from collections.abc import Iterator

from cordwood.lsn import format_lsn
from cordwood.sim.checkers.evidence import Append, Evidence
from cordwood.sim.checkers.places import places_of
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import AppendFailed, Event
from cordwood.sim.token_events import FenceAnswered, FenceAsked

FENCED = "TokenFenced"
"""The error of an append under a token that was overtaken."""

Fences = list[tuple[int, FenceAnswered]]
"""Answers, each with its position."""


def check_tokens(evidence: Evidence) -> list[Violation]:
    """Find appends stored under a lower token than the log's, and appends refused without a higher
    token."""
    asked: dict[int, list[tuple[int, FenceAsked]]] = {}
    answered: dict[int, Fences] = {}
    for at, event in evidence.of(FenceAsked, FenceAnswered):
        if isinstance(event, FenceAsked):
            asked.setdefault(event.log, []).append((at, event))
        elif isinstance(event, FenceAnswered):
            answered.setdefault(event.log, []).append((at, event))
    found: list[Violation] = []
    for log, fences in sorted(answered.items()):
        found += _let_in(evidence, log, fences)
        found += _given_twice(log, asked.get(log, []), fences)
    for append in evidence.appends:
        if isinstance(append.end, AppendFailed) and append.end.error == FENCED:
            found += _refused_for_nothing(append, asked.get(append.invoked.log, []))
    return found


def _let_in(evidence: Evidence, log: int, fences: Fences) -> Iterator[Violation]:
    """Find records in an epoch with a higher token, or sent while a higher token held."""
    for placed in places_of(evidence, log):
        call = placed.append.invoked
        for at, fence in fences:
            in_vain = fence.epoch <= placed.lsn >> 32 or at < placed.append.invoked_at
            if fence.token > call.token and in_vain:
                text = (
                    f"{placed.id} with token {call.token} is at {format_lsn(placed.lsn)}, but "
                    f"{fence.client} held the log with {fence.token} from epoch {fence.epoch} on"
                )
                shown: tuple[Event, ...] = (fence, call, placed.witness)
                yield Violation("S25", text, log, placed.lsn, shown)
                break


def _given_twice(
    log: int, asked: list[tuple[int, FenceAsked]], fences: Fences
) -> Iterator[Violation]:
    """Find tokens that were granted although another client had one as high before the call."""
    for at, fence in fences:
        asks = [
            where
            for where, ask in asked
            if where < at and (ask.client, ask.token) == (fence.client, fence.token)
        ]
        before = max(asks, default=at)
        for other_at, other in fences:
            if other_at < before and other.client != fence.client and other.token >= fence.token:
                text = f"{fence.client} got token {fence.token}; {other.client} had one as high"
                yield Violation("S25", text, log, 0, (other, fence))
                break


def _refused_for_nothing(
    append: Append, asked: list[tuple[int, FenceAsked]]
) -> Iterator[Violation]:
    """Find a refusal although no client had asked for a higher token by then."""
    call, end = append.invoked, append.end
    if end is not None and not any(
        at < append.end_at and ask.token > call.token for at, ask in asked
    ):
        text = f"{call.payloads[0].id} was refused, but no client had a token above {call.token}"
        yield Violation("S25", text, call.log, 0, (call, end))
