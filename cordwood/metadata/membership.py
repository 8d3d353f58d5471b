"""The members of the cluster: its identity, and its nodes with their addresses.

A node registers at each start, and its incarnation grows by one. So two processes that believe to
be the same node are told apart, and messages of the older process do not count as the newer's. The
first node draws the cluster's identity, once. So a data directory of another cluster is recognised.

Each start also *claims* the node for its directory, by a name drawn for that start. An older copy
of the directory does not have the newest claim. A node also records periodically how far its WAL
has come, so that an older copy of the disk from the same start is noticed.

No call removes a member: a drained node that is taken out of service stays in the list.

Source: docs/design.md §5, §6; docs/sources/reliability.md §3 (S17).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Annotated, NamedTuple, Protocol

import msgspec

from cordwood.errors import BadSetting, Fenced, Malformed, NotOurCluster, Rejected
from cordwood.host.address import split_address
from cordwood.layout.json_text import read_json
from cordwood.metadata.change import Decide, change_repeatably
from cordwood.metadata.store import MetadataStore
from cordwood.nodes import FILL_MAX, SCOPES, Authority, Member, NodeId
from cordwood.quorum.authority import HAS_DATA, may_become

CLUSTER_BYTES = 16

NODE_MAX = (1 << 32) - 1

ADDRESS_BYTES_MAX = 255
"""A DNS name has at most 253."""

CLAIM_CHARS_MAX = 32

WEIGHT_MAX = 1_000_000.0
"""With this bound, sums of weights stay far below the size at which a float loses small weights."""

_CLUSTER = "cluster"
_NODES = "nodes/"
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")


class RandomBytes(Protocol):
    """The source of an identity; `random.Random` fits it."""

    def randbytes(self, n: int) -> bytes:
        """`n` random bytes."""


class Claim(NamedTuple):
    """A node's last start, and its disk's state at that start.

    Attributes:
        incarnation: that start's; 0 for a node that never registered.
        name: drawn for it; "" where no directory was named.
        reached: WAL offset of a record that was durable; -1 for none.
    """

    incarnation: int = 0
    name: str = ""
    reached: int = -1


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`nodes/<number>`; `claim` and `reached` are `Claim.name` and `Claim.reached`."""

    address: str
    location: str
    incarnation: Annotated[int, msgspec.Meta(ge=1)]
    weight: Annotated[float, msgspec.Meta(ge=0, le=WEIGHT_MAX)]
    claim: Annotated[str, msgspec.Meta(max_length=CLAIM_CHARS_MAX)] = ""
    reached: Annotated[int, msgspec.Meta(ge=-1)] = -1
    authority: Authority = Authority.FULLY_AUTHORITATIVE
    read_only: bool = False
    room: Annotated[int, msgspec.Meta(ge=0)] = 0
    fill: Annotated[int, msgspec.Meta(ge=0, le=FILL_MAX)] = 0


class Membership:
    """The members of the cluster of one metadata store.

    Every call may also raise Unreachable or Overloaded (ask again), and Malformed (an
    entry cannot be read, or a newer version wrote it).
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def ensure_cluster(self, random: RandomBytes) -> bytes:
        """The cluster's identity, CLUSTER_BYTES long; drawn and stored at the first call."""
        drawn = random.randbytes(CLUSTER_BYTES).hex().encode("ascii")
        stored = await change_repeatably(
            self._store, _CLUSTER, lambda found: drawn if found is None else None
        )
        assert stored is not None, "an identity is written or was there"
        return _decode_cluster(stored)

    async def cluster(self) -> bytes | None:
        """The cluster's identity, None before it was drawn."""
        found = await self._store.get(_CLUSTER)
        return None if found is None else _decode_cluster(found.value)

    async def claim(self, node_id: NodeId) -> Claim:
        """The last start of a node."""
        found = await self._store.get(_key(node_id))
        if found is None:
            return Claim()
        entry = _decode(node_id, found.value)
        return Claim(entry.incarnation, entry.claim, entry.reached)

    async def register(
        self,
        node_id: NodeId,
        address: str,
        location: str = "",
        weight: float = 1.0,
        *,
        claim: str = "",
        reached: int = -1,
        over: Collection[str] | None = None,
        room: int = 0,
    ) -> Member:
        """Register the start of a node, and its address. The node has its disk, and reports losses
        of it by itself, so this clears the status of its data. If its data had a status, it becomes
        UNAVAILABLE until it is back (`end_return`): epochs may have been recovered without it, and
        it must not take a store of these.

        Args:
            address: `host:port` where the others reach it.
            location: as `Member.location`.
            weight: share of new records, 0 to WEIGHT_MAX; 0 takes none.
            claim, reached: as `Claim`, of this start.
            over: claims that `claim` may follow; None for any.
            room: as `Member.room`.
        Returns:
            The member; its incarnation is higher than any that it had.
        Raises:
            BadSetting: an argument is out of its range.
            NotOurCluster: the node was started from another directory meanwhile.
        """
        _check(node_id, address, location, weight)

        def decide(found: bytes | None) -> bytes:
            before = _decode(node_id, found) if found else None
            last = before.claim if before else ""
            if over is not None and last != claim and last not in over:
                raise NotOurCluster(
                    f"node {node_id} was started from another directory while it started from "
                    "this one: run one of them"
                )
            incarnation = before.incarnation if before else 0
            fully = Authority.FULLY_AUTHORITATIVE
            is_said = before is not None and before.authority is not fully
            authority = Authority.UNAVAILABLE if is_said else fully
            read_only = before is not None and before.read_only
            return msgspec.json.encode(
                _Entry(
                    address, location, incarnation + 1, weight, claim, reached, authority,
                    read_only, room,
                )
            )  # fmt: skip

        stored = await change_repeatably(self._store, _key(node_id), decide)
        assert stored is not None, "an entry was written"
        return parse_member(node_id, stored)

    async def move(self, node_id: NodeId, address: str) -> Member:
        """Note a new address of a node that has not started again.

        Raises:
            BadSetting: this is no address, or the node never registered.
        """
        _check(node_id, address, "", 1.0)

        def decide(found: bytes | None) -> bytes:
            if found is None:
                raise BadSetting(f"node {node_id} never registered, so it cannot move")
            entry = _decode(node_id, found)
            return msgspec.json.encode(msgspec.structs.replace(entry, address=address))

        stored = await change_repeatably(self._store, _key(node_id), decide)
        assert stored is not None, "an entry was written"
        return parse_member(node_id, stored)

    async def note_reached(self, node_id: NodeId, claim: str, reached: int) -> None:
        """Note the offset up to which a node's WAL is durable. It never falls during one start.

        Raises:
            NotOurCluster: the node has been started from another directory since.
        """

        def decide(found: bytes | None) -> bytes | None:
            entry = _decode(node_id, found) if found else None
            if entry is None or entry.claim != claim:
                raise NotOurCluster(
                    f"node {node_id} has been started from another directory since: end one of them"
                )
            if reached <= entry.reached:
                return None
            return msgspec.json.encode(msgspec.structs.replace(entry, reached=reached))

        await change_repeatably(self._store, _key(node_id), decide)

    async def come_back(self, node_id: NodeId) -> Member:
        """Note that a node is here whose data was reported gone or elsewhere: others wait for it.

        When it has sealed all logs up to their newest epochs, `end_return` makes it fully
        authoritative. A recovery does without the node only if it read the status after it had
        taken its epoch (`recovery.recover_log.statuses_now`), and before this call. So the node
        obeys that epoch.

        Raises:
            BadSetting: the node never registered.
        """

        def decide(found: bytes | None) -> bytes | None:
            if found is None:
                raise BadSetting(f"there is no node {node_id}")
            entry = _decode(node_id, found)
            if entry.authority in HAS_DATA:
                return None
            here = msgspec.structs.replace(entry, authority=Authority.UNAVAILABLE)
            return msgspec.json.encode(here)

        stored = await change_repeatably(self._store, _key(node_id), decide)
        assert stored is not None, "the entry was there"
        return parse_member(node_id, stored)

    async def end_return(self, node_id: NodeId, version: int) -> Member:
        """Make a node fully authoritative that was here, and has sealed all logs.

        Args:
            version: the version of its entry before the seals: seals may be owed since.
        Raises:
            Fenced: the entry has another version, and the node is not fully authoritative.
            Rejected: its data is reported gone or elsewhere, see `come_back`.
            BadSetting: the node never registered.
        """

        def decide(found: bytes | None) -> bytes | None:
            if found is None:
                raise BadSetting(f"there is no node {node_id}")
            entry = _decode(node_id, found)
            if entry.authority not in HAS_DATA:
                raise Rejected(f"node {node_id} is {entry.authority.value}, and did not come back")
            if entry.authority is Authority.FULLY_AUTHORITATIVE:
                return None
            fully = Authority.FULLY_AUTHORITATIVE
            return msgspec.json.encode(msgspec.structs.replace(entry, authority=fully))

        return await self._obey(node_id, decide, version)

    async def owe_seals(self, node_id: NodeId) -> None:
        """Note that a node is about to end its entry in the rebuilding set.

        From then on others wait for the node, and it has to seal all logs first. This is durable,
        and `end_return` ends it. A return that was about to end does not end any more.

        Raises:
            BadSetting: the node never registered.
        """

        def decide(found: bytes | None) -> bytes | None:
            if found is None:
                raise BadSetting(f"there is no node {node_id}")
            entry = _decode(node_id, found)
            # Written also if it is so already: the entry must get another version.
            owes = msgspec.structs.replace(entry, authority=Authority.UNAVAILABLE)
            return msgspec.json.encode(owes)

        await change_repeatably(self._store, _key(node_id), decide)

    async def version(self, node_id: NodeId) -> int:
        """The version of a node's entry, 0 if it never registered. Any change gives another."""
        found = await self._store.get(_key(node_id))
        return 0 if found is None else found.version

    async def set_authority(
        self,
        node_id: NodeId,
        authority: Authority,
        expected: Authority | None = None,
        if_version: int = 0,
    ) -> Member:
        """Set the authoritative status of a node's data.

        Args:
            expected: its status before; None is anything.
            if_version: the version of the entry before; 0 is anything. A status may have come and
                gone since an order was given.
        Raises:
            BadSetting: the node never registered.
            Fenced: the entry has another version, and the status is not set already.
            Rejected: its status is not `expected`, or the new status cannot follow its status
                (`quorum.authority.may_become`).
        """

        def decide(found: bytes | None) -> bytes:
            if found is None:
                raise BadSetting(f"there is no node {node_id}")
            entry = _decode(node_id, found)
            if entry.authority is authority:
                return msgspec.json.encode(entry)
            if expected not in (None, entry.authority):
                assert expected is not None
                raise Rejected(
                    f"node {node_id} is {entry.authority.value} by now, not {expected.value}: "
                    "look again before you change it"
                )
            if not may_become(entry.authority, authority):
                raise Rejected(
                    f"node {node_id} is {entry.authority.value}, so it cannot become "
                    f"{authority.value}: it is fully authoritative again once it starts"
                )
            return msgspec.json.encode(msgspec.structs.replace(entry, authority=authority))

        return await self._obey(node_id, decide, if_version)

    async def set_fill(self, node_id: NodeId, fill: int) -> None:
        """Note how full a node's disk is.

        Args:
            fill: a level, 0 to FILL_MAX.
        Raises:
            BadSetting: the node never registered.
        """
        assert 0 <= fill <= FILL_MAX, "a level"

        def decide(found: bytes | None) -> bytes | None:
            if found is None:
                raise BadSetting(f"there is no node {node_id}")
            entry = _decode(node_id, found)
            if entry.fill == fill:
                return None
            return msgspec.json.encode(msgspec.structs.replace(entry, fill=fill))

        await change_repeatably(self._store, _key(node_id), decide)

    async def set_storage(self, node_id: NodeId, *, read_only: bool, if_version: int = 0) -> Member:
        """Make a node read-only, or end this. The setting survives restarts of the node.

        Args:
            if_version: as in `set_authority`.
        Raises:
            BadSetting: the node never registered.
            Fenced: the entry has another version, and it is not set already.
        """

        def decide(found: bytes | None) -> bytes:
            if found is None:
                raise BadSetting(f"there is no node {node_id}")
            entry = _decode(node_id, found)
            return msgspec.json.encode(msgspec.structs.replace(entry, read_only=read_only))

        return await self._obey(node_id, decide, if_version)

    async def _obey(self, node_id: NodeId, decide: Decide, if_version: int) -> Member:
        """Carry out an order that was given when the entry had a version; 0 for any.

        An operator's order is written also if the entry says so already: the entry must get another
        version. Otherwise a node that carries out an earlier order late would find the version that
        it names.
        """
        key = _key(node_id)

        def again(found: bytes | None) -> bytes | None:
            # Another try of the order may have carried it out.
            if (wanted := decide(found)) not in (None, found):
                raise Fenced(
                    f"the entry of node {node_id} was changed since this order was given: look "
                    "again before you give it again"
                )
            return wanted

        try:
            stored = await change_repeatably(self._store, key, decide, version=if_version or None)
        except Fenced:
            stored = await change_repeatably(self._store, key, again)
        assert stored is not None, "the entry was there"
        return parse_member(node_id, stored)

    async def members(self) -> tuple[Member, ...]:
        """Every node that ever registered, in node order."""
        listed = await self._store.list(_NODES)
        return tuple(parse_member(_node_of(key), found.value) for key, found in listed)


def _check(node_id: int, address: str, location: str, weight: float) -> None:
    if not 1 <= node_id <= NODE_MAX:
        raise BadSetting(f"node {node_id} is no node number: 1 to {NODE_MAX}")
    if len(address.encode()) > ADDRESS_BYTES_MAX:
        raise BadSetting(f"the address of node {node_id} is over {ADDRESS_BYTES_MAX} bytes")
    split_address(address)
    labels = location.split(".") if location else []
    if len(labels) >= len(SCOPES) or not all(map(_LABEL.fullmatch, labels)):
        raise BadSetting(
            f"{location[:64]!r} is no location: up to {len(SCOPES) - 1} labels joined by dots, "
            "region.dc.cluster.row.rack, the rack last"
        )
    if not (math.isfinite(weight) and 0 <= weight <= WEIGHT_MAX):
        raise BadSetting(f"weight {weight} of node {node_id}: it goes from 0 to {WEIGHT_MAX:g}")


def _key(node_id: int) -> str:
    # Padded, so that keys sort as numbers do.
    return f"{_NODES}{node_id:010}"


def _node_of(key: str) -> NodeId:
    digits = key.removeprefix(_NODES)
    if not (digits.isascii() and digits.isdigit()):
        raise Malformed(f"{key} in the metadata store is no node's entry")
    return NodeId(int(digits))


def parse_member(node_id: NodeId, value: bytes) -> Member:
    entry = _decode(node_id, value)
    return Member(
        node_id, entry.address, entry.location, entry.incarnation,
        0.0 if entry.read_only else entry.weight, entry.authority, entry.read_only, entry.room,
        entry.fill,
    )  # fmt: skip


def _decode(node_id: int, value: bytes) -> _Entry:
    return read_json(value, _Entry, f"the entry of node {node_id}")


def _decode_cluster(value: bytes) -> bytes:
    try:
        cluster = bytes.fromhex(value.decode("ascii"))
    except ValueError as error:
        raise Malformed(f"the cluster's identity cannot be read: {error}") from error
    if len(cluster) != CLUSTER_BYTES:
        raise Malformed(f"the cluster's identity has {len(cluster)} bytes, not {CLUSTER_BYTES}")
    return cluster
