"""Events of a run's end: nodes that are lost for good, and how long appends take."""

from __future__ import annotations

from typing import TypeAlias

from cordwood.sim.event import HistoryEvent


class NodesLost(HistoryEvent, frozen=True, gc=False, tag="nodes-lost"):
    """These nodes are gone for good, with all that they held; nobody rebuilds it."""

    nodes: tuple[int, ...]


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


EndEvent: TypeAlias = NodesLost | PaceBegan | PaceEnded
