"""Appends that were made again at their place, and the records that the first try had stored by
then."""

from __future__ import annotations

import bisect
import inspect
from collections import defaultdict
from collections.abc import Iterator, Sequence

from cordwood import errors
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.events import AppendAgain, AppendInvoked, AppendOk, BlockStored, Event

SAYS_NOT_STORED = frozenset(
    name
    for name, item in inspect.getmembers(errors, inspect.isclass)
    if issubclass(item, errors.Retryable | errors.Rejected)
)
"""Names of the errors that mean that nothing is stored."""


def first_tries(history: Sequence[Event]) -> Iterator[tuple[AppendOk, AppendAgain, list[Event]]]:
    """Each append that was made again and acknowledged at last: its acknowledgement, the end of its
    first try, and the first store of its first record, if that came before the second try."""
    again: dict[int, tuple[int, AppendAgain]] = {}
    for at, event in enumerate(history):
        if isinstance(event, AppendAgain):
            again.setdefault(event.op, (at, event))
    if not again:
        return
    logs = {e.op: e.log for e in history if isinstance(e, AppendInvoked) and e.op in again}
    acked = [e for e in history if isinstance(e, AppendOk) and e.op in again]
    wanted: dict[int, list[int]] = defaultdict(list)
    for ack in acked:
        bisect.insort(wanted[logs[ack.op]], ack.lsns[0])
    stores: dict[tuple[int, int], tuple[int, BlockStored]] = {}
    for at, event in enumerate(history):
        if isinstance(event, BlockStored):
            lsns = wanted.get(event.log, [])
            start = bisect.bisect_left(lsns, event.first)
            for lsn in lsns[start : bisect.bisect_right(lsns, event.last)]:
                stores.setdefault((event.log, lsn), (at, event))
    for ack in acked:
        at, event = again[ack.op]
        stored = stores.get((logs[ack.op], ack.lsns[0]))
        yield ack, event, [stored[1]] if stored is not None and stored[0] < at else []


def check_first_tries(history: Sequence[Event]) -> Iterator[Violation]:
    """If an error said that nothing is stored, no node stores the records until the append is made
    again.

    Later tries are not checked: their errors say nothing about records that an earlier try stored.
    """
    for ack, again, stored in first_tries(history):
        for event in stored if again.error in SAYS_NOT_STORED else ():
            assert isinstance(event, BlockStored)
            text = f"append {ack.op} was stored, but {again.error} said that it was not"
            yield Violation("S4", text, event.log, ack.lsns[0], (event, again, ack))
