"""Events about where a log begins: trims asked for, and trim points of nodes."""

from __future__ import annotations

from typing import TypeAlias

from cordwood.sim.event import HistoryEvent, LsnValue


class TrimAsked(HistoryEvent, frozen=True, gc=False, tag="trim-asked"):
    """A client is about to ask that all of a log up to `lsn` be trimmed."""

    client: str
    log: int
    lsn: LsnValue


class TrimAnswered(HistoryEvent, frozen=True, gc=False, tag="trim-answered"):
    """It was told that these nodes have let go of it for good."""

    client: str
    log: int
    lsn: LsnValue
    nodes: tuple[int, ...]


class TimeFound(HistoryEvent, frozen=True, gc=False, tag="time-found"):
    """A client that asked where a time lies was told `lsn`.

    Attributes:
        wanted_us: the time that it asked for, an append time.
        tail: of the log, as it was told.
        is_exact: whether it may not lie too early.
    """

    client: str
    log: int
    wanted_us: int
    lsn: LsnValue
    tail: LsnValue
    is_exact: bool


class KeyFound(HistoryEvent, frozen=True, gc=False, tag="key-found"):
    """A client that asked where a key lies, in a log whose keys do not fall, was told this.

    Attributes:
        before: the last record of a lower key, 0 for none.
        at: the first one of no lower key, 0 for none.
        tail: of the log, as it was told.
        is_exact: whether nothing was lost where it was looked for.
    """

    client: str
    log: int
    key: str
    before: LsnValue
    at: LsnValue
    tail: LsnValue
    is_exact: bool


class ExtentTold(HistoryEvent, frozen=True, gc=False, tag="extent-told"):
    """A client that asked at `invoked_us` where a log's records begin and end was told this.

    Attributes:
        trim: all up to it was trimmed, 0 for none.
        first, last: the first and the last record, 0 for none.
        first_us, last_us: their append times.
        tail: of the log, as it was told.
        is_first_known, is_last_known: whether they are right for sure.
    """

    client: str
    log: int
    trim: LsnValue
    first: LsnValue
    first_us: int
    last: LsnValue
    last_us: int
    tail: LsnValue
    is_first_known: bool
    is_last_known: bool
    invoked_us: int


class ReleasedTold(HistoryEvent, frozen=True, gc=False, tag="released-told"):
    """A client that polls was told that a log can be read up to `lsn`, at least."""

    client: str
    log: int
    lsn: LsnValue


class RetentionTrims(HistoryEvent, frozen=True, gc=False, tag="retention-trims"):
    """A node is about to trim by itself, as the log's retention has it.

    Attributes:
        why: `time`, `space`.
        backlog_us: how long the log keeps its records, 0 for ever.
        backlog_bytes: how many bytes it keeps, 0 for all.
    """

    node: int
    log: int
    lsn: LsnValue
    why: str
    backlog_us: int = 0
    backlog_bytes: int = 0


class NodeTrimmed(HistoryEvent, frozen=True, gc=False, tag="node-trimmed"):
    """A node's trim point is `lsn` from here on: its WAL has it durably."""

    node: int
    log: int
    lsn: LsnValue


PositionEvent: TypeAlias = (
    TrimAsked
    | TrimAnswered
    | TimeFound
    | KeyFound
    | ExtentTold
    | ReleasedTold
    | RetentionTrims
    | NodeTrimmed
)
