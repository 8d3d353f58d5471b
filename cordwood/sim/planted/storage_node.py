"""Bugs of a storage node above its WAL.

Source: docs/sources/reliability.md §2, §6 (mutant list).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from cordwood.layout.message import DoneReply
from cordwood.layout.waves import AmendedBlock
from cordwood.sim.planted import scenarios
from cordwood.sim.planted.bug import PlantedBug, changed, instead
from cordwood.storage.log_cache import EpochEnd

_ENGINE = "storage.engine:StorageEngine"
_CLAIMS = "storage.claims:Claims"
_CACHED = "storage.log_cache:CachedLog"
_DIRECTORY = "storage.data_directory:DataDirectory"
_SCRUB = "storage.scrub.scrub:Scrub"

LATE_S = 1.0
"""How long after its answer a node stores what it has confirmed."""


def _ack_before_durable(right: Any) -> Any:
    def append_store(
        self: Any,
        wave: int,
        parts: Any,
        taken: Any,
        refused: Any,
        settled: Callable[[Sequence[Any]], None],
        by_recovery: bool,
    ) -> None:
        self._insert(self._wal.durable_offset, taken)
        settled(refused)

        async def later() -> None:
            await asyncio.sleep(LATE_S)
            right(self, wave, parts, taken, refused, lambda _: None, by_recovery)

        self._planted_task = asyncio.get_running_loop().create_task(later())

    return append_store


def _released_too_far(right: Any) -> Any:
    def insert(self: Any, block: Any) -> bool:
        kept: bool = right(self, block)
        self.released = max(self.released, block.header.last)
        return kept

    return insert


def _damage_is_silence(right: Any) -> Any:
    async def opened(cls: Any, wal: Any, *more: Any, **named: Any) -> Any:
        engine = await right.__func__(cls, wal, *more, **named)
        engine.damage = ""
        return engine

    return classmethod(opened)


def _damage_is_forgotten(right: Any) -> Any:
    async def flush_metadata(self: Any, *flushed: Any) -> None:
        # As if a start's verdict were that start's alone, and the WAL is trimmed behind this.
        lost, self.lost = self.lost, ()
        try:
            await right(self, *flushed)
        finally:
            self.lost = lost

    return flush_metadata


def _refusal_settles_earlier(right: Any) -> Any:
    def on_settled(self: Any, connection: Any, session: Any, wave: Any, refusals: Any) -> None:
        for each in session.open:
            if each is wave:
                break
            each[0] = True
        right(self, connection, session, wave, refusals)

    return on_settled


def _never_purges(right: Any) -> Any:
    return property(lambda self: self.released)


def _trims_too_much(right: Any) -> Any:
    def on_trimmed(self: Any, record: Any) -> None:
        # Up to the end of the block that the trim point is in.
        inside = self.cache.log(record.log).at(self.cache.log(record.log).index_from(record.lsn))
        last = inside.header.last if inside is not None else record.lsn
        right(self, record._replace(lsn=max(record.lsn, last)))

    return on_trimmed


def _restart_forgets_trims(right: Any) -> Any:
    def replay(self: Any, offset: int, body: memoryview) -> None:
        before = {log: held.trim for log, held in self.cache.logs.items()}
        right(self, offset, body)
        for log, held in self.cache.logs.items():
            held.trim = before.get(log, 0)

    return replay


def _edge_is_older(right: Any) -> Any:
    async def directory(self: Any, log: int) -> Any:
        # As if a partition ended one microsecond before its last block.
        found = await right(self, log)
        return [
            (partition, entry._replace(last_us=max(entry.first_us, entry.last_us - 1)))
            for partition, entry in found
        ]

    return directory


def _scrub_trusts_index(right: Any) -> Any:
    async def check_bodies(self: Any, *_: Any) -> None:
        return

    return check_bodies


def _scrub_goes_on_with_next(right: Any) -> Any:
    async def report(self: Any, partition: Any, log: int, first: int, last: int, why: str) -> None:
        # Off by a block: what follows the bad one is told.
        await right(self, partition, log, last + 1, last + 1, why)

    return report


def _last_of_all(right: Any) -> Any:
    async def last_counted(tables: Any, partition: Any, log: int, entry: Any, *_: Any) -> int:
        last: int = entry.last
        return last

    return last_counted


def _as_if_even(right: Any) -> Any:
    async def above(self: Any, log: int, lsns: Any) -> list[int]:
        parts = [entry for _, entry in await self._engine.logs.directory(log)]
        held = [sum(part.bytes for part in parts if part.first > lsn) for lsn in lsns]
        return [each * 5 // 3 for each in held]

    return above


def _fits_once(right: Any) -> Any:
    seen: list[int] = []

    def fitting_trim(lsns: Any, kept: Any, bytes_max: int) -> int:
        # As if what was kept at the first trim were kept at every later one.
        seen.append(right(lsns, kept, bytes_max))
        return min(filter(None, seen), default=0)

    return fitting_trim


def _whole_body(right: Any) -> Any:
    return lambda block: block.header.stored_bytes if right(block) else 0


def _skips_rot(right: Any) -> Any:
    async def find_rot(*what: Any, **how: Any) -> Any:
        # It reads on behind what cannot be read, and does not say so.
        rot = await right(*what, **how)
        return rot._replace(first=rot.last + 1)

    return find_rot


def _by_size_only(right: Any) -> Any:
    def due_s(self: Any) -> float | None:
        due: float | None = right(self)
        return due if self._has_enough() else None

    return due_s


def _taken_unseen(right: Any) -> Any:
    def refuse(self: Any, frame: Any, refused: Any) -> None:
        frame.settled(tuple(refused.values()))

    return refuse


def _sent_to_all(right: Any) -> Any:
    async def store(job: Any, wave: Any, channel: Any, host: Any, holders: Any) -> None:
        # As if the digest were of the epoch, and not of each of its members.
        await right(job, wave, channel, host, frozenset(job.nodes) if holders else holders)

    return store


def _replaced_is_left_out(right: Any) -> Any:
    async def flush(self: Any, blocks: Any, *rest: Any) -> None:
        amended = {block.header for block in blocks if type(block) is AmendedBlock}
        kept = [b for b in blocks if type(b) is AmendedBlock or b.header not in amended]
        await right(self, kept, *rest)

    return flush


def _no_home(right: Any) -> Any:
    async def homes(self: Any, blocks: Any) -> Any:
        return {id(block): None for block in blocks if type(block) is AmendedBlock}

    return homes


async def _believed(self: Any, *_: Any) -> None:
    return


async def _any_seal(self: Any, call: Any) -> Any:
    return await self._engine.seal(call.log, call.epoch, call.clean)


async def _any_end(self: Any, call: Any) -> Any:
    end = EpochEnd(call.seal, call.lng, call.produced, call.attempt)
    await self._engine.clean(call.log, call.epoch, end)
    return DoneReply()


def _released(self: Any, log: int, lsn: int) -> None:
    self._engine.release(log, lsn)


async def _empty_disk_taken(self: Any) -> None:
    return


BUGS = (
    PlantedBug("ack-before-durable", "a node confirms a store before its WAL has it",
               changed({f"{_ENGINE}._append_store": _ack_before_durable})),
    PlantedBug("seal-not-obeyed", "a sealed node goes on storing for the old epoch",
               changed({"protocol.seal:SealTable.admits": instead(lambda self, *_: True)}),
               scenario=scenarios.APART),
    PlantedBug("empty-disk-taken", "a node that lost its disk goes on with an empty one",
               changed({f"{_DIRECTORY}._refuse_empty": instead(_empty_disk_taken)}),
               scenario=scenarios.AMNESIA),
    PlantedBug("older-disk-trusted", "a node goes on with a copy of its disk from an earlier day",
               changed({f"{_DIRECTORY}._is_behind": instead(lambda self, found: False)}),
               scenario=scenarios.OLDER_DISKS),
    PlantedBug("released-too-far", "a node shows readers what is not released",
               changed({f"{_CACHED}.insert": _released_too_far})),
    PlantedBug("damage-is-silence", "what a node cannot read any more it takes for absent",
               changed({f"{_ENGINE}.open": _damage_is_silence}), scenario=scenarios.BAD_DISKS,
               scene="tests/client/read/test_damaged_wal.py"),
    PlantedBug("damage-forgotten", "what a node has lost it knows until its WAL is trimmed",
               changed({"storage.logs_db.logs_store:LogsStore._flush_metadata": _damage_is_forgotten}),
               scenario=scenarios.BAD_DISKS, scene="tests/client/read/test_damaged_wal.py"),
    PlantedBug("refusal-settles-earlier", "a refused store confirms those under way before it",
               changed({"storage.role:StorageRole._on_settled": _refusal_settles_earlier}),
               scenario=scenarios.FULL_DISKS),
    PlantedBug("cache-without-bound", "later waves and recoveries are taken into a full cache",
               changed({f"{_ENGINE}.cache_takes": instead(lambda self, *_, **__: True)}),
               scene="tests/storage/test_engine.py"),
    PlantedBug("first-copy-stays", "a copy is never replaced by one that counts more",
               changed({f"{_CACHED}._replace": instead(lambda self, at, block: False)})),
    PlantedBug("amend-of-nothing", "an amend of a block that a node does not hold is answered well",
               changed({"storage.amends:Amends._refuse": _taken_unseen,
                        "recovery.mend_tail:_store": _sent_to_all}), scenario=scenarios.RECOVERIES),
    PlantedBug("amend-loses-body", "a flush leaves out a copy that was amended, and its body too",
               changed({"storage.logs_db.logs_store:LogsStore.flush": _replaced_is_left_out,
                        "storage.logs_db.logs_store:LogsStore._homes": _no_home}),
               scenario=scenarios.RECOVERIES),
    PlantedBug("rebuilt-copyset-taken", "a node takes what names a node that is being rebuilt",
               changed({"quorum.authority:REBUILT": instead(frozenset())}),
               scene="tests/sequencer/test_rebuilding_cluster.py"),
    PlantedBug("trims-too-much", "a node trims all of the block that a trim point is in",
               changed({f"{_ENGINE}._on_trimmed": _trims_too_much}), scenario=scenarios.TRIMS),
    PlantedBug("trims-by-what-is-dead", "retention goes by a bridge that another recovery replaced",
               changed({"storage.space.retention:last_counted": _last_of_all}),
               scene="tests/storage/logs_db/test_trimmed_parts.py"),
    PlantedBug("share-taken-as-even", "retention by size takes a node's part for an even share",
               changed({"storage.space.kept_bytes:KeptBytes.above": _as_if_even}), scenario=scenarios.SIZES),
    PlantedBug("every-copy-counts", "retention by size counts a block once for each copy",
               changed({"storage.space.payload_count:answered_bytes": _whole_body}),
               scenario=scenarios.SIZES),
    PlantedBug("space-is-endless", "retention by size trims nothing once it has trimmed",
               changed({"storage.space.retention:fitting_trim": _fits_once}),
               scene="tests/storage/space/test_kept_by_size.py"),
    PlantedBug("flushes-what-is-trimmed", "a full disk waits for room for blocks that are trimmed",
               changed({"storage.logs_db.flusher:untrimmed": instead(lambda batch, _: batch.blocks)}),
               scene="tests/storage/space/test_full_disk.py"),
    PlantedBug("newest-stays-on-full-disk", "a full disk keeps its newest partition, all trimmed",
               changed({"storage.space.space_watch:NEVER_US": instead(0)}),
               scene="tests/storage/space/test_full_disk.py"),
    PlantedBug("time-off-by-one", "find_time takes a partition's last block for an older one",
               changed({"storage.logs_db.logs_store:LogsStore.directory": _edge_is_older}),
               scenario=scenarios.TIMES),
    PlantedBug("restart-forgets-trims", "a node forgets its trim points when it restarts",
               changed({f"{_ENGINE}._replay": _restart_forgets_trims}), scenario=scenarios.TRIMS),
    PlantedBug("scrub-trusts-index", "scrubbing reads what the index says and no body",
               changed({f"{_SCRUB}._check_bodies": _scrub_trusts_index}), scenario=scenarios.ROT),
    PlantedBug("scrub-tells-neighbour", "scrubbing tells the block behind the bad one",
               changed({f"{_SCRUB}._report": _scrub_goes_on_with_next}), scenario=scenarios.ROT),
    PlantedBug("rot-skipped", "an index is read on behind bad bytes, and nobody is told of them",
               changed({"storage.scrub.scrub:find_rot": _skips_rot,
                        "storage.logs_db.logs_read:find_rot": _skips_rot}),
               scenario=scenarios.ROT),
    PlantedBug("flushes-by-size", "what gathers too little for a flush is never flushed",
               changed({"storage.logs_db.flusher:Flusher._due_s": _by_size_only}), scenario=scenarios.CALM),
    PlantedBug("far-seals-believed", "a node takes the seal of an epoch that was never handed out",
               changed({"storage.role:StorageRole.seal": instead(_any_seal)}),
               scenario=scenarios.STRANGERS),
    PlantedBug("far-ends-believed", "a node believes that an epoch ended which never began",
               changed({"storage.role:StorageRole.clean": instead(_any_end)}),
               scenario=scenarios.STRANGERS),
    PlantedBug("releases-believed", "a node takes a release of an epoch that never was",
               changed({f"{_CLAIMS}.release": instead(_released)}),
               scene="tests/storage/test_claims.py"),
    PlantedBug("far-blocks-stored", "a node stores blocks of epochs that never were",
               changed({"storage.unheard:Unheard.holds": instead(lambda *_: False)}),
               scenario=scenarios.STRANGERS),
    PlantedBug("client-says-released", "a client's word is enough for what may be trimmed",
               changed({f"{_CLAIMS}.check_released": instead(_believed)}),
               scene="tests/storage/test_claims.py"),
    PlantedBug("numbers-believed", "who says to be a node is taken for one",
               changed({"node:Node._check_node": instead(lambda self, theirs: None)}),
               scenario=scenarios.STRANGERS),
    PlantedBug("half-frames-kept", "a frame that was begun may take for ever",
               changed({"wire.arrivals:Arrivals.late": instead(lambda self, now: [])}),
               scenario=scenarios.STRANGERS),
    PlantedBug("half-frames-not-summed", "frames that were begun are bounded each, and not all",
               changed({"wire.arrivals:Arrivals.excess": instead(lambda self: None)}),
               scenario=scenarios.CROWDS),
    PlantedBug("never-purges", "a node that missed a recovery shows what that made a hole",
               changed({f"{_CACHED}.readable": _never_purges}), scenario=scenarios.PURGES,
               scene="tests/storage/test_log_cache.py"),
)  # fmt: skip
