"""A node's turns at tending main storage, beside its uploads.

Two tasks: the one tends the logs that this node uploads, the other the objects of no particular
node, which one node at a time tends (`protocol.upload_turns.tender_of`). A pass over many objects
may take minutes. Uploads and trims do not wait for it.

Source: docs/objects.md, "Deletion".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from cordwood.client.store import Store
from cordwood.errors import CordwoodError
from cordwood.host.seams import Host
from cordwood.metadata.log_info import LogInfo
from cordwood.nodes import NodeId
from cordwood.protocol.upload_turns import tender_of
from cordwood.settings import TierSettings
from cordwood.storage.said_once import SaidOnce
from cordwood.uploading.tend import Tend
from cordwood.uploading.tiered_logs import TieredLogs

logger = logging.getLogger(__name__)


class TendRole:
    """See the module; `run_logs` and `run_rest` do the work.

    Args:
        me: this node.
        logs: as the uploads read them.
        mine: the logs that this node uploads.
        connect: a client of this node.
        living: the living nodes, by number.
        has_let_go: whether this node dropped a copy that main storage holds.
        was_marked: whether the metadata store notes that main storage was marked.
    """

    def __init__(
        self,
        me: NodeId,
        host: Host,
        settings: TierSettings,
        logs: TieredLogs,
        tend: Tend,
        *,
        mine: Callable[[], Awaitable[Mapping[int, LogInfo]]],
        connect: Callable[[], AbstractAsyncContextManager[Store]],
        living: Callable[[], Sequence[NodeId]],
        has_let_go: Callable[[], bool],
        was_marked: Callable[[], Awaitable[bool]],
    ) -> None:
        self._me = me
        self._host = host
        self._settings = settings
        self._logs = logs
        self._tend = tend
        self._mine = mine
        self._connect = connect
        self._living = living
        self._has_let_go = has_let_go
        self._was_marked = was_marked
        self._has_seen_logs = False
        self._asks_at = 0.0
        self._said = SaidOnce(logger)

    async def run_logs(self) -> None:
        """Tend the logs that this node uploads, until cancelled."""
        due = 0.0
        while True:
            await self._rest_until(due)
            try:
                if self._logs.tiered and (mine := await self._mine()):
                    due = asyncio.get_running_loop().time() + self._settings.tend_s
                    async with self._connect() as client:
                        await self._tend.look(client, mine)
                self._said.over("main storage is tended again")
            except CordwoodError as error:
                self._said.warning(f"main storage keeps more than it has to: {error}")

    async def run_rest(self) -> None:
        """Tend the objects of deleted logs, of logs with `tier=off` and of several logs, while this
        node has the turn.

        Only once it saw a log that asks for main storage, or asked for it, or if the metadata store
        notes that main storage was marked: else the store may not be there.
        """
        due = 0.0
        # Logs that ask for main storage show until then, and nothing needs to be asked.
        self._asks_at = asyncio.get_running_loop().time() + self._settings.tend_s
        while True:
            await self._rest_until(due)
            is_used = self._has_seen_logs = await self._is_used()
            now_us, tend_s = self._host.clock.now_us(), self._settings.tend_s
            if is_used and tender_of(self._living(), now_us, tend_s) == self._me:
                due = asyncio.get_running_loop().time() + tend_s
                await self._tend.look_at_the_rest(self._connect)

    async def _is_used(self) -> bool:
        """Whether main storage was used, as far as it is known."""
        if self._has_seen_logs or self._logs.tiered or self._has_let_go():
            return True
        now = asyncio.get_running_loop().time()
        if now < self._asks_at:
            return False
        # The last log that asked may be deleted, or have `tier=off`, and this node may have started
        # since. Its objects have to be tended all the same.
        self._asks_at = now + self._settings.tend_s
        try:
            return await self._was_marked()
        except CordwoodError as error:
            self._said.warning(f"main storage keeps more than it has to: {error}")
            return False

    async def _rest_until(self, due: float) -> None:
        """Rest for a look, and until a time on the loop's clock."""
        # Drawn, so that the nodes of a cluster do not ask at once.
        await asyncio.sleep(self._settings.look_s * (0.5 + self._host.random.random()))
        await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
