"""Rebuilding on one node: it follows the event log, works as a donor, and reports losses.

The node reads the event log (`metadata.event_log`) together with the member list. If the event log
is a log, the node also follows it between two readings of the member list. The status of a node's
data is derived from it here, over what an operator said by hand. While neither can be read, the
last set that was read counts.

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
from cordwood.nodes import Authority, Member, NodeId, Nodeset, Replication
from cordwood.protocol.event_log import (
    Verdict,
    authority_of,
    gives,
    gives_last,
    left_out,
    refuses,
    with_holder,
)
from cordwood.protocol.rebuild_watch import LossWatch, Start, on_start
from cordwood.quorum.authority import rebuilt_nodes
from cordwood.rebuilding import (
    Aborted,
    DonorProgress,
    Gave,
    IsRebuilt,
    NeedsRebuild,
    RebuildEvent,
    RebuildingSet,
    Undrained,
)
from cordwood.settings import NodeSettings
from cordwood.storage.rebuild.copies import words_of
from cordwood.storage.rebuild.donor import Donor
from cordwood.storage.rebuild.donor_pace import DonorPace
from cordwood.storage.rebuild.donor_pass import Pass, given_so_far
from cordwood.storage.rebuild.drain_orders import CheckPlaces, DrainOrders
from cordwood.storage.rebuild.epoch_nodesets import heard_nodesets, told_nodesets
from cordwood.storage.rebuild.held_groups import HeldGroups
from cordwood.storage.rebuild.main_copies import FindMain
from cordwood.storage.rebuild.members_now import joined_now, members_now
from cordwood.storage.rebuild.moves import Moves
from cordwood.storage.rebuild.order_events import (
    Obeyed,
    carried_out,
    event_of,
    is_carried_out,
    stale_words,
    words_of_refusal,
    words_of_report,
)
from cordwood.storage.rebuild.rebalance_orders import obey_rebalance
from cordwood.storage.rebuild.staged_moves import StagedMoves
from cordwood.wire.peers import Peers, wait_at_most
from cordwood.wire.store_channel import StoreChannel

if TYPE_CHECKING:
    from cordwood.host.seams import Host
    from cordwood.metadata.event_log import EventLog, Holds
    from cordwood.metadata.joins import Joins
    from cordwood.metadata.membership import Membership
    from cordwood.storage.engine import StorageEngine
    from cordwood.storage.rebuild.epoch_nodesets import ReadRecord
    from cordwood.storage.staging.staging import Staging

logger = logging.getLogger(__name__)

RebuildCall = AskCopies | SayRebuild | AskRebuilding | SayRebalance | AskHeld

AGAIN_S = 1.0
"""Pause between two passes of a donor that could not finish."""

NOTED_AGAIN_S = 10.0
NOTED_AGAIN_MAX_S = 640.0
"""Pause after a pass that could not finish noted moves, where no node waits for this donor; twice
as long after each, because each pass reads all heads."""

LOOK_S = 1.0
"""Pause between two looks for dead nodes."""

ANSWER_S = 1.0
"""How long a person's question waits for the tail of the event log, before the set as known
answers it: callers that ask each node wait for two seconds."""

PROGRESS_S = 5.0
"""Pause between two events of progress: each is a write of the whole set."""

NEWS_TIMEOUT_S = 2.0
"""The longest wait for a node that is told of an event. That node will also learn of it with its
next reading of the member list."""


class RebuildRole:
    """See the module.

    Attributes:
        set: the rebuilding set as last read.
        staging: the staged blocks of this node, set before `connect`.
        owes_drain: whether this node is to order its own drain again, see `Admission`.
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
        joins: Joins,
        healing: Callable[[], HealState],
    ) -> None:
        """
        Args:
            healing: the state of healing this node's WAL.
            seal: seals every log up to its newest epoch: some epochs may have been recovered
                without this node.
        """
        self.set = RebuildingSet()
        self.owes_drain = False
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
        self._joins = joins
        self._healing = healing
        self._owes_seals = False
        self._watch = LossWatch(self._me, settings.rebuild_after_s)
        self._changed = asyncio.Event()
        self._has_news = asyncio.Event()
        self._told: str = ""
        self._told_lost: dict[NodeId, Verdict] = {}
        self._given = Gave(self._me, 0)
        self._donor: Donor
        self._held = HeldGroups(engine, members, read_record)
        self._pace: DonorPace
        self._peers: Peers
        self._drains: DrainOrders
        self._dead: Callable[[], Set[NodeId]] = frozenset
        self._dies: Callable[[NodeId], Awaitable[bool]]

    def connect(
        self,
        peers: Peers,
        channel: StoreChannel,
        dead: Callable[[], Set[NodeId]],
        silent: Callable[[], Set[NodeId]],
        dies: Callable[[NodeId], Awaitable[bool]],
        run_bytes: Callable[[], int],
        check_places: CheckPlaces,
        main: FindMain,
    ) -> None:
        """Take the ways to the other nodes. They exist later than the node's store.

        Args:
            dies: see `Gossip.dies`.
            check_places: see `DrainOrders`.
        """

        def available() -> frozenset[NodeId]:
            return frozenset(peers.up) - silent()

        self._peers = peers
        moves = Moves(self._me, peers, channel, self._host.random, available, run_bytes, main)
        staged = StagedMoves(
            self._me, self.staging, peers, self._newest_nodeset, self._host.random, available
        )
        self._pace = DonorPace(float(self._settings.storage.rebuild_bytes_s), self._engine.waits)
        self._dead = dead
        self._dies = dies
        self._drains = DrainOrders(
            lambda: self.set, self.refresh, self._say, self._read_record, self._members, dead,
            check_places,
        )  # fmt: skip
        self._donor = Donor(
            self._me, self._engine, self._members, self._read_record, peers, moves, staged,
            self._pace, run_bytes, main,
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

    # The set, and its consequences.

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

    def on_sure(self) -> None:
        """This node's data is what the cluster has: its donor may look for noted moves."""
        self._changed.set()

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

    def told_statuses(self) -> frozenset[NodeId]:
        """The nodes to which the set gives a status."""
        return frozenset(NodeId(each.node) for each in self.set.lost if not each.ranges)

    def refused(self, members: Iterable[Member]) -> frozenset[NodeId]:
        """Nodes that no copyset of a new block may name."""
        mine = frozenset({self._me} if self._owes_seals else ())
        return rebuilt_nodes(members) | frozenset(map(NodeId, refuses(self.set))) | mine

    # Working.

    async def run(self) -> None:
        """Work as a donor, until cancelled."""
        noted_pause_s = NOTED_AGAIN_S
        while True:
            self._changed.clear()
            rebuilding = self.set
            if not self._donor.has_work(rebuilding):
                self._donor.rest()
                noted_pause_s = NOTED_AGAIN_S
                await self._changed.wait()
                continue
            made = await self._work(rebuilding)
            self._given = given_so_far(self._me, self._given, made)
            if await self._ask_to_give(made) or (made.is_done and await self._say_done(made)):
                await self._wait_for_others(made)
                continue
            if made.blocked and made.blocked != self._told:
                logger.warning("rebuilding waits: %s", made.blocked)
            self._told = made.blocked
            if self._donor.has_order(rebuilding):
                noted_pause_s = NOTED_AGAIN_S
                await wait_at_most(self._changed, AGAIN_S)
            else:
                await wait_at_most(self._changed, noted_pause_s)
                noted_pause_s = min(NOTED_AGAIN_MAX_S, 2 * noted_pause_s)

    async def _work(self, rebuilding: RebuildingSet) -> Pass:
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(self._tell_progress(rebuilding))
            if not self._donor.has_order(rebuilding):
                telling.cancel()  # no order waits for it
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
        lost_nodes = self._donor.work_left(made.rebuilding)
        try:
            if lost_nodes and await self._ask_left_out():
                return True
            for lost in lost_nodes:
                if lost == self._me and made.looks_again(self._me):
                    continue
                event = IsRebuilt(lost, self._me, made.rebuilding.version, not made.is_uncertain)
                verdict = await self._say(event)
                logger.info("node %d: what this node had to give is given: %s", lost, verdict.value)
            if gives(made.rebuilding, self._me):
                verdict = await self._say(self._given)
                logger.info("this node gave its part of a rebalance: %s", verdict.value)
        except CordwoodError as error:
            made.report.trouble = f"that rebuilding is done could not be said: {error}"
            return False
        return True

    async def _wait_for_others(self, made: Pass) -> None:
        """Wait until the other donors are done, if this node then looks once more."""
        version = made.rebuilding.version if made.looks_again(self._me) else None
        while self.set.version == version and not gives_last(self.set, self._me):
            self._changed.clear()
            await wait_at_most(self._changed, AGAIN_S)
            try:
                await self.refresh()
            except CordwoodError as error:
                logger.info("which donors are done is not read: %s", error)

    async def _ask_to_give(self, made: Pass) -> bool:
        """Become a donor of lost nodes of which blocks here lack copies. Returns whether the set
        has changed by it."""
        event = with_holder(made.rebuilding, made.short_of, self._me)
        if event is None:
            return False
        try:
            verdict = await self._say(event)
        except CordwoodError as error:
            made.report.trouble = f"that this node has to give blocks could not be said: {error}"
            return False
        logger.warning(
            "node %d: an end of an epoch has too few copies, and this node is a donor of them: %s",
            event.node, verdict.value,
        )  # fmt: skip
        made.is_cut = verdict is not Verdict.TAKEN
        return not made.is_cut

    async def _ask_left_out(self) -> bool:
        """Make donors of the members that an entry leaves out. Returns whether there was one: all
        donors begin anew then."""
        members = await members_now(self._membership, self._peers, self._members())
        event = left_out(self.set, members, self._me)
        if event is not None:
            event = left_out(self.set, members, self._me, await joined_now(self._joins))
        if event is None:
            return False
        verdict = await self._say(event)
        logger.warning(
            "node %d: not all members were asked for what it lost, so all are: %s",
            event.node, verdict.value,
        )  # fmt: skip
        return True

    async def _say(self, event: RebuildEvent, holds: Holds | None = None) -> Verdict:
        before = self.set.version
        after, verdict = await self._events.say(event, holds)
        self.take(after)
        if verdict is Verdict.TAKEN and after.version != before:
            self._has_news.set()
        return verdict

    async def tell_news(self) -> None:
        """Tell the other nodes to read each new version of the set that this node wrote, until
        cancelled.

        Without this they would read it with their next member list, and a rebuilding lasts until
        its last donor is done.
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
                    self._tell_lost(event.node, await self._say(event))
            except NotOurCluster:
                raise
            except CordwoodError as error:
                logger.warning("the loss could not be reported: %s", error)

    def _tell_lost(self, node: int, verdict: Verdict) -> None:
        """Log the effect of a report, once. A refused report is repeated each second."""
        dead = self._dead()
        self._told_lost = {n: told for n, told in self._told_lost.items() if n in dead}
        if self._told_lost.get(NodeId(node)) is verdict:
            return
        self._told_lost[NodeId(node)] = verdict
        logger.warning("node %d is lost: %s", node, words_of_report(node, verdict))

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
            self.owes_drain = entry.drain
        if self._owes_seals and self.set.entry(self._me) is None:
            await self._events.keep()  # see `Admission.complete`
            await self._seal()
            self._owes_seals = False
        if self.owes_drain and not self._owes_seals:
            nodes = tuple(sorted(self._members()))
            try:
                await self._drains.begin(NeedsRebuild(self._me, nodes, drain=True, forced=True))
            except Rejected as error:
                logger.warning("the drain of this node ended with its loss: %s", error)
            self.owes_drain = False

    async def is_counted_on(self) -> bool:
        """Whether recoveries count on this node, by all events from before the call, and for good.

        Raises:
            CordwoodError: the metadata store, or the event log, did not answer.
        """
        if self._is_counted_on():
            await self.refresh(strictly=True)
            await self._events.keep()  # see `Admission.complete`
        return self._is_counted_on()

    def _is_counted_on(self) -> bool:
        status = authority_of(self.set, self._me)
        return not self._owes_seals and status is Authority.FULLY_AUTHORITATIVE

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
            await self.obey(call)
        elif isinstance(call, SayRebalance):
            await obey_rebalance(
                call, self._members(), lambda: self.set, lambda: self.refresh(strictly=True),
                self._say,
            )  # fmt: skip
        else:
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self.refresh(strictly=True)
            except (Retryable, TimeoutError):
                await self.refresh()
        return self.reply()

    def reply(self) -> RebuildingReply:
        """The set as known, and this node's part."""
        return RebuildingReply(pack_set(self.set), self._donor.state(), self._healing())

    async def obey(self, call: SayRebuild, *, anew: bool = False) -> Obeyed:
        """Carry out an order about a node.

        Args:
            anew: a drain that is under way begins anew, as another drain.
        Raises:
            Rejected, BadSetting, Fenced: it makes no sense, or is late; see `DrainOrders`.
            CordwoodError: the set cannot be read or changed.
        """
        members = self._members()
        node = call.node
        came = self._drains.came(call)
        if NodeId(node) not in members:
            known = ", ".join(map(str, sorted(members)))
            raise BadSetting(f"there is no node {node}; there are {known}")
        if self._drains.has_changed(came):
            await self.refresh(strictly=True)
            if self._drains.has_changed(came) and is_carried_out(call.order, self.set.entry(node)):
                return Obeyed.SINCE
            self._drains.check_same(came)
        is_for_dead = call.order in (RebuildOrder.START, RebuildOrder.GONE)
        if is_for_dead and not await self._dies(NodeId(node)):
            raise Rejected(
                f"node {node} is up, so its data is not lost: stop it, and wait some seconds until "
                "the others take it for dead. To take a node out that is up, drain it"
            )
        entry = self.set.entry(node)
        if call.order is RebuildOrder.ABORT and entry is not None and not entry.is_empty:
            await self._membership.owe_seals(NodeId(node))
        # Read again: a node may have joined while this call waited, and be a donor.
        event = event_of(call, tuple(sorted(self._members())), anew=anew)
        if isinstance(event, NeedsRebuild) and event.drain:
            verdict = await self._drains.begin(event, came)
        elif isinstance(event, Undrained):
            verdict = await self._drains.end(came, unless_empty=call.unless_empty)
        elif isinstance(event, Aborted):
            verdict = await self._drains.abort(came)
        else:
            verdict = await self._drains.give(event, call.order, came)
        if verdict not in (Verdict.TAKEN, Verdict.UNCHANGED, *carried_out(call.order)):
            raise Rejected(words_of_refusal(node, verdict))
        if verdict is Verdict.TAKEN:
            return Obeyed.TAKEN
        return Obeyed.UNCHANGED if came.holds(self.set) else Obeyed.SINCE
