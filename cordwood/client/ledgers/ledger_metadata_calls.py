"""A client's view of the metadata of ledgers, and its choice of nodes for them.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from cordwood.client.admin.orders import GIVEN_S, give_order
from cordwood.client.cluster import Cluster
from cordwood.client.ledgers.ledger_nodes import CONNECT_S
from cordwood.errors import (
    CordwoodError,
    Corrupt,
    Overloaded,
    Rejected,
    TooFewNodes,
    UnknownLedger,
    Unreachable,
)
from cordwood.host.seams import Host
from cordwood.layout.ledger_metadata import pack_ledger, read_ledger
from cordwood.layout.message import Call, Reply
from cordwood.layout.message_ledgers import (
    AllotLedgerId,
    AskAutorecovery,
    AskLedger,
    AutorecoveryReply,
    CreateLedger,
    DeleteLedger,
    LedgerIdReply,
    LedgerReply,
    LedgersReply,
    ListLedgers,
    OpenMainStorage,
    SetLedger,
    SwitchAutorecovery,
)
from cordwood.ledger import LEDGER_MAX, LedgerMetadata, Versioned
from cordwood.nodes import Authority, Member, NodeId
from cordwood.quorum.authority import REBUILT
from cordwood.quorum.ensemble_choice import ANYWHERE, Placement, choose_ensemble
from cordwood.quorum.node_quarantine import NodeQuarantine

logger = logging.getLogger(__name__)

SETTLE_PAUSE_S = 0.1
"""Pause before the value is read after a compare-and-set without an answer, and between two
choices."""

AGAIN_S = 0.2
"""Pause before metadata is written again if the metadata store does not answer."""

REFUSALS_MAX = 10
"""Refusals in a row that count as the last word: a few may come from one node of another
version."""

NODES_S = 2.0
"""How long a choice waits for nodes that start."""


class LedgerMetadataCalls:
    """See the module.

    Attributes:
        quarantine: nodes that fail entries; all writers of the client share it.
    """

    def __init__(self, cluster: Cluster, host: Host, timeout_s: float) -> None:
        self._cluster = cluster
        self._host = host
        self._timeout_s = timeout_s
        self.quarantine = NodeQuarantine()

    async def allot(self, *, timeout_s: float) -> int:
        """An id for a new ledger. A client may have chosen it itself: then `create` says so."""
        reply = await self._ask(AllotLedgerId(), timeout_s)
        assert isinstance(reply, LedgerIdReply), "AllotLedgerId is answered with an id"
        return reply.ledger

    async def create(self, ledger: int, metadata: LedgerMetadata, *, timeout_s: float) -> Versioned:
        """Make a ledger. A repeat with the same metadata gives the same ledger.

        Raises:
            LedgerExists: another ledger has the id, or had it.
            Unreachable, Overloaded: the ledger may be made all the same; a repeat of the call is
                safe.
        """
        named = replace(metadata, ledger=ledger)
        call = CreateLedger(ledger, pack_ledger(named))
        return _held(await self._ask(call, timeout_s), ledger)

    async def get(self, ledger: int) -> Versioned:
        """The present value of a ledger.

        Raises:
            UnknownLedger: there is no ledger with this id.
        """
        return _held(await self._ask(AskLedger(ledger)), ledger)

    async def set(self, version: int, metadata: LedgerMetadata) -> tuple[Versioned, bool]:
        """Write this value if the version is still the given one. Returns the stored value.

        After a write without an answer, the client asks until the metadata store tells the stored
        value. The write may still come later, and is refused if another value was written before
        it.

        Raises:
            UnknownLedger: the ledger was deleted.
            CordwoodError: the metadata store does not answer.
        """
        call = SetLedger(metadata.ledger, version, pack_ledger(metadata))
        try:
            reply = await self._ask(call)
        except (Unreachable, Overloaded):
            await asyncio.sleep(SETTLE_PAUSE_S)
            return await self.get(metadata.ledger), False
        return _held(reply, metadata.ledger), _is_written(reply)

    async def set_again(
        self, version: int, metadata: LedgerMetadata, is_wanted: Callable[[], bool]
    ) -> tuple[Versioned, bool]:
        """As `set`, again until the metadata store answers, while it is wanted.

        Raises:
            UnknownLedger: the ledger was deleted.
            CordwoodError: it is not wanted any more; or nodes refuse the value, or cannot read the
                present one, and would say so for ever.
        """
        refusals = 0
        while True:
            try:
                return await self.set(version, metadata)
            except UnknownLedger:
                raise
            except CordwoodError as error:
                refusals = refusals + 1 if isinstance(error, Rejected | Corrupt) else 0
                if refusals == REFUSALS_MAX or not is_wanted():
                    raise
                logger.info("metadata of ledger %d is not written yet: %s", metadata.ledger, error)
                await asyncio.sleep(AGAIN_S)

    async def delete(self, ledger: int) -> None:
        """Delete a ledger; a missing ledger counts as deleted."""
        await self._ask(DeleteLedger(ledger))

    async def page(self, after: int, limit: int) -> list[int]:
        """Ids above `after`."""
        reply = await self._ask(ListLedgers(after, limit))
        assert isinstance(reply, LedgersReply), "ListLedgers is answered with ids"
        return reply.ledgers

    async def autorecovery(self, after: int, limit: int) -> AutorecoveryReply:
        """Whether ledgers are repaired, and those above `after` that lack copies."""
        reply = await self._ask(AskAutorecovery(after, limit))
        assert isinstance(reply, AutorecoveryReply), "AskAutorecovery is answered so"
        return reply

    async def switch_autorecovery(self, *, on: bool) -> None:
        """Switch repairs of ledgers that lack copies on or off.

        Raises:
            Fenced: it was switched to the contrary meanwhile.
        """

        def seen(reply: object) -> Call:
            assert isinstance(reply, AutorecoveryReply), "AskAutorecovery is answered so"
            return SwitchAutorecovery(on, reply.version)

        # Trap: a node may be unable to read a mark, of a newer version. No ledger is behind the
        # last id, so it reads none.
        question = AskAutorecovery(LEDGER_MAX, 1)
        await give_order(
            self._cluster, question, seen, lambda passed_s: passed_s <= GIVEN_S,
            timeout_s=self._timeout_s,
        )  # fmt: skip

    async def open_main_storage(self) -> None:
        """Let a node open main storage, which is marked as this cluster's from then on.

        All nodes are asked at the same time: any of them may be cut off from main storage alone,
        or lack the right to use it.

        Raises:
            BadSetting: the nodes have no main storage, or it belongs to another cluster.
            CordwoodError: no node opened it; the error of the last one that answered.
        """
        if not (up := self._cluster.peers.up):
            await self._ask(OpenMainStorage())  # waits for a node
            return
        loop = asyncio.get_running_loop()
        asked = [loop.create_task(self._open_at(node)) for node in up]
        failed: CordwoodError = Unreachable("no node answered")
        try:
            for done in asyncio.as_completed(asked):
                try:
                    return await done
                except CordwoodError as error:
                    failed = error
        finally:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise failed

    async def _open_at(self, node: NodeId) -> None:
        await self._cluster.call_node(node, OpenMainStorage(), timeout_s=self._timeout_s)

    async def choose(
        self,
        ring: Sequence[int | None],
        write: int,
        *,
        taken: Collection[int] = (),
        placement: Placement = ANYWHERE,
    ) -> tuple[int, ...]:
        """Nodes for an ensemble.

        Args:
            ring: the nodes that stay, in their places, and None for each free place.
            write: Qw.
            taken: nodes that must not be chosen, beside those that stay.
        Returns:
            All nodes of the ring.
        Raises:
            TooFewNodes: too few nodes take entries now, or none that satisfy the placement.
        """
        able = self._able({*taken, *ring})
        await self._greet_near(able, placement)
        kept = self._kept(ring)
        for some in self._preferred(able):
            chosen = choose_ensemble(some, kept, write, self._host.random, placement)
            if chosen is not None:
                return chosen
        wanted = sum(node is None for node in ring)
        rule = ""
        if placement.is_enforced and len(able) >= wanted:
            rule = f", so that each entry is in two domains of the scope {placement.scope}"
        raise TooFewNodes(
            f"{len(able)} nodes of the cluster can take a ledger's entries, and {wanted} are "
            f"wanted{rule}: start nodes, or ask for a smaller ensemble"
        )

    def is_lost(self, node: int) -> bool:
        """Whether a node is no member any more, or its data is reported gone or elsewhere."""
        member = self._cluster.members.get(NodeId(node))
        return member is None or member.authority in REBUILT

    async def takes_copies(self, node: int) -> bool:
        """Whether a node that was chosen, and joins, may get its first copy: by members that are
        read now.

        Race: the members by which it was chosen may be old. If the node was drained meanwhile, an
        operator may have read the ledger's metadata before the node joined, and may take the node
        away. If it was read later, the operator waits for the ledger.

        Raises:
            Unreachable: no node told the members in time.
        """
        await self._cluster.refresh_members(timeout_s=self._timeout_s)
        return _stores(self._member(node)) and not self.is_lost(node)

    def may_choose(
        self,
        ring: Sequence[int | None],
        write: int,
        *,
        taken: Collection[int] = (),
        placement: Placement = ANYWHERE,
    ) -> bool:
        """Whether `choose` would find nodes now."""
        able, kept = self._able({*taken, *ring}), self._kept(ring)
        return choose_ensemble(able, kept, write, self._host.random, placement) is not None

    def _kept(self, ring: Sequence[int | None]) -> list[Member | None]:
        return [None if node is None else self._member(node) for node in ring]

    async def _greet_near(self, able: Mapping[NodeId, Member], placement: Placement) -> None:
        """Connect to the nodes nearby, if none of them is connected: they are preferred."""
        peers = self._cluster.peers
        near = [node for node, member in able.items() if placement.is_near(member)]
        if not near or {*near} & {*peers.up}:
            return
        greeting = (peers.wait_for(node, timeout_s=CONNECT_S, dials=1) for node in near)
        for told in await asyncio.gather(*greeting, return_exceptions=True):
            if isinstance(told, BaseException) and not isinstance(told, CordwoodError):
                raise told

    def _able(self, without: Collection[int | None]) -> dict[NodeId, Member]:
        cluster = self._cluster
        return {
            node: member
            for node, member in cluster.members.items()
            if node not in without and node not in cluster.dead and _stores(member)
        }

    def _preferred(self, able: Mapping[NodeId, Member]) -> Iterator[dict[NodeId, Member]]:
        """Three choices: the connected nodes out of quarantine, all connected nodes, all nodes."""
        up = {*self._cluster.peers.up}
        held = self.quarantine.held(asyncio.get_running_loop().time())
        ready = {node: member for node, member in able.items() if node in up}
        yield {node: member for node, member in ready.items() if node not in held}
        yield ready
        yield dict(able)

    def _member(self, node: int) -> Member:
        return self._cluster.members.get(NodeId(node)) or Member(NodeId(node), "")

    async def choose_soon(
        self,
        ring: Sequence[int | None],
        write: int,
        *,
        taken: Collection[int] = (),
        placement: Placement = ANYWHERE,
    ) -> tuple[int, ...]:
        """As `choose`, but waits for nodes that have just started, or are regarded as dead."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(NODES_S, self._timeout_s)
        while True:
            try:
                return await self.choose(ring, write, taken=taken, placement=placement)
            except TooFewNodes:
                if loop.time() >= deadline:
                    raise
            await asyncio.sleep(SETTLE_PAUSE_S)
            await self._cluster.refresh_members(timeout_s=self._timeout_s)

    async def _ask(self, call: Call, timeout_s: float | None = None) -> Reply:
        """Ask any node, within the client's timeout or a shorter one."""
        return await self._cluster.call_any(call, timeout_s=timeout_s or self._timeout_s)


def _stores(member: Member) -> bool:
    is_whole = member.authority is Authority.FULLY_AUTHORITATIVE
    return is_whole and member.weight > 0 and not member.read_only


def _is_written(reply: Reply) -> bool:
    return isinstance(reply, LedgerReply) and reply.is_written


def _held(reply: Reply, ledger: int) -> Versioned:
    assert isinstance(reply, LedgerReply), "calls of metadata are answered with it"
    if not reply.version:
        raise UnknownLedger(f"there is no ledger {ledger}")
    return Versioned(read_ledger(reply.value), reply.version)
