"""Bugs in the repair of copies that rotted.

Source: docs/protocol/repair.md; docs/sources/bookkeeper.md (f).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cordwood.layout.engine_record import STORE_KIND
from cordwood.layout.scrub_rows import DamagedRange
from cordwood.layout.waves import StoredBlock, store_head
from cordwood.node import Node
from cordwood.nodes import Authority, NodeId
from cordwood.protocol import repair_plan
from cordwood.protocol.repair_plan import HeldCopy, RepairTurns, Said, Take
from cordwood.quorum.f_majority import QuorumVerdict, weigh_replies
from cordwood.recovery.heard import Statuses
from cordwood.sim.fault_plan import Damage, Fault
from cordwood.sim.options import RunOptions
from cordwood.sim.planted.bug import PlantedBug, at, together
from cordwood.sim.planted.scenarios import ROT, both, cluster_of, planned, scenario, scrubbed
from cordwood.storage.log_cache import CachedLog
from cordwood.storage.log_search import LogSearch
from cordwood.storage.logs_db import logs_read, logs_store, lost_partitions
from cordwood.storage.logs_db.logs_read import Found
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.logs_db.lost_partitions import take_for_rotten
from cordwood.storage.repair import repairs
from cordwood.storage.repair.copy_fetch import CopyFetches
from cordwood.storage.repair.repairs import Repairs
from cordwood.storage.scrub.damage_book import DamageBook

LATE_S = 1.5
"""How late a planted bug hands a block to the WAL: now and then a node is killed meanwhile."""


def _within(options: RunOptions) -> RunOptions:
    return replace(options, faults=replace(options.faults, damage=Damage.WITHIN))


ROT_ON_TWO = scenario(
    "rotten_tables",
    shape=both(
        cluster_of(6, 3), scrubbed, _within,
        planned(
            *(
                Fault("rotten_tables", (node,), 5.0 + 3.0 * turn + node, 0.3)
                for turn in range(3)
                for node in (1, 2)
            )
        ),
    ),
    length_s=16.0, trim_s=0.0,
)  # fmt: skip
"""Rows rot on two nodes of six, and blocks have three copies."""

LOST_PARTITION = scenario(
    "lost_partition",
    shape=both(
        cluster_of(6, 3), _within,
        planned(*(Fault("lost_partition", (1,), 6.0 + 3.0 * turn, 0.3) for turn in range(3))),
    ),
    length_s=16.0, trim_s=0.0,
)  # fmt: skip
"""A partition of one node's LogsDB is gone when it starts."""


async def _one_bit_flipped(
    right: Any,
    self: CopyFetches,
    node: NodeId,
    log: int,
    first: int,
    last: int,
    *,
    digest: bool = False,
) -> Any:
    blocks: Sequence[StoredBlock] = await right(self, node, log, first, last, digest=digest)
    for block in blocks:
        if block.body:
            block.body = bytes([block.body[0] ^ 1]) + bytes(block.body[1:])
    return blocks


async def _planned_by_the_list(right: Any, self: Repairs, *args: Any, **rest: Any) -> Any:
    async def as_known(log: int) -> Mapping[NodeId, Authority]:
        return {member.node: member.authority for member in self._members().values()}

    before, self._read_statuses = self._read_statuses, as_known
    try:
        return await right(self, *args, **rest)
    finally:
        self._read_statuses = before


async def _neighbour_voided(
    right: Any, self: LogsStore, damaged: DamagedRange, start: int, last: int | None = None
) -> bool:
    done = bool(await right(self, damaged, start, last))
    wider = damaged._replace(first=damaged.last + 1, last=damaged.last + 2)
    await self.note_damage(wider, "a bug says so")
    return bool(await right(self, wider, wider.first)) or done


async def _stored_later(right: Any, self: Repairs, block: StoredBlock) -> None:
    def store() -> None:
        if not self._engine.failed:
            parts = [STORE_KIND, store_head(1), block.wire, block.body]
            taken = [block]
            self._engine.append_store(0, parts, taken, (), lambda _: None, by_recovery=False)

    asyncio.get_running_loop().call_later(LATE_S, store)


async def _stored_nowhere(self: Repairs, block: StoredBlock) -> None:
    return


async def _nothing_was_lost(right: Any, *what: Any, **named: Any) -> None:
    return


def _without_its_end(right: Any, *what: Any, **named: Any) -> list[DamagedRange]:
    *most, last = right(*what, **named)
    short = last._replace(last=last.last - 1)
    return [*most, short] if short.first <= short.last else most


def _by_any_copy(right: Any, found: Sequence[Found], *what: Any, **named: Any) -> Any:
    left, bad = right(found, *what, **named)
    there = {(key.first, key.last) for key, _, _ in left}
    return left, [each for each in bad if each not in there]


async def _one_answer(
    right: Any,
    self: Repairs,
    log: int,
    first: int,
    last: int,
    nodes: Sequence[NodeId],
    *,
    digest: bool,
) -> dict[NodeId, Said]:
    found: dict[NodeId, Said] = await right(self, log, first, last, nodes[:1], digest=digest)
    return found


def _own_envelope(right: Any, take: Take, block: StoredBlock) -> StoredBlock:
    envelope = take.copy.envelope
    others = tuple(node + 1 if node < 4 else 1 for node in envelope.copyset)
    wrong = envelope.__class__(others, envelope.wave + 1, envelope.seal_epoch, envelope.lng)
    copy = take.copy._replace(envelope=wrong)
    found: StoredBlock = right(take._replace(copy=copy), block)
    return found


def _trim_forgotten(right: Any, self: CachedLog, block: StoredBlock) -> bool:
    gone, self.gone = self.gone, 0
    try:
        return bool(right(self, block))
    finally:
        self.gone = gone


def _whatever_was_trimmed(
    right: Any,
    first: int,
    last: int,
    me: NodeId,
    said: Mapping[NodeId, Said],
    mine: Any,
    epochs: Any,
    statuses: Any,
    known: Any = None,
    **how: Any,
) -> Any:
    untold = {node: each._replace(gone=0) for node, each in said.items()}
    return right(first, last, me, untold, mine, epochs, statuses, known, **how)


def _let_go_is_trim(
    right: Any,
    first: int,
    last: int,
    me: NodeId,
    said: Mapping[NodeId, Said],
    *rest: Any,
    **how: Any,
) -> Any:
    trimmed = {n: each._replace(gone=max(each.gone, each.let_go)) for n, each in said.items()}
    return right(first, last, me, trimmed, *rest, **how)


def _latest_of_all(me: NodeId, by_node: Mapping[NodeId, HeldCopy]) -> HeldCopy | None:
    latest: HeldCopy | None = None
    for copy in by_node.values():
        latest = copy if repair_plan._is_later(copy, latest) else latest
    return latest if latest is not None and me in latest.envelope.copyset else None


async def _by_the_list(self: Node, log: int) -> Statuses:
    return await self._read_statuses(log)


BUGS = (
    PlantedBug("repair-by-an-older-list", "a repair counts nodes out by a list from before its "
               "answers: they may be back, and have acknowledged records",
               at(Repairs._plan_range).around(_planned_by_the_list),
               scene="tests/storage/test_repair_statuses.py"),
    PlantedBug("repair-of-events-by-the-list", "a repair of the event log waits for nodes that the "
               "set calls empty, for ever",
               at(Node._read_repair_statuses).instead(_by_the_list),
               scene="tests/storage/test_repair_statuses.py"),
    PlantedBug("repair-unchecked", "repair stores a copy from another node without checking its "
                                   "checksum",
               together(at(repairs.is_good).instead(lambda block, header: True),
                        at(CopyFetches.bodies).around(_one_bit_flipped)), scenario=ROT),
    PlantedBug("repair-voids-neighbour", "repair also reports the good copies behind a range as "
                                         "mended",
               at(LogsStore.note_mended).around(_neighbour_voided), scenario=ROT),
    PlantedBug("repair-rewrites-envelopes", "repair writes envelopes with a higher wave than "
                                            "the present ones",
               at(repairs.block_of).around(_own_envelope), scenario=ROT),
    PlantedBug("repair-before-durable", "a range is reported mended before its copies are durable",
               at(Repairs._store).around(_stored_later), scenario=ROT),
    PlantedBug("repair-stores-nothing", "a range is reported mended although nothing was stored",
               at(Repairs._store).instead(_stored_nowhere), scenario=ROT),
    PlantedBug("repair-asks-one", "the answer of one other node is enough for the content of a "
                                  "range",
               together(at(Repairs._ask).around(_one_answer),
                        at(weigh_replies, within=repair_plan).instead(
                            lambda heard, nodeset, replication, statuses: QuorumVerdict.COMPLETE)),
               scenario=ROT_ON_TWO),
    PlantedBug("repaired-beside-rot", "a repaired copy is flushed to the partition with the rot",
               at(DamageBook.holds).instead(lambda self, partition: False), scenario=ROT),
    PlantedBug("repair-never", "rot is found and never mended",
               at(RepairTurns.due).instead(lambda self, ranges, now: []), scenario=ROT),
    PlantedBug("lost-partition-empty", "a partition that is gone is taken for an empty one",
               at(take_for_rotten, within=logs_store).around(_nothing_was_lost),
               scenario=LOST_PARTITION),
    PlantedBug("lost-partition-short", "the last LSN of a lost partition is not called damaged",
               at(lost_partitions._ranges).around(_without_its_end), scenario=LOST_PARTITION),
    PlantedBug("repair-part-is-all", "a range is mended once the first part of it that nodes told is",
               at(repair_plan.part_to_plan, within=repairs).instead(
                   lambda first, last, said: (first, last)),
               scene="tests/storage/test_repairs.py"),
    PlantedBug("rot-filled-by-any-copy", "an earlier copy in another partition fills a range that "
                                         "rotted",
               at(logs_read._without_damaged).around(_by_any_copy),
               scene="tests/storage/test_repairs.py"),
    PlantedBug("rot-found-empty", "a question where a time or the log's end lies takes what rotted "
                                  "for empty",
               at(LogSearch._check_between).instead(
                   lambda self, log, before, above, below: None),
               scene="tests/storage/test_log_search.py"),
    PlantedBug("repair-untrims", "repair brings back what other nodes trimmed",
               together(at(CachedLog._is_late).around(_trim_forgotten),
                        at(repair_plan.plan_repair, within=repairs).around(_whatever_was_trimmed)),
               scene="tests/storage/test_repairs.py"),
    PlantedBug("repair-believes-moves", "the envelope of an unfinished move prevents the repair "
                                        "of a copy",
               at(repair_plan._due).instead(_latest_of_all),
               scene="tests/storage/test_repairs.py"),
    PlantedBug("repair-takes-let-go-for-trim", "a rotten copy stays rotten because another node "
                                               "let go into main storage, which lost the range",
               at(repair_plan.plan_repair, within=repairs).around(_let_go_is_trim),
               scene="tests/storage/test_lost_in_main_storage.py"),
)  # fmt: skip
