"""A client's access to the cluster's main storage, which is opened once, when a reader first needs
it.

Nodes tell the address together with the members, but no credentials. The store's library looks for
credentials on the reader's own machine.

The address may lead to another store here than on the nodes: a directory of the same path on the
reader's machine may belong to another cluster, where logs have the same numbers. So a log's origin
is compared before its manifest is believed, once for each log and client (`tier.known_logs`).

Source: docs/objects.md, "Reading".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from cordwood.client.find.log_info import LogInfo
from cordwood.client.read.tier_read import TierRead
from cordwood.errors import BadSetting
from cordwood.host.seams import Host
from cordwood.tier.block_cache import BlockCache
from cordwood.tier.history import HistoryReader
from cordwood.tier.known_logs import KnownLogs
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.patient_store import PatientStore

OpenObjects = Callable[[Host, str], Awaitable[PatientStore]]
"""Opens an object store by its address; see `tier.addresses`."""


class TierStore:
    """See the module.

    Args:
        address: the address that nodes reported last, "" for none; called when the store is opened.
        open_objects: opens an object store.
        tasks: run fetches ahead of the readers.
        cache_bytes: the most bytes of cached blocks, which readers share.
    """

    def __init__(
        self,
        host: Host,
        address: Callable[[], str],
        open_objects: OpenObjects,
        tasks: asyncio.TaskGroup,
        cache_bytes: int = 0,
    ) -> None:
        self._cache = BlockCache(cache_bytes)
        self._host = host
        self._address = address
        self._open_objects = open_objects
        self._tasks = tasks
        self._opening = asyncio.Lock()
        self._objects: PatientStore | None = None
        self._known: KnownLogs | None = None

    async def objects(self) -> PatientStore:
        """The store.

        Raises:
            BadSetting: nodes tell no address, or it is no store that opens here.
        """
        async with self._opening:
            if self._objects is None:
                address = self._address()
                if not address:
                    raise BadSetting(
                        "nodes let go of records that main storage holds, and tell no address of "
                        "it: start them with `--tier-store`"
                    )
                self._objects = await self._open_objects(self._host, address)
            return self._objects

    async def manifest(self, info: LogInfo) -> LogManifest | None:
        """A log's present manifest; None where the cluster has no main storage or the log no
        manifest.

        Raises:
            BadSetting: the store holds another cluster's log of this number.
        """
        if not self._address():
            return None
        found = await self._opened(info)
        return found if found.head is not None else None

    async def history(
        self, info: LogInfo, start: int, until: int, *, as_rows: bool = False
    ) -> HistoryReader:
        """A log's history from an LSN to another; the manifest is read anew.

        Args:
            as_rows: see `HistoryReader`.
        Raises:
            BadSetting: the store holds another cluster's log of this number.
        """
        manifest, log = await self._opened(info), int(info.log_id)
        objects = await self.objects()
        return HistoryReader(
            objects, manifest, self._host, log, start, until, cache=self._cache, as_rows=as_rows
        )

    def read(
        self, info: LogInfo, start: int, until: int, on_news: Callable[[], object], *,
        payloads: bool, as_rows: bool,
    ) -> TierRead:  # fmt: skip
        """Begin to read a log from an LSN to another; see `TierRead`."""
        opening = partial(self.history, info, as_rows=as_rows and payloads)
        made = TierRead(opening, info.log_id, start, until, on_news, payloads=payloads)
        made.start(self._tasks)
        return made

    async def _opened(self, info: LogInfo) -> LogManifest:
        """A log's manifest, read anew, after a check that the store holds this log and not another
        cluster's."""
        objects = await self.objects()
        if self._known is None:
            self._known = KnownLogs(objects, self._host)
        return await self._known.manifest(int(info.log_id), info.created_us)

    async def close(self) -> None:
        """Close the store."""
        objects, self._objects, self._known = self._objects, None, None
        self._cache.clear()
        if objects is not None:
            await objects.close()
