"""A node's part in auto-recovery of ledgers: it may be the auditor, and it repairs marked ledgers.

The rule is `protocol.ledger_autorecovery`; this is its shell. One node at a time is the auditor,
by a lease. All nodes are workers. Each works at one ledger at a time, under the ledger's lease.
Leases only save work: two auditors set the same marks, and of two repairs of a ledger one fails at
the compare-and-set.

The member list tells which nodes are lost, by the rule of `rebuilding`: nodes whose data is
reported gone or elsewhere, and nodes that are no members.

Source: docs/protocol/ledgers.md; docs/sources/bookkeeper.md (d).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager

from cordwood.client.store import Store, connected
from cordwood.client.tier_store import OpenObjects
from cordwood.errors import CordwoodError
from cordwood.host.seams import Host
from cordwood.layout.message import DoneReply
from cordwood.layout.message_ledgers import (
    AskAutorecovery,
    AutorecoveryCall,
    AutorecoveryReply,
    LackingLedger,
    SwitchAutorecovery,
)
from cordwood.ledger import LedgerMetadata, LedgerState
from cordwood.metadata.ledger_marks import LedgerMarks
from cordwood.metadata.ledgers import LedgerMetadataStore
from cordwood.metadata.store import MetadataStore
from cordwood.nodes import Member, NodeId
from cordwood.protocol.ledger_autorecovery import (
    Mark,
    Retries,
    Step,
    mark_of,
    may_finish,
    may_refill,
    named,
    nodes_to_ask,
    step,
)
from cordwood.quorum.authority import rebuilt_nodes
from cordwood.settings import ClientSettings

logger = logging.getLogger(__name__)

LOOK_S = 30.0
"""The time between two looks for marks and for lost nodes."""

AUDIT_S = 600.0
"""The time between two audits while no further node is lost."""

LEASE_S = 120.0
"""The length of the auditor's lease, renewed at each look, and of a ledger's lease, renewed during
the work."""

REPAIR_S = 100.0
"""The longest time of work at one ledger in which no copy is made and no entry of its end is found.
Work that is cut short begins anew: so a bound of the whole work would leave a large ledger without
its copies for ever."""

STEPS_MAX = 4
"""Tries to recover, repair, and remove the mark; a mark that grew meanwhile costs a try."""

CHECK_S = 7 * 86_400.0
"""The time between the begins of two rounds that check the copies of all closed ledgers, as in
BookKeeper."""

CHECKED_A_LOOK = 5
"""Ledgers that a round checks at each look: 100,000 a week. 0 for none."""

AUDITOR = "ledger-auditor"

CLIENT = ClientSettings(timeout_s=10.0)


class LedgerAutorecovery:
    """See the module.

    Attributes:
        repaired: ledgers that were repaired by this node since its start.
        checked: ledgers whose copies this node asked for. filled: the copies that it then made.
    """

    def __init__(
        self,
        node: NodeId,
        host: Host,
        metadata: MetadataStore,
        members: Callable[[], Awaitable[Mapping[NodeId, Member]]],
        address: Callable[[], str],
        open_objects: OpenObjects,
    ) -> None:
        """
        Args:
            members: reads the member list.
            address: this node's address; its repairs connect there, as any client.
            open_objects: opens main storage, which has the entries of some ledgers.
        """
        self.repaired = 0
        self.checked = 0
        self.filled = 0
        self._round_began: float | None = None
        self._checked_up_to = -1
        self._node = node
        self._host = host
        self._metadata = metadata
        self._ledgers = LedgerMetadataStore(metadata)
        self._marks = LedgerMarks(metadata)
        self._members = members
        self._address = address
        self._open_objects = open_objects
        self._retries = Retries()
        self._audited: tuple[float, frozenset[NodeId]] | None = None

    async def answer(self, call: AutorecoveryCall) -> AutorecoveryReply | DoneReply:
        """Tell which ledgers lack copies, or switch repairs on or off.

        Raises:
            Unreachable, Overloaded: the metadata store did not answer.
        """
        match call:
            case SwitchAutorecovery():
                await self._marks.switch(on=call.on)
                return DoneReply()
            case AskAutorecovery():
                found: list[LackingLedger] = []
                for ledger in await self._marks.page(call.after, call.limit):
                    mark = await self._marks.get(ledger)
                    if mark is not None:
                        found.append(LackingLedger(ledger, mark[0].nodes, mark[0].since_us))
                leases = dict(await self._metadata.leases(AUDITOR))
                auditor = leases.get(AUDITOR, b"").decode("utf-8", "replace")
                return AutorecoveryReply(await self._marks.is_on(), auditor, found)

    async def run(self) -> None:
        """Audit and repair every so often, until cancelled."""
        # Nodes look one after another. The pause follows from the node's number, because this needs
        # no random number.
        await asyncio.sleep(LOOK_S * (1 + self._node % 8 / 8))
        while True:
            try:
                await self.look()
            except CordwoodError as error:
                logger.info("ledgers that lack copies are looked for later: %s", error)
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Audit if this node is the auditor, and repair marked ledgers.

        Raises:
            CordwoodError: the metadata store does not answer, or this node does not answer its own
                client.
        """
        if not await self._marks.is_on():
            return
        if await self._metadata.take_lease(AUDITOR, b"node %d" % self._node, LEASE_S):
            lost = rebuilt_nodes((await self._members()).values())
            now_s = asyncio.get_running_loop().time()
            due = self._audited is None or now_s >= self._audited[0] + AUDIT_S
            if due or lost - (self._audited[1] if self._audited else frozenset()):
                await self.audit()
                self._audited = now_s, lost
            if CHECKED_A_LOOK:
                await self._check_some()
        await self._work()

    # The auditor.

    async def audit(self) -> int:
        """Mark every ledger that names a lost node. Returns their number.

        Raises:
            CordwoodError: the metadata store does not answer; earlier marks stay.
        """
        known = await self._members()
        suspects: list[int] = []
        async for held in self._ledgers.all_readable():
            if named(held.metadata) - _whole(known):
                suspects.append(held.metadata.ledger)
        if not suspects:
            return 0
        # Race: a node that joined after the members were read is a member now.
        whole = _whole(await self._members())
        count = 0
        for ledger in suspects:
            found = await self._ledgers.get_if_readable(ledger)
            if found is not None:
                lost = named(found.metadata) - whole
                count += await self._mark(mark_of(found.metadata, lost, self._host.clock.now_us()))
        if count:
            logger.info("%d ledgers lack copies", count)
        return count

    async def _check_some(self) -> None:
        """Check the copies of a few ledgers, and store copies that a node lost without a report.

        A round looks at the ends of each fragment. If a copy is missing there, it looks at the
        whole ledger. The last fragment of an open ledger is left to its writer.
        """
        now_s = asyncio.get_running_loop().time()
        if self._checked_up_to < 0:
            if self._round_began is not None and now_s < self._round_began + CHECK_S:
                return
            self._round_began = now_s
        page = await self._ledgers.page(self._checked_up_to, CHECKED_A_LOOK)
        some: list[LedgerMetadata] = []
        for ledger in page:
            found = await self._ledgers.get_if_readable(ledger)
            # A recovery writes its entries again, and is soon over.
            if found is not None and found.metadata.state is not LedgerState.IN_RECOVERY:
                some += [found.metadata] if found.metadata.settled else []
        if some:
            async with self._connected() as store:
                for metadata in some:
                    await self._check(store, metadata)
        self._checked_up_to = page[-1] if len(page) == CHECKED_A_LOOK else -1

    async def _check(self, store: Store, metadata: LedgerMetadata) -> None:
        ledger, password = metadata.ledger, metadata.password
        try:
            async with asyncio.timeout(REPAIR_S) as patience:
                check = await store.ledgers.check(ledger, password, share=0, settled=True)
                if not check.is_whole:
                    check = await store.ledgers.check(
                        ledger, password, fills=True, settled=True,
                        on_progress=lambda _: _extend(patience),
                    )  # fmt: skip
        except (CordwoodError, TimeoutError) as error:
            logger.info("the copies of ledger %d are asked for in another round: %s", ledger, error)
            return
        self.checked += 1
        self.filled += check.filled
        if check.lost:
            logger.warning(
                "ledger %d: %d entries have no copy, from %d on", ledger, check.lost,
                check.first_lost,
            )  # fmt: skip
        elif check.filled:
            logger.warning("ledger %d lacked %d copies: they were made anew", ledger, check.filled)
        if check.narrow:
            logger.info("ledger %d has entries in one failure domain only", ledger)

    def _connected(self) -> AbstractAsyncContextManager[Store]:
        return connected((self._address(),), self._host, CLIENT, self._open_objects)

    async def _mark(self, mark: Mark | None) -> bool:
        if mark is not None:
            await self._marks.add(mark)
        return mark is not None

    async def note_anew(self) -> None:
        """This node starts with an empty disk: mark all ledgers that name it. From here on other
        nodes take it for whole.

        Raises:
            CordwoodError: the metadata store does not answer.
        """
        async for held in self._ledgers.all():
            mark = mark_of(held.metadata, {self._node}, self._host.clock.now_us())
            if mark is not None:
                # Race: a worker may still fill this node's last disk. The worker must not remove
                # this mark.
                await self._marks.add(mark, anew=True)

    # The worker.

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        marked = [ledger async for ledger in self._marks.all()]
        self._retries.keep({*marked})
        todo = [each for each in marked if self._retries.is_due(each, loop.time())]
        if not todo:
            return
        async with self._connected() as store:
            for ledger in todo:
                if not await self._marks.is_on():
                    return
                key = f"ledger-repair/{ledger}"
                if not await self._metadata.take_lease(key, b"node %d" % self._node, LEASE_S):
                    continue
                keeping = asyncio.ensure_future(self._keep_lease(key))
                try:
                    await self._repair(store, ledger)
                finally:
                    keeping.cancel()
                    await asyncio.gather(keeping, return_exceptions=True)
                    await self._metadata.drop_lease(key)

    async def _keep_lease(self, key: str) -> None:
        """Renew a lease until cancelled. Without the lease, other nodes do the same work; this does
        no harm."""
        while True:
            await asyncio.sleep(LEASE_S / 3)
            try:
                await self._metadata.take_lease(key, b"node %d" % self._node, LEASE_S)
            except CordwoodError as error:
                logger.info("the lease %s is not renewed: %s", key, error)

    async def _repair(self, store: Store, ledger: int) -> None:
        """Do the work of a mark, as far as it is possible now."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(REPAIR_S) as patience:
                for _ in range(STEPS_MAX):
                    found = await self._marks.get(ledger)
                    if found is None or not await self._step(store, *found, patience):
                        return
        except (CordwoodError, TimeoutError) as error:
            logger.info("ledger %d lacks copies still: %s", ledger, error)
            self._retries.failed(ledger, loop.time())

    async def _step(
        self, store: Store, mark: Mark, version: int, patience: asyncio.Timeout
    ) -> bool:
        """Whether to look at the mark again at once."""
        found = await self._ledgers.get(mark.ledger)
        metadata = None if found is None else found.metadata
        fenced: frozenset[int] = frozenset()
        asked = nodes_to_ask(metadata, mark)
        if metadata is not None and asked:
            fenced = await store.ledgers.fenced(mark.ledger, metadata.password, nodes=asked)
        match step(metadata, mark, self._host.clock.now_us(), fenced):
            case Step.DONE:
                await self._marks.finish(mark.ledger, version)
            case Step.REPAIR if metadata is not None:
                await self._copy(store, mark, metadata, patience)
                self.repaired += 1
                logger.info("ledger %d has all its copies again", mark.ledger)
                # The metadata still names nodes that were filled in their own places.
                await self._marks.finish(mark.ledger, version)
            case Step.REPAIR_OLDER if metadata is not None:
                await self._copy(store, mark, metadata, patience, older=True)
                self.repaired += 1
                logger.info("open ledger %d: its older fragments are whole again", mark.ledger)
                after = await self._ledgers.get(mark.ledger)
                if may_finish(metadata, after and after.metadata, mark):
                    await self._marks.finish(mark.ledger, version)
            case Step.RECOVER if metadata is not None:
                await store.ledgers.recover(
                    mark.ledger, metadata.password, on_progress=lambda _: _extend(patience)
                )
            case _:
                return False
        return True

    async def _copy(
        self,
        store: Store,
        mark: Mark,
        metadata: LedgerMetadata,
        patience: asyncio.Timeout,
        *,
        older: bool = False,
    ) -> None:
        """Make the copies of a marked ledger: of all of it, or of the fragments before its last."""
        whole = _whole(await self._members())
        back = [node for node in mark.nodes if node in whole and may_refill(metadata, mark)]
        await store.ledgers.repair(
            mark.ledger, metadata.password, nodes=mark.nodes, refills=back, older=older,
            on_progress=lambda _: _extend(patience),
        )  # fmt: skip


def _extend(patience: asyncio.Timeout) -> None:
    """Note progress, which moves the deadline."""
    patience.reschedule(asyncio.get_running_loop().time() + REPAIR_S)


def _whole(members: Mapping[NodeId, Member]) -> frozenset[NodeId]:
    """Members that have their data or may have it."""
    return frozenset(members) - rebuilt_nodes(members.values())
