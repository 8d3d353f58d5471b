"""The event about rot on a node's disk, and the damage that its scrubbing found."""

from __future__ import annotations

from cordwood.sim.event import HistoryEvent, LsnValue

Range = tuple[LsnValue, LsnValue]
"""LSNs [first, last]."""


class NodeScrubbed(HistoryEvent, frozen=True, gc=False, tag="node-scrubbed"):
    """The state of a log's copies on a node at the end of the run.

    Attributes:
        passes: complete passes over the node's whole store since it started. Rot that came while
            the node did not run was there before the first pass.
        rotten: blocks whose index entry or body has rotted, without trimmed blocks.
        damaged: ranges that the node regards as damaged, or regarded so until they were mended.
        mended: the mended part of these ranges.
    """

    node: int
    log: int
    passes: int
    rotten: tuple[Range, ...] = ()
    damaged: tuple[Range, ...] = ()
    mended: tuple[Range, ...] = ()
