"""Bugs that judge the past by the present, and bugs in the memory of producers.

Source: docs/sources/logdevice.md 2.6, 2.7; Kafka's idempotent producer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from cordwood.block import Produced, ProducedBlock
from cordwood.client.cluster import Cluster
from cordwood.client.find.log_info import LogInfo as LogInfo
from cordwood.metadata import epoch_store
from cordwood.metadata.epoch_store import EpochRecord, EpochStore, NodesetSince
from cordwood.nodes import Member, NodeId, Nodeset
from cordwood.protocol.producers import ProducerTable, ProducerVerdict, budget_of
from cordwood.recovery import recover_log
from cordwood.recovery.recover_log import Begins
from cordwood.sequencer.activation import Activation
from cordwood.sim.planted import scenarios
from cordwood.sim.planted.bug import PlantedBug, at


def _racks_of_today(right: Any, self: NodesetSince, members: Mapping[NodeId, Member]) -> Nodeset:
    return Nodeset(tuple(members.get(n) or Member(n, "") for n in map(NodeId, self.nodes)))


def _readers_racks_of_today(right: Any, self: Cluster, info: LogInfo, epoch: int) -> Any:
    found = right(self, info, epoch)
    if found is None:
        return None
    nodeset, replication = found
    return Nodeset(tuple(self.members[node] for node in nodeset.nodes)), replication


def _bound_of_own_epoch(
    right: Any, record: EpochRecord, unclean: int, begins: Begins
) -> int | None:
    return begins.time_us if begins.is_latest else None


async def _begins_below_a_seal(
    right: Any, self: EpochStore, log_id: int, epoch: int, time_us: int | None
) -> Any:
    def decide(found: bytes | None) -> bytes:
        record = epoch_store._known(log_id, found)
        begun = record.begun
        if time_us is not None:
            # As if no LSN above it had been reported yet.
            above = [each for each in begun if each.epoch > epoch and each.time_us > time_us]
            begun = (*epoch_store.with_begun(record, epoch, time_us), *above)
        return msgspec.json.encode(msgspec.structs.replace(record, begun=begun))

    return await self._change(log_id, decide)


def _newest_forgotten(
    right: Any, self: ProducerTable, producer: int, epoch: int, place: ProducedBlock
) -> None:
    kind: dict[int, Produced] = self._kind(producer)
    if producer in kind or len(kind) < budget_of(producer).most:
        right(self, producer, epoch, place)


def _full_is_next(right: Any, self: ProducerTable, *block: int, **named: int) -> Any:
    verdict, first = right(self, *block, **named)
    return (ProducerVerdict.NEXT, 0) if verdict is ProducerVerdict.FULL else (verdict, first)


BUGS = (
    PlantedBug("racks-of-today", "an old epoch is judged by the present locations of its nodes",
               at(NodesetSince.nodeset).around(_racks_of_today),
               scenario=scenarios.MOVED),
    PlantedBug("readers-racks-of-today", "readers judge an old epoch by the present locations "
                                         "of its nodes",
               at(Cluster.nodeset_of).around(_readers_racks_of_today),
               scene="tests/recovery/test_moved_racks.py"),
    PlantedBug("move-unseen", "a node that moved does not take a new epoch",
               at(Activation.has_moved).instead(lambda *rest: False),
               scene="tests/recovery/test_moved_racks.py"),
    PlantedBug("bound-of-own-epoch", "records are kept although they are younger than a higher "
                                     "epoch",
               at(recover_log.latest_allowed_us).around(_bound_of_own_epoch),
               scene="tests/recovery/test_append_times.py"),
    PlantedBug("beginnings-untold", "only an epoch's own sequencer knows the time at which it "
                                    "began",
               at(epoch_store.with_begun).instead(lambda record, *rest: record.begun),
               scene="tests/recovery/test_append_times.py"),
    PlantedBug("begins-below-a-seal", "an epoch may set its beginning while a higher epoch "
                                      "recovers",
               at(EpochStore.note_begun).around(_begins_below_a_seal),
               scene="tests/recovery/test_append_times.py"),
    PlantedBug("newest-forgotten", "a log that remembers many producers forgets the newest "
                                   "producer at once",
               at(ProducerTable.note).around(_newest_forgotten), scenario=scenarios.PRODUCERS_MANY),
    PlantedBug("full-is-next", "a producer is forgotten in favour of a new one while it may "
                               "still repeat",
               at(ProducerTable.look).around(_full_is_next), scenario=scenarios.PRODUCERS_MANY),
)  # fmt: skip
