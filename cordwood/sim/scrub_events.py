"""The event that tells what rotted on a node's disk, and what its scrubbing found."""

from __future__ import annotations

from cordwood.sim.event import HistoryEvent, LsnValue

Range = tuple[LsnValue, LsnValue]
"""LSNs [first, last]."""


class NodeScrubbed(HistoryEvent, frozen=True, gc=False, tag="node-scrubbed"):
    """What stands with a log on a node when the run is over.

    Attributes:
        passes: over all of its store that began and ended since it started; all that rotted
            while it did not run was there before.
        rotten: blocks of which index entry or body has rotted, none of them trimmed.
        damaged: what the node takes for damaged, or took for it until it was mended.
        mended: the latter.
    """

    node: int
    log: int
    passes: int
    rotten: tuple[Range, ...] = ()
    damaged: tuple[Range, ...] = ()
    mended: tuple[Range, ...] = ()
