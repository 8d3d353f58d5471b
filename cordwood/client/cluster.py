"""A client's view of the cluster: members, connections, logs by name.

Source: docs/design.md §7.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from cordwood.client.admin.changes_again import UnansweredChanges
from cordwood.client.find.log_finding import ASK_ONE_S, CHECK_S, LogFinding
from cordwood.client.find.log_info import AnyLog as AnyLog
from cordwood.client.find.log_info import LogInfo as LogInfo
from cordwood.client.find.log_info import log_info as log_info
from cordwood.client.find.status_questions import StatusQuestions, Told
from cordwood.errors import Closed, CordwoodError, Malformed, Overloaded, Retryable, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.changes import without_answer
from cordwood.layout.frame import Frame, Kind
from cordwood.layout.hello import ANY_CLUSTER, Hello
from cordwood.layout.message import Call, Reply, check_call
from cordwood.layout.message_logs import EpochNodes
from cordwood.layout.message_nodes import AskMembers, MemberInfo, MembersReply
from cordwood.layout.tokens import pack_tokens
from cordwood.nodes import Authority, Member, NodeId, Nodeset, Replication
from cordwood.quorum.authority import HAS_DATA
from cordwood.quorum.sequencer_placement import sequencer_order
from cordwood.wire.connection import Connection, FrameHandler, dial
from cordwood.wire.peers import Peers

logger = logging.getLogger(__name__)

REFRESH_S = 5.0
"""How often the member list is read again; moves are rare, and errors refresh too."""

CUT_OFF_S = 1.0
"""When no known node is up, the client also tries its first addresses. This is the time that one of
them may take, and the pause before they are tried again."""

NEXT_ADDRESS_S = 0.5
"""The time that an address may take before the next address is asked as well. A node answers within
milliseconds, unless it hangs or is cut off."""

ASK_AGAIN_S = 0.05
ASK_AGAIN_MAX_S = 1.0
"""Pauses before all nodes are asked again: short while nodes are down, growing while nodes are
overloaded, so that refused clients do not return all at once."""


class NodeListener(Protocol):
    """A part of a client that follows nodes and owns kinds of frames; see `wire.peers`."""

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of frames that belong to it."""

    def on_node_up(self, node: NodeId, connection: Connection) -> None: ...
    def on_node_down(self, node: NodeId, connection: Connection) -> None: ...
    def on_node_frame(self, node: NodeId, connection: Connection, frame: Frame) -> None: ...


class Cluster(LogFinding):
    """See the module. `start` must have returned before anything else is called.

    Attributes:
        members: nodes by number, as last read.
        dead: members that the last answering node takes for dead.
        tier_store: the address of main storage, as nodes report it; "" for none.
        statuses: last reported statuses of nodes that are not fully authoritative; see
            `Nodes.set_authority`.
        statuses_at: the loop's time from which they are: a node read them then, or later. A return
            of a node that was reported before it is in them.
        on_statuses: called when a status changed, with True if a node's data now lies elsewhere.
        unanswered: changes of names that had no answer.
    """

    def __init__(
        self,
        host: Host,
        addresses: Sequence[str],
        tasks: asyncio.TaskGroup,
        write_tokens: Iterable[str] = (),
        member: Hello | None = None,
    ) -> None:
        """
        Args:
            write_tokens: shown to nodes, so that they take appends to logs that ask for a token.
            member: the greeting of the node that owns this client, None for an application's
                client. Nodes ask a node's client for no token, as they ask one another for none.
        Raises:
            BadSetting: there are too many.
        """
        super().__init__()
        tokens = [*write_tokens]
        self._shown = pack_tokens(tokens) if tokens else b""
        self._host = host
        self._addresses = addresses
        self._tasks = tasks
        self._member = member
        self._cluster = ANY_CLUSTER if member is None else member.cluster
        self._listeners: list[NodeListener] = []
        self._owners: dict[int, NodeListener] = {}
        self.members: dict[NodeId, Member] = {}
        self.dead: frozenset[NodeId] = frozenset()
        self.tier_store = ""
        self._checking: dict[NodeId, asyncio.Task[None]] = {}
        self.statuses: dict[NodeId, Authority] = {}
        self.statuses_at = -math.inf
        self._members_at = -math.inf  # when the question was asked that gave `members`
        self.on_statuses: Callable[[bool], None] | None = None
        self.unanswered = UnansweredChanges()
        self._nodesets: dict[tuple[tuple[int, ...], tuple[str, ...]], Nodeset] = {}
        self.peers = Peers(host, self._hello, tasks, self)
        self._refresher: asyncio.Task[None] | None = None
        self._status_questions = StatusQuestions(
            tasks, lambda: self.refresh_members(timeout_s=REFRESH_S), lambda: self.statuses_at
        )
        # Set when the last connection was lost: perhaps only the first addresses know the nodes
        # that are left.
        self._cut_off = asyncio.Event()

    def add_listener(self, listener: NodeListener) -> None:
        """Tell `listener` of nodes from now on."""
        self._listeners.append(listener)
        self._owners.update(dict.fromkeys(listener.kinds, listener))

    async def start(self, *, timeout_s: float) -> None:
        """Find the cluster through any of the addresses.

        Raises:
            Unreachable: no node answered in time; the text says how to start a node.
            Overloaded: a node has too many connections, and no other node answered.
            NotOurCluster: a node of another cluster, or another service, answered.
        """
        await self._find(min(timeout_s, ASK_ONE_S))
        self._refresher = self._tasks.create_task(self._refresh())

    async def _find(self, one_s: float) -> None:
        """Read the member list through any of the addresses, each within the time limit; raises as
        `start`.

        The next address is asked when one failed, or did not answer for NEXT_ADDRESS_S.
        """
        failures: dict[str, CordwoodError] = {}
        left = list(self._addresses)
        asking: dict[asyncio.Task[tuple[Reply, float]], str] = {}
        try:
            while left or asking:
                if left:
                    address = left.pop(0)
                    asking[asyncio.ensure_future(self._ask_members(address, one_s))] = address
                # A node that hangs costs NEXT_ADDRESS_S, not the whole time of one.
                patience_s = NEXT_ADDRESS_S if left else None
                answered, _ = await asyncio.wait(
                    asking, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
                )
                for task in [each for each in asking if each in answered]:
                    address = asking.pop(task)
                    try:
                        self._learn(*task.result())
                    except CordwoodError as error:
                        failures[address] = error
                    else:
                        return
                for address in self._addresses:
                    if address not in failures:
                        break  # it may still lead to the cluster
                    if not isinstance(failures[address], Retryable):
                        raise failures[address]
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        told = [f"{each}: {failures[each]}" for each in self._addresses]
        crowded = [f"{at}: {why}" for at, why in failures.items() if isinstance(why, Overloaded)]
        if crowded:
            raise Overloaded(f"the cluster takes no more connections now ({'; '.join(crowded)})")
        raise Unreachable(
            f"no Cordwood node answers at {', '.join(self._addresses)} "
            f"({'; '.join(told)}). Start one with `cordwood up`."
        )

    async def _ask_members(self, address: str, one_s: float) -> tuple[Reply, float]:
        """The member list of the node that answers at an address, and when it was asked for."""
        hello = self._hello(NodeId(0))
        connection = await dial(self._host.network, address, hello, _Deaf(), timeout_s=one_s)
        try:
            asked_at = self._loop.time()
            return await connection.call(AskMembers(), timeout_s=one_s), asked_at
        finally:
            connection.close()

    async def close(self) -> None:
        """Close every connection."""
        self._closed = True
        if self._refresher is not None:
            self._refresher.cancel()
        self._status_questions.close()
        for task in list(self._learning.values()):
            task.cancel()
        await self.peers.close()

    async def call_any(self, message: Call, *, timeout_s: float) -> Reply:
        """Ask any node that is up, one after another until one answers.

        Raises:
            BadSetting: no node could read it.
            Unreachable: none answered in time.
            Overloaded: all that answered had too much to do, all the time.
            OutcomeUnknown: the client was closed after a node had got a change.
            CordwoodError: the first node that answered refused.
        """
        return await self.ask_any(message, timeout_s=timeout_s, asked=[])

    async def ask_any(self, message: Call, *, timeout_s: float, asked: list[Connection]) -> Reply:
        """As `call_any`.

        Args:
            asked: the connections that were asked the same, which are asked last. It takes those
                that this call asks, one entry for each try.
        """
        check_call(message)
        silent: list[Unreachable] = []
        try:
            return await self._ask_until_answered(message, timeout_s, asked, silent)
        except Closed as error:
            raise self._closed_meanwhile(message, silent, error) from None

    @staticmethod
    def _closed_meanwhile(
        message: Call, silent: Sequence[Unreachable], error: Closed
    ) -> CordwoodError:
        # Trap: the client was closed before it could ask another node. The node that did not
        # answer may have carried the call out.
        return without_answer(message, error) if silent else error

    async def _ask_until_answered(
        self,
        message: Call,
        timeout_s: float,
        asked: list[Connection],
        silent: list[Unreachable],
    ) -> Reply:
        """See `ask_any`; `silent` takes the errors of tries that may have been carried out."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        failure: Retryable = Unreachable("no node of the cluster is up")
        pause_s = ASK_AGAIN_S
        while (left := deadline - loop.time()) > 0:
            self.check_open()
            for connection in self._least_asked(asked):
                if left <= 0:
                    break
                asked.append(connection)
                try:
                    return await connection.call(message, timeout_s=left, answer_s=ASK_ONE_S)
                except (Unreachable, Overloaded) as error:
                    if isinstance(error, Unreachable):
                        silent.append(error)
                    failure = error
                    left = deadline - loop.time()
            if isinstance(failure, Overloaded):
                pause_s = self._longer(pause_s)
            await asyncio.sleep(min(pause_s, max(0.0, deadline - loop.time())))
        raise failure

    def new_mark(self) -> str:
        """A text for one call. By it a node recognises a second try of the same call."""
        return f"{self._host.random.getrandbits(96):024x}"

    def _least_asked(self, asked: Collection[Connection] = ()) -> list[Connection]:
        """Open connections, those with the fewest of our calls first, then in node order. So
        simultaneous calls spread over the nodes. Those in `asked` come last."""
        up = [each for each in map(self.peers.get, self.peers.up) if each is not None]
        return sorted(up, key=lambda connection: (connection in asked, connection.calls))

    def _longer(self, pause_s: float) -> float:
        """The pause after one of `pause_s`, with chance in it."""
        return min(ASK_AGAIN_MAX_S, pause_s * self._host.random.uniform(1.0, 2.0))

    async def call_node(self, node: NodeId, message: Call, *, timeout_s: float) -> Reply:
        """Ask one node, and again for as long as it has too much to do, all within `timeout_s`.

        Raises:
            Unreachable: no connection or no answer in time.
            Overloaded: it had too much to do all the time.
            BadSetting: no node could read the call.
            CordwoodError: the node refused.
        """
        check_call(message)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        pause_s = ASK_AGAIN_S
        while True:
            left = max(0.001, deadline - loop.time())
            try:
                return await self.peers.call(node, message, timeout_s=left)
            except Overloaded:
                pause_s = self._longer(pause_s)
                if loop.time() + pause_s >= deadline:
                    raise
            await asyncio.sleep(pause_s)

    async def dial_node(
        self, node: NodeId, handler: FrameHandler, *, timeout_s: float
    ) -> Connection:
        """A connection of the caller's own to a node; the caller closes it.

        Raises:
            Unreachable: it is no member, or does not answer.
        """
        member = self.members.get(node)
        if member is None:
            raise Unreachable(f"node {node} is not in the cluster")
        return await dial(
            self._host.network, member.address, self._hello(node), handler, timeout_s=timeout_s
        )

    def sequencers(self, log: int) -> tuple[NodeId, ...]:
        """Nodes in the order in which they should sequence a log; the dead come last."""
        return sequencer_order(log, self.members.values(), self.dead)

    def check_node(self, node: NodeId) -> None:
        """Ask the other nodes about a node that does not answer. If they take it for dead, close
        the connection to it.

        One question at a time for each node; waiting calls learn of it by the connection's end.
        """
        if node not in self._checking and not self._closed:
            task = self._checking[node] = self._tasks.create_task(self._check_node(node))
            task.add_done_callback(lambda _: self._checking.pop(node, None))

    async def _check_node(self, node: NodeId) -> None:
        others = [each for each in self.peers.up if each != node]
        if not others:
            return
        asked = others[self._host.random.randrange(len(others))]
        asked_at = self._loop.time()
        try:
            self._learn(await self.peers.call(asked, AskMembers(), timeout_s=CHECK_S), asked_at)
        except CordwoodError as error:
            logger.debug("node %d could not be asked about node %d: %s", asked, node, error)
        connection = self.peers.get(node)
        if node in self.dead and connection is not None:
            connection.fail(Unreachable(f"node {node} does not answer, and others call it dead"))
        await asyncio.sleep(CHECK_S / 2)

    def nodeset_of(self, info: LogInfo, epoch: int) -> tuple[Nodeset, Replication] | None:
        """The nodeset and replication of an epoch; None while they, or the address of one of these
        nodes, are not known."""
        found: EpochNodes | None = None
        for each in info.history:
            if each.since <= epoch:
                found = each
        if found is None or epoch > info.epoch:
            return None
        key = tuple(found.nodes), tuple(found.locations)
        nodeset = self._nodesets.get(key)
        if nodeset is None:
            if not all(NodeId(node) in self.members for node in found.nodes):
                return None
            nodeset = self._nodesets[key] = Nodeset.recorded(*key, self.members)
        return nodeset, found.replication

    @property
    def is_member(self) -> bool:
        """Whether this is a node's client, which needs no token of a log."""
        return self._member is not None

    @property
    def cluster_id(self) -> bytes:
        """The cluster's identity, 16 bytes, as its nodes told it."""
        return self._cluster

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def check_open(self) -> None:
        """Raise Closed once the client is closed, and as `check_loop`."""
        self.check_not_closed()
        self.check_loop()

    def check_not_closed(self) -> None:
        """Raise Closed once the client is closed; for calls that cost hardly more than a look at
        the loop."""
        if self._closed:
            raise Closed("this client was closed")

    # What peers tell.

    def on_peer_up(self, node: NodeId, connection: Connection) -> None:
        """See `wire.peers.PeerListener`."""
        if self._shown:
            connection.send(Kind.TOKENS, 0, (self._shown,))  # before any append
        for listener in self._listeners:
            listener.on_node_up(node, connection)

    def on_peer_down(self, node: NodeId, connection: Connection) -> None:
        """See `wire.peers.PeerListener`."""
        if not self.peers.up:
            self._cut_off.set()
            # The node that called others gone or empty may not be heard again for long.
            self.statuses = {n: s for n, s in self.statuses.items() if s in HAS_DATA}
        for listener in self._listeners:
            listener.on_node_down(node, connection)

    def on_peer_frame(self, node: NodeId, connection: Connection, frame: Frame) -> None:
        """See `wire.peers.PeerListener`."""
        owner = self._owners.get(frame.kind)
        if owner is None:
            raise Malformed(f"a node sent a client a frame of kind {frame.kind}")
        owner.on_node_frame(node, connection, frame)

    # Inside.

    def _hello(self, wanted: NodeId) -> Hello:
        if self._member is not None:
            return replace(self._member, wanted=wanted)
        return Hello(0, self._cluster, 0, wanted)

    def _learn(self, reply: Reply, asked_at: float) -> None:
        assert isinstance(reply, MembersReply), "AskMembers is answered with members"
        self._cluster = reply.cluster
        self.dead = frozenset(NodeId(node) for node in reply.dead)
        self.tier_store = reply.tier_store
        self.note_changes(reply.log_changes, asked_at)
        self._want(reply.members, asked_at)
        self._learn_statuses(reply.members, asked_at - reply.age_ms / 1000)

    def _want(self, members: Sequence[MemberInfo], asked_at: float) -> None:
        self._nodesets.clear()
        told = {
            NodeId(m.node): Member(
                NodeId(m.node),
                m.address,
                m.location,
                m.incarnation,
                m.weight,
                m.authority,
                m.read_only,
                fill=m.fill,
            )
            for m in members
        }
        # Race: a later question was answered sooner. Only nodes that are new are news then.
        self.members = told if asked_at >= self._members_at else told | self.members
        self._members_at = max(self._members_at, asked_at)
        self.peers.want({node: member.address for node, member in self.members.items()})

    def _learn_statuses(self, members: Sequence[MemberInfo], read_at: float) -> None:
        """Take statuses, unless later ones are known. The answer to a look-up of a log does not
        say from when its statuses are, so it gives none."""
        if read_at < self.statuses_at:
            return
        before, full = self.statuses, Authority.FULLY_AUTHORITATIVE
        self.statuses_at = read_at
        self.statuses = {
            NodeId(each.node): each.authority for each in members if each.authority is not full
        }
        if self.statuses != before and self.on_statuses is not None:
            empty = Authority.AUTHORITATIVE_EMPTY
            moved = (node for node, status in self.statuses.items() if status is empty)
            self.on_statuses(any(before.get(node) is not empty for node in moved))

    def want_statuses(self, since: float, told: Told) -> None:
        """Call `told` once the statuses are from `since` or later. They are asked for until then,
        also while no node answers."""
        self._status_questions.want(since, told)

    async def refresh_members(self, *, timeout_s: float) -> None:
        """Read the member list anew.

        Raises:
            Unreachable: no node answered in time.
        """
        # Trap: from before the first node is asked, since an answer says nothing of a later time.
        asked_at = self._loop.time()
        self._learn(await self.call_any(AskMembers(), timeout_s=timeout_s), asked_at)

    async def _refresh(self) -> None:
        while True:
            self._cut_off.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_S if self.peers.up else CUT_OFF_S):
                    await self._cut_off.wait()
            try:
                if self.peers.up:
                    await self.refresh_members(timeout_s=REFRESH_S)
                else:
                    await self._find(CUT_OFF_S)
            except CordwoodError as error:
                logger.debug("the member list could not be read: %s", error)


class _Deaf:
    """The handler of a connection that is used only for calls."""

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        """Ignore the frame: no frame other than replies is expected."""

    def on_lost(self, connection: Connection, error: CordwoodError) -> None:
        """The caller sees it in its call."""
