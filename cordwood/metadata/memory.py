"""The metadata store in memory, for the simulator.

`MemoryData` has the contents: it outlives simulated crashes, as a metadata store outlives its
users. `MemoryMetadata` is a way to it, with that way's delay, outage and loss of answers; all nodes
may share one, or each have its own to the same data.

A compare-and-set with a lost answer never happened, happened, or happens later, after its caller
got OutcomeUnknown and perhaps tried again: the last case finds callers that do not allow for it.
Later writes wait in a list and are applied, in the order of their times, by the first call that
could tell the difference; no task waits for them.

Waiting is `asyncio.sleep` and chance is the caller's, so one seed gives one run.

Source: docs/design.md §6, §10.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from dataclasses import dataclass, field

from cordwood.errors import Closed, OutcomeUnknown, Unreachable
from cordwood.metadata.lease import EntryLeases
from cordwood.metadata.store import (
    Keys,
    Leases,
    Page,
    Versioned,
    check_key,
    check_listed,
    check_page,
    check_prefix,
    check_watched,
    check_write,
)

DELAY_S = (0.0005, 0.003)
"""Shortest and longest call: about what SQLite with a sync takes."""

OUTAGE_S = 1.0
"""How long a call waits for an answer that does not come. Less than on SQLite, so that
simulated nodes try again often enough to meet an outage from every side."""

LATE_S_MAX = 10.0
"""How long after its caller gave up a write may still come: time for many more tries."""

WATCH_POLL_S = 0.25
"""The longest that a watch takes to hear of a write: as on SQLite, where watches poll. Here no
watch polls: in a simulation, polls without news would be a quarter of all events."""

LATE_WRITES_MAX = 1_000
"""Late writes whose callers gave up; further ones are dropped, as a store would do."""


@dataclass(frozen=True, slots=True)
class LateWrite:
    """A compare-and-set that comes to the store at `due_s` of the loop's clock.

    Attributes:
        context: the writer's context, for questions about the writer.
    """

    due_s: float
    key: str
    value: bytes | None
    expected: int
    context: contextvars.Context = field(default_factory=contextvars.copy_context, compare=False)


class MemoryData:
    """A store's contents. Each method takes effect at one instant: no other call comes between.

    Attributes:
        values: by key.
        last_version: of the newest write; each write has a higher version than all before it.
    """

    def __init__(self) -> None:
        self.values: dict[str, Versioned] = {}
        self.last_version = 0
        self._late: list[LateWrite] = []
        self._news = asyncio.Event()

    def copy(self) -> MemoryData:
        """The contents for a store that starts from this instant: with late writes, but without
        watches, which wait in the loop that began them."""
        twin = MemoryData()
        twin.values = dict(self.values)
        twin.last_version = self.last_version
        twin._late = list(self._late)
        return twin

    def listed(self, prefix: str) -> list[tuple[str, Versioned]]:
        """Keys that begin with `prefix`, sorted."""
        return [(key, self.values[key]) for key in sorted(self.values) if key.startswith(prefix)]

    def compare_and_set(self, key: str, value: bytes | None, expected: int) -> int | None:
        """The new version, or None where the version is not `expected`."""
        found = self.values.get(key)
        if (found.version if found else 0) != expected:
            return None
        self.last_version += 1
        if value is None:
            del self.values[key]
        else:
            self.values[key] = Versioned(value, self.last_version)
        self.tell_watches()
        return self.last_version

    def tell_watches(self) -> None:
        """Wake the watchers: an entry may have changed."""
        self._news.set()
        self._news = asyncio.Event()

    async def wait_news(self, until: float) -> None:
        """Wait until something was written, or a late write is due, or `until` has come."""
        news = self._news
        first = min((write.due_s for write in self._late), default=until)
        try:
            async with asyncio.timeout_at(min(first, until)):
                await news.wait()
        except TimeoutError:
            return

    def put_off(self, write: LateWrite) -> None:
        """Have `write` come when it is due."""
        if len(self._late) < LATE_WRITES_MAX:
            self._late.append(write)
            self.tell_watches()

    def take_due(self, now_s: float) -> list[LateWrite]:
        """Due late writes, in order; each is given once."""
        due = [write for write in self._late if write.due_s <= now_s]
        self._late = [write for write in self._late if write.due_s > now_s]
        return sorted(due, key=lambda write: write.due_s)


class MemoryMetadata:
    """A `MetadataStore` on a `MemoryData`.

    Attributes:
        data: the stored entries; pass them to other stores to share them.
        delay_s: shortest and longest time of a call, in s; drawn for each.
        is_out: while set, no call is answered. Reads end as Unreachable, and writes so or
            as OutcomeUnknown.
        answer_loss: share of writes, 0 to 1, that lose their answer although the store is not out.
    """

    def __init__(
        self,
        chance: random.Random,
        data: MemoryData | None = None,
        *,
        deadline_s: float = OUTAGE_S,
    ) -> None:
        self.data = data if data is not None else MemoryData()
        self.delay_s = DELAY_S
        self.answer_loss = 0.0
        self._values = self.data.values
        self._chance = chance
        self._deadline_s = deadline_s
        self._closed = False
        self._is_out = False
        self._leases = EntryLeases(self, loop_us, chance.randbytes)

    @property
    def is_out(self) -> bool:
        """Whether no call is answered."""
        return self._is_out

    @is_out.setter
    def is_out(self, is_out: bool) -> None:
        self._is_out = is_out
        self.data.tell_watches()  # they are calls as well, and get no answer

    async def get(self, key: str) -> Versioned | None:
        """See `MetadataStore`."""
        check_key(key)
        back_s = await self._go()
        found = self._values.get(key)
        await asyncio.sleep(back_s)
        return found

    async def list(self, prefix: str) -> list[tuple[str, Versioned]]:
        """See `MetadataStore`."""
        check_prefix(prefix)
        back_s = await self._go()
        found = self.data.listed(prefix)
        await asyncio.sleep(back_s)
        check_listed(prefix, len(found))
        return found

    async def keys_after(self, prefix: str, after: str, limit: int) -> Keys:
        """See `MetadataStore`."""
        return [key for key, _ in await self.page(prefix, after, limit)]

    async def page(self, prefix: str, after: str, limit: int) -> Page:
        """See `MetadataStore`."""
        check_page(prefix, limit)
        back_s = await self._go()
        found = [each for each in self.data.listed(prefix) if each[0] > after]
        await asyncio.sleep(back_s)
        return found[:limit]

    async def compare_and_set(self, key: str, value: bytes | None, expected: int) -> int | None:
        """See `MetadataStore`."""
        check_write(key, value, expected)
        loss = 0.5 if self.is_out else self.answer_loss
        if not self._closed and self._chance.random() < loss:
            await self._lose(key, value, expected)
        back_s = await self._go()
        version = self._set(key, value, expected)
        await asyncio.sleep(back_s)
        return version

    async def changed(self, prefix: str, seen: int | None, timeout_s: float) -> int:
        """See `MetadataStore`; any write counts, and is told within WATCH_POLL_S."""
        check_watched(prefix)
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while True:
            back_s = await self._go()
            mark = self.data.last_version
            await asyncio.sleep(back_s)
            left = until - loop.time()
            if mark != seen or left <= 0:
                return mark
            if mark == self.data.last_version:
                await self.data.wait_news(until)
            left = max(0.0, until - loop.time())
            await asyncio.sleep(min(left, self._chance.uniform(0, WATCH_POLL_S)))

    async def take_lease(self, key: str, value: bytes, ttl_s: float) -> bool:
        """See `MetadataStore`; by the loop's clock."""
        return await self._leases.take(key, value, ttl_s)

    async def drop_lease(self, key: str) -> None:
        """See `MetadataStore`."""
        await self._leases.drop(key)

    async def leases(self, prefix: str) -> Leases:
        """See `MetadataStore`."""
        return await self._leases.all(prefix)

    async def close(self) -> None:
        """See `MetadataStore`; stored entries stay."""
        self._closed = True
        self.data.tell_watches()

    def _set(self, key: str, value: bytes | None, expected: int) -> int | None:
        """Carry out a write at this instant, whether or not its caller gets the answer."""
        return self.data.compare_and_set(key, value, expected)

    async def _go(self) -> float:
        """Travel to the store. Returns the seconds of the way back.

        Raises:
            Unreachable: it is out.
            Closed: this way to it was closed.
        """
        if self._closed:
            raise Closed("the metadata store was closed")
        if self.is_out:
            await asyncio.sleep(self._deadline_s)
            raise Unreachable(f"the metadata store did not answer within {self._deadline_s:g} s")
        there_s, back_s = (self._chance.uniform(*self.delay_s) / 2 for _ in range(2))
        await asyncio.sleep(there_s)
        self._settle()
        return back_s

    def _settle(self) -> None:
        """Apply the due late writes."""
        for write in self.data.take_due(asyncio.get_running_loop().time()):
            write.context.run(self._set, write.key, write.value, write.expected)

    async def _lose(self, key: str, value: bytes | None, expected: int) -> None:
        """Do a write now, later or never, without telling which."""
        fate = self._chance.choice(("now", "later", "never"))
        if fate == "now":
            self._settle()
            self._set(key, value, expected)
        elif fate == "later":
            given_up_s = asyncio.get_running_loop().time() + self._deadline_s
            due_s = given_up_s + self._chance.uniform(0, LATE_S_MAX)
            self.data.put_off(LateWrite(due_s, key, value, expected))
        await asyncio.sleep(self._deadline_s)
        raise OutcomeUnknown(f"the metadata store did not answer a write of {key}")


def loop_us() -> int:
    """The running loop's clock, in µs: the clock that all users of one store share."""
    return round(asyncio.get_running_loop().time() * 1e6)
