"""Merges the small objects of one log: plan, take a turn, merge, commit, end the turn.

The process may be killed at any point. Before the commit it leaves at most one orphan, and
`collect` deletes it after the turn has ended. After the commit the old objects are orphans, and
`collect` deletes them after their grace. If the holder of a turn dies, the turn ends when its time
is over.

Source: docs/objects.md, "Compaction".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from cordwood.errors import (
    BadSetting,
    CordwoodError,
    Corrupt,
    NoObject,
    ObjectChanged,
    OutcomeUnknown,
    Retryable,
)
from cordwood.host.seams import Host
from cordwood.lsn import Lsn
from cordwood.protocol.merge_plan import MergePolicy, plan_merges, worn_pages
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.merge import MergeTask, merge_run
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.presence import Presence
from cordwood.tier.verify import all_entries
from cordwood.tiered import Entry

logger = logging.getLogger(__name__)

TURN_S = 3600.0
"""As `settings.TierSettings.merge_turn_s`."""

COMMIT_TRIES_MAX = 10
COMMIT_PAUSE_S = 1.0
"""The most tries of a commit while the store does not answer, and the mean pause between them."""

Pace = Callable[[int], Awaitable[None]]
"""Called with a number of merged bytes of bodies. It waits as long as the pace demands."""


@dataclass(slots=True)
class Compacted:
    """The result of a compaction.

    Attributes:
        merged: objects that took the place of others.
        replaced: the entries that they replaced.
        rows, bytes: records in them, and bytes of their bodies.
        left: runs that were not merged, because other processes changed them meanwhile.
        damaged: runs that cannot be read, or cannot be merged.
    """

    merged: int = 0
    replaced: int = 0
    rows: int = 0
    bytes: int = 0
    left: int = 0
    damaged: int = 0


async def plan_log(
    manifest: LogManifest, policy: MergePolicy, *, everything: bool
) -> list[tuple[Entry, ...]]:
    """The runs of a log that are merged.

    Args:
        everything: look at all entries; else at those in the head, and at a few young pages.
    """
    head = await manifest.load()
    if head is None:
        return []
    if everything:
        return plan_merges([entry async for entry in all_entries(manifest)], policy)
    runs: list[tuple[Entry, ...]] = []
    for page in worn_pages(head, policy):
        runs += plan_merges(await manifest.page_entries(page), policy)
    return runs + plan_merges([item for item in head.levels[0] if isinstance(item, Entry)], policy)


async def compact_log(
    store: ObjectStore,
    manifest: LogManifest,
    host: Host,
    log: int,
    policy: MergePolicy,
    *,
    everything: bool = True,
    waits: bool = False,
    merges_max: int = 1 << 30,
    turn_s: float = TURN_S,
    pace: Pace | None = None,
) -> Compacted:
    """Merge the small objects of a log.

    Args:
        store: patient.
        waits: do not touch the merges of another process while its turn may be in force.
        merges_max: the most objects to make.
        turn_s: the time after which others may end a turn; a new turn begins after half of it.
    Raises:
        Fenced: another process merges this log.
        OutcomeUnknown, Retryable: the store does not answer; the manifest stays whole.
        Corrupt: the manifest cannot be read.
    """
    runs = (await plan_log(manifest, policy, everything=everything))[:merges_max]
    return await merge_runs(store, manifest, host, log, runs, waits=waits, turn_s=turn_s, pace=pace)


async def merge_runs(
    store: ObjectStore,
    manifest: LogManifest,
    host: Host,
    log: int,
    runs: Sequence[tuple[Entry, ...]],
    *,
    waits: bool = False,
    turn_s: float = TURN_S,
    pace: Pace | None = None,
) -> Compacted:
    """Merge these runs, each into one object; see `compact_log`."""
    done = Compacted()
    if not runs:
        return done
    presence = Presence(store)
    number, renew_us = 0, 0
    try:
        for run in runs:
            # A turn ends earlier turns, and lets their objects be deleted. They may be the only
            # copies, if the manifest is an older copy that was put back.
            if not await presence.has_all(run):
                logger.warning("log %d: %d objects stay as they are: some are gone", log, len(run))
                done.left += 1
                continue
            if host.clock.now_us() >= renew_us:
                number, renew_us = await _take_turn(manifest, host, turn_s, waits)
            try:
                entry = await merge_run(store, host, MergeTask(log, number, run))
                await commit_merge(manifest, host, run, entry, number)
            except (ObjectChanged, NoObject) as error:
                logger.info("log %d: %d objects stay as they are: %s", log, len(run), error)
                done.left += 1
                continue
            except (Corrupt, BadSetting) as error:
                logger.warning("log %d: %d objects stay as they are: %s", log, len(run), error)
                done.damaged += 1
                continue
            _count(done, log, run, entry)
            if pace is not None:
                await pace(entry.bytes)
    finally:
        with contextlib.suppress(CordwoodError):  # another process ends it later
            await manifest.end_merging(number)
    return done


async def _take_turn(
    manifest: LogManifest, host: Host, turn_s: float, waits: bool
) -> tuple[int, int]:
    """Take a turn. Returns its number, and the time at which to take the next turn."""
    now_us = host.clock.now_us()
    head = await manifest.take_merging(now_us + round(turn_s * 1e6), waits=waits)
    return head.merging.number, now_us + round(turn_s * 5e5)


async def commit_merge(
    manifest: LogManifest, host: Host, run: Sequence[Entry], entry: Entry, number: int
) -> None:
    """Put an entry in the place of a run; repeated while the outcome is unknown.

    Raises:
        Fenced: the turn is over.
        ObjectChanged: the manifest holds others there by now.
        OutcomeUnknown, Retryable: the store does not answer.
    """
    for tries in range(1, COMMIT_TRIES_MAX + 1):
        try:
            await manifest.replace(run, entry, number)
            return
        except (Retryable, OutcomeUnknown):
            if tries == COMMIT_TRIES_MAX:
                raise
            await asyncio.sleep(COMMIT_PAUSE_S * (0.5 + host.random.random()))


def _count(done: Compacted, log: int, run: Sequence[Entry], entry: Entry) -> None:
    done.merged += 1
    done.replaced += len(run)
    done.rows += entry.rows
    done.bytes += entry.bytes
    logger.info(
        "log %d: %d objects from %s to %s are merged into %s, %d bytes", log, len(run),
        Lsn(entry.first), Lsn(entry.last), entry.name, entry.size,
    )  # fmt: skip
