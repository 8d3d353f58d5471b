"""Planted bugs of main storage: what is uploaded, let go of, deleted, and read again.

Source: docs/sources/s3stream.md (b), traps 10 and 11, and (f), complaints 1 and 4.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from cordwood.block import Gap
from cordwood.client.admin.tier_positions import TierPositions
from cordwood.errors import NoObject
from cordwood.log_attributes import LogAttributes
from cordwood.protocol import manifest
from cordwood.protocol.gap_detection import ReadBuffer
from cordwood.sim.options import RunOptions
from cordwood.sim.planted.bug import PlantedBug, at, together
from cordwood.sim.planted.scenarios import scenario
from cordwood.sim.tier_options import tiered
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_cache import CachedLog
from cordwood.storage.push.read_streams import ReadStreams
from cordwood.tier import history
from cordwood.tier.patient_store import PatientStore
from cordwood.tier.uploader import LogUploader
from cordwood.uploading.local_drops import LocalDrops
from cordwood.uploading.tend import Tend
from cordwood.uploading.upload_role import UploadRole


def _in_main_storage(options: RunOptions, **asks: Any) -> RunOptions:
    """Logs that are tiered within a second or so."""
    made = tiered(options, random.Random(round(options.workload.pause_s * 1e6)))
    cluster = made.cluster
    quick = LogAttributes(
        tier=True, local_retention=0.5, tier_after_s=0.0, tier_after_bytes=1,
        backlog_s=0.0, backlog_bytes=0,
    )  # fmt: skip
    attributes = replace_attributes(quick, asks).over(cluster.attributes)
    storage = replace(cluster.storage, partition_age_s=1.0, retention_every_s=0.3, flush_age_s=0.3)
    tier = replace(cluster.tier, look_s=0.3, tend_s=1.0, grace_s=2.0)
    return replace(
        made, cluster=replace(cluster, attributes=attributes, storage=storage, tier=tier)
    )


def replace_attributes(asks: LogAttributes, others: dict[str, Any]) -> LogAttributes:
    """What a log asks for, with some attributes set otherwise."""
    return LogAttributes(**others).over(asks)


def _young(options: RunOptions) -> RunOptions:
    """And logs that keep their records for so long as no run lasts."""
    return _in_main_storage(options, backlog_s=300.0)


_TIERED = scenario("client_crash", every_s=3.0, shape=_in_main_storage, restart_s=2.0, readers=3)
_CRASHED = scenario(
    "crash", "power_cut", every_s=1.0, shape=_in_main_storage, restart_s=2.0, readers=3
)
_KEPT = scenario("client_crash", every_s=3.0, shape=_young, restart_s=2.0, readers=3)


async def _takes_uploads_for_granted(
    right: Any, self: LocalDrops, log: int, *rest: Any, **named: Any
) -> int:
    return int(self._engine.cache.log(log).readable) + 1


async def _trims_what_is_tiered(
    right: Any, self: StorageEngine, log: int, lsn: int, released: int
) -> int:
    return int(await self.trim(log, lsn, released))


def _passes_one_more(right: Any, self: ReadBuffer[Any], upto: int) -> None:
    right(self, upto + 1 if upto == self._tier + 1 else upto)


def _takes_tier_for_trim(right: Any, self: ReadBuffer[Any], last: int) -> None:
    self.on_trim(last)


def _forgets_its_tier_point(right: Any, self: CachedLog, seal: int) -> Any:
    return right(self, seal)._replace(tier=0)


async def _commits_before_it_puts(right: Any, self: LogUploader, done: Any, name: str) -> None:
    await right(self, done, name)
    patient: Any = self._store
    await patient._store.put(name, [done.content], timeout_s=600.0)


async def _puts_no_object(
    right: Any, self: PatientStore, name: str, content: Any, *, timeout_s: float
) -> None:
    if not name.startswith("logs/") or "/objects/" not in name:
        await right(self, name, content, timeout_s=timeout_s)


def _eats_what_is_committed(
    right: Any, head: Any, found: Any, name: str, last: int, fence: int
) -> bool:
    return bool(fence < head.fence or last < head.end)


def _leaves_out_the_last(right: Any, items: Any, start: int, until: int) -> Any:
    kept = right(items, start, until)
    return kept[:-1] if len(kept) > 1 and not isinstance(kept[-1], Gap) else kept


async def _swaps_without_condition(
    right: Any, self: PatientStore, name: str, content: bytes, expected: Any, *, timeout_s: float
) -> Any:
    try:
        _, found = await self.read(name, timeout_s=timeout_s)
    except NoObject:
        found = None
    return await right(self, name, content, found, timeout_s=timeout_s)


async def _uploads_everything(right: Any, self: UploadRole) -> Any:
    await self._logs.refresh()
    return dict(self._logs.tiered)


@asynccontextmanager
async def _holds_every_lease(self: UploadRole, log: int) -> AsyncIterator[bool]:
    yield True


def _takes_a_fence_for_advice(right: Any, head: Any, entry: Any, fence: int, seal: Any) -> Any:
    # What is committed begins where the zombie thinks that the last one ended.
    return manifest._added(
        head, entry._replace(first=head.end, last=max(entry.last, head.end)), seal
    )


def _lets_go_of_one_more(
    right: Any, self: LocalDrops, log: int, parts: Any, policy: Any, end: int
) -> int:
    through: int = right(self, log, parts, policy, end)
    lasts = [part.last for part in parts if part.last > through]
    return int(lasts[0]) if through and lasts else through


async def _retains_nothing(
    right: Any, self: Tend, manifest: Any, head: Any, backlog_s: float
) -> int:
    return int(head.end) - 1 if backlog_s else 0


async def _finds_too_late(
    right: Any, self: TierPositions, time_us: int, trim: int, *, is_exact: bool
) -> Any:
    found = await right(self, time_us, trim, is_exact=is_exact)
    return None if found is None else found + 3


def _nothing(*_: Any, **__: Any) -> None:
    return None


BUGS: tuple[PlantedBug, ...] = (
    PlantedBug("tier-drops-unread", "a node lets go of what no manifest names yet",
               at(LocalDrops._end_of).around(_takes_uploads_for_granted),
               scenario=_TIERED),
    PlantedBug("tier-drops-one-more", "a node lets go of one partition more than is committed",
               at(LocalDrops._would_drop).around(_lets_go_of_one_more),
               scenario=_TIERED),
    PlantedBug("tier-point-is-trim", "a node trims what it should let go of",
               at(StorageEngine.tier).around(_trims_what_is_tiered), scenario=_TIERED),
    PlantedBug("tier-taken-for-trim", "a reader takes TIERED for TRIM",
               at(ReadBuffer.on_tiered).around(_takes_tier_for_trim), scenario=_TIERED),
    PlantedBug("tier-not-told", "a node passes over what it let go of without a word",
               at(ReadStreams._tell_tiered).instead(_nothing),
               scenario=_TIERED),
    PlantedBug("tier-point-forgotten", "a node starts without its tier point",
               at(CachedLog.state).around(_forgets_its_tier_point),
               scenario=_CRASHED),
    PlantedBug("tier-hand-over-one-off", "a reader leaves objects one LSN too late",
               at(ReadBuffer.pass_to).around(_passes_one_more), scenario=_TIERED),
    PlantedBug("tier-last-left-out", "a reader leaves out the last block of a row group",
               at(history.clipped).around(_leaves_out_the_last), scenario=_TIERED),
    PlantedBug("tier-commits-first", "an uploader commits an object before it is put",
               together(at(LogUploader._commit).around(_commits_before_it_puts), at(PatientStore.put).around(_puts_no_object)),
               scenario=_CRASHED),
    PlantedBug("tier-collects-committed", "the collection deletes objects that a manifest names",
               at(manifest.is_dead_object).around(_eats_what_is_committed),
               scenario=_TIERED),
    PlantedBug("tier-head-unconditional", "two uploaders, and a head is replaced whatever it is",
               together(at(UploadRole.mine).around(_uploads_everything), at(UploadRole._leased).instead(_holds_every_lease), at(PatientStore.put_if).around(_swaps_without_condition)),
               scenario=_TIERED),
    PlantedBug("tier-zombie-commits", "two uploaders, and a turn that is over commits",
               together(at(UploadRole.mine).around(_uploads_everything), at(UploadRole._leased).instead(_holds_every_lease), at(manifest.check_turn).instead(_nothing), at(manifest.append).around(_takes_a_fence_for_advice)),
               scenario=_TIERED),
    PlantedBug("tier-retains-nothing", "retention takes all of main storage",
               at(Tend._too_old).around(_retains_nothing), scenario=_KEPT),
    PlantedBug("tier-finds-too-late", "a time is found behind where it is in main storage",
               at(TierPositions.find_time).around(_finds_too_late),
               scenario=_TIERED),
)  # fmt: skip
"""Every bug of main storage."""
