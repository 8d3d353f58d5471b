"""Bugs of the sequencer and of what it believes about stores.

Source: docs/sources/reliability.md §2, §6 (mutant list).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cordwood.layout.block_header import pack_header, unpack_header
from cordwood.layout.waves import Refusal
from cordwood.nodes import Replication
from cordwood.protocol.producers import ProducerVerdict
from cordwood.quorum.copyset import choose_copyset
from cordwood.sim.planted import scenarios
from cordwood.sim.planted.bug import PlantedBug, changed, instead

_APPENDER = "sequencer.appender:LogAppender"
_WINDOW = "protocol.append_window:AppendWindow"
_LOOK = "protocol.producers:ProducerTable.look"


def _retry_renumbers(right: Any) -> Any:
    def retry(self: Any, run: Any, now: float) -> None:
        right(self, run, now)
        if not run.contents.bytes or getattr(self, "_planted_again", None) == run.first:
            return
        self._planted_again = run.first
        count = run.last - run.first + 1
        if self._window.fits(count) and run.copyset:
            again = self._window.number(count, _moved(run, self._window.next - run.first))
            self._send(again, tuple(run.copyset), now)

    return retry


def _moved(run: Any, by: int) -> Any:
    """A run's blocks as contents of their own, `by` LSNs on; nobody waits for it."""
    contents = type(run.contents)()
    for header, body in run.contents.blocks:
        old = unpack_header(header)
        new = dataclasses.replace(
            old,
            first=old.first + by,
            group_first=old.group_first + by,
            group_last=old.group_last + by,
        )
        contents.blocks.append((pack_header(new), body))
    return contents


def _ack_at_one_less(right: Any) -> Any:
    def on_stored(self: Any, node: int, wave: int) -> bool:
        before = self.stored
        right(self, node, wave)
        self.stored = len(self.waiting) <= 1
        return self.stored and not before

    return on_stored


def _stale_waves_count(right: Any) -> Any:
    def on_settled(self: Any, run: Any, wave: int, node: int, refusals: Any) -> None:
        is_stale = refusals is not None and not refusals and wave != run.wave
        if is_stale and not run.stored and not self._over and run.waiting:
            run.waiting.discard(min(run.waiting))
            if not run.waiting:
                run.stored = True
                self._retire()
            return
        right(self, run, wave, node, refusals)

    return on_settled


def _acks_out_of_order(self: Any) -> list[Any]:
    done = [run for run in self._runs if run.stored]
    for run in done:
        self._runs.remove(run)
        self.lng = max(self.lng, run.last)
    return done


def _refusals_ignored(right: Any) -> Any:
    def read_stored(payload: Any) -> Any:
        wave, _ = right(payload)
        return wave, ()

    return read_stored


def _one_rack(right: Any) -> Any:
    def choose_copyset(nodeset: Any, replication: Any, available: Any, chance: Any) -> Any:
        return right(nodeset, Replication(replication.copies, 1), available, chance)

    return choose_copyset


def _shrinks(right: Any) -> Any:
    def choose(self: Any, now: float, nodes: Any) -> Any:
        whole = right(self, now, nodes)
        if whole is not None or self.replication.copies == 1:
            return whole
        fewer = Replication(self.replication.copies - 1)
        return choose_copyset(self.nodeset, fewer, nodes, self._tools.random)

    return choose


def _lost_counts(right: Any) -> Any:
    def on_settled(self: Any, run: Any, wave: int, node: int, refusals: Any) -> None:
        right(self, run, wave, node, () if refusals is None else refusals)

    return on_settled


def _one_region(right: Any) -> Any:
    def choose_copyset(nodeset: Any, replication: Any, available: Any, chance: Any) -> Any:
        racks_alone = Replication(replication.copies, replication.racks)
        return right(nodeset, racks_alone, available, chance)

    return choose_copyset


def _epoch_kept(right: Any) -> Any:
    async def begin(self: Any, log: int, epoch: int, record: Any, role: Any) -> Any:
        appender = await right(self, log, epoch, record, role)
        self._taken[log] = (epoch, record)
        return appender

    return begin


def _fenced_goes_on(right: Any) -> Any:
    def on_refused(self: Any, run: Any, node: Any, refusal: Any, now: float) -> None:
        if refusal.reason == Refusal.SEALED:
            run.sent_at = now
            return
        right(self, run, node, refusal, now)

    return on_refused


def _released_early(right: Any) -> Any:
    async def begin(self: Any, log: int, epoch: int, record: Any, role: Any) -> Any:
        appender = await right(self, log, epoch, record, role)
        appender.is_recovered = True
        return appender

    return begin


def _turn_taken(wrong: ProducerVerdict) -> Any:
    """Blocks whose verdict is `wrong` are stored as if it were theirs."""

    def make(right: Any) -> Any:
        def look(self: Any, *block: int, **how: bool) -> Any:
            verdict, first = right(self, *block, **how)
            return (ProducerVerdict.NEXT, 0) if verdict is wrong else (verdict, first)

        return look

    return make


def _lng_inside_groups(right: Any) -> Any:
    def number(self: Any, count: int, contents: Any, *, ends_group: bool = True) -> Any:
        return right(self, count, contents, ends_group=True)

    return number


def _token_forgotten(right: Any) -> Any:
    async def begin(self: Any, log: int, epoch: int, record: Any, role: Any) -> Any:
        appender = await right(self, log, epoch, record, role)
        appender.token = 0
        return appender

    return begin


def _token_without_epoch(right: Any) -> Any:
    async def raise_token(self: Any, log_id: int, token: int, holder: str) -> Any:
        return await self.read(log_id)

    return raise_token


async def _gives_nothing_up(self: Any, log: int, epoch: int, successor: int) -> None:
    return


async def _always_newest(self: Any, log: int, epoch: int) -> bool:
    return True


def _newest_nodeset(self: Any, epoch: int) -> Any:
    return self.history[-1]


BUGS = (
    PlantedBug("retry-renumbers", "a retried store is stored a second time under new LSNs",
               changed({f"{_APPENDER}._retry": _retry_renumbers})),
    PlantedBug("ack-at-one-less", "a run counts as stored when one copy is still missing",
               changed({"protocol.append_window:InFlightRun.on_stored": _ack_at_one_less})),
    PlantedBug("stale-waves-count", "an answer to an earlier wave counts for the present one",
               changed({f"{_APPENDER}._on_settled": _stale_waves_count})),
    PlantedBug("acks-out-of-order", "a run is acknowledged before those ahead of it are stored",
               changed({f"{_WINDOW}.retire": instead(_acks_out_of_order)})),
    PlantedBug("refusals-ignored", "a store that a node refused counts as stored",
               changed({"wire.store_channel:read_stored": _refusals_ignored})),
    PlantedBug("one-rack", "copysets do not look at racks",
               changed({"sequencer.appender:choose_copyset": _one_rack})),
    PlantedBug("shrinks", "where too few nodes are up, copysets have a copy less",
               changed({f"{_APPENDER}._choose": _shrinks}), scenario=scenarios.FEW_NODES),
    PlantedBug("lost-counts", "a store whose answer was lost with its connection counts",
               changed({f"{_APPENDER}._on_settled": _lost_counts}), scenario=scenarios.FAR_NODES),
    PlantedBug("one-region", "copysets look at racks and at no wider scope",
               changed({"sequencer.appender:choose_copyset": _one_region})),
    PlantedBug("epoch-kept", "a node that starts to sequence again takes its old epoch",
               changed({"sequencer.activation:Activation._begin": _epoch_kept})),
    PlantedBug("fenced-goes-on", "a sequencer that is fenced goes on, whoever tells it",
               changed({f"{_APPENDER}._on_refused": _fenced_goes_on,
                        "sequencer.role:SequencerRole.on_released": instead(lambda *_: None),
                        "sequencer.role:SequencerRole.give_up": instead(_gives_nothing_up),
                        "sequencer.activation:Activation.is_newest": instead(_always_newest)}),
               scenario=scenarios.REPLACED),
    PlantedBug("released-early", "an epoch is released before those below it are recovered",
               changed({"sequencer.activation:Activation._begin": _released_early})),
    PlantedBug("repeat-unseen", "a producer's block that comes again is stored again",
               changed({_LOOK: _turn_taken(ProducerVerdict.REPEAT)})),
    PlantedBug("old-producer-heard", "a producer of a lower epoch is heard after a higher one",
               changed({_LOOK: _turn_taken(ProducerVerdict.FENCED)})),
    PlantedBug("condition-unseen", "a conditional append is stored wherever the tail stands",
               changed({"sequencer.producer_checks:ProducerChecks._check_tail": instead(lambda *rest: None)})),
    PlantedBug("lng-in-group", "the LNG moves over a group run by run",
               changed({f"{_WINDOW}.number": _lng_inside_groups})),
    PlantedBug("token-ignored", "a sequencer does not know of its log's fencing token",
               changed({"sequencer.activation:Activation._begin": _token_forgotten}),
               scenario=scenarios.TOKENS),
    PlantedBug("token-without-epoch", "a fencing token is promised and takes no epoch",
               changed({"metadata.epoch_store:EpochStore.raise_token": _token_without_epoch}),
               scenario=scenarios.TOKENS),
    PlantedBug("slow-node-kept", "a node that lets waves time out is picked on",
               changed({"protocol.node_states:NodeStates.on_slow": instead(lambda *_: None)}),
               scenario=scenarios.PACED),
    PlantedBug("stale-tail", "a sequencer that was replaced unawares tells its tail",
               changed({"sequencer.activation:Activation.is_newest": instead(_always_newest)}),
               scenario=scenarios.APART),
)  # fmt: skip

NEWEST_NODESET = PlantedBug(
    "newest-nodeset",
    "recovery asks the nodes of today for what those of then hold",
    changed({"metadata.epoch_store:EpochRecord.entry": instead(_newest_nodeset)}),
)
"""Needs an acknowledgement that nobody else heard of, and a nodeset that changes just then: a
scenario of its own has both (tests/sim/test_fewer_nodes.py), one seed in hundreds does."""
