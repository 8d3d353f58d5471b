"""Events of a run's end: nodes that are lost for good, and how long appends take."""

from __future__ import annotations

from typing import TypeAlias

from cordwood.sim.event import HistoryEvent


class NodesLost(HistoryEvent, frozen=True, gc=False, tag="nodes-lost"):
    """These nodes are gone for good, with all that they held; nobody rebuilds it."""

    nodes: tuple[int, ...]


class NodesBack(HistoryEvent, frozen=True, gc=False, tag="nodes-back"):
    """Nodes that were away past the healing are let go on from here. One that hung answers what it
    was asked meanwhile: it may take up a log that another one has."""

    nodes: tuple[int, ...]


class DiskLost(HistoryEvent, frozen=True, gc=False, tag="disk-lost"):
    """A node's disk is gone for good, and an empty one in its place."""

    node: int


class DisksReplaced(HistoryEvent, frozen=True, gc=False, tag="disks-replaced"):
    """At the end of a run in which disks were lost: what they held should be on other nodes.

    Attributes:
        disks: how many were lost.
        waits: nodes that are still said to be lost then.
    """

    disks: int
    waits: tuple[int, ...] = ()


class RebalanceOver(HistoryEvent, frozen=True, gc=False, tag="rebalance-over"):
    """At the end of a run in which nodes gave data to others: the last rebalance should be over.

    Attributes:
        waits: nodes that have not given their part.
    """

    waits: tuple[int, ...] = ()


class StaleServed(HistoryEvent, frozen=True, gc=False, tag="stale-served"):
    """A node serves from the disk that it had before its data was made anew on others."""

    node: int


class WordsLeft(HistoryEvent, frozen=True, gc=False, tag="words-left"):
    """Nodes that run with their data, long after all is well, and are not taken for such."""

    nodes: tuple[int, ...]


class LedgersLacking(HistoryEvent, frozen=True, gc=False, tag="ledgers-lacking"):
    """At the end of a run in which disks were lost and ledgers written.

    Attributes:
        marked: whether ledgers are still known to lack copies.
        ledgers: closed ones of which an entry has fewer than Qa copies where it should be.
    """

    marked: bool
    ledgers: tuple[int, ...] = ()


class CopiesMended(HistoryEvent, frozen=True, gc=False, tag="copies-mended"):
    """At the end of a run in which copies rotted: each should be good again.

    Attributes:
        waits: nodes that still take copies for damaged, or miss records of their WAL.
    """

    waits: tuple[int, ...] = ()


class PaceBegan(HistoryEvent, frozen=True, gc=False, tag="pace-began"):
    """From here on the appends of `client` are timed.

    Attributes:
        is_hampered: one node is stopped or slow, and the others had time to notice.
    """

    client: str
    is_hampered: bool


class PaceEnded(HistoryEvent, frozen=True, gc=False, tag="pace-ended"):
    """Its appends from here on are not timed any more."""

    client: str


EndEvent: TypeAlias = (
    NodesLost
    | NodesBack
    | DiskLost
    | DisksReplaced
    | RebalanceOver
    | LedgersLacking
    | StaleServed
    | WordsLeft
    | CopiesMended
    | PaceBegan
    | PaceEnded
)
