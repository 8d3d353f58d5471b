"""Bugs of a storage node above its WAL.

Source: docs/sources/reliability.md §2, §6 (mutant list).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from cordwood.block import BlockHeader, Buffer
from cordwood.host.seams import Host
from cordwood.layout.engine_record import TrimRecord
from cordwood.layout.logs_db import DirectoryEntry
from cordwood.layout.message import Clean, DoneReply, Seal
from cordwood.layout.waves import AmendedBlock, StoredBlock, StoreRefusal
from cordwood.node import Node
from cordwood.nodes import Authority, NodeId
from cordwood.protocol.rebuild_watch import on_start
from cordwood.protocol.retention import fitting_trim
from cordwood.protocol.seal import SealTable
from cordwood.quorum import authority
from cordwood.rebuilding import LostNode
from cordwood.recovery import mend_tail
from cordwood.recovery.mend_tail import MendJob
from cordwood.sim.planted import scenarios
from cordwood.sim.planted.bug import PlantedBug, at, notes_of, together, value
from cordwood.storage.amends import Amends, _Frame
from cordwood.storage.claims import Claims
from cordwood.storage.data_directory import DataDirectory
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_cache import CachedLog, EpochEnd
from cordwood.storage.logs_db import flusher, logs_read
from cordwood.storage.logs_db.flusher import Flusher
from cordwood.storage.logs_db.index_search import last_counted
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.logs_db.partition import Partition
from cordwood.storage.logs_db.tables import Tables, TablesNoSpace
from cordwood.storage.rebuild import admission
from cordwood.storage.role import StorageRole, _Session
from cordwood.storage.scrub import scrub
from cordwood.storage.scrub.rotten_rows import find_rot
from cordwood.storage.scrub.scrub import Scrub
from cordwood.storage.space import payload_count, retention, space_watch
from cordwood.storage.space.kept_bytes import KeptBytes
from cordwood.storage.unheard import Unheard
from cordwood.storage.wal.delta_wal import Wal
from cordwood.wire.arrivals import Arrivals
from cordwood.wire.connection import Connection
from cordwood.wire.store_channel import StoreChannel

LATE_S = 1.0
"""How long after its answer a node stores the confirmed blocks."""


def _ack_before_durable(
    right: Any,
    self: StorageEngine,
    wave: int,
    parts: list[Buffer],
    taken: list[StoredBlock],
    refused: tuple[StoreRefusal, ...],
    settled: Callable[[Sequence[Any]], None],
    by_recovery: bool,
) -> None:
    self._insert(self._wal.durable_offset, taken)
    settled(refused)

    async def later() -> None:
        await asyncio.sleep(LATE_S)
        right(self, wave, parts, taken, refused, lambda _: None, by_recovery)

    notes_of(self)["task"] = asyncio.get_running_loop().create_task(later())


def _released_too_far(right: Any, self: CachedLog, block: StoredBlock) -> bool:
    kept: bool = right(self, block)
    self.released = max(self.released, block.header.last)
    return kept


async def _damage_is_silence(right: Any, wal: Wal, *more: Any, **named: Any) -> StorageEngine:
    engine: StorageEngine = await right(wal, *more, **named)
    engine.damage = ""
    return engine


async def _damage_is_forgotten(right: Any, self: LogsStore, *flushed: Any, **named: Any) -> None:
    # As if a start's verdict held for that start only; the WAL is trimmed after this.
    lost, self.lost = self.lost, ()
    try:
        await right(self, *flushed, **named)
    finally:
        self.lost = lost


async def _begun_anew(right: Any, self: LogsStore) -> None:
    try:
        await right(self)
    except TablesNoSpace:
        self._written = None
        raise


def _refusal_settles_earlier(
    right: Any,
    self: StorageRole,
    connection: Connection,
    session: _Session,
    wave: list[bool],
    refusals: Sequence[StoreRefusal],
) -> None:
    for each in session.open:
        if each is wave:
            break
        each[0] = True
    right(self, connection, session, wave, refusals)


def _never_purges(right: Any, self: CachedLog) -> Any:
    return self.released


def _trims_too_much(right: Any, self: StorageEngine, record: TrimRecord) -> None:
    # Up to the end of the block with the trim point.
    inside = self.cache.log(record.log).at(self.cache.log(record.log).index_from(record.lsn))
    last = inside.header.last if inside is not None else record.lsn
    right(self, record._replace(lsn=max(record.lsn, last)))


def _restart_forgets_trims(right: Any, self: StorageEngine, offset: int, body: memoryview) -> None:
    before = {log: held.trim for log, held in self.cache.logs.items()}
    right(self, offset, body)
    for log, held in self.cache.logs.items():
        held.trim = before.get(log, 0)


async def _edge_is_older(right: Any, self: LogsStore, log: int) -> Any:
    # As if a partition ended one microsecond before its last block.
    found = await right(self, log)
    return [
        (partition, entry._replace(last_us=max(entry.first_us, entry.last_us - 1)))
        for partition, entry in found
    ]


async def _scrub_trusts_index(right: Any, self: Scrub, *_: Any, **__: Any) -> None:
    return


async def _scrub_goes_on_with_next(
    right: Any, self: Scrub, partition: Partition, log: int, first: int, last: int, why: str
) -> None:
    # Off by a block: the block after the bad one is reported.
    await right(self, partition, log, last + 1, last + 1, why)


async def _last_of_all(
    right: Any,
    tables: Tables,
    partition: Partition,
    log: int,
    entry: DirectoryEntry,
    *_: Any,
    **__: Any,
) -> int:
    last: int = entry.last
    return last


async def _as_if_even(right: Any, self: KeptBytes, log: int, lsns: Sequence[int]) -> list[int]:
    parts = [entry for _, entry in await self._engine.logs.directory(log)]
    held = [sum(part.bytes for part in parts if part.first > lsn) for lsn in lsns]
    return [each * 5 // 3 for each in held]


def _fits_once() -> Any:
    seen: list[int] = []

    def fitting_trim(right: Any, lsns: Sequence[int], kept: Sequence[int], bytes_max: int) -> int:
        # As if the bytes kept at the first trim were kept at every later trim.
        seen.append(right(lsns, kept, bytes_max))
        return min(filter(None, seen), default=0)

    return fitting_trim


def _whole_body(right: Any, block: StoredBlock) -> Any:
    return block.header.stored_bytes if right(block) else 0


async def _skips_rot(right: Any, *what: Any, **how: Any) -> Any:
    # It reads on after an unreadable part, and does not report it.
    rot = await right(*what, **how)
    return rot._replace(first=rot.last + 1)


def _by_size_only(right: Any, self: Flusher) -> float | None:
    due: float | None = right(self)
    return due if self._has_enough() else None


def _taken_unseen(
    right: Any, self: Amends, frame: _Frame, refused: dict[int, StoreRefusal]
) -> None:
    frame.settled(tuple(refused.values()))


async def _sent_to_all(
    right: Any,
    job: MendJob,
    wave: Sequence[tuple[BlockHeader, Buffer]],
    channel: StoreChannel,
    host: Host,
    holders: frozenset[NodeId] = frozenset(),
) -> None:
    # As if there were one digest for the epoch, and not one for each member.
    await right(job, wave, channel, host, frozenset(job.nodes) if holders else holders)


async def _replaced_is_left_out(
    right: Any, self: LogsStore, blocks: Sequence[StoredBlock], *rest: Any, **named: Any
) -> None:
    amended = {block.header for block in blocks if type(block) is AmendedBlock}
    kept = [b for b in blocks if type(b) is AmendedBlock or b.header not in amended]
    await right(self, kept, *rest, **named)


async def _no_home(right: Any, self: LogsStore, blocks: Sequence[StoredBlock]) -> Any:
    return {id(block): None for block in blocks if type(block) is AmendedBlock}


async def _believed(self: Claims, log: int, lsn: int) -> None:
    return


async def _any_seal(self: StorageRole, call: Seal) -> Any:
    return await self._engine.seal(call.log, call.epoch, call.clean)


async def _any_end(self: StorageRole, call: Clean) -> Any:
    end = EpochEnd(call.seal, call.lng, call.produced, call.attempt)
    await self._engine.clean(call.log, call.epoch, end)
    return DoneReply()


def _released(self: Claims, log: int, lsn: int) -> None:
    self._engine.release(log, lsn)


async def _empty_disk_taken(self: DataDirectory) -> None:
    return


def _nothing_is_known(right: Any, entry: LostNode | None, **how: Any) -> Any:
    return right(entry, **{**how, "is_known": False})


def _at_its_end(right: Any, self: Wal, offset: int) -> int:
    assert self.recovery is not None
    return self.recovery.resume


BUGS = (
    PlantedBug("ack-before-durable", "a node confirms a store before its WAL has it",
               at(StorageEngine.append_store).around(_ack_before_durable)),
    PlantedBug("seal-not-obeyed", "a sealed node goes on storing for the old epoch",
               at(SealTable.admits).instead(lambda self, *_: True),
               scenario=scenarios.APART),
    PlantedBug("empty-disk-taken", "a node that lost its disk goes on with an empty one",
               # Three checks stand one behind the other; each alone would refuse the disk.
               together(at(on_start, within=admission).around(_nothing_is_known),
                        at(DataDirectory.refuse_empty).instead(_empty_disk_taken),
                        at(DataDirectory.is_behind).instead(lambda self, found: False)),
               scenario=scenarios.AMNESIA),
    PlantedBug("older-disk-trusted", "a node runs on an earlier copy of its disk",
               at(DataDirectory.is_behind).instead(lambda self, found: False),
               scenario=scenarios.OLDER_DISKS),
    PlantedBug("released-too-far", "a node sends readers records that are not released",
               at(CachedLog.insert).around(_released_too_far)),
    PlantedBug("damage-is-silence", "a node reports records that it cannot read as absent",
               at(StorageEngine.open).around(_damage_is_silence), scenario=scenarios.BAD_DISKS,
               scene="tests/client/read/test_damaged_wal.py"),
    PlantedBug("damage-forgotten", "a node forgets its losses when its WAL is trimmed",
               at(LogsStore.flush_metadata).around(_damage_is_forgotten),
               scenario=scenarios.BAD_DISKS, scene="tests/client/read/test_damaged_wal.py"),
    PlantedBug("flush-counted-twice", "a flush whose metadata was not durable adds to its own counts",
               at(LogsStore.settle_metadata).around(_begun_anew),
               scene="tests/storage/logs_db/test_repeated_flushes.py"),
    PlantedBug("lost-writes-passed-over",
               "a WAL that lost records already in LogsDB goes on at its own end",
               at(Wal.far_above).around(_at_its_end),
               scene="tests/storage/test_lost_records.py"),
    PlantedBug("refusal-settles-earlier", "a refused store confirms stores in flight before it",
               at(StorageRole.on_store_settled).around(_refusal_settles_earlier),
               scenario=scenarios.FULL_DISKS),
    PlantedBug("cache-without-bound", "a full cache takes later waves and stores of recoveries",
               at(StorageEngine.cache_takes).instead(lambda self, *_, **__: True),
               scene="tests/storage/test_engine.py"),
    PlantedBug("first-copy-stays", "a copy is never replaced by a copy of higher precedence",
               at(CachedLog.replace_copy).instead(lambda self, at, block: False)),
    PlantedBug("amend-of-nothing", "an envelope update of a block that the node does not hold "
                                   "succeeds",
               together(at(Amends.refuse).around(_taken_unseen),
                        at(mend_tail.store_wave).around(_sent_to_all)), scenario=scenarios.RECOVERIES),
    PlantedBug("amend-loses-body", "a flush leaves out a copy with an updated envelope, and its "
                                   "body",
               together(at(LogsStore.flush).around(_replaced_is_left_out),
                        at(LogsStore.homes_of).around(_no_home)),
               scenario=scenarios.RECOVERIES),
    PlantedBug("rebuilt-copyset-taken", "a node takes blocks whose copyset names a node that is "
                                        "being rebuilt",
               value(lambda: authority.REBUILT, frozenset[Authority]()),
               scene="tests/sequencer/test_rebuilding_cluster.py"),
    PlantedBug("trims-too-much", "a node trims the whole block that a trim point is in",
               at(StorageEngine.on_trimmed).around(_trims_too_much), scenario=scenarios.TRIMS),
    PlantedBug("trims-by-what-is-dead", "retention uses a bridge that another recovery replaced",
               at(last_counted, within=retention).around(_last_of_all),
               scene="tests/storage/logs_db/test_trimmed_parts.py"),
    PlantedBug("believes-the-count", "a node reads the attributes of logs only once the tree tells of "
               "a change: it trims what a log is to keep, if a process died before it told",
               value(lambda: retention.LEARN_AGAIN_S, 1e9), scene="tests/test_retention.py"),
    PlantedBug("share-taken-as-even", "retention by size treats a node's part of a log as an "
                                      "even share",
               at(KeptBytes.above).around(_as_if_even), scenario=scenarios.SIZES),
    PlantedBug("every-copy-counts", "retention by size counts a block once for each copy",
               at(payload_count.answered_bytes).around(_whole_body),
               scenario=scenarios.SIZES),
    PlantedBug("space-is-endless", "retention by size trims nothing once it has trimmed",
               at(fitting_trim, within=retention).around(_fits_once()),
               scene="tests/storage/space/test_kept_by_size.py"),
    PlantedBug("flushes-what-is-trimmed", "a full disk waits for free space for blocks that are "
                                          "trimmed",
               at(flusher.untrimmed).instead(lambda batch, trim_of: batch.blocks),
               scene="tests/storage/space/test_full_disk.py"),
    PlantedBug("newest-stays-on-full-disk", "a full disk keeps its newest partition although "
                                            "all of it is trimmed",
               value(lambda: space_watch.NEVER_US, 0),
               scene="tests/storage/space/test_full_disk.py"),
    PlantedBug("time-off-by-one", "find_time treats a partition's last block as older than it is",
               at(LogsStore.directory).around(_edge_is_older),
               scenario=scenarios.TIMES),
    PlantedBug("restart-forgets-trims", "a node forgets its trim points when it restarts",
               at(StorageEngine.replay).around(_restart_forgets_trims), scenario=scenarios.TRIMS),
    PlantedBug("scrub-trusts-index", "scrubbing reads the index and no bodies",
               at(Scrub.check_bodies).around(_scrub_trusts_index), scenario=scenarios.ROT),
    PlantedBug("scrub-tells-neighbour", "scrubbing reports the block behind the damaged block",
               at(Scrub.report_damage).around(_scrub_goes_on_with_next), scenario=scenarios.ROT),
    PlantedBug("rot-skipped", "an index is read past damaged bytes without a report",
               together(at(find_rot, within=scrub).around(_skips_rot),
                        at(find_rot, within=logs_read).around(_skips_rot)),
               scenario=scenarios.ROT),
    PlantedBug("flushes-by-size", "blocks that are too few for a flush are never flushed",
               at(Flusher.flush_due_s).around(_by_size_only), scenario=scenarios.CALM),
    PlantedBug("far-seals-believed", "a node takes the seal of an epoch that was never handed out",
               at(StorageRole.seal).instead(_any_seal),
               scenario=scenarios.STRANGERS),
    PlantedBug("far-ends-believed", "a node accepts the end of an epoch that never began",
               at(StorageRole.clean).instead(_any_end),
               scenario=scenarios.STRANGERS),
    PlantedBug("releases-believed", "a node takes a release of an epoch that was never handed out",
               at(Claims.release).instead(_released),
               scene="tests/storage/test_claims.py"),
    PlantedBug("far-blocks-stored", "a node stores blocks of epochs that were never handed out",
               at(Unheard.holds).instead(lambda *_: False),
               scenario=scenarios.STRANGERS),
    PlantedBug("client-says-released", "a node trims as far as a client says, even unreleased "
                                       "records",
               at(Claims.check_released).instead(_believed),
               scene="tests/storage/test_claims.py"),
    PlantedBug("numbers-believed", "a caller that claims to be a node is accepted as a node",
               at(Node.check_node).instead(lambda self, theirs: None),
               scenario=scenarios.STRANGERS),
    PlantedBug("half-frames-kept", "the time for one frame has no limit",
               at(Arrivals.late).instead(lambda self, now: []),
               scenario=scenarios.STRANGERS),
    PlantedBug("half-frames-not-summed", "each unfinished frame has a limit of bytes, and all "
                                         "together have none",
               at(Arrivals.excess).instead(lambda self: None),
               scenario=scenarios.CROWDS),
    PlantedBug("never-purges", "a node that missed a recovery sends records that the recovery "
                               "made a hole",
               at(CachedLog.readable).around(_never_purges), scenario=scenarios.PURGES,
               scene="tests/storage/test_log_cache.py"),
)  # fmt: skip
