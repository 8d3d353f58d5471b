"""Planted bugs of ledgers in main storage: commits, let-go, deletions and reads.

Source: docs/protocol/ledgers.md (Main storage).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from cordwood import ledger as ledger_values
from cordwood.client.ledgers import ledger_check
from cordwood.client.ledgers.copy_states import CopyStates
from cordwood.client.ledgers.ledger_tiering import LedgerTiering
from cordwood.errors import Malformed
from cordwood.layout.manifest import LedgerManifest, LedgerPart
from cordwood.layout.message_ledgers import AddEntries, AddRefusal
from cordwood.layout.object_names import LEDGERS
from cordwood.ledger import LedgerMetadata, LedgerState
from cordwood.log_attributes import LogAttributes
from cordwood.nodes import NodeId
from cordwood.protocol import ledger_check as check_rule
from cordwood.protocol import ledger_tiering, upload_turns
from cordwood.protocol.ledger_check import Copy, LedgerCheck
from cordwood.settings import StorageSettings
from cordwood.sim.fault_plan import Damage
from cordwood.sim.object_store import BucketFaults
from cordwood.sim.options import RunOptions
from cordwood.sim.planted.bug import Plant, PlantedBug, at, together
from cordwood.sim.planted.scenarios import both, cluster_of, scenario
from cordwood.sim.tier_options import SMALL_OBJECTS, tiered, with_one_left
from cordwood.storage.ledgers.ledger_store import LedgerStore
from cordwood.tier import ledger_collect
from cordwood.tier.ledger_collect import Fate
from cordwood.tier.ledger_history import LedgerHistory
from cordwood.tier.object_store import ObjectStore
from cordwood.uploading import ledger_drops, ledger_uploads
from cordwood.uploading.ledger_drops import LedgerDrops
from cordwood.uploading.ledger_tend import LedgerTend


def _in_main_storage(options: RunOptions, grace_s: float = 0.5) -> RunOptions:
    """Clients use mostly ledgers, and half of these are in main storage within a second or so."""
    made = tiered(options, random.Random(round(options.workload.pause_s * 1e6)))
    cluster = made.cluster
    storage = StorageSettings(
        flush_age_s=1.0, disk_look_s=0.5, scrub_bytes_s=0, retention_every_s=0.5
    )
    tier = replace(
        cluster.tier, look_s=0.5, tend_s=0.5, grace_s=grace_s, ledger_keep_s=0.0, merge_objects=0
    )
    cluster = replace(
        cluster, storage=storage, attributes=LogAttributes(), weights={}, tier=tier,
        bucket=BucketFaults(latency_s=(0.01, 0.2), cut_deletion=0.2),
    )  # fmt: skip
    work = replace(
        made.workload, scribes=3, producers=1, readers=1, publishers=0, holders=0, members=0,
        outsiders=0, callers=0, browsers=0, crowds=0, sorters=0, read_only=(), given_up=(),
    )  # fmt: skip
    faults = replace(made.faults, damage=Damage.NONE)
    names = {name for name, _ in SMALL_OBJECTS}
    turns = (*(turn for turn in made.turns if turn[0] not in names), *SMALL_OBJECTS)
    return replace(
        made, cluster=cluster, workload=work, faults=faults, turns=turns, fills=False, accepts=False
    )


def _kept(options: RunOptions) -> RunOptions:
    """As `_in_main_storage`, and abandoned attempts stay for longer than a run."""
    return _in_main_storage(options, 300.0)


def _at_once(options: RunOptions) -> RunOptions:
    """As `_in_main_storage`, and objects that do not count are deleted at once."""
    made = _in_main_storage(options, 0.0)
    tier = replace(made.cluster.tier, tend_s=0.1)
    return replace(made, cluster=replace(made.cluster, tier=tier))


def _left_to_one(options: RunOptions) -> RunOptions:
    """As `_in_main_storage`, and one node alone reaches main storage."""
    return with_one_left(_in_main_storage(options))


TIERED = scenario(
    "crash", "pause", "client_crash",
    every_s=1.0, length_s=25.0, shape=both(cluster_of(5, 3), _in_main_storage),
)  # fmt: skip
"""Nodes with uploaders and with entries die while ledgers go to main storage."""

KEPT = scenario(
    "crash", "pause", "client_crash",
    every_s=0.5, length_s=25.0, shape=both(cluster_of(5, 3), _kept),
)  # fmt: skip
"""The same, and half-finished uploads are still there in the end."""

AT_ONCE = scenario(
    "crash", "pause", "client_crash",
    every_s=1.0, length_s=25.0, shape=both(cluster_of(5, 3), _at_once),
)  # fmt: skip
"""The same, and nothing is left of an attempt that another attempt ended."""

ONE_LEFT = scenario(
    "client_crash",
    every_s=3.0, length_s=10.0, shape=both(cluster_of(4, 3), _left_to_one),
)  # fmt: skip
"""One node alone reaches main storage."""


def _always_the_first(order: Sequence[NodeId], now_us: int, look_s: float) -> NodeId | None:
    return order[0] if order else None


def _lets_go_of_what_is_claimed(metadata: LedgerMetadata, now_us: int, keep_s: float) -> bool:
    return metadata.tier is not None


async def _sees_nothing(self: LedgerDrops, metadata: LedgerMetadata) -> None:
    return None


async def _drops_at_the_end(
    right: Callable[[LedgerDrops], Awaitable[None]], self: LedgerDrops
) -> None:
    seen: list[int] = []
    store = self._store

    class Later:
        index = store.index

        async def let_go(self, ledgers: Sequence[int]) -> None:
            seen.extend(ledgers)

    self._store = Later()  # type: ignore[assignment]
    try:
        await right(self)
    finally:
        self._store = store
        await store.let_go(seen)


async def _takes_the_next(
    right: Callable[[LedgerTend, int], Awaitable[Fate]], self: LedgerTend, ledger: int
) -> Fate:
    fate = await right(self, ledger)
    after = await right(self, ledger + 1)
    return after if after.is_deleted else fate


async def _finds_no_manifest(store: ObjectStore, ledger: int, attempt: int) -> bool:
    return False


async def _knows_commits_alone(
    right: Callable[[LedgerTend, int], Awaitable[Fate]], self: LedgerTend, ledger: int
) -> Fate:
    """An attempt that is not committed counts as abandoned."""
    fate = await right(self, ledger)
    found = await self._ledgers.get(ledger)
    is_under_way = found is not None and found.metadata.tier and not found.metadata.is_tiered
    return fate._replace(attempt=1) if is_under_way else fate


async def _takes_any_attempt(self: LedgerHistory, timeout_s: float) -> LedgerManifest:
    """The objects of the first attempt that the store lists, even if some are missing."""
    metadata = self._metadata
    if self._manifest is None:
        prefix = f"{LEDGERS}{metadata.ledger:016x}/"
        page = await self._store.list_page(prefix, timeout_s=timeout_s)
        first = page[0].name.split("/")[2]
        parts: list[LedgerPart] = []
        for info in page:
            _, _, attempt, name = info.name.split("/")
            if attempt == first and name.endswith(".parquet"):
                start, last, crc = name.removesuffix(".parquet").split("-")
                tail = await self._store.get(info.name, info.size - 8, info.size, timeout_s=60.0)
                size = int.from_bytes(tail[:4], "little") + 8
                parts.append(
                    LedgerPart(int(start, 16), int(last, 16), int(crc, 16), info.size, size)
                )
        if not parts or parts[0].first or parts[-1].last < metadata.last:
            raise Malformed(f"ledger {metadata.ledger}: its objects lack a part of it")
        self._attempt = int(first, 16)
        self._manifest = LedgerManifest(
            metadata.ledger, self._attempt, metadata.creator, metadata.created_us, metadata.last,
            metadata.length, parts,
        )  # fmt: skip
    return self._manifest


async def _commits_what_was_overtaken(
    right: Callable[[LedgerTiering, int, int], Awaitable[None]],
    self: LedgerTiering,
    attempt: int,
    manifest_crc: int,
) -> None:
    """Do not check which attempt is active or committed."""
    held = self._opened.held
    if held.metadata.tier is not None and held.metadata.tier.attempt == attempt:
        await right(self, attempt, manifest_crc)
        return
    now_us = self._host.clock.now_us()
    value = held.metadata.tiering(attempt).tiered(manifest_crc, now_us)
    await self._calls.set(held.version, value)
    await self._opened.refresh()


def _may_commit_any(before: LedgerMetadata, after: LedgerMetadata) -> bool:
    return before.state is LedgerState.CLOSED or before.tier == after.tier


def _asks_nodes(metadata: LedgerMetadata, last: int) -> LedgerCheck:
    return LedgerCheck(
        metadata.ledger, metadata.state is LedgerState.CLOSED, last, metadata.striping.write
    )


def _takes_it_for_missing(
    right: Callable[[CopyStates, str, Any], Copy],
    self: CopyStates,
    source: str,
    answer: Any,
) -> Copy:
    told = right(self, source, answer)
    return Copy.ABSENT if told is Copy.LET_GO else told


def _takes_copies_back(
    right: Callable[[LedgerStore, AddEntries], AddRefusal], self: LedgerStore, call: AddEntries
) -> AddRefusal:
    found = right(self, call)
    return AddRefusal.NONE if found is AddRefusal.GONE else found


def _bug(
    name: str, story: str, plant: Plant, where: Callable[[RunOptions], RunOptions] = TIERED
) -> PlantedBug:
    return PlantedBug(f"ledger-tier-{name}", story, plant, scenario=where)


BUGS = (
    _bug("lets-go-early", "nodes let go of a ledger before the metadata says that it is committed",
         together(at(ledger_tiering.may_let_go, within=ledger_drops)
                  .instead(_lets_go_of_what_is_claimed),
                  at(LedgerDrops._see).instead(_sees_nothing))),
    _bug("deletes-another", "the objects of the ledger before a deleted one are deleted",
         at(LedgerTend._fate_of).around(_takes_the_next)),
    _bug("collects-under-way", "an active attempt that is not committed yet counts as an orphan",
         together(at(LedgerTend._fate_of).around(_knows_commits_alone),
                  at(LedgerDrops._see).instead(_sees_nothing))),
    PlantedBug("ledger-tier-collects-finished",
               "a finished attempt counts as an orphan although no attempt is committed",
               at(ledger_collect._has_manifest).instead(_finds_no_manifest),
               scene="tests/client/ledgers/test_older_ledger_metadata.py"),
    _bug("any-attempt", "a reader takes the objects of any attempt, committed or not",
         at(LedgerHistory._load).instead(_takes_any_attempt), KEPT),
    _bug("no-stand-in", "closed ledgers wait for the first node, which does not reach main storage",
         at(upload_turns.uploader_of, within=ledger_uploads).instead(_always_the_first), ONE_LEFT),
    _bug("commits-overtaken", "an attempt is committed although another attempt has ended it",
         together(at(LedgerTiering._commit).around(_commits_what_was_overtaken),
                  at(ledger_values._may_tier).instead(_may_commit_any),
                  at(LedgerDrops._see).instead(_sees_nothing)), AT_ONCE),
    PlantedBug("ledger-tier-drops-later",
               "nodes drop the ledgers of a pass at its end, by looks that are minutes old",
               at(LedgerDrops.look).around(_drops_at_the_end),
               scene="tests/client/ledgers/test_ledger_drops.py"),
    _bug("check-fills", "a check asks nodes for a ledger that they let go of, and fills their "
                        "copies",
         together(at(check_rule.begun, within=ledger_check).instead(_asks_nodes),
                  at(CopyStates.state).around(_takes_it_for_missing),
                  at(LedgerStore._refusal).around(_takes_copies_back))),
)  # fmt: skip
