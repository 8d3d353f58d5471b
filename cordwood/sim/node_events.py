"""Events about knowledge and limits of a node, apart from blocks: nodesets of logs, sizes,
times."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from cordwood.sim.event import EpochValue, HistoryEvent

Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class EpochsNodes(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """From epoch `since` on, a log is stored on `nodes`, and `copies` of them hold each record.
    `racks` are the racks of these nodes at that time, by full names, if known."""

    since: EpochValue
    nodes: tuple[int, ...]
    copies: int
    racks: tuple[str, ...] = ()


class NodesetsKnown(HistoryEvent, frozen=True, gc=False, tag="nodesets"):
    """A node keeps, or tells a reader, the nodes that may hold each epoch of a log.

    Attributes:
        epoch: the history is complete up to this epoch; 0 if the node was told nothing.
        history: entries by epoch; wholly trimmed epochs may be left out.
    """

    node: int
    log: int
    epoch: EpochValue
    history: tuple[EpochsNodes, ...]


class Gauged(HistoryEvent, frozen=True, gc=False, tag="gauged"):
    """A measured value of a node that has a limit.

    Attributes:
        what: `wal_bytes`: bytes in use. `cache_bytes`: bytes of blocks that are in no partition
            yet. `unflushed_us`: how long the oldest of these blocks has waited for a flush.
    """

    node: int
    what: str
    value: Size
    limit: Size


NodeEvent: TypeAlias = NodesetsKnown | Gauged
