"""A node's part in auto-recovery of ledgers: it may be the auditor, and it repairs marked ledgers.

The rule is `protocol.ledger_autorecovery`; this is its shell. One node at a time is the auditor,
by a lease. All nodes are workers. Each works at one ledger at a time, under the ledger's lease.
Leases only save work: two auditors set the same marks, and of two repairs of a ledger one fails at
the compare-and-set.

The member list tells which nodes are lost, by the rule of `rebuilding`: nodes whose data is
reported gone or elsewhere, and nodes that are no members. Ledgers leave a node that is being
drained from the order on.

Source: docs/protocol/ledgers.md; docs/sources/bookkeeper.md (d).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from cordwood.admin.ledger_filling import LedgerFilling
from cordwood.client.ledgers.copy_states import nodes_without
from cordwood.client.ledgers.ledger_repair import entry_words
from cordwood.client.store import Store, connected
from cordwood.client.tier_store import OpenObjects
from cordwood.errors import CordwoodError, Rejected, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.message import DoneReply
from cordwood.layout.message_ledgers import (
    AskAutorecovery,
    AutorecoveryCall,
    AutorecoveryReply,
    LackingLedger,
    SwitchAutorecovery,
)
from cordwood.ledger import LedgerMetadata
from cordwood.metadata.ledger_marks import LedgerMarks
from cordwood.metadata.ledgers import LedgerMetadataStore
from cordwood.metadata.store import MetadataStore
from cordwood.nodes import Member, NodeId
from cordwood.protocol.ledger_autorecovery import (
    Mark,
    Retries,
    SeenMarks,
    Step,
    mark_of,
    may_fill_more,
    may_finish,
    may_refill,
    named,
    nodes_to_ask,
    step,
    step_without_end,
    with_gaps,
    with_missing,
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

CHECK_TURNS = 4
"""Rounds in which all entries are read: rot is found while another copy is there, unless that is
lost within four weeks. Each round then reads a quarter of all copies."""

CHECKED_A_LOOK = 5
"""Ledgers that a round checks at each look: 100,000 a week. 0 for none."""

AUDITOR = "ledger-auditor"

CLIENT = ClientSettings(timeout_s=10.0)


class LedgerAutorecovery:
    """See the module.

    Attributes:
        repaired: ledgers that were repaired by this node since its start.
        checked: ledgers whose copies this node asked for.
        filled: the copies that it then made.
    """

    def __init__(
        self,
        node: NodeId,
        host: Host,
        metadata: MetadataStore,
        members: Callable[[], Awaitable[Mapping[NodeId, Member]]],
        address: Callable[[], str],
        open_objects: OpenObjects,
        drains: Callable[[], Mapping[NodeId, int]] = dict,
    ) -> None:
        """
        Args:
            members: reads the member list, and which nodes are rebuilt or drained.
            drains: the nodes that are being drained, each with the LSN of its order, as read with
                the members.
            address: this node's address; its repairs connect there, as any client.
            open_objects: opens main storage, which has the entries of some ledgers.
        """
        self.repaired = 0
        self.checked = 0
        self.filled = 0
        self._round_began: float | None = None
        self._checked_up_to = -1
        self._turn = int(host.clock.now_us() / 1e6 / CHECK_S)
        self._is_auditor = False
        self._node = node
        self._host = host
        self._metadata = metadata
        self._ledgers = LedgerMetadataStore(metadata)
        self._marks = LedgerMarks(metadata)
        self._members = members
        self._address = address
        self._open_objects = open_objects
        self._retries = Retries()
        self._filling = LedgerFilling()
        self._seen = SeenMarks()
        self._drains = drains
        self._audited: tuple[float, frozenset[tuple[NodeId, bool, int]]] | None = None

    async def answer(self, call: AutorecoveryCall) -> AutorecoveryReply | DoneReply:
        """Tell which ledgers lack copies, or switch repairs on or off.

        Raises:
            Unreachable, Overloaded: the metadata store did not answer.
            Fenced: it was switched to the contrary since the order was given.
        """
        match call:
            case SwitchAutorecovery():
                seen = call.if_version if call.if_version >= 0 else None
                await self._marks.switch(on=call.on, if_version=seen)
                return DoneReply()
            case AskAutorecovery():
                found: list[LackingLedger] = []
                for ledger in await self._marks.page(call.after, call.limit):
                    mark = await self._marks.get(ledger)
                    if mark is not None:
                        found.append(LackingLedger(ledger, mark[0].may_need, mark[0].since_us))
                leases = dict(await self._metadata.leases(AUDITOR))
                auditor = leases.get(AUDITOR, b"").decode("utf-8", "replace")
                is_on, version = await self._marks.switched()
                return AutorecoveryReply(is_on, auditor, found, version)

    async def run(self) -> None:
        """Audit, repair and check every so often, until cancelled."""
        # Nodes look one after another. The pause follows from the node's number, because this needs
        # no random number.
        await asyncio.sleep(LOOK_S * (1 + self._node % 8 / 8))
        async with asyncio.TaskGroup() as tasks:
            # Beside the looks: a check reads a quarter of a ledger, and a lost node must be noted
            # within half a minute.
            tasks.create_task(self._check_every_look())
            working: asyncio.Task[None] | None = None
            while True:
                try:
                    is_on = await self._look()
                    # Beside the looks: the copies of a large ledger take hours, and ledgers that
                    # lack theirs meanwhile have to be marked for the other nodes.
                    if is_on and (working is None or working.done()):
                        working = tasks.create_task(self._repair_marked())
                except CordwoodError as error:
                    logger.info("ledgers that lack copies are looked for later: %s", error)
                await asyncio.sleep(LOOK_S)

    async def _check_every_look(self) -> None:
        while True:
            try:
                if CHECKED_A_LOOK and self._is_auditor and await self._marks.is_on():
                    await self._check_some()
            except CordwoodError as error:
                logger.info("the copies of ledgers are checked later: %s", error)
            await asyncio.sleep(LOOK_S)

    async def _repair_marked(self) -> None:
        try:
            await self._work()
        except CordwoodError as error:
            logger.info("ledgers that lack copies are repaired later: %s", error)

    async def _look(self) -> bool:
        """Audit if this node is the auditor. Returns whether repairs are switched on.

        Raises:
            CordwoodError: the metadata store does not answer.
        """
        if not await self._marks.is_on():
            return False
        self._is_auditor = await self._metadata.take_lease(
            AUDITOR, b"node %d" % self._node, LEASE_S
        )
        if self._is_auditor:
            await self._audit_if_due()
        return True

    # The auditor.

    async def _audit_if_due(self) -> None:
        lost = await self._losses()
        now_s = asyncio.get_running_loop().time()
        due = self._audited is None or now_s >= self._audited[0] + AUDIT_S
        if due or lost - (self._audited[1] if self._audited else frozenset()):
            await self.audit()
            self._audited = now_s, lost
        elif self._audited is not None:
            # Trap: a node may come back and be lost again before the next audit is due.
            self._audited = self._audited[0], lost

    async def _losses(self) -> frozenset[tuple[NodeId, bool, int]]:
        """Each lost or drained node, whether it is empty, and by which start or order.

        A drained node is looked for once more when it is empty: open ledgers must leave it then.
        And a node may be drained, undrained and drained again between two looks, with new ledgers
        on it.
        """
        known = await self._members()
        lost = {(node, True, known[node].incarnation) for node in rebuilt_nodes(known.values())}
        return frozenset(lost | {(node, False, order) for node, order in self._drains().items()})

    def _leaving(self) -> frozenset[NodeId]:
        """The nodes that are drained."""
        return frozenset(self._drains())

    async def audit(self) -> int:
        """Mark every ledger that names a lost or drained node. Returns their number.

        Raises:
            CordwoodError: the metadata store does not answer; earlier marks stay.
        """
        known = await self._members()
        leaving = self._leaving()
        suspects: list[int] = []
        async for held in self._ledgers.all_readable():
            if mark_of(held.metadata, named(held.metadata) - _whole(known), 0, leaving) is not None:
                suspects.append(held.metadata.ledger)
        if not suspects:
            return 0
        # Race: a node that joined after the members were read is a member now.
        whole = _whole(await self._members())
        leaving = self._leaving()
        count = 0
        for ledger in suspects:
            found = await self._ledgers.get_if_readable(ledger)
            if found is not None:
                lost = named(found.metadata) - whole
                now_us = self._host.clock.now_us()
                count += await self._mark(mark_of(found.metadata, lost, now_us, leaving))
        if count:
            logger.info("%d ledgers lack copies", count)
        return count

    async def _check_some(self) -> None:
        """Check the copies of a few ledgers, and store copies that a node lost without a report.

        A round looks at the ends of each fragment, and at a run of the entries between: each round
        at the next run. If a copy is missing there, it looks at the whole ledger. The last fragment
        of an open ledger is left to its writer.
        """
        now_s = asyncio.get_running_loop().time()
        if self._checked_up_to < 0:
            if self._round_began is not None and now_s < self._round_began + CHECK_S:
                return
            self._round_began = now_s
            self._turn += 1
        page = await self._ledgers.page(self._checked_up_to, CHECKED_A_LOOK)
        some: list[LedgerMetadata] = []
        for ledger in page:
            found = await self._ledgers.get_if_readable(ledger)
            # Also of a ledger in recovery: that may last until a node comes back.
            if found is not None and found.metadata.settled:
                some.append(found.metadata)
        if some:
            async with self._connected() as store:
                for metadata in some:
                    await self._check(store, metadata)
        self._checked_up_to = page[-1] if len(page) == CHECKED_A_LOOK else -1

    async def _check(self, store: Store, metadata: LedgerMetadata) -> None:
        ledger, password = metadata.ledger, metadata.password
        try:
            async with asyncio.timeout(REPAIR_S) as patience:
                check = await store.ledgers.check(
                    ledger, password, share=0, settled=True,
                    turn=(self._turn % CHECK_TURNS, CHECK_TURNS),
                    on_progress=lambda _: _extend(patience),
                )  # fmt: skip
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

    async def note_anew(self, metadata: LedgerMetadata) -> None:
        """This node starts with an empty disk: mark a ledger if it names the node. From here on
        other nodes take it for whole.

        Raises:
            CordwoodError: the metadata store does not answer.
        """
        mark = mark_of(metadata, {self._node}, self._host.clock.now_us())
        if mark is not None:
            # Race: a worker may still fill this node's last disk. The worker must not remove this
            # mark.
            await self._marks.add(mark, anew=True)

    async def leave_strays(self) -> None:
        """This node starts with an empty disk: it brings back no entry that a repair passed over.

        Raises:
            CordwoodError: the metadata store does not answer.
        """
        async for ledger in self._marks.all():
            await self._marks.forget_stray(ledger, self._node)

    # The worker.

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        marked = [ledger async for ledger in self._marks.all()]
        self._retries.keep({*marked})
        self._seen.keep({*marked})
        self._filling.keep({*marked})
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
        seen_us = self._seen.seen_us(mark, asyncio.get_running_loop().time())
        decided = step(metadata, mark, self._host.clock.now_us(), fenced, seen_us)
        if metadata is None:
            if decided is Step.DONE:
                await self._marks.finish(mark.ledger, version)
            return decided is Step.DONE
        work = MarkedWork(store, mark, version, metadata, patience)
        match decided:
            case Step.DONE:
                await self._marks.finish(mark.ledger, version)
            case Step.REPAIR:
                await self._fill_meanwhile(work)
                noted = await self._copy(work)
                self.repaired += 1
                logger.info("ledger %d is repaired", mark.ledger)
                # The metadata still names nodes that were filled in their own places.
                await self._finish(*noted)
            case Step.REPAIR_OLDER:
                await self._fill_meanwhile(work)
                await self._repair_older(work)
            case Step.FILL:
                await self._fill(work)
            case Step.RECOVER:
                try:
                    await store.ledgers.recover(
                        mark.ledger, metadata.password, on_progress=work.extend
                    )
                except CordwoodError:
                    await self._repair_without_end(work)
                    raise
            case _:
                await self._wait(work)
                return False
        return True

    async def _wait(self, work: MarkedWork) -> None:
        """Store copies of the entries that were passed over, while a repair has to wait.

        Raises:
            Unreachable: some of them lack copies still.
        """
        # None for nodes that are back: a repair may soon name other nodes in their places.
        missing = await self._filling.fill_meanwhile(
            work.store, work.mark, work.version, work.metadata, frozenset(), work.extend
        )
        if missing:
            raise Unreachable(f"{entry_words(missing)} too few readable copies")

    async def _repair_without_end(self, work: MarkedWork) -> None:
        """Do what can be done for a ledger of which a recovery failed."""
        found = await self._ledgers.get(work.mark.ledger)
        if found is None:
            return
        work = work._replace(metadata=found.metadata)
        work.extend()  # the recovery has taken its time
        await self._fill_meanwhile(work)
        if step_without_end(work.metadata, work.mark) is Step.REPAIR_OLDER:
            await self._repair_older(work)

    async def _fill_meanwhile(self, work: MarkedWork) -> None:
        """Store copies of settled entries in the places that the metadata names."""
        whole = _whole(await self._members()) - self._leaving()
        await self._filling.fill_meanwhile(
            work.store, work.mark, work.version, work.metadata, whole, work.extend
        )

    async def _repair_older(self, work: MarkedWork) -> None:
        """Make the copies of all fragments before the last, and remove the mark if it may go."""
        mark = work.mark
        noted = await self._copy(work, older=True)
        self.repaired += 1
        logger.info("ledger %d: its older fragments are repaired", mark.ledger)
        after = await self._ledgers.get(mark.ledger)
        if may_finish(work.metadata, after and after.metadata, mark):
            await self._finish(*noted)

    async def _copy(self, work: MarkedWork, *, older: bool = False) -> tuple[Mark, int]:
        """Make the copies of a marked ledger: of all of it, or of the fragments before its last.

        Returns:
            The mark and its version then: it names the entries that were passed over.
        """
        mark, metadata = work.mark, work.metadata
        # A node that is drained keeps nothing: its place is no place for copies, and it gets none
        # in the place of another node.
        leaving = self._leaving()
        whole = _whole(await self._members()) - leaving
        back = [node for node in mark.nodes if node in whole and may_refill(metadata, mark)]
        noted = mark, work.version

        async def note(entries: Sequence[int], silent: Collection[int]) -> None:
            nonlocal noted
            noted = await self._note_gaps(*noted, entries, silent)

        await work.store.ledgers.repair(
            mark.ledger, metadata.password, nodes=mark.nodes, refills=back, avoids=leaving,
            older=older, on_progress=work.extend, on_unreadable=note,
        )  # fmt: skip
        return noted

    async def _note_gaps(
        self, mark: Mark, version: int, entries: Sequence[int], silent: Collection[int]
    ) -> tuple[Mark, int]:
        """Keep entries that a repair passes over in the mark of their ledger.

        Raises:
            Rejected: the mark changed meanwhile.
        """
        after = with_gaps(mark, entries, silent)
        if after == mark:
            return mark, version
        logger.warning(
            "ledger %d: %s no readable copy on any node; all other entries are copied",
            mark.ledger, entry_words(entries),
        )  # fmt: skip
        written = await self._marks.replace(after, version)
        if written is None:
            raise Rejected(f"the mark of ledger {mark.ledger} changed meanwhile: it is read again")
        return after, written

    async def _finish(self, mark: Mark, version: int) -> None:
        """Remove a mark after a repair, or its nodes only: entries that were passed over keep
        it."""
        if mark.is_kept:
            await self._marks.replace(mark._replace(nodes=(), short_from=-1), version)
        else:
            await self._marks.finish(mark.ledger, version)

    async def _fill(self, work: MarkedWork) -> None:
        """Store copies of entries that a repair passed over, and remove the mark then.

        Raises:
            Unreachable: some of them lack copies still, and the mark names these.
        """
        store, mark, version, metadata, _ = work
        filled, missing = await self._filling.fill(store, metadata, mark.gaps, work.extend)
        of_all = may_fill_more(mark.has_more, filled, missing)
        if of_all:
            _, missing = await self._filling.fill(store, metadata, None, work.extend)
        if not missing:
            await self._marks.finish(mark.ledger, version)
            return
        opened = await store.ledgers.open(mark.ledger, metadata.password)
        without = await nodes_without(opened, mark.strays, missing)
        after = with_missing(mark, missing, without, of_all=of_all)
        if after != mark:
            await self._marks.replace(after, version)
        raise Unreachable(f"{entry_words(missing)} too few readable copies")


class MarkedWork(NamedTuple):
    """The work on one marked ledger.

    Attributes:
        version: of the mark.
        patience: its deadline, which progress moves.
    """

    store: Store
    mark: Mark
    version: int
    metadata: LedgerMetadata
    patience: asyncio.Timeout

    def extend(self, _: int = 0) -> None:
        """Note progress."""
        _extend(self.patience)


def _extend(patience: asyncio.Timeout) -> None:
    """Note progress, which moves the deadline."""
    # Race: a task of the work may note progress in the tick in which the deadline expires.
    if not patience.expired():
        patience.reschedule(asyncio.get_running_loop().time() + REPAIR_S)


def _whole(members: Mapping[NodeId, Member]) -> frozenset[NodeId]:
    """Members that have their data or may have it."""
    return frozenset(members) - rebuilt_nodes(members.values())
