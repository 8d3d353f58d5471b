"""How a ledger's writer answers its callers, and the errors that tell how it ended.

Source: docs/protocol/ledgers.md, rules 9 to 11.
"""

from __future__ import annotations

import asyncio

from cordwood.errors import (
    Closed,
    CordwoodError,
    LedgerFenced,
    OutcomeUnknown,
    TooFewNodes,
    Unreachable,
)
from cordwood.protocol.ledger_effects import End, Outcome

SHUT_OUT = (End.FENCED, End.CLOSED_BY_OTHER)
"""Another client decides where the ledger ends."""


def entry_error(ledger: int, end: End, outcome: Outcome) -> CordwoodError:
    """The error of an entry, or of a force, that was not done before the writer ended."""
    text = f"ledger {ledger} ended before this entry was acknowledged: {end.value}"
    if outcome is Outcome.UNKNOWN:
        return OutcomeUnknown(f"{text}; recover the ledger and read what it has")
    if end is End.TOO_FEW_NODES:
        return TooFewNodes(text)
    return Closed(text) if end in (End.CLOSED, End.TOO_LARGE) else Unreachable(text)


def close_error(ledger: int, end: End | None, head: int, lac: int) -> CordwoodError | None:
    """The error of a close; None if the ledger is closed with all acknowledged entries in it.

    Args:
        end: how the writer ended, without being shut out.
        head: the last acknowledged entry. lac: the last confirmed entry, where the ledger is
            closed.
    """
    if end is End.DENIED:
        return LedgerFenced(
            f"ledger {ledger}: a node refused its writer, which did not close it: open it with "
            "recovery"
        )
    if end is not None and head > lac:
        # Only with deferred sync: the writer ended by itself before it could force.
        return Unreachable(
            f"ledger {ledger} is closed after entry {lac}: {end.value}; acknowledged entries up to "
            f"{head}, which no force had confirmed, are not in it"
        )
    return None


def settle(future: asyncio.Future[int], outcome: int | CordwoodError) -> None:
    """Give a caller its answer, unless it has given up."""
    if future.done():
        return
    if isinstance(outcome, int):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


def retrieved(future: asyncio.Future[int]) -> None:
    """Mark its error as read, because its caller has given up."""
    if not future.cancelled():
        future.exception()
