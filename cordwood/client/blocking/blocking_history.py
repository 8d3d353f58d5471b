"""A log's history in an object store, read without a cluster, for callers that have no loop.

These calls need an address and credentials, but no node: Spark's tasks read history so.

Source: docs/objects.md, "Reading"; docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack

from cordwood.block import Gap
from cordwood.client.blocks import DeliveredBlock
from cordwood.client.read.tier_read import held_block
from cordwood.host.loop_thread import LoopThread
from cordwood.host.real import RealHost, real_host
from cordwood.protocol.gap_detection import Delivery
from cordwood.tier.addresses import open_object_store
from cordwood.tier.history import HistoryReader
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.origin import check_origin
from cordwood.tier.patient_store import PatientStore

RUN_BYTES = 4 << 20
"""Bodies after which a list of blocks ends."""

Taken = DeliveredBlock | Gap


class BlockingHistory:
    """See the module.

    Args:
        address: of the object store.
    Raises:
        BadSetting: it is no store that opens here.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._thread = LoopThread("cordwood-history")
        self._stack = AsyncExitStack()
        self._checked: set[tuple[int, int]] = set()
        try:
            self._host, self._objects = self._thread.call(self._open())
        except BaseException:
            self._thread.close()
            raise

    def runs(self, log: int, start: int, stop: int, *, made_us: int = 0) -> Iterator[list[Taken]]:
        """Blocks and gaps of `[start, stop)`, in order, some at a time; fewer where main storage
        ends before.

        Args:
            made_us: when the log was made; 0 if nobody knows.
        Raises:
            BadSetting: the store holds another cluster's log of this number.
            Corrupt: an object or the manifest differs from what was written.
            Retryable: the store does not answer.
        """
        reader = self._thread.call(self._begin(log, start, stop - 1, made_us))
        try:
            while run := self._thread.call(_next_run(reader)):
                yield run
        finally:
            self._thread.call(reader.close())

    def close(self) -> None:
        """Let the store go."""
        self._thread.call(self._stack.aclose())
        self._thread.close()

    async def _open(self) -> tuple[RealHost, PatientStore]:
        host = await self._stack.enter_async_context(real_host())
        objects = await open_object_store(host, self._address)
        self._stack.push_async_callback(objects.close)
        return host, objects

    async def _begin(self, log: int, start: int, until: int, made_us: int) -> HistoryReader:
        is_known = not made_us or (log, made_us) in self._checked
        # A log that was uploaded before there were origins has none, and is believed.
        if not is_known and await check_origin(self._objects, log, made_us):
            self._checked.add((log, made_us))
        manifest = LogManifest(self._objects, log, self._host, "reader")
        await manifest.load()
        return HistoryReader(self._objects, manifest, self._host, log, start, until)


async def _next_run(reader: HistoryReader) -> list[Taken]:
    run: list[Taken] = []
    size = 0
    while size < RUN_BYTES and (item := await reader.next()) is not None:
        if isinstance(item, Gap):
            run.append(item)
        else:
            run.append(Delivery(held_block(item), item.first, item.last))
            size += item.header.raw_bytes
    return run
