"""E1: the errors that clients get when a call fails; a promise of Cordwood's own list.

An application can act on an error only if its class says what to do next. An internal error (a
frame's checksum, a bug's KeyError) says nothing to an application, and the `except Retryable` of
the documentation does not catch it.

Source: cordwood.errors ("by what the caller does next").
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from cordwood import errors
from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import (
    GIVEN_UP,
    AppendFailed,
    AppendUnknown,
    CallFailed,
    Event,
    ReadEnded,
)

_FOR_CALLERS = (errors.Retryable, errors.Fenced, errors.OutcomeUnknown, errors.Rejected)
"""The branches of the error tree that README.md names for applications."""

DOCUMENTED = frozenset(
    name
    for name, item in inspect.getmembers(errors, inspect.isclass)
    if issubclass(item, _FOR_CALLERS)
)
"""Names of the error classes that a client may get."""


def check_told_errors(evidence: Evidence) -> list[Violation]:
    """E1: clients get only errors that the documentation names."""
    return [
        Violation("E1", f"{who} was told {error}", log, 0, shown)
        for who, error, log, shown in _told(evidence)
        if error not in DOCUMENTED
    ]


def _told(evidence: Evidence) -> Iterator[tuple[str, str, int, tuple[Event, ...]]]:
    """Every error that ended a call: the client, the error's class, the log, the events."""
    for append in evidence.appends:
        end, invoked = append.end, append.invoked
        if isinstance(end, AppendFailed | AppendUnknown) and end.error != GIVEN_UP:
            yield invoked.client, end.error, invoked.log, (invoked, end)
        for _, again in append.agains:
            if again.error != GIVEN_UP:
                yield invoked.client, again.error, invoked.log, (invoked, again)
    for read in evidence.reads:
        if isinstance(read.ended, ReadEnded) and read.ended.error:
            yield read.reader, read.ended.error, read.log, (read.started, read.ended)
    for _, event in evidence.of(CallFailed):
        if isinstance(event, CallFailed):
            yield f"{event.client}, who called {event.call}(),", event.error, 0, (event,)
