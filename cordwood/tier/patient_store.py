"""Calls an object store again when it does not answer or asks to be called less.

Safe to repeat are reads, `put` (an object's content follows from its name) and `delete`. Pauses
grow from try to try and are drawn at random, so that the uploaders of a cluster do not come back
together; after SlowDown the pause is longer. Each try has a deadline of its own, so that one slow
part does not use up the time of all.

A conditional put is repeated only if the store answers that it did nothing. After `OutcomeUnknown`
the caller reads the present object, as `pointer` does.

Source: docs/objects.md, "The store"; docs/sources/s3stream.md, complaint 6 (SlowDown after three
tries).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from cordwood.block import Buffer
from cordwood.errors import CordwoodError, OutcomeUnknown, Overloaded, Retryable
from cordwood.tier.object_store import LIST_MAX, Etag, ObjectInfo, ObjectStore

PAUSE_S = 0.1
PAUSE_S_MAX = 20.0
SLOW_DOWN_FACTOR = 5
"""The factor of the pause after SlowDown. S3 then wants some requests a second less, and its own
client begins with a pause of half a second."""

TRY_S = 30.0
"""The longest time of one try: enough for 64 MiB at 2 MiB/s."""

FIRST_TRY_S = 5.0
"""The time of a first try, without the time for its bytes. Stores answer within a second, and a
reader waits this long for each answer that is lost. Each further try has twice the time, up to
TRY_S."""

BYTES_A_SECOND = 2 << 20
"""A try gets additional time for its bytes, at this rate."""

Result = TypeVar("Result")


def pause_s(tries: int, error: CordwoodError, chance: random.Random) -> float:
    """How long to wait after the try of this number, from 1: half of it is drawn."""
    base = PAUSE_S * (SLOW_DOWN_FACTOR if isinstance(error, Overloaded) else 1)
    longest: float = min(PAUSE_S_MAX, base * 2 ** float(min(tries - 1, 16)))
    return longest * (0.5 + chance.random() / 2)


def try_s(tries: int, size: int | None) -> float:
    """How long the try of this number, from 1, may take.

    A conditional put (`size` None) is not repeated when its outcome is unknown, so a short first
    try would only leave more outcomes unknown.
    """
    if size is None:
        return TRY_S
    return min(TRY_S, FIRST_TRY_S * 2.0 ** min(tries - 1, 16) + size / BYTES_A_SECOND)


class PatientStore:
    """An `ObjectStore` over another; `timeout_s` is the time of all tries together.

    Args:
        chance: draws pauses.
        try_s: one try's time at most.
    Attributes:
        retries: tries that were not a call's first.
    """

    def __init__(self, store: ObjectStore, chance: random.Random, try_s: float = TRY_S) -> None:
        self.retries = 0
        self._store = store
        self._chance = chance
        self._try_s = try_s

    async def put(self, name: str, content: Sequence[Buffer], *, timeout_s: float) -> None:
        await self._patiently(
            lambda s: self._store.put(name, content, timeout_s=s),
            timeout_s,
            size=sum(map(len, content)),
        )

    async def put_if(
        self, name: str, content: bytes, expected: Etag | None, *, timeout_s: float
    ) -> Etag:
        return await self._patiently(
            lambda s: self._store.put_if(name, content, expected, timeout_s=s),
            timeout_s,
            size=None,
            again=(Retryable,),
        )

    async def read(self, name: str, *, timeout_s: float) -> tuple[bytes, Etag]:
        return await self._patiently(lambda s: self._store.read(name, timeout_s=s), timeout_s)

    async def get(self, name: str, start: int, stop: int, *, timeout_s: float) -> bytes:
        return await self._patiently(
            lambda s: self._store.get(name, start, stop, timeout_s=s),
            timeout_s,
            size=stop - start,
        )

    async def head(self, name: str, *, timeout_s: float) -> ObjectInfo | None:
        return await self._patiently(lambda s: self._store.head(name, timeout_s=s), timeout_s)

    async def list_page(
        self, prefix: str, *, after: str = "", limit: int = LIST_MAX, timeout_s: float
    ) -> list[ObjectInfo]:
        return await self._patiently(
            lambda s: self._store.list_page(prefix, after=after, limit=limit, timeout_s=s),
            timeout_s,
        )

    async def delete(self, names: Sequence[str], *, timeout_s: float) -> None:
        await self._patiently(lambda s: self._store.delete(names, timeout_s=s), timeout_s)

    async def close(self) -> None:
        await self._store.close()

    async def _patiently(
        self,
        call: Callable[[float], Awaitable[Result]],
        timeout_s: float,
        *,
        size: int | None = 0,
        again: tuple[type[CordwoodError], ...] = (Retryable, OutcomeUnknown),
    ) -> Result:
        """Make a call until it succeeds, is refused, or its time is over.

        Args:
            size: bytes that the call moves; None: its first try has the time of the last.
        Raises:
            CordwoodError: the error of the last try; the text names the number of tries.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        tries = 0
        unknown: OutcomeUnknown | None = None
        while True:
            tries += 1
            try:
                this_s = min(self._try_s, try_s(tries, size), end - loop.time())
                return await call(max(0.001, this_s))
            except again as error:
                if isinstance(error, OutcomeUnknown):
                    unknown = error
                wait_s = pause_s(tries, error, self._chance)
                if loop.time() + wait_s >= end:
                    # If one try may have taken effect, the outcome is unknown, even if the next try
                    # did nothing.
                    worst = unknown or error
                    raise type(worst)(f"{worst} (after {tries} tries)") from error
            self.retries += 1
            await asyncio.sleep(wait_s)
