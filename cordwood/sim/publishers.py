"""Simulated queries: each query stages the records of a batch, and tries to publish it until it is
in.

A publisher is killed and started again like any client. Its checkpoint names the next batch, as a
Spark query's does. A second try of a batch has other records, so that the history tells which try
is in the logs.

Source: docs/design.md §9; docs/sources/spark.md §8 (the crashes of a driver).
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from cordwood.client.publish.publishing import Published
from cordwood.client.publish.staging import StagedRef
from cordwood.client.store import Store
from cordwood.errors import CordwoodError, OutcomeUnknown, Rejected, Retryable
from cordwood.host.seams import Host
from cordwood.sim.history import Batch
from cordwood.sim.payload import make_payload
from cordwood.sim.workload import RECONNECT_S, Clients, find_log

TASKS_MAX = 3
"""Calls that stage one log's part of a batch."""

PART_MAX = 12
"""Most records of one of these calls: the parts of a batch matter, not its size."""

TTLS_S = (60.0, 60.0, 60.0, 2.0)
"""How long staged blocks last; the short time ends while a publish is late."""

GIVE_UP_S = 0.02
"""Longest wait of a publisher that gives up on a publish: about as long as a publish takes."""

LATE_S = 1.0
"""Mean pause of a slow publisher between staging and publishing."""


async def publish_batches(name: str, clients: Clients, host: Host) -> None:
    """Publish until told to stop, then bring the last batch to its end."""
    life, chance = clients.next_life(name)
    while not _is_over(name, clients):
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                publisher = _Publisher(name, life, store, clients, chance)
                while not _is_over(name, clients):
                    await clients.pause(chance.expovariate(1 / clients.options.publish_s))
                    if not _is_over(name, clients):
                        await publisher.try_batch()
        except* CordwoodError as group:
            clients.told(name, "connect", group)
            await asyncio.sleep(RECONNECT_S)


def _is_over(name: str, clients: Clients) -> bool:
    return clients.giving_up or (clients.stopping and name not in clients.open_batches)


class _Publisher:
    """One life of a publisher, over one connection."""

    def __init__(
        self, name: str, life: int, store: Store, clients: Clients, chance: random.Random
    ) -> None:
        self._name = name
        self._life = life
        self._store = store
        self._clients = clients
        self._chance = chance

    async def try_batch(self) -> None:
        """Stage and publish the next batch once, and record the outcome."""
        clients, name = self._clients, self._name
        recorder = clients.recorder
        number = clients.batches.get(name, 0)
        trial = clients.trials[name] = clients.trials.get(name, -1) + 1
        clients.open_batches.add(name)
        wanted = self._chance.sample(
            clients.options.logs, self._chance.randint(1, len(clients.options.logs))
        )
        shares: dict[str, tuple[int, list[bytes]]] = {}
        for log in wanted:
            payloads = [payload for part in self._parts() for payload in part]
            log_id = await find_log(self._store, log, clients)
            op = recorder.append_invoked(
                name, log_id, payloads, session=self._life, atomic=True,
                published=Batch(name, number, trial),
            )  # fmt: skip
            clients.calls.began(name, op)
            shares[log] = (op, payloads)
        try:
            spans = await self._publish(number, {log: part for log, (_, part) in shares.items()})
        except CordwoodError as error:
            for op, _ in shares.values():
                recorder.append_raised(op, error)
        else:
            clients.batches[name] = number + 1
            clients.open_batches.discard(name)
            for log, (op, payloads) in shares.items():
                if spans is None:
                    recorder.append_raised(op, Rejected("an earlier try was committed"))
                else:
                    recorder.append_ok(op, spans[log])
                    clients.acked += len(payloads)
        for op, _ in shares.values():
            clients.calls.ended(name, op)

    def _parts(self) -> list[list[bytes]]:
        """The records that the tasks of one log stage, a list for each task."""
        chance, burst = self._chance, min(PART_MAX, self._clients.options.burst)
        sequences = self._clients.sequences(self._name)
        return [
            [
                make_payload(self._name, next(sequences), chance.randint(64, 200), chance)
                for _ in range(chance.randint(1, burst))
            ]
            for _ in range(chance.randint(1, TASKS_MAX))
        ]

    async def _publish(
        self, number: int, shares: dict[str, list[bytes]]
    ) -> dict[str, range] | None:
        """The LSNs of each log's records; None if an earlier try had been committed."""
        chance = self._chance
        ttl_s = chance.choice(TTLS_S)
        refs: list[StagedRef] = []
        for log, payloads in shares.items():
            cut = chance.randint(1, len(payloads))
            for part in (payloads[:cut], payloads[cut:]):
                if part:
                    refs.append(await self._store.stage(log, part, ttl_s=ttl_s))
        if chance.random() < 0.2:
            await asyncio.sleep(chance.expovariate(1 / LATE_S))
        # A task hands its references to the driver as text.
        plain = json.loads(json.dumps([ref.to_json() for ref in refs]))
        try:
            published = await self._ask(number, plain)
        except (Retryable, OutcomeUnknown) as error:
            if isinstance(error, OutcomeUnknown) and chance.random() < 0.3:
                # The query goes on: its next publish brings this batch to its end, if it was
                # committed.
                self._clients.batches[self._name] = number + 1
                raise
            if chance.random() < 0.5:
                raise
            # As Spark may call again. The answer does not tell whether this try is in the logs.
            return await self._ask_again(number, plain, refs, error)
        if published.is_repeat:
            return None
        return _spans(published, refs)

    async def _ask_again(
        self, number: int, plain: list[dict[str, Any]], refs: list[StagedRef], error: CordwoodError
    ) -> dict[str, range]:
        """Publish the same batch once more. An error now says nothing about the first call."""
        try:
            published = await self._store.publish(self._name, number, plain)
        except Retryable as again:
            if isinstance(error, Retryable):
                raise
            raise OutcomeUnknown(f"{error}, and then {again}") from again
        if published.is_repeat:
            self._clients.batches[self._name] = number + 1
            self._clients.open_batches.discard(self._name)
            raise OutcomeUnknown("published by this try or by one before it") from error
        return _spans(published, refs)

    async def _ask(self, number: int, plain: list[dict[str, Any]]) -> Published:
        """Publish, or give up half-way, as a dying driver does."""
        if not self._clients.buggify("publisher-gives-up"):
            return await self._store.publish(self._name, number, plain)
        try:
            async with asyncio.timeout(GIVE_UP_S * self._chance.random()):
                return await self._store.publish(self._name, number, plain)
        except TimeoutError:
            raise OutcomeUnknown("the publisher did not wait for the answer") from None


def _spans(published: Published, refs: list[StagedRef]) -> dict[str, range]:
    return {
        ref.log: range(published.spans[ref.log][0], published.spans[ref.log][1] + 1) for ref in refs
    }
