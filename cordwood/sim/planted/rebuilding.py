"""Bugs in the rebuilding of lost nodes.

Source: docs/sources/logdevice.md 2.9; docs/sources/bookkeeper.md (d), (f); docs/protocol/rebuilding.md.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from cordwood.protocol.event_log import Verdict
from cordwood.protocol.rebuild_watch import Start
from cordwood.sim.planted.bug import PlantedBug, changed, instead
from cordwood.sim.planted.rebuilding_scenarios import DISKS_LOST, TWO_COPIES_LOST

_DONOR = "storage.rebuild.donor"
_MOVES = "storage.rebuild.moves:Moves"


def _unawaited(right: Any) -> Any:
    async def send(self: Any, node: Any, wires: Any, *, amends: bool) -> str:
        if amends:
            return str(await right(self, node, wires, amends=amends))
        return ""  # as if it were stored, and it is not even sent

    return send


def _trouble_swallowed(right: Any) -> Any:
    async def send(self: Any, *args: Any, **kwargs: Any) -> str:
        await right(self, *args, **kwargs)
        return ""

    return send


def _first_epoch_skipped(right: Any) -> Any:
    def is_mine(self: Any, block: Any, losses: Any) -> bool:
        return bool(right(self, block, losses)) and block.header.first >> 32 > 1

    return is_mine


def _one_donor_is_enough(right: Any) -> Any:
    return lambda here, entry: bool(right(here, entry)) or bool(entry.done)


def _any_version(right: Any) -> Any:
    return lambda here, event: right(here, replace(event, version=here.version))


def _late_all_the_same(right: Any) -> Any:
    def is_late(self: Any, block: Any) -> bool:
        epoch, seal = block.header.first >> 32, block.envelope.seal_epoch
        over = epoch <= self.clean or epoch in self._closed
        return bool(right(self, block)) or (not seal and over and epoch not in self.ends)

    return is_late


def _rank_kept(right: Any) -> Any:
    def after_asking(move: Any, known: Any) -> Any:
        found, _ = right(move, known)
        return found, move.block.wave - 1

    return after_asking


def _let_in_at_once(right: Any) -> Any:
    def on_start(entry: Any, **how: Any) -> Any:
        found = right(entry, **how)
        return Start.ANEW if found is Start.WAITS and entry is not None else found

    return on_start


def _acked_at_once(right: Any) -> Any:
    def acked(here: Any, event: Any) -> Any:
        found = right(here, event)
        rest = tuple(each for each in here.lost if each.node != event.node)
        return replace(here, lost=rest) if found is Verdict.NOT_DONE else found

    return acked


def _lost_may_give(right: Any) -> Any:
    return lambda self, block: block.copyset[0]


def _unsettled_forgotten(right: Any) -> Any:
    return property(lambda self: self.report.is_clean)


BUGS = (
    PlantedBug("rebuilt-unstored", "envelopes name new copies that were never stored",
               changed({f"{_MOVES}._send": _unawaited}), scenario=DISKS_LOST),
    PlantedBug("rebuild-refusal-ignored", "a donor goes on where a node refused or went away",
               changed({f"{_MOVES}._send": _trouble_swallowed}), scenario=DISKS_LOST),
    PlantedBug("donor-done-early", "a donor says that it is done after its first pass",
               changed({f"{_DONOR}:Pass.is_done": instead(property(lambda self: True))}),
               scenario=DISKS_LOST),
    PlantedBug("donor-skips-epoch", "a donor leaves out the first epoch of each log",
               changed({f"{_DONOR}:Donor._is_mine": _first_epoch_skipped}), scenario=DISKS_LOST),
    PlantedBug("donor-forgets-unsettled", "a donor does not wait for blocks that are not settled",
               changed({f"{_DONOR}:Pass.is_done": _unsettled_forgotten}), scenario=DISKS_LOST),
    PlantedBug("empty-too-soon", "a node is called empty when one donor is done",
               changed({"protocol.event_log:_is_over": _one_donor_is_enough}), scenario=DISKS_LOST),
    PlantedBug("rebuilt-of-any-version", "that a donor is done counts for whatever set there is",
               changed({"protocol.event_log:_is_rebuilt": _any_version}), scenario=DISKS_LOST),
    PlantedBug("rebuilt-dropped-late", "a node drops a rebuilt block of an epoch that has ended",
               changed({"storage.log_cache:CachedLog._is_late": _late_all_the_same}),
               scenario=DISKS_LOST),
    PlantedBug("rebuilt-rank-kept", "a move writes envelopes that do not beat those that there are",
               changed({"storage.rebuild.moves:after_asking": _rank_kept}), scenario=DISKS_LOST),
    PlantedBug("empty-disk-let-in", "a node with an empty disk joins before its data is elsewhere",
               changed({"storage.rebuild.admission:on_start": _let_in_at_once,
                        "protocol.event_log:_acked": _acked_at_once}), scenario=DISKS_LOST),
    PlantedBug("lost-node-gives", "the first node of a copyset is its donor, lost or not",
               changed({"protocol.rebuild_plan:Losses.donor": _lost_may_give}),
               scenario=TWO_COPIES_LOST),
)  # fmt: skip
