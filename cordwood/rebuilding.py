"""The events of the event log about lost nodes, and their result, the rebuilding set.

The *rebuilding set* has an entry for each node with data that is being made anew on other nodes,
or was. `protocol.event_log` applies an event to it, `layout.rebuild_events` has the bytes of both.

An event's place in the log is its LSN, and the LSN of the last event that changed what donors
have to do is the *version* of the set. A donor names the version that it worked by.

Source: docs/sources/logdevice.md 2.9 (`EventLogRebuildingSet`).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

_Node = Annotated[int, Meta(ge=1, le=2**32 - 1)]
_Lsn = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_TimeUs = Annotated[int, Meta(ge=-(2**62), le=2**62)]
_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]

NODES_MAX = 4096
"""Nodes that one event may name: a larger cluster would want events of another kind."""

RANGES_MAX = 64
"""Time ranges of one entry. More are joined to one that covers them."""

_Nodes = Annotated[tuple[_Node, ...], Meta(max_length=NODES_MAX)]


class TimeRange(Struct, frozen=True, array_like=True, order=True, forbid_unknown_fields=True):
    """Append times `[first_us, last_us]`: blocks of this time are lost, and no others."""

    first_us: _TimeUs
    last_us: _TimeUs

    def __post_init__(self) -> None:
        if self.first_us > self.last_us:
            raise ValueError("a time range ends before it begins")


_Ranges = Annotated[tuple[TimeRange, ...], Meta(max_length=RANGES_MAX)]


class NeedsRebuild(
    Struct, frozen=True, tag="needs_rebuild", omit_defaults=True, forbid_unknown_fields=True
):
    """A node's data is to be made anew on other nodes.

    Attributes:
        nodes: every node of the cluster as its writer knows it, this one included. Those that
            have data when the event takes effect are the donors.
        drain: the node is there and gives its copies away; False: its data is gone, or away.
        ranges: only blocks of these times; empty for all.
        if_version: take effect only if the set has this version; None for any.
        restart: begin anew even where the same was asked for before.
        forced: a person insists, however many nodes are being rebuilt.
    """

    node: _Node
    nodes: _Nodes
    drain: bool = False
    ranges: _Ranges = ()
    if_version: _Lsn | None = None
    restart: bool = False
    forced: bool = False

    def __post_init__(self) -> None:
        if self.drain and self.ranges:
            raise ValueError("a drain is of all that a node has, not of a time range")


class DonorProgress(Struct, frozen=True, tag="donor_progress", forbid_unknown_fields=True):
    """How far a donor has come; a hint for people, and for the other donors' pace.

    Attributes:
        reached_us: the donor has dealt with all blocks that are younger.
        bytes_done, bytes_left: of blocks that the donor has to give.
    """

    donor: _Node
    version: _Lsn
    reached_us: _TimeUs
    bytes_done: _Count = 0
    bytes_left: _Count = 0


class IsRebuilt(Struct, frozen=True, tag="is_rebuilt", forbid_unknown_fields=True):
    """A donor has made anew all that it has to, of one node.

    Attributes:
        is_authoritative: enough nodes have data that no block can be missing; False where the
            lost nodes together may have held a block that no other node has.
    """

    node: _Node
    donor: _Node
    version: _Lsn
    is_authoritative: bool = True


class Acked(Struct, frozen=True, tag="acked", forbid_unknown_fields=True):
    """A rebuilt node is back with an empty disk and takes part again.

    Attributes:
        version: of its entry: an answer to an earlier rebuilding says nothing.
    """

    node: _Node
    version: _Lsn


class Aborted(Struct, frozen=True, tag="aborted", omit_defaults=True, forbid_unknown_fields=True):
    """A node is back with its data before it was rebuilt, so rebuilding it ends."""

    node: _Node
    if_version: _Lsn | None = None


class Undrained(Struct, frozen=True, tag="undrained", forbid_unknown_fields=True):
    """A node is not to be emptied any more; a node that is already empty stays empty until it
    acks."""

    node: _Node


class Unrecoverable(Struct, frozen=True, tag="unrecoverable", forbid_unknown_fields=True):
    """The data of a node never comes back: no reader or recovery waits for it any more."""

    node: _Node


PARTS = 1_000_000
"""Parts of a node's blocks, by which a share is told."""


class Transfer(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Of each million blocks of `source`, `parts` go to `target`."""

    source: _Node
    target: _Node
    parts: Annotated[int, Meta(ge=1, le=PARTS)]

    def __post_init__(self) -> None:
        if self.source == self.target:
            raise ValueError("a node gives nothing to itself")


_Shares = Annotated[tuple[Transfer, ...], Meta(max_length=NODES_MAX)]


class Rebalance(Struct, frozen=True, tag="rebalance", forbid_unknown_fields=True):
    """Nodes give some of their copies to emptier nodes. Without shares, a rebalance that is under
    way ends."""

    shares: _Shares


class Gave(Struct, frozen=True, tag="gave", forbid_unknown_fields=True):
    """What a donor of a rebalance gave; it is done.

    Attributes:
        version: of the rebalance.
        blocks, bytes: copies that lie on other nodes now.
        kept, kept_bytes: chosen blocks that stay: their epochs' nodesets lack the target, or the
            copies would not be spread as they should be.
    """

    donor: _Node
    version: _Lsn
    blocks: _Count = 0
    bytes: _Count = 0
    kept: _Count = 0
    kept_bytes: _Count = 0


RebuildEvent = (
    NeedsRebuild | DonorProgress | IsRebuilt | Acked | Aborted | Undrained | Unrecoverable
    | Rebalance | Gave
)  # fmt: skip


class LostNode(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One entry of the rebuilding set.

    Attributes:
        node: the lost, drained or rebuilt node.
        version: LSN of the event that asked for it last.
        relocates: the node itself is there and gives its copies: a drain. Otherwise its data is
            gone or away (a *restore*).
        drain: the node is to stay empty: no ack brings it back before it is undrained.
        ranges: only blocks of these times; empty for all.
        is_recoverable: the data may come back with the node.
        donors: nodes that have to give, in node order; none once the node is empty.
        done: the donors that have given all.
        is_certain: every donor in `done` was sure that no block is missing.
        is_empty: the data lies elsewhere; once so, it stays so until the ack.
    """

    node: _Node
    version: _Lsn
    relocates: bool = False
    drain: bool = False
    ranges: _Ranges = ()
    is_recoverable: bool = True
    donors: _Nodes = ()
    done: _Nodes = ()
    is_certain: bool = True
    is_empty: bool = False

    @property
    def is_done(self) -> bool:
        """Whether every donor has given."""
        return not set(self.donors) - set(self.done)


class Rebalancing(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The last rebalance.

    Attributes:
        version: LSN of the event that asked for it.
        shares: the shares still to give; nodes that were lost or drained since are left out.
        donors: the nodes that give, in node order.
        gave: the reports of finished donors, in node order.
        is_stopped: an operator ended it early.
    """

    version: _Lsn
    shares: _Shares = ()
    donors: _Nodes = ()
    gave: Annotated[tuple[Gave, ...], Meta(max_length=NODES_MAX)] = ()
    is_stopped: bool = False

    @property
    def left(self) -> tuple[int, ...]:
        """The donors that are not done, in node order."""
        done = {each.donor for each in self.gave}
        return tuple(node for node in self.donors if node not in done)


class RebuildingSet(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What all events up to `through` amount to.

    Attributes:
        through: LSN of the last event that was looked at.
        version: LSN of the last event that changed what donors have to do.
        lost: entries in node order.
        progress: what donors said of this version, in node order.
        rebalancing: the last rebalance, None before the first.
        restated: number of the last restatement that is in it, 0 for none: see `Restated`.
    """

    through: _Lsn = 0
    version: _Lsn = 0
    lost: Annotated[tuple[LostNode, ...], Meta(max_length=NODES_MAX)] = ()
    progress: Annotated[tuple[DonorProgress, ...], Meta(max_length=NODES_MAX)] = ()
    rebalancing: Rebalancing | None = None
    restated: _Lsn = 0

    def entry(self, node: int) -> LostNode | None:
        """The entry of a node, None where nothing is said of it."""
        return next((each for each in self.lost if each.node == node), None)

    def mark(self, node: int, *, of_drain: bool) -> int:
        """What an order names of its node, beside the version of the set.

        In one version a lost or drained node may be called empty, and join. And whether a node that
        gives nothing itself is to stay empty may change and change back.

        Args:
            of_drain: whether the order begins or ends a drain.
        Returns:
            `through` without an entry, and for the order to drain a node that gives nothing itself,
            or to end its drain. Else the version of the entry.
        """
        entry = self.entry(node)
        if entry is None:
            # The end of a drain or rebuilding that never began is an event, and changes no version.
            return self.through
        gives_itself = bool(entry.ranges) or (entry.relocates and not entry.is_empty)
        return self.through if of_drain and not gives_itself else entry.version

    def rebalance_mark(self, *, begins: bool) -> int:
        """What an order about a rebalance names of the set.

        Args:
            begins: whether it begins a rebalance.
        Returns:
            `through` for such an order: it is refused while a node is drained or rebuilt, and the
            version does not tell that this is over. Else the version of the last rebalance, 0
            before the first.
        """
        if begins:
            return self.through
        return self.rebalancing.version if self.rebalancing is not None else 0


class Restated(Struct, frozen=True, tag="restated", forbid_unknown_fields=True):
    """The events begin anew from a set, because records of the event log are lost.

    Attributes:
        number: LSN of the log's tail as this restatement began. Numbers rise, and none comes again.
            Earlier versions counted from 1: their numbers are below any LSN.
        set: the furthest set that is known: what all records up to `set.through` amount to.
        nodes: every node of the cluster as its writer knows it: the donors that look again.
    """

    number: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    set: RebuildingSet
    nodes: _Nodes

    def __post_init__(self) -> None:
        if self.number <= self.set.restated:
            raise ValueError("a restatement is in its own set")
