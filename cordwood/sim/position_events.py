"""Events about places in a log: requested trims, trim points of nodes, look-ups."""

from __future__ import annotations

from typing import TypeAlias

from cordwood.sim.event import HistoryEvent, LsnValue


class TrimAsked(HistoryEvent, frozen=True, gc=False, tag="trim-asked"):
    """A client is about to trim a log up to `lsn`."""

    client: str
    log: int
    lsn: LsnValue


class TrimAnswered(HistoryEvent, frozen=True, gc=False, tag="trim-answered"):
    """The client was told that these nodes have trimmed for ever."""

    client: str
    log: int
    lsn: LsnValue
    nodes: tuple[int, ...]


class TimeFound(HistoryEvent, frozen=True, gc=False, tag="time-found"):
    """A client that looked a time up was told `lsn`.

    Attributes:
        wanted_us: the append time that it looked for.
        tail: of the log, as the client was told.
        is_exact: whether the answer is exact; otherwise it may be too early.
    """

    client: str
    log: int
    wanted_us: int
    lsn: LsnValue
    tail: LsnValue
    is_exact: bool


class KeyFound(HistoryEvent, frozen=True, gc=False, tag="key-found"):
    """A client that looked a key up, in a log whose keys do not fall, was told this.

    Attributes:
        before: the last record with a lower key, 0 for none.
        at: the first record with this key or a higher one, 0 for none.
        tail: of the log, as the client was told.
        is_exact: whether no record was lost in the searched range.
    """

    client: str
    log: int
    key: str
    before: LsnValue
    at: LsnValue
    tail: LsnValue
    is_exact: bool


class ExtentTold(HistoryEvent, frozen=True, gc=False, tag="extent-told"):
    """A client that asked at `invoked_us` for a log's first and last record was told this.

    Attributes:
        trim: all records up to here were trimmed, 0 for none.
        first, last: the first and the last record, 0 for none.
        first_us, last_us: their append times.
        tail: of the log, as the client was told.
        is_first_known, is_last_known: whether the answer about them is certain.
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
    """A node is about to trim by itself, because of the log's retention.

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
    """From here on a node's trim point is `lsn`, durable in its WAL."""

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
