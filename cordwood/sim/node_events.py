"""Events about what a node knows and holds, apart from blocks: its logs' nodesets, its limits."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from cordwood.sim.event import EpochValue, HistoryEvent

Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class EpochsNodes(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """From epoch `since` on a log lies on `nodes`, of which `copies` hold a record; these stood
    in `racks` then, by full names, if that is known."""

    since: EpochValue
    nodes: tuple[int, ...]
    copies: int
    racks: tuple[str, ...] = ()


class NodesetsKnown(HistoryEvent, frozen=True, gc=False, tag="nodesets"):
    """A node keeps, or tells a reader, which nodes may hold which epoch of a log.

    Attributes:
        epoch: it is complete up to there; 0 if the node was told nothing.
        history: entries by epoch; those that are wholly trimmed may be left out.
    """

    node: int
    log: int
    epoch: EpochValue
    history: tuple[EpochsNodes, ...]


class Gauged(HistoryEvent, frozen=True, gc=False, tag="gauged"):
    """What a node holds of something that has a limit.

    Attributes:
        what: `wal_bytes` in use; `cache_bytes`, of blocks that are in no partition yet;
            `unflushed_us`, for how long the oldest of them has waited for a flush.
    """

    node: int
    what: str
    value: Size
    limit: Size


NodeEvent: TypeAlias = NodesetsKnown | Gauged
