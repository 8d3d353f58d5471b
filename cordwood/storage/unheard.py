"""Claims of callers about epochs that this node has not heard of.

Releases and stores wait here until `storage.claims` has asked the epoch store whether the epoch was
handed out. This happens once for a node that was away while an epoch began. It also stops faulty
callers: a block of an epoch that was never handed out would release the log up to its LNG, and its
time would decide which records retention trims.

If the epoch store does not answer, a store is taken like a seal: up to SEAL_AHEAD_MAX epochs ahead.
Appends must go on without the metadata store, and the sender may have no other node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cordwood.layout.waves import Refusal, StoredBlock, StoreRefusal

if TYPE_CHECKING:
    from cordwood.storage.engine import StorageEngine

SEAL_AHEAD_MAX = 1024
"""A seal may lie this many epochs above the last epoch that the epoch store told this node, before
the store is asked again. Seals sent to nodes that were down for long exceed it, and seals of faulty
callers. It is not measured from earlier claims, because then many seals could raise the epoch step
by step without a bound."""

WAITING_MAX = 16_384
"""The most logs that wait for the epoch store. A release of a further log is dropped: sequencers
send releases again, also each time that this node connects."""

HELD_BYTES_MAX = 64 << 20
"""The most waiting stores. A further store is refused as by a full node, and its sender tries
again."""

Told = Callable[[Refusal | None], None]
"""Called with None if the epoch was handed out, or with the reason why the store is refused."""


@dataclass(slots=True)
class Claim:
    """The claims that wait for one log.

    Attributes:
        released: the highest claimed release, 0 for none.
        stores: the epoch of each waiting store, and its callback.
    """

    released: int = 0
    stores: list[tuple[int, Told]] = field(default_factory=list)


class Unheard:
    """See the module.

    Attributes:
        told: by log, the newest epoch that the epoch store told of. Logs that it does not have are
            left out.
    """

    def __init__(self) -> None:
        self.told: dict[int, int] = {}
        # By log, the highest epoch whose stores are taken until the epoch store answers.
        self._assumed: dict[int, int] = {}
        self._waiting: dict[int, Claim] = {}
        self._held_bytes = 0
        self._stirred = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add_release(self, log: int, lsn: int) -> None:
        """Take a caller's claim that readers may see up to `lsn`."""
        claim = self._claim(log)
        if claim is not None:
            claim.released = max(lsn, claim.released)

    def _claim(self, log: int) -> Claim | None:
        if log not in self._waiting and len(self._waiting) >= WAITING_MAX:
            return None
        self._stirred.set()
        return self._waiting.setdefault(log, Claim())

    def holds(
        self,
        engine: StorageEngine,
        wave: int,
        payload: memoryview,
        blocks: Sequence[StoredBlock],
        settled: Callable[[Sequence[StoreRefusal]], None],
    ) -> bool:
        """Let a store wait if it has a block of an unknown epoch. Returns False if it has no such
        block."""
        logs = engine.cache.logs
        for block in blocks:
            log, epoch = block.header.log, block.header.first >> 32
            held = logs.get(log)
            # This first check is enough for every block except the first blocks of an epoch.
            if held is not None and epoch <= held.released >> 32:
                continue
            if epoch > max(self.known(engine, log), self._assumed.get(log, 0)):
                break
        else:
            return False
        size = sum(each.wire_bytes for each in blocks)
        claim = self._claim(log) if self._held_bytes + size <= HELD_BYTES_MAX else None

        def on_told(refusal: Refusal | None) -> None:
            self._held_bytes -= size
            if refusal is None:
                engine.store(wave, payload, settled)
            else:
                refused = dict.fromkeys(each.header.log for each in blocks)
                settled(tuple(StoreRefusal(wave, each, refusal) for each in refused))

        self._held_bytes += size
        if claim is None:
            on_told(Refusal.FULL)
        else:
            claim.stores.append((epoch, on_told))
        return True

    def known(self, engine: StorageEngine, log: int) -> int:
        """The highest epoch of a log that this node was shown to be handed out; 0 for none."""
        held = engine.cache.get(log)
        known = max(engine.sealed(log), self.told.get(log, 0))
        return known if held is None else max(known, held.released >> 32, held.nodesets[0])

    def tell(self, log: int, newest: int) -> None:
        """Take the answer of the epoch store: `newest` was handed out last, 0 for none."""
        self._assumed.pop(log, None)
        if newest:
            self.told[log] = max(newest, self.told.get(log, 0))

    def is_near(self, log: int, epoch: int) -> bool:
        """Whether an epoch is no further ahead than a seal may be without a question."""
        return epoch <= self.told.get(log, 0) + SEAL_AHEAD_MAX

    def assume(self, log: int, epoch: int) -> bool:
        """Whether stores of `epoch` are taken while the epoch store does not answer."""
        if not self.is_near(log, epoch):
            return False
        self._assumed[log] = max(epoch, self._assumed.get(log, 0))
        return True

    def take(self, most: int) -> list[tuple[int, Claim]]:
        """Take the claims of up to `most` logs; they do not wait any more."""
        return [self._waiting.popitem() for _ in range(min(most, len(self._waiting)))]

    async def wait(self) -> None:
        """Return once a claim was added since the last call."""
        await self._stirred.wait()
        self._stirred.clear()
