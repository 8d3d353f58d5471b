"""Planted bugs of main storage: what is uploaded, let go of, deleted, and read again.

Source: docs/sources/s3stream.md (b), traps 10 and 11, and (f), complaints 1 and 4.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from cordwood.block import Gap
from cordwood.log_attributes import LogAttributes
from cordwood.sim.options import RunOptions
from cordwood.sim.planted.bug import PlantedBug, changed, instead
from cordwood.sim.planted.scenarios import scenario
from cordwood.sim.tier_options import tiered

_ROLE = "uploading.upload_role:UploadRole"
_ENGINE = "storage.engine:StorageEngine"
_BUFFER = "protocol.gap_detection:ReadBuffer"


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


def _takes_uploads_for_granted(right: Any) -> Any:
    async def end_of(self: Any, log: int, info: Any, parts: Any) -> int:
        return int(self._engine.cache.log(log).readable) + 1

    return end_of


def _trims_what_is_tiered(right: Any) -> Any:
    async def tier(self: Any, log: int, lsn: int, released: int) -> int:
        return int(await self.trim(log, lsn, released))

    return tier


def _passes_one_more(right: Any) -> Any:
    def pass_to(self: Any, upto: int) -> None:
        right(self, upto + 1 if upto == self._tier + 1 else upto)

    return pass_to


def _takes_tier_for_trim(right: Any) -> Any:
    def on_tiered(self: Any, last: int) -> None:
        self.on_trim(last)

    return on_tiered


def _forgets_its_tier_point(right: Any) -> Any:
    def state(self: Any, seal: int) -> Any:
        return right(self, seal)._replace(tier=0)

    return state


def _commits_before_it_puts(right: Any) -> Any:
    async def commit(self: Any, made: Any, name: str) -> None:
        await right(self, made, name)
        await self._store._store.put(name, [made.content], timeout_s=600.0)

    return commit


def _puts_no_object(right: Any) -> Any:
    async def put(self: Any, name: str, content: Any, *, timeout_s: float) -> None:
        if not name.startswith("logs/") or "/objects/" not in name:
            await right(self, name, content, timeout_s=timeout_s)

    return put


def _eats_what_is_committed(right: Any) -> Any:
    def is_dead(head: Any, found: Any, name: str, last: int, fence: int) -> bool:
        return bool(fence < head.fence or last < head.end)

    return is_dead


def _leaves_out_the_last(right: Any) -> Any:
    def clipped(items: Any, start: int, until: int) -> Any:
        kept = right(items, start, until)
        return kept[:-1] if len(kept) > 1 and not isinstance(kept[-1], Gap) else kept

    return clipped


def _swaps_without_condition(right: Any) -> Any:
    async def put_if(
        self: Any, name: str, content: bytes, expected: Any, *, timeout_s: float
    ) -> Any:
        try:
            _, found = await self.read(name, timeout_s=timeout_s)
        except Exception:  # noqa: BLE001  (there is none yet)
            found = None
        return await right(self, name, content, found, timeout_s=timeout_s)

    return put_if


def _uploads_everything(right: Any) -> Any:
    async def mine(self: Any) -> Any:
        await self._logs.refresh()
        return dict(self._logs.tiered)

    return mine


def _holds_every_lease(right: Any) -> Any:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def leased(self: Any, log: int) -> Any:
        yield True

    return leased


def _takes_a_fence_for_advice(right: Any) -> Any:
    def append(head: Any, entry: Any, fence: int, seal: Any) -> Any:
        # What is committed begins where the zombie thinks that the last one ended.
        from cordwood.protocol.manifest import _added

        return _added(head, entry._replace(first=head.end, last=max(entry.last, head.end)), seal)

    return append


def _lets_go_of_one_more(right: Any) -> Any:
    def would_drop(self: Any, log: int, parts: Any, policy: Any, end: int) -> int:
        through: int = right(self, log, parts, policy, end)
        lasts = [part.last for part in parts if part.last > through]
        return int(lasts[0]) if through and lasts else through

    return would_drop


def _retains_nothing(right: Any) -> Any:
    async def too_old(self: Any, manifest: Any, head: Any, backlog_s: float) -> int:
        return int(head.end) - 1 if backlog_s else 0

    return too_old


def _finds_too_late(right: Any) -> Any:
    async def find_time(self: Any, time_us: int, trim: int, *, is_exact: bool) -> Any:
        found = await right(self, time_us, trim, is_exact=is_exact)
        return None if found is None else found + 3

    return find_time


def _nothing(*_: Any, **__: Any) -> None:
    return None


BUGS: tuple[PlantedBug, ...] = (
    PlantedBug("tier-drops-unread", "a node lets go of what no manifest names yet",
               changed({"uploading.local_drops:LocalDrops._end_of": _takes_uploads_for_granted}),
               scenario=_TIERED),
    PlantedBug("tier-drops-one-more", "a node lets go of one partition more than is committed",
               changed({"uploading.local_drops:LocalDrops._would_drop": _lets_go_of_one_more}),
               scenario=_TIERED),
    PlantedBug("tier-point-is-trim", "a node trims what it should let go of",
               changed({f"{_ENGINE}.tier": _trims_what_is_tiered}), scenario=_TIERED),
    PlantedBug("tier-taken-for-trim", "a reader takes TIERED for TRIM",
               changed({f"{_BUFFER}.on_tiered": _takes_tier_for_trim}), scenario=_TIERED),
    PlantedBug("tier-not-told", "a node passes over what it let go of without a word",
               changed({"storage.push.read_streams:ReadStreams._tell_tiered": instead(_nothing)}),
               scenario=_TIERED),
    PlantedBug("tier-point-forgotten", "a node starts without its tier point",
               changed({"storage.log_cache:CachedLog.state": _forgets_its_tier_point}),
               scenario=_CRASHED),
    PlantedBug("tier-hand-over-one-off", "a reader leaves objects one LSN too late",
               changed({f"{_BUFFER}.pass_to": _passes_one_more}), scenario=_TIERED),
    PlantedBug("tier-last-left-out", "a reader leaves out the last block of a row group",
               changed({"tier.history:clipped": _leaves_out_the_last}), scenario=_TIERED),
    PlantedBug("tier-commits-first", "an uploader commits an object before it is put",
               changed({"tier.uploader:LogUploader._commit": _commits_before_it_puts,
                        "tier.patient_store:PatientStore.put": _puts_no_object}),
               scenario=_CRASHED),
    PlantedBug("tier-collects-committed", "the collection deletes objects that a manifest names",
               changed({"protocol.manifest:is_dead_object": _eats_what_is_committed}),
               scenario=_TIERED),
    PlantedBug("tier-head-unconditional", "two uploaders, and a head is replaced whatever it is",
               changed({f"{_ROLE}.mine": _uploads_everything,
                        f"{_ROLE}._leased": _holds_every_lease,
                        "tier.patient_store:PatientStore.put_if": _swaps_without_condition}),
               scenario=_TIERED),
    PlantedBug("tier-zombie-commits", "two uploaders, and a turn that is over commits",
               changed({f"{_ROLE}.mine": _uploads_everything,
                        f"{_ROLE}._leased": _holds_every_lease,
                        "protocol.manifest:check_turn": instead(_nothing),
                        "protocol.manifest:append": _takes_a_fence_for_advice}),
               scenario=_TIERED),
    PlantedBug("tier-retains-nothing", "retention takes all of main storage",
               changed({"uploading.tend:Tend._too_old": _retains_nothing}), scenario=_KEPT),
    PlantedBug("tier-finds-too-late", "a time is found behind where it is in main storage",
               changed({"client.admin.tier_positions:TierPositions.find_time": _finds_too_late}),
               scenario=_TIERED),
)  # fmt: skip
"""Every bug of main storage."""
