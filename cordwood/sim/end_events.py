"""Events of a run's end: nodes that are lost for good, and how long appends take."""

from __future__ import annotations

from typing import TypeAlias

from cordwood.sim.event import HistoryEvent


class NodesLost(HistoryEvent, frozen=True, gc=False, tag="nodes-lost"):
    """These nodes are lost for ever with all their data, and nothing is rebuilt."""

    nodes: tuple[int, ...]


class NodesBack(HistoryEvent, frozen=True, gc=False, tag="nodes-back"):
    """Nodes that stayed away past the healing go on from here. A node that hung now answers the
    calls that came meanwhile: it may begin to sequence a log that another node sequences."""

    nodes: tuple[int, ...]


class DiskLost(HistoryEvent, frozen=True, gc=False, tag="disk-lost"):
    """A node's disk is lost for ever, and an empty disk is in its place."""

    node: int


class DisksReplaced(HistoryEvent, frozen=True, gc=False, tag="disks-replaced"):
    """At the end of a run in which disks were lost: other nodes should hold all that was on them.

    Attributes:
        disks: how many were lost.
        waits: nodes that are still reported lost at that time.
    """

    disks: int
    waits: tuple[int, ...] = ()


class RebalanceOver(HistoryEvent, frozen=True, gc=False, tag="rebalance-over"):
    """At the end of a run with rebalances: the last rebalance should be over.

    Attributes:
        waits: nodes that have not given away their part.
    """

    waits: tuple[int, ...] = ()


class StaleServed(HistoryEvent, frozen=True, gc=False, tag="stale-served"):
    """A node serves from the disk that it had before its data was rebuilt on other nodes."""

    node: int


class EventSetsDiffer(HistoryEvent, frozen=True, gc=False, tag="event-sets-differ"):
    """Nodes have read the same record of the event log, and made different sets of it."""

    nodes: tuple[int, ...]


class WordsLeft(HistoryEvent, frozen=True, gc=False, tag="words-left"):
    """Nodes that run with their data, long after all is well, and are still reported otherwise."""

    nodes: tuple[int, ...]


class UploadsLeft(HistoryEvent, frozen=True, gc=False, tag="uploads-left"):
    """What main storage still lacks at the end of a run in which some nodes did not reach it.

    Attributes:
        logs: logs with an acknowledged record that it lacks.
        ledgers: closed ledgers that ask for main storage and are not there.
    """

    logs: tuple[int, ...]
    ledgers: tuple[int, ...]


class LedgersLacking(HistoryEvent, frozen=True, gc=False, tag="ledgers-lacking"):
    """Recorded at the end of a run in which disks were lost and ledgers were written.

    Attributes:
        marked: whether some ledgers are still marked as short of copies.
        ledgers: closed ledgers with an entry that has fewer than Qa copies on its nodes.
    """

    marked: bool
    ledgers: tuple[int, ...] = ()


class OlderFragmentsLacking(HistoryEvent, frozen=True, gc=False, tag="older-fragments-lacking"):
    """Recorded after the faults of a run in which disks were lost and ledgers stay open: their
    writers still go on.

    Attributes:
        ledgers: open ledgers with an older fragment that is not repaired.
        repaired: ledgers of which an older fragment was repaired while they were open.
        gone_on: ledgers of these of which the writer began another fragment after that.
    """

    ledgers: tuple[int, ...] = ()
    repaired: tuple[int, ...] = ()
    gone_on: tuple[int, ...] = ()


class CopiesMended(HistoryEvent, frozen=True, gc=False, tag="copies-mended"):
    """At the end of a run in which copies rotted: each copy should be good again.

    Attributes:
        waits: nodes that still regard copies as damaged, or miss records of their WAL.
    """

    waits: tuple[int, ...] = ()


class PaceBegan(HistoryEvent, frozen=True, gc=False, tag="pace-began"):
    """From here on the duration of `client`'s appends is measured.

    Attributes:
        is_hampered: one node is stopped or slow, and the other nodes had time to notice.
    """

    client: str
    is_hampered: bool


class PaceEnded(HistoryEvent, frozen=True, gc=False, tag="pace-ended"):
    """From here on the duration of its appends is not measured any more."""

    client: str


EndEvent: TypeAlias = (
    NodesLost
    | NodesBack
    | DiskLost
    | DisksReplaced
    | RebalanceOver
    | LedgersLacking
    | OlderFragmentsLacking
    | StaleServed
    | EventSetsDiffer
    | WordsLeft
    | UploadsLeft
    | CopiesMended
    | PaceBegan
    | PaceEnded
)
