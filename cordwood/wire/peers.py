"""Connections to other nodes, kept up as long as a user wants them.

A keeper per wanted node dials, greets, watches for silence and dials again with
a growing pause. A user of a peer learns when the peer connects and disconnects, and sends only in
between.

Source: CONTRIBUTING.md, "The idea" ("ask, feed the answer to the rule"); docs/sources/logdevice.md
2.14.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from cordwood.errors import CordwoodError, Retryable, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.frame import Frame
from cordwood.layout.hello import Hello
from cordwood.layout.message import Call, Ping, Reply
from cordwood.nodes import NodeId
from cordwood.wire.connection import Connection, dial

logger = logging.getLogger(__name__)

DIAL_TIMEOUT_S = 2.0
"""A loaded loopback answers in milliseconds, a continent in 300; two seconds is silence."""

REDIAL_FIRST_S = 0.05
REDIAL_MAX_S = 1.0
"""A node that restarts is found within a second, and a dead node costs a packet a second."""

PING_EVERY_S = 3.0
PING_TIMEOUT_S = 3.0
"""A peer that is silently cut off, or stopped, is noticed within six seconds."""

DOUBT_S = 0.5
"""A peer that owes an answer for this long is pinged. Without it, the ping came up to three seconds
later, and every waiting caller with it. Most answers take milliseconds, so few pings are sent."""


class PeerListener(Protocol):
    """Listener to peers; called on the loop, must not block."""

    def on_peer_up(self, node: NodeId, connection: Connection) -> None:
        """A connection to `node` is ready."""

    def on_peer_down(self, node: NodeId, connection: Connection) -> None:
        """The connection was lost; frames sent on it may or may not have arrived."""

    def on_peer_frame(self, node: NodeId, connection: Connection, frame: Frame) -> None:
        """A data frame from `node`.

        Raises:
            CordwoodError: the frame is wrong; the connection is closed.
        """


class Peers:
    """See the module."""

    def __init__(
        self,
        host: Host,
        ours: Callable[[NodeId], Hello],
        tasks: asyncio.TaskGroup,
        listener: PeerListener,
    ) -> None:
        self._host = host
        self._ours = ours
        self._tasks = tasks
        self._listener = listener
        self._addresses: dict[NodeId, str] = {}
        self._keepers: dict[NodeId, asyncio.Task[None]] = {}
        self._up: dict[NodeId, Connection] = {}
        self._moved: dict[NodeId, asyncio.Event] = {}
        self._failed: dict[NodeId, int] = {}
        self._changed = asyncio.Event()

    def want(self, addresses: Mapping[NodeId, str]) -> None:
        """Keep connections to these nodes from now on; a new address is dialled at once."""
        for node in sorted(addresses):
            if self._addresses.get(node) != addresses[node]:
                self._addresses[node] = addresses[node]
                if node in self._moved:
                    self._moved[node].set()
            if node not in self._keepers:
                self._moved[node] = asyncio.Event()
                self._keepers[node] = self._tasks.create_task(self._keep(node))

    def get(self, node: NodeId) -> Connection | None:
        """The connection to `node`, if one is up."""
        return self._up.get(node)

    @property
    def up(self) -> tuple[NodeId, ...]:
        """Nodes with a connection now, in node order."""
        return tuple(sorted(self._up))

    async def wait_for(
        self, node: NodeId, *, timeout_s: float, dials: int | None = None
    ) -> Connection:
        """Wait for a connection to a wanted node.

        Args:
            dials: give up sooner, once this many more dials have failed: a machine that
                refuses is known to be without its node at once.
        Raises:
            Unreachable: none came within `timeout_s`, or `dials` failed.
        """
        connection = self._up.get(node)
        if connection is not None:
            return connection  # nearly always, and a deadline costs as much as a small call
        last = None if dials is None else self._failed.get(node, 0) + dials
        try:
            async with asyncio.timeout(timeout_s):
                while (connection := self._up.get(node)) is None:
                    if last is not None and self._failed.get(node, 0) >= last:
                        break
                    changed = self._changed
                    await changed.wait()
        except TimeoutError:
            connection = None
        if connection is None:
            address = self._addresses.get(node, "no address")
            raise Unreachable(f"node {node} at {address} cannot be reached")
        return connection

    async def wait_tried(self, nodes: Collection[NodeId], *, timeout_s: float) -> None:
        """Wait until each of `nodes` was reached or a dial to it failed, `timeout_s` at most."""
        try:
            async with asyncio.timeout(timeout_s):
                while any(n not in self._up and n not in self._failed for n in nodes):
                    changed = self._changed
                    await changed.wait()
        except TimeoutError:
            return

    async def call(self, node: NodeId, message: Call, *, timeout_s: float) -> Reply:
        """Wait for the node, then ask it, all within `timeout_s`.

        Raises:
            Unreachable: no connection or no answer in time.
            CordwoodError: the peer's error.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        connection = await self.wait_for(node, timeout_s=timeout_s)
        return await connection.call(message, timeout_s=max(0.001, deadline - loop.time()))

    async def close(self) -> None:
        """Stop every keeper and close every connection."""
        keepers = list(self._keepers.values())
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        for connection in list(self._up.values()):
            connection.close()

    async def _keep(self, node: NodeId) -> None:
        loop = asyncio.get_running_loop()
        pause_s = REDIAL_FIRST_S
        while True:
            moved = self._moved[node]
            moved.clear()
            try:
                connection = await self._dial(node)
            except CordwoodError as error:
                self._failed[node] = self._failed.get(node, 0) + 1
                self._announce()
                level = logging.DEBUG if isinstance(error, Retryable) else logging.WARNING
                logger.log(level, "no connection to node %d: %s", node, error)
            else:
                up_at = loop.time()
                await self._watch(connection)
                if loop.time() - up_at > REDIAL_MAX_S:
                    pause_s = REDIAL_FIRST_S
                    continue
                # A peer that greets and then refuses its frames is as useless as a silent peer:
                # without a pause each store caused a dial.
            await wait_at_most(moved, pause_s * self._host.random.uniform(0.5, 1.0))
            pause_s = min(REDIAL_MAX_S, pause_s * 2)

    async def _dial(self, node: NodeId) -> Connection:
        connection = await dial(
            self._host.network,
            self._addresses[node],
            self._ours(node),
            _PeerFrames(self, node),
            timeout_s=DIAL_TIMEOUT_S,
        )
        if not connection.is_open:
            raise Unreachable(f"node {node} closed the connection at once")
        self._up[node] = connection
        self._announce()
        self._listener.on_peer_up(node, connection)
        return connection

    async def _watch(self, connection: Connection) -> None:
        news = asyncio.Event()
        connection.on_closed = lambda _: news.set()
        while connection.is_open:
            await _until_in_doubt(connection, news)
            try:
                await connection.call(Ping(), timeout_s=PING_TIMEOUT_S)
            except CordwoodError as error:
                connection.fail(error)
        connection.close()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _lost(self, node: NodeId, connection: Connection) -> None:
        if self._up.get(node) is not connection:
            return  # the connection was lost before it was announced, so it has no users
        del self._up[node]
        self._announce()
        self._listener.on_peer_down(node, connection)


class _PeerFrames:
    """Tells the listener which node a frame or a loss belongs to."""

    def __init__(self, peers: Peers, node: NodeId) -> None:
        self._peers = peers
        self._node = node

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        self._peers._listener.on_peer_frame(self._node, connection, frame)

    def on_lost(self, connection: Connection, error: CordwoodError) -> None:
        self._peers._lost(self._node, connection)


async def _until_in_doubt(connection: Connection, news: asyncio.Event) -> None:
    """Wait until it is time to ping a peer: at regular times, and sooner if it owes an answer. The
    ping may be the first frame on a connection that has lost its other end."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + PING_EVERY_S
    silent = False

    def on_silent() -> None:
        nonlocal silent
        silent = True
        news.set()

    connection.on_silent = on_silent
    while connection.is_open and not silent and (left_s := ends_at - loop.time()) > 0:
        asked, is_owed = connection.asked, connection.waits_for(connection.asked)
        # In a series of calls only the first is a reason to wake.
        connection.on_asked = None if is_owed else news.set
        news.clear()
        await wait_at_most(news, min(left_s, DOUBT_S) if is_owed else left_s)
        if is_owed and connection.waits_for(asked):
            break
    connection.on_asked = connection.on_silent = None


async def wait_at_most(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for `event`, but not longer than `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
