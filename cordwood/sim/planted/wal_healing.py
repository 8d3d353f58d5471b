"""Bugs in the healing of a WAL's losses.

Source: docs/protocol/repair.md; docs/sources/logdevice.md 2.9 (mini-rebuilding).
"""

from __future__ import annotations

from typing import Any

from cordwood.protocol import repair_plan
from cordwood.protocol.repair_plan import Past, RepairPlan
from cordwood.protocol.wal_heal import HealBook, is_settled
from cordwood.sim.planted.bug import PlantedBug, at
from cordwood.sim.planted.scenarios import WAL_LOST
from cordwood.storage.repair import repairs, wal_healing
from cordwood.storage.repair.repairs import Repairs
from cordwood.storage.repair.wal_healing import WalHealing
from cordwood.uploading.local_drops import LocalDrops


async def _planned_only(right: Any, self: Repairs, log: int, first: int, last: int) -> RepairPlan:
    plan = await self._plan_range(log, first, last, None)
    return plan._replace(takes=())


async def _newest_only(right: Any, self: Repairs, log: int, first: int, last: int) -> RepairPlan:
    found: RepairPlan = await right(self, log, max(first, last - 1), last)
    return found


def _first_is_enough(right: Any, self: HealBook) -> bool:
    return bool(right(self)) or len(self.left) < self.logs


async def _not_asked(right: Any, self: WalHealing, log: int, book: HealBook) -> str:
    book.on_numbered(log, self._engine.cache.log(log).readable)
    return str(await right(self, log, book))


async def _never_mine(self: Repairs, log: int) -> bool:
    return False


async def _holds_what_its_wal_has(
    right: Any, self: LocalDrops, log: int, first: int, last: int
) -> bool:
    damage, self._engine.damage = self._engine.damage, ""
    try:
        return bool(await right(self, log, first, last))
    finally:
        self._engine.damage = damage


def _let_go_is_sure(right: Any, *of: Any, past: Past = Past.SILENT, **more: Any) -> RepairPlan:
    found: RepairPlan = right(*of, past=Past.SURE if past is Past.EMPTY else past, **more)
    return found


BUGS = (
    PlantedBug("heal-stores-nothing", "losses of a WAL are reported healed although nothing was "
                                      "stored",
               at(Repairs.restore).around(_planned_only), scenario=WAL_LOST),
    PlantedBug("heal-newest-only", "only the end of each log is healed",
               at(Repairs.restore).around(_newest_only), scenario=WAL_LOST),
    PlantedBug("heal-one-log", "healing ends after one log",
               at(HealBook.is_healed).around(_first_is_enough), scenario=WAL_LOST),
    PlantedBug("heal-asks-nobody", "a log is healed only as far as the node with the loss can "
                                   "read",
               at(WalHealing._heal).around(_not_asked), scenario=WAL_LOST),
    PlantedBug("heal-unsettled", "a log is healed while blocks are in flight",
               at(is_settled, within=wal_healing).instead(lambda bound, readable: True),
               scenario=WAL_LOST),
    PlantedBug("heal-nodesets-unread", "a node does not regard itself as a member of the "
                                       "nodesets of its lost records",
               at(Repairs.may_hold).instead(_never_mine), scenario=WAL_LOST),
    PlantedBug("heal-after-local-drops", "a node that is not healed lets go of what main storage lost, "
                                         "because its WAL lost the copies",
               at(LocalDrops._holds).around(_holds_what_its_wal_has),
               scene="tests/storage/test_healed_losses.py"),
    PlantedBug("heal-believes-let-go", "a node is healed although a silent node may have the only "
                                       "copies of what main storage lost",
               at(repair_plan.plan_repair, within=repairs).around(_let_go_is_sure),
               scene="tests/storage/test_healed_losses.py"),
)  # fmt: skip
