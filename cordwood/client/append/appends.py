"""All appends of one client: their turns, their answers and the window they share.

Source: docs/design.md §4, §7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from cordwood.block import Buffer
from cordwood.client.append.append_limits import PRODUCERS_MAX, SWEEP_S
from cordwood.client.append.log_appends import LogAppends
from cordwood.client.append.outbox import Outbox
from cordwood.client.append.producer import Producer, ProducerPlace
from cordwood.client.append.record_check import Headers, record_bytes
from cordwood.client.append.window import Window
from cordwood.client.cluster import Cluster
from cordwood.client.own_loop import check_loop
from cordwood.errors import CordwoodError, Overloaded, RecordTooLarge
from cordwood.host.seams import Host
from cordwood.layout.frame import Frame, Kind
from cordwood.layout.message import read_append_faults, to_error
from cordwood.layout.waves import read_pairs
from cordwood.lsn import LogId
from cordwood.nodes import NodeId
from cordwood.settings import ClientSettings
from cordwood.wire.connection import Connection


class Appends:
    """See the module.

    Attributes:
        kinds: of the frames that belong to appends; see `cluster.NodeListener`.
    """

    kinds = frozenset((Kind.APPENDED, Kind.APPEND_FAULTS))

    def __init__(
        self, cluster: Cluster, host: Host, settings: ClientSettings, tasks: asyncio.TaskGroup
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.sent: dict[int, LogAppends] = {}
        self.last_token = 0
        # By log, the fencing token that this client appends under.
        self.fencing: dict[int, int] = {}
        self.window = Window(settings)
        self.outbox = Outbox(self.loop)
        self._cluster = cluster
        self._host = host
        self._settings = settings
        self._tasks = tasks
        self._logs: dict[tuple[int, ProducerPlace | None], LogAppends] = {}
        self._producers = 0
        self._dirty: dict[LogAppends, None] = {}
        # The logs with queued or sent blocks. A client that knows a thousand logs looks only at
        # these.
        self._watched: dict[LogAppends, None] = {}
        self._running: dict[asyncio.Task[None], None] = {}
        self._has_work = asyncio.Event()
        cluster.add_listener(self)
        self.spawn(self._sweep())

    def log(self, log: int, producer: Producer | None = None) -> LogAppends:
        """The appends to one log, those of each producer apart.

        Raises:
            Overloaded: PRODUCERS_MAX producers are in use.
        """
        # Producers that `Producer.again` made share their place in every other log. Apart, a later
        # call of one of them would get its sequences before a call that another still gathers.
        place = None if producer is None else producer.place(log)
        found = self._logs.get((log, place))
        if found is None:
            if producer is not None:
                if self._producers >= PRODUCERS_MAX:
                    self._forget_idle()
                self._producers += 1
            found = self._logs[log, place] = LogAppends(
                LogId(log), producer, self._cluster, self._host, self._settings, self
            )
        return found

    def _forget_idle(self) -> None:
        """Drop producers without open appends. A caller that goes on with such a producer gets a
        new queue."""
        for key in [k for k, each in self._logs.items() if k[1] is not None and each.is_idle]:
            del self._logs[key]
            self._producers -= 1
        if self._producers >= PRODUCERS_MAX:
            raise Overloaded(f"{PRODUCERS_MAX} producers have appends in flight in this client")

    def check_loop(self) -> None:
        """See `own_loop.check_loop`."""
        check_loop(self.loop)

    def check_record(
        self,
        value: Buffer,
        key: bytes | None,
        time_us: int | None,
        headers: Headers | None,
    ) -> int:
        """A record's bytes as blocks and the window count them.

        Raises:
            BadSetting: it cannot be encoded.
            RecordTooLarge: no block can hold it; with the limit.
        """
        size = record_bytes(value, key, time_us, headers)
        if size > self._settings.block_bytes:
            raise RecordTooLarge(
                f"a record of {size} bytes; this client's blocks hold "
                f"{self._settings.block_bytes} (client.block_bytes, 4 MiB at most)"
            )
        return size

    def mark_dirty(self, log: LogAppends) -> None:
        """`log` has a batch to cut at the end of this tick."""
        if not self._dirty:
            self.loop.call_soon(self._flush)
            self._has_work.set()
        self._dirty[log] = None

    def now_us(self) -> int:
        """Wall time, for the times of records."""
        return self._host.clock.now_us()

    def deadline(self) -> float:
        """The time at which a call that begins now must have ended, on the loop's clock."""
        return self.loop.time() + self._settings.timeout_s

    def next_token(self) -> int:
        """A number for a block, growing."""
        self.last_token += 1
        return self.last_token

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run a coroutine until it ends or the client closes."""
        task = self._tasks.create_task(work)
        self._running[task] = None
        task.add_done_callback(lambda done: self._running.pop(done, None))
        return task

    async def close(self, error: CordwoodError) -> None:
        """Fail all open appends."""
        for task in list(self._running):
            task.cancel()
        for log in self._logs.values():
            log.close(error)
        self.window.close(error)

    def on_node_up(self, node: NodeId, connection: Connection) -> None:
        """See `cluster.NodeListener`."""

    def on_node_down(self, node: NodeId, connection: Connection) -> None:
        """See `cluster.NodeListener`."""
        for log in self._logs.values():
            log.on_down(connection)

    def on_node_frame(self, node: NodeId, connection: Connection, frame: Frame) -> None:
        """See `cluster.NodeListener`."""
        if frame.kind == Kind.APPENDED:
            for token, first in read_pairs(frame.payload):
                log = self.sent.get(token)
                if log is not None:
                    log.on_acked(token, first, connection)
        else:
            for each in read_append_faults(frame.payload):
                log = self.sent.get(each.token)
                if log is not None:
                    error = to_error(each.fault)
                    log.on_fault(each.token, error, NodeId(each.node), connection)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, {}
        self._watched |= dirty
        for log in dirty:
            log.flush()
        self.outbox.send()

    async def _sweep(self) -> None:
        while True:
            if not (self._watched or self._dirty):
                self._has_work.clear()
                await self._has_work.wait()
            await asyncio.sleep(SWEEP_S)
            now = self.loop.time()
            for log in [each for each in self._watched if each.is_due(now)]:
                log.sweep(now)
            self._watched = {log: None for log in self._watched if log.has_work}
