"""Rebuilding on one node: it follows the event log, works as a donor, and reports losses.

The event log (`metadata.event_log`) is heard together with the member list, and between two
readings of that where it is a log. The status of a node's data is derived from it here, over what
an operator said by hand. While nothing is heard, the last set that was read counts.

- *News*: a node that added an event with more work, or less, asks the others for their state. They
  read the event log anew for the answer, so donors begin within milliseconds and all together.
- *Watch*: a node that has been dead for `rebuild_after_s` is lost.
- *Donor*: while the set has work for this node, it makes one pass after another.
- *Self*: a node that is in the set although it has its data reports this. If its data was rebuilt
  on other nodes meanwhile, it must not go on with the old copies, and ends.

Source: docs/protocol/rebuilding.md; docs/sources/logdevice.md 2.9.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from cordwood.errors import BadSetting, CordwoodError, NotOurCluster, Rejected, Retryable
from cordwood.layout.log_questions import AskCopies, CopiesReply
from cordwood.layout.message_rebuilding import (
    AskHeld,
    AskRebuilding,
    HealState,
    HeldReply,
    RebuildingReply,
    RebuildOrder,
    SayRebalance,
    SayRebuild,
)
from cordwood.layout.rebuild_events import pack_set
from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.protocol.event_log import Verdict, authority_of, gives, refuses
from cordwood.protocol.rebuild_watch import LossWatch, Start, on_start
from cordwood.quorum.authority import rebuilt_nodes
from cordwood.rebuilding import (
    Aborted,
    DonorProgress,
    Gave,
    IsRebuilt,
    NeedsRebuild,
    Rebalance,
    RebuildEvent,
    RebuildingSet,
    Transfer,
    Undrained,
    Unrecoverable,
)
from cordwood.settings import NodeSettings
from cordwood.storage.rebuild.copies import words_of
from cordwood.storage.rebuild.donor import Donor, Pass
from cordwood.storage.rebuild.donor_pace import DonorPace
from cordwood.storage.rebuild.epoch_nodesets import heard_nodesets, told_nodesets
from cordwood.storage.rebuild.held_groups import HeldGroups
from cordwood.storage.rebuild.moves import Moves
from cordwood.storage.rebuild.staged_moves import StagedMoves
from cordwood.wire.peers import Peers, wait_at_most
from cordwood.wire.store_channel import StoreChannel

if TYPE_CHECKING:
    from cordwood.host.seams import Host
    from cordwood.metadata.event_log import EventLog
    from cordwood.metadata.membership import Membership
    from cordwood.storage.engine import StorageEngine
    from cordwood.storage.rebuild.epoch_nodesets import ReadRecord
    from cordwood.storage.staging.staging import Staging

logger = logging.getLogger(__name__)

RebuildCall = AskCopies | SayRebuild | AskRebuilding | SayRebalance | AskHeld

AGAIN_S = 1.0
"""Pause between two passes of a donor that could not finish."""

LOOK_S = 1.0
"""Pause between two looks for dead nodes."""

ANSWER_S = 1.0
"""How long a person's question waits for the tail of the event log, before the set as known
answers it: callers that ask each node wait for two seconds."""

PROGRESS_S = 5.0
"""Pause between two events of progress: each is a write of the whole set."""

NEWS_TIMEOUT_S = 2.0
"""As long as a node waits for another that it tells of an event: the other hears of it by itself
with the next member list."""


class RebuildRole:
    """See the module.

    Attributes:
        set: the rebuilding set as last read.
        staging: the staged blocks of this node, set before `connect`.
        on_change: called after each later set, so that the whole node uses the same set as its
            donor.
    """

    def __init__(
        self,
        settings: NodeSettings,
        host: Host,
        engine: StorageEngine,
        events: EventLog,
        read_record: ReadRecord,
        members: Callable[[], Mapping[NodeId, Member]],
        seal: Callable[[], Awaitable[None]],
        membership: Membership,
        healing: Callable[[], HealState],
    ) -> None:
        """
        Args:
            healing: the state of healing this node's WAL. seal: seals every log up to its newest
            epoch: some epochs may have been recovered without this node.
        """
        self.set = RebuildingSet()
        self.staging: Staging
        self.on_change: Callable[[], None] = lambda: None
        self._settings = settings
        self._host = host
        self._me = settings.node
        self._engine = engine
        self._events = events
        self._read_record = read_record
        self._members = members
        self._seal = seal
        self._membership = membership
        self._healing = healing
        self._owes_seals = False
        self._watch = LossWatch(self._me, settings.rebuild_after_s)
        self._changed = asyncio.Event()
        self._has_news = asyncio.Event()
        self._told: str = ""
        self._given = Gave(self._me, 0)
        self._donor: Donor
        self._held = HeldGroups(engine, members, read_record)
        self._pace: DonorPace
        self._peers: Peers
        self._dead: Callable[[], Set[NodeId]] = frozenset

    def connect(
        self,
        peers: Peers,
        channel: StoreChannel,
        dead: Callable[[], Set[NodeId]],
        silent: Callable[[], Set[NodeId]],
        run_bytes: Callable[[], int],
    ) -> None:
        """The node's view of the others, which it has later than its store."""

        def available() -> frozenset[NodeId]:
            return frozenset(peers.up) - silent()

        self._peers = peers
        moves = Moves(self._me, peers, channel, self._host.random, available, run_bytes)
        staged = StagedMoves(
            self._me, self.staging, peers, self._newest_nodeset, self._host.random, available
        )
        self._pace = DonorPace(float(self._settings.storage.rebuild_bytes_s), self._engine.waits)
        self._dead = dead
        self._donor = Donor(
            self._me, self._engine, self._members, self._read_record, peers, moves, staged,
            self._pace, run_bytes,
        )  # fmt: skip

    async def _newest_nodeset(self, log: int) -> tuple[Nodeset, Replication] | None:
        """The newest nodeset of a log, None if the log does not exist any more. While the metadata
        store is away, the newest that any node was told.

        Raises:
            CordwoodError: the metadata store does not answer, and no node was told any.
        """
        members = self._members()
        try:
            record = await self._read_record(log)
        except CordwoodError as error:
            told = told_nodesets(self._engine, log, members)
            heard = await heard_nodesets(self._peers, log, members)
            if heard is not None and heard.known > told.known:
                told = heard
            if not told.history:
                raise
            logger.info("log %d: its nodeset is as nodes were told: %s", log, error)
            return told.history[-1][1:]
        if record is None or not record.history:
            return None
        newest = record.history[-1]
        return newest.nodeset(members), newest.replication

    # The set, and what follows from it.

    async def refresh(self, *, strictly: bool = False) -> None:
        """Take the known set.

        Args:
            strictly: whether it must include all events from before the call.
        Raises:
            CordwoodError: the metadata store, or the event log, did not answer.
        """
        self.take(await (self._events.read() if strictly else self._events.known()))

    def take(self, found: RebuildingSet) -> None:
        """Use this set, if it is later than the current set."""
        if found.through > self.set.through:
            self.set = found
            self._watch.on_set(found)
            # Before the donor looks: a store between its look and the next reading of the member
            # list would name a lost node, and no donor would move it.
            self._engine.rebuilding |= frozenset(map(NodeId, refuses(found)))
            self._changed.set()
            self.on_change()

    def overlaid(self, members: Iterable[Member]) -> tuple[Member, ...]:
        """Members with the status that the set gives them. New epochs leave out a drained node.
        They keep a lost node: nodesets that shrink with each loss would soon have no place for new
        copies."""
        return tuple(self._overlaid(member) for member in members)

    def _overlaid(self, member: Member) -> Member:
        entry = self.set.entry(member.node)
        if entry is None or entry.ranges:
            return member
        status = authority_of(self.set, member.node)
        weight = 0.0 if entry.drain or entry.relocates else member.weight
        return replace(member, authority=status, weight=weight)

    def refused(self, members: Iterable[Member]) -> frozenset[NodeId]:
        """Nodes that no copyset of a new block may name."""
        mine = frozenset({self._me} if self._owes_seals else ())
        return rebuilt_nodes(members) | frozenset(map(NodeId, refuses(self.set))) | mine

    # Working.

    async def run(self) -> None:
        """Give as a donor, until cancelled."""
        while True:
            self._changed.clear()
            rebuilding = self.set
            if not self._donor.has_work(rebuilding):
                self._donor.rest()
                await self._changed.wait()
                continue
            made = await self._work(rebuilding)
            self._count_given(made)
            if made.is_done and await self._say_done(made):
                continue
            if made.blocked and made.blocked != self._told:
                logger.warning("rebuilding waits: %s", made.blocked)
            self._told = made.blocked
            await wait_at_most(self._changed, AGAIN_S)

    def _count_given(self, made: Pass) -> None:
        """Add a pass to this node's totals of a rebalance: a stop needs another pass."""
        known = made.rebuilding.rebalancing
        if known is None or not gives(made.rebuilding, self._me):
            return
        report, before = made.report, self._given
        if before.version != known.version:
            before = Gave(self._me, known.version)
        self._given = Gave(
            self._me, known.version, before.blocks + report.blocks, before.bytes + report.bytes,
            report.kept, report.kept_bytes,
        )  # fmt: skip

    async def _work(self, rebuilding: RebuildingSet) -> Pass:
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(self._tell_progress(rebuilding))
            pacing = tasks.create_task(self._pace.watch())
            made = await self._donor.work(
                rebuilding, lambda: self.set.version != rebuilding.version
            )
            telling.cancel()
            pacing.cancel()
        return made

    async def _tell_progress(self, rebuilding: RebuildingSet) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            state = self._donor.state()
            event = DonorProgress(
                self._me, rebuilding.version, 0, state.bytes_done, state.bytes_left
            )
            try:
                await self._say(event)
            except CordwoodError as error:
                logger.info("how far rebuilding has come could not be said: %s", error)

    async def _say_done(self, made: Pass) -> bool:
        """Report that this donor is done. Returns False if the report failed."""
        try:
            for lost in self._donor.work_left(made.rebuilding):
                event = IsRebuilt(lost, self._me, made.rebuilding.version, not made.is_uncertain)
                verdict = await self._say(event)
                logger.info("node %d: what this node had to give is given: %s", lost, verdict.value)
            if gives(made.rebuilding, self._me):
                verdict = await self._say(self._given)
                logger.info("this node gave its part of a rebalance: %s", verdict.value)
        except CordwoodError as error:
            logger.warning("that rebuilding is done could not be said: %s", error)
            return False
        return True

    async def _say(self, event: RebuildEvent) -> Verdict:
        before = self.set.version
        after, verdict = await self._events.say(event)
        self.take(after)
        if verdict is Verdict.TAKEN and after.version != before:
            self._has_news.set()
        return verdict

    async def tell_news(self) -> None:
        """Have the others read each new version of the set that this node wrote, until cancelled.

        They would read it with their next member list, and a rebuilding ends with its last donor.
        """
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            others = [node for node in self._peers.up if node != self._me]
            await asyncio.gather(*map(self._tell_news_to, others))

    async def _tell_news_to(self, node: NodeId) -> None:
        try:
            await self._peers.call(node, AskRebuilding(), timeout_s=NEWS_TIMEOUT_S)
        except CordwoodError as error:
            logger.debug("node %d hears of rebuilding later: %s", node, error)

    async def watch(self) -> None:
        """Look for dead nodes, and at the reported status of this node itself, until cancelled.

        Raises:
            NotOurCluster: the data of this node was rebuilt on other nodes.
        """
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look_at_self()
                due = self._watch.due(loop.time(), self._members(), self._dead(), self.set)
                for event in due:
                    verdict = await self._say(event)
                    logger.warning("node %d is lost: %s", event.node, verdict.value)
            except NotOurCluster:
                raise
            except CordwoodError as error:
                logger.warning("the loss could not be reported: %s", error)

    async def look_at_self(self) -> None:
        """Report that this node runs with its data, if the set says otherwise.

        Raises:
            NotOurCluster: its data was rebuilt on other nodes.
            CordwoodError: the metadata store did not answer.
        """
        entry = self.set.entry(self._me)
        start = on_start(entry, is_known=True, is_blank=False)
        if start is Start.STALE:
            raise NotOurCluster(stale_words(self._settings))
        if start is Start.BACK:
            assert entry is not None, "an event names it"
            await self._seal()
            # See `Admission.complete`. Until the second seals this node takes no new block.
            self._owes_seals = True
            await self._membership.owe_seals(self._me)
            verdict = await self._say(Aborted(self._me))
            logger.warning("this node was called lost, and is here: %s", verdict.value)
            if verdict is Verdict.DONE_ALREADY:
                raise NotOurCluster(stale_words(self._settings))
        if self._owes_seals and self.set.entry(self._me) is None:
            await self._events.keep()  # see `Admission.complete`
            await self._seal()
            self._owes_seals = False

    # Calls.

    async def answer(self, call: RebuildCall) -> CopiesReply | RebuildingReply | HeldReply:
        """Answer a donor or a person.

        Raises:
            Rejected, BadSetting: an order that makes no sense.
            CordwoodError: the metadata store, or LogsDB, cannot be read.
        """
        if isinstance(call, AskCopies):
            return await words_of(self._engine, call)
        if isinstance(call, AskHeld):
            return await self._held.look(call)
        if isinstance(call, SayRebuild):
            await self._obey(call)
        elif isinstance(call, SayRebalance):
            await self._rebalance(call)
        else:
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self.refresh(strictly=True)
            except (Retryable, TimeoutError):
                await self.refresh()
        return RebuildingReply(pack_set(self.set), self._donor.state(), self._healing())

    async def _obey(self, call: SayRebuild) -> None:
        members = self._members()
        node = call.node
        if NodeId(node) not in members:
            known = ", ".join(map(str, sorted(members)))
            raise BadSetting(f"there is no node {node}; there are {known}")
        is_up = NodeId(node) not in self._dead()
        if is_up and call.order in (RebuildOrder.START, RebuildOrder.GONE):
            raise Rejected(
                f"node {node} is up, so its data is not lost: stop it, and wait some seconds until "
                "the others take it for dead. To take a node out that is up, drain it"
            )
        entry = self.set.entry(node)
        if call.order is RebuildOrder.ABORT and entry is not None and not entry.is_empty:
            await self._membership.owe_seals(NodeId(node))
        verdict = await self._say(self._event_of(call, tuple(sorted(members))))
        if verdict not in (Verdict.TAKEN, Verdict.UNCHANGED, *_carried_out(call.order)):
            raise Rejected(_words_of_refusal(node, verdict))

    async def _rebalance(self, call: SayRebalance) -> None:
        members = self._members()
        try:
            shares = tuple(Transfer(*each) for each in call.shares)
            msgspec.convert(msgspec.to_builtins(shares), tuple[Transfer, ...])
        except (ValueError, msgspec.ValidationError) as error:
            raise BadSetting(f"nothing can be given so: {error}") from None
        unknown = {node for each in shares for node in (each.source, each.target)} - set(members)
        if unknown:
            known = ", ".join(map(str, sorted(members)))
            raise BadSetting(f"there is no node {min(unknown)}; there are {known}")
        verdict = await self._say(Rebalance(shares))
        if verdict not in (Verdict.TAKEN, Verdict.UNCHANGED):
            raise Rejected(f"nothing is rebalanced: {verdict.value}; see `cordwood rebuild`")

    def _event_of(self, call: SayRebuild, nodes: tuple[int, ...]) -> RebuildEvent:
        node = call.node
        match call.order:
            case RebuildOrder.START:
                return NeedsRebuild(node, nodes, forced=call.forced)
            case RebuildOrder.DRAIN:
                return NeedsRebuild(node, nodes, drain=True, forced=call.forced)
            case RebuildOrder.GONE:
                return Unrecoverable(node)
            case RebuildOrder.UNDRAIN:
                return Undrained(node)
            case RebuildOrder.ABORT:
                return Aborted(node)


def stale_words(settings: NodeSettings) -> str:
    """The error of a node that must not serve its old copies."""
    return (
        f"node {settings.node} was away, and its data was made anew on other nodes meanwhile: "
        f"remove {settings.directory} (or move it away), and start the node again. It joins empty"
    )


def _carried_out(order: RebuildOrder) -> tuple[Verdict, ...]:
    """Verdicts that mean that an order was already carried out.

    A client sends an order a second time if the first node does not answer in time. With `Rejected`
    as the answer, the client would believe that the order had no effect.
    """
    takes_back = order in (RebuildOrder.UNDRAIN, RebuildOrder.ABORT)
    return (Verdict.UNKNOWN_NODE,) if takes_back else ()


def _words_of_refusal(node: int, verdict: Verdict) -> str:
    hints = {
        Verdict.TOO_MANY: "; bring nodes back first, or insist with --force",
        Verdict.UNKNOWN_NODE: "; see `cordwood rebuild`",
        Verdict.DONE_ALREADY: "; start it with an empty directory",
    }
    return f"node {node}: {verdict.value}{hints.get(verdict, '')}"
