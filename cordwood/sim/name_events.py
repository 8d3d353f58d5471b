"""Events about names of logs that change: the log of a name, and what callers got by the name."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from cordwood.sim.event import HistoryEvent, LsnValue, TimeUs

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class NameLeads(HistoryEvent, frozen=True, gc=False, tag="name-leads"):
    """The name stands for this log now; it did not before `invoked_us`."""

    log: Number
    invoked_us: TimeUs


class NamedRead(HistoryEvent, frozen=True, gc=False, tag="named-read"):
    """A client read by the name, or by a number, from `invoked_us` on.

    Attributes:
        wanted: the number that was asked for; 0 for the name.
        log: the number that was opened; 0 for a consumer, which does not say.
        consumer: the consumer that keeps the position; "" for a plain read.
        given: for each record, the log that it was written to, and its place in that log.
        is_gap: a gap said that records are trimmed or lost.
    """

    client: str
    invoked_us: TimeUs
    wanted: Number
    log: Number
    consumer: str
    given: list[tuple[Number, Number]]
    is_gap: bool = False


class NamedAppend(HistoryEvent, frozen=True, gc=False, tag="named-append"):
    """An append by the name was acknowledged, and its record was looked for at its LSN.

    Attributes:
        found: whether the record was there.
    """

    client: str
    invoked_us: TimeUs
    lsn: LsnValue
    found: bool


class LogMade(HistoryEvent, frozen=True, gc=False, tag="log-made"):
    """A client was told that it made this log."""

    client: str
    log: Number


class LogSought(HistoryEvent, frozen=True, gc=False, tag="log-sought"):
    """A log was looked for while no client changed names.

    Attributes:
        is_deleted: whether a client deleted the log; no call brings it back.
        is_found: whether it was found by its number.
        is_named: whether it was found by its name.
        is_listed: whether it is in the list of all logs.
    """

    log: Number
    is_deleted: bool
    is_found: bool
    is_named: bool
    is_listed: bool


NameEvent: TypeAlias = NameLeads | NamedRead | NamedAppend | LogMade | LogSought
