"""Records what main storage holds at the end of a run, without faults of the object store."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace

from cordwood.block import Codec, Gap, GapKind
from cordwood.errors import CordwoodError
from cordwood.host.seams import Host
from cordwood.layout.body import open_body
from cordwood.sim.history import DumpedSlots, HistoryRecorder, SlotKind, TierDumped
from cordwood.sim.object_store import Bucket, BucketFaults
from cordwood.sim.record_id import mark_record
from cordwood.tier.history import HistoryReader
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.repair import find_logs

_GAPS = {GapKind.BRIDGE: SlotKind.BRIDGE}


async def dump_tier(
    bucket: Bucket, recorder: HistoryRecorder, host: Host, only: Collection[int] | None
) -> None:
    """Record all that main storage has of every log, or only of logs whose appends were
    recorded."""
    bucket.faults = BucketFaults(latency_s=(0.0, 0.0))
    await asyncio.sleep(0)
    store = bucket.store()
    for log in await find_logs(store):
        if only is None or log in only:
            recorder.add(await _dumped(store, log, recorder, host))


async def _dumped(
    store: ObjectStore, log: int, recorder: HistoryRecorder, host: Host
) -> TierDumped:
    manifest = LogManifest(store, log, host, "dump")
    slots: list[DumpedSlots] = []
    start = end = 0
    try:
        head = await manifest.load()
        if head is None:
            return TierDumped(recorder.now_us, log, 0, 0, ())
        start, end = head.start, head.end
        async with HistoryReader(store, manifest, host, log, start, end - 1) as history:
            async for item in history:
                if isinstance(item, Gap):
                    kind = _GAPS.get(item.kind, SlotKind.HOLE)
                    slots.append(DumpedSlots(item.first, item.last, kind))
                    continue
                header = replace(
                    item.header, codec=Codec.NONE, stored_bytes=item.header.raw_bytes,
                    stored_crc=item.header.raw_crc,
                )  # fmt: skip
                body = open_body(header, item.raw)
                low = item.first - header.first
                marks = tuple(
                    mark_record(body.value(i), body.headers(i))
                    for i in range(low, item.last - header.first + 1)
                )
                slots.append(
                    DumpedSlots(item.first, item.last, SlotKind.DATA, marks, header.raw_crc)
                )
    except CordwoodError as error:
        return TierDumped(recorder.now_us, log, start, end, tuple(slots), str(error) or "an error")
    return TierDumped(recorder.now_us, log, start, end, tuple(slots))
