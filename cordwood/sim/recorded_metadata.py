"""The metadata store of a simulated cluster, which records what it grants.

An epoch is recorded at the moment its compare-and-set takes effect, whether or not the answer
arrives, so that the checkers see every epoch that was really handed out. Each change of a
consumer's members and positions is recorded in the same way.

All nodes share one such store. Each start of a node has leases of its own, as it has on a real
store: one node's lease keeps the others from the work, also the next start of the same node.

Source: docs/sources/reliability.md §3 (S11); `sim.history`.
"""

from __future__ import annotations

import random
from hashlib import blake2b

import msgspec

from cordwood.metadata.consumers import read_group
from cordwood.metadata.epoch_store import EpochRecord
from cordwood.metadata.lease import EntryLeases
from cordwood.metadata.memory import MemoryMetadata, loop_us
from cordwood.sim.history import HistoryRecorder
from cordwood.sim.process import CURRENT_PROCESS

_EPOCHS = "epochs/"
_CONSUMERS = "consumers/"


class RecordedMetadata(MemoryMetadata):
    """See the module."""

    def __init__(self, chance: random.Random, recorder: HistoryRecorder) -> None:
        super().__init__(chance)
        self._recorder = recorder
        # By the name of the process: of each start of a node.
        self._leases_of: dict[str, EntryLeases] = {}

    async def take_lease(self, key: str, value: bytes, ttl_s: float) -> bool:
        """See `MetadataStore`; by the loop's clock, for the process that asks."""
        return await self._own_leases().take(key, value, ttl_s)

    async def drop_lease(self, key: str) -> None:
        """See `MetadataStore`; for the process that asks."""
        await self._own_leases().drop(key)

    def _own_leases(self) -> EntryLeases:
        process = CURRENT_PROCESS.get(None)
        name = process.name if process is not None else ""
        if name not in self._leases_of:
            # Drawn from the name: a draw from the store's stream would change its later delays.
            self._leases_of[name] = EntryLeases(
                self, loop_us, lambda size: blake2b(name.encode(), digest_size=size).digest()
            )
        return self._leases_of[name]

    def _set(self, key: str, value: bytes | None, expected: int) -> int | None:
        before = self._values.get(key)
        version = super()._set(key, value, expected)
        if version is not None and value is not None and key.startswith(_EPOCHS):
            old = msgspec.json.decode(before.value, type=EpochRecord) if before else None
            self._note(int(key.removeprefix(_EPOCHS)), old, value)
        elif version is not None and value is not None and key.startswith(_CONSUMERS):
            self._note_group(key.removeprefix(_CONSUMERS), value)
        return version

    def _note_group(self, consumer: str, value: bytes) -> None:
        group = read_group(consumer, value)
        owners = {log: (own.member, own.since) for log, own in group.owners.items()}
        self._recorder.group_changed(
            consumer, group.generation, owners, group.positions, group.resets
        )

    def _note(self, log: int, old: EpochRecord | None, value: bytes) -> None:
        new = msgspec.json.decode(value, type=EpochRecord)
        if old is not None and new.next_epoch > old.next_epoch:
            self._recorder.epoch_taken(log, new.next_epoch - 1, current_node())
        if old is not None and new.clean_epoch != old.clean_epoch:
            self._recorder.clean_epoch_set(log, new.clean_epoch, new.clean_tail)


def current_node() -> int:
    """The node whose process asks, from its machine's name; 0 for other processes."""
    process = CURRENT_PROCESS.get(None)
    if process is None:
        return 0  # a test calls a node's code from its own scenario
    head, _, rest = process.name.partition("-")
    number = rest.split("#")[0]
    return int(number) if head == "node" and number.isdigit() else 0
