"""Nodes, where they stand, and how many copies a log asks for.

A location is `region.dc.cluster.row.rack`, any suffix of it left out: `rack1`
alone is a rack. A replication property says how many copies a record has and
over how many racks and other scopes they must be spread, as LogDevice's
`replicate_across` does: `{node: 4, rack: 3, region: 2}` is four copies over three
racks or more, and these over two regions or more.

Source: docs/sources/logdevice.md, "replicate_across"; docs/design.md §3.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NewType

from cordwood.errors import BadSetting

NodeId = NewType("NodeId", int)
"""A node's number, 1 to 2**32 - 1; 0 stands for a client in a hello."""

SCOPES = ("node", "rack", "row", "cluster", "dc", "region")
"""Failure domains, narrowest first."""

LOCATION_CHARS_MAX = (len(SCOPES) - 1) * 64 + len(SCOPES) - 2
"""Labels of 64 characters each, joined by dots."""

COPIES_MAX = 16
"""More copies than this is a typing error, and the envelope reserves one byte."""


FILL_MAX = 3
"""Levels of a disk's fill above the first, see `protocol.disk_space`."""


class Authority(enum.Enum):
    """The state of a node's data: its *authoritative status*, see `quorum.authority`."""

    FULLY_AUTHORITATIVE = "fully-authoritative"
    """It has all that it stored, as far as is known."""
    UNDER_REPLICATED = "under-replicated"
    """Its data is gone and not rebuilt."""
    AUTHORITATIVE_EMPTY = "authoritative-empty"
    """Its data lies on other nodes by now."""
    UNAVAILABLE = "unavailable"
    """It is down; its data is still there."""


@dataclass(frozen=True, slots=True)
class Member:
    """One node as the metadata store knows it.

    Attributes:
        node: its number.
        address: `host:port` where it listens.
        location: its failure domains, narrowest last, joined by dots; `""` for none: then the node
            is a rack of its own.
        incarnation: grows by one each time the node starts.
        weight: the node's share of new records. At 0 it takes none, except an epoch's end that no
            other node can hold.
        authority: the status of its data.
        read_only: an operator forbade new records: the node is still sealed and read, also by
            recoveries. Its weight is 0 meanwhile.
        room: bytes of the largest store that it ever takes; 0 if it did not say.
        fill: how full its disk is, see `protocol.disk_space.DiskFill`.
    """

    node: NodeId
    address: str
    location: str = ""
    incarnation: int = 0
    weight: float = 1.0
    authority: Authority = Authority.FULLY_AUTHORITATIVE
    read_only: bool = False
    room: int = 0
    fill: int = 0

    @property
    def ledger_weight(self) -> float:
        """The node's share of new ledgers: its weight, halved for each level of its disk's fill."""
        return self.weight / (1 << self.fill)

    def domain(self, scope: str) -> str:
        """Name the failure domain this node is in at `scope`, unique in the cluster.

        Domains nest, so that every rule may count each scope by itself: a location that
        does not reach up to `scope` is taken for the widest domain that it names, because
        two nodes of one rack are in one row, under any name of the row.

        Raises:
            BadSetting: `scope` is not one of SCOPES.
        """
        if scope not in SCOPES:
            raise BadSetting(f"no scope {scope!r}; scopes are {', '.join(SCOPES)}")
        above_rack = SCOPES.index(scope) - 1
        if above_rack < 0 or not self.location:
            return f"node:{self.node}"
        labels = self.location.split(".")
        return ".".join(labels[: max(1, len(labels) - above_rack)])

    @property
    def region(self) -> str:
        """The outermost part of its location, "" for none."""
        return self.location.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Replication:
    """How many copies a record has, and over how many failure domains.

    Attributes:
        copies: copies of each record, 1 to COPIES_MAX.
        racks: racks these copies span at least, 1 to `copies`.
        wider: the same for scopes above the rack: pairs of a scope and a count from 2 to
            `copies`, narrowest scope first.
    """

    copies: int = 3
    racks: int = 1
    wider: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.copies <= COPIES_MAX:
            raise BadSetting(f"copies is {self.copies}; it goes from 1 to {COPIES_MAX}")
        if not 1 <= self.racks <= self.copies:
            raise BadSetting(f"racks is {self.racks}; it goes from 1 to copies ({self.copies})")
        scopes = [scope for scope, _ in self.wider]
        if scopes != [scope for scope in SCOPES[2:] if scope in scopes]:
            raise BadSetting(f"scopes {scopes} are not each once of {', '.join(SCOPES[2:])}")
        for scope, count in self.wider:
            if not 2 <= count <= self.copies:
                raise BadSetting(f"{scope} is {count}; it goes from 1 to copies ({self.copies})")

    def __str__(self) -> str:
        spans = [f"{count} {scope}s" for scope, count in reversed(self.spans)]
        copies = f"{self.copies} {'copies' if self.copies > 1 else 'copy'}"
        return f"{copies} over {' and '.join(spans)}" if spans else copies

    @classmethod
    def across(cls, counts: Mapping[str, int]) -> Replication:
        """Domains by scope, `node` for copies; without it, as many as the largest count.

        Raises:
            BadSetting: no scope, an unknown scope, or a count out of its range.
        """
        unknown = sorted(counts.keys() - set(SCOPES))
        if unknown or not counts:
            raise BadSetting(
                f"replicate_across {dict(counts)} cannot be kept: say node:3 or rack:2,node:3; "
                f"scopes are {', '.join(SCOPES)}"
            )
        wider = tuple((scope, counts[scope]) for scope in SCOPES[2:] if counts.get(scope, 1) != 1)
        return cls(counts.get("node", max(counts.values())), counts.get("rack", 1), wider)

    @property
    def spans(self) -> tuple[tuple[str, int], ...]:
        """Scopes in which copies must be spread over two domains or more, narrowest first."""
        return (("rack", self.racks), *self.wider) if self.racks > 1 else self.wider

    @property
    def by_scope(self) -> dict[str, int]:
        """As `across` takes it."""
        return {"node": self.copies, "rack": self.racks, **dict(self.wider)}


@dataclass(frozen=True, slots=True)
class Nodeset:
    """The nodes that may hold an epoch's records, in node order.

    Attributes:
        members: the nodes, sorted by number; never empty, no number twice.
    """

    members: tuple[Member, ...]
    _by_node: dict[NodeId, Member] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.members, key=lambda member: member.node))
        if not ordered:
            raise BadSetting("a nodeset needs at least one node")
        by_node = {member.node: member for member in ordered}
        if len(by_node) != len(ordered):
            raise BadSetting("a nodeset names a node twice")
        object.__setattr__(self, "members", ordered)
        object.__setattr__(self, "_by_node", by_node)

    @classmethod
    def recorded(
        cls, nodes: Sequence[int], locations: Sequence[str], members: Mapping[NodeId, Member]
    ) -> Nodeset:
        """A nodeset as an epoch recorded it: with the domains of that time, and all else as it is
        now.

        The copysets of an epoch were chosen by the locations that its nodes had then. A node that
        was moved since has its new location in new epochs, and its old location in this epoch:
        judged by the present locations, an f-majority may miss a copyset of that time.

        Args:
            locations: of each node; empty if no node had a location.
            members: as they are now; a node without an entry has no address.
        """
        places = locations or ("",) * len(nodes)
        return cls(
            tuple(
                replace(members.get(NodeId(node)) or Member(NodeId(node), ""), location=place)
                for node, place in zip(nodes, places, strict=True)
            )
        )

    @property
    def locations(self) -> tuple[str, ...]:
        """Where each node stands, in node order; none at all where no node has a location."""
        places = tuple(member.location for member in self.members)
        return places if any(places) else ()

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """The node numbers, ascending."""
        return tuple(member.node for member in self.members)

    def __contains__(self, node: object) -> bool:
        return node in self._by_node

    def __getitem__(self, node: NodeId) -> Member:
        return self._by_node[node]

    def __len__(self) -> int:
        return len(self.members)
