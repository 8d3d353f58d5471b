"""An object store for the simulator: it is slow, loses answers, and gives stale listings.

A `Bucket` is the store itself; it outlives every process that calls it. A `SimObjectStore` is how
one process calls it. The bucket keeps the promises of `tier.object_store` and no others: a stored
object can be read at once, and a condition is checked and acted on in one step. Everything else may
go wrong by chance:

- the store asks for fewer calls, and does nothing;
- a request is lost: nothing happens, and there is no answer;

- an answer is lost: the request was carried out;

- a request comes late: its caller has given up (or died) when it is carried out;

- a deletion of many objects stops half-way;

- a listing is old: it shows deleted objects and lacks new objects;

- one process does not reach the store, while others do.

Source: docs/objects.md, "The store"; docs/simulator.md.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cordwood.block import Buffer
from cordwood.errors import (
    Malformed,
    NoObject,
    ObjectChanged,
    OutcomeUnknown,
    Overloaded,
    Unreachable,
)
from cordwood.sim.loop import WALL_START_S
from cordwood.tier.object_store import (
    LIST_MAX,
    WHOLE_BYTES_MAX,
    Etag,
    ObjectInfo,
    check_deletion,
    check_name,
    check_page,
    check_prefix,
    check_range,
)

Result = TypeVar("Result")


@dataclass(slots=True)
class BucketFaults:
    """How the store misbehaves: shares of the calls, and times.

    Attributes:
        latency_s: shortest and longest time of a call.
        slow_down, lost_request, lost_answer, late_request, cut_deletion: shares of the calls.
        late_s: a late request comes at most this long after its caller's deadline.
        stale_s: a listing may be as old as this.
    """

    latency_s: tuple[float, float] = (0.005, 0.05)
    slow_down: float = 0.0
    lost_request: float = 0.0
    lost_answer: float = 0.0
    late_request: float = 0.0
    cut_deletion: float = 0.0
    late_s: float = 60.0
    stale_s: float = 0.0

    @classmethod
    def bad(cls) -> BucketFaults:
        """A store on a bad day."""
        return cls(
            slow_down=0.05,
            lost_request=0.03,
            lost_answer=0.05,
            late_request=0.03,
            cut_deletion=0.2,
            stale_s=30.0,
        )


@dataclass(frozen=True, slots=True)
class _Stored:
    content: bytes
    etag: Etag
    modified_us: int


class Bucket:
    """The store itself.

    Attributes:
        faults: may be changed at any time.
        calls: number of calls that reached the store, by their name.
        put_bytes, got_bytes: bytes that went in and came out.
    """

    def __init__(self, chance: random.Random, faults: BucketFaults | None = None) -> None:
        self.faults = faults or BucketFaults()
        self.calls: dict[str, int] = {}
        self.put_bytes = 0
        self.got_bytes = 0
        self._chance = chance
        self._objects: dict[str, _Stored] = {}
        # The versions of each name, with their times: for old listings.
        self._past: dict[str, list[tuple[float, ObjectInfo | None]]] = {}
        self._versions = 0

    def store(self, is_cut: Callable[[], bool] = lambda: False) -> SimObjectStore:
        """A way to call it.

        Args:
            is_cut: whether no call on this way arrives now.
        """
        return SimObjectStore(self, self._chance, is_cut)

    def names(self) -> list[str]:
        """The true names of all objects."""
        return sorted(self._objects)

    def content(self, name: str) -> bytes:
        """An object's bytes, without faults."""
        return self._objects[name].content

    def damage(self, name: str, content: bytes) -> None:
        """Replace an object's bytes silently, as a broken disk would."""
        found = self._objects[name]
        self._objects[name] = _Stored(content, found.etag, found.modified_us)

    # ---- what happens in one step ----

    def put(self, name: str, content: bytes, condition: Callable[[Etag | None], bool]) -> Etag:
        """Store an object if the condition holds for the etag that is there."""
        self.count("put")
        found = self._objects.get(name)
        if not condition(found.etag if found else None):
            raise ObjectChanged(f"{name} is not the object that was to be replaced")
        self._versions += 1
        etag = Etag(f"{hashlib.blake2b(content, digest_size=8).hexdigest()}")
        now = asyncio.get_running_loop().time()
        stored = _Stored(content, etag, int((WALL_START_S + now) * 1e6))
        self._objects[name] = stored
        self._note(name, ObjectInfo(name, len(content), stored.modified_us))
        self.put_bytes += len(content)
        return etag

    def get(self, name: str) -> _Stored:
        """An object.

        Raises:
            NoObject: there is none.
        """
        self.count("get")
        try:
            return self._objects[name]
        except KeyError:
            raise NoObject(f"there is no object {name}") from None

    def info(self, name: str) -> ObjectInfo | None:
        """The facts about an object."""
        self.count("head")
        found = self._objects.get(name)
        return ObjectInfo(name, len(found.content), found.modified_us) if found else None

    def delete(self, name: str) -> None:
        """Delete an object."""
        self.count("delete")
        if self._objects.pop(name, None) is not None:
            self._note(name, None)

    def list(self, prefix: str, after: str, limit: int) -> list[ObjectInfo]:
        """A page of the names, as they were some time ago."""
        self.count("list")
        at = asyncio.get_running_loop().time() - self._chance.random() * self.faults.stale_s
        page: list[ObjectInfo] = []
        for name in sorted(self._past):
            if name.startswith(prefix) and name > after:
                past = self._past[name]
                index = bisect_right(past, at, key=lambda change: change[0]) - 1
                info = past[index][1] if index >= 0 else None
                if info is not None:
                    page.append(info)
            if len(page) == limit:
                break
        return page

    def count(self, call: str) -> None:
        """A call has reached the store."""
        self.calls[call] = self.calls.get(call, 0) + 1

    def _note(self, name: str, info: ObjectInfo | None) -> None:
        now = asyncio.get_running_loop().time()
        past = self._past.setdefault(name, [])
        past.append((now, info))
        # Of versions that are older than any listing, only the last one counts.
        while len(past) > 1 and past[1][0] < now - self.faults.stale_s - 1:
            del past[0]


class SimObjectStore:
    """See the module, and `tier.object_store` for what each call promises."""

    def __init__(self, bucket: Bucket, chance: random.Random, is_cut: Callable[[], bool]) -> None:
        self._bucket = bucket
        self._chance = chance
        self._is_cut = is_cut

    async def put(self, name: str, content: Sequence[Buffer], *, timeout_s: float) -> None:
        check_name(name)
        whole = b"".join(content)
        await self._write(lambda: self._bucket.put(name, whole, lambda _: True), timeout_s)

    async def put_if(
        self, name: str, content: bytes, expected: Etag | None, *, timeout_s: float
    ) -> Etag:
        check_name(name)
        return await self._write(
            lambda: self._bucket.put(name, content, lambda found: found == expected), timeout_s
        )

    async def read(self, name: str, *, timeout_s: float) -> tuple[bytes, Etag]:
        check_name(name)
        found = await self._read(lambda: self._bucket.get(name), timeout_s)
        if len(found.content) > WHOLE_BYTES_MAX:
            raise Malformed(f"{name} has more than {WHOLE_BYTES_MAX} bytes: read it by ranges")
        self._bucket.got_bytes += len(found.content)
        return found.content, found.etag

    async def get(self, name: str, start: int, stop: int, *, timeout_s: float) -> bytes:
        check_range(name, start, stop)
        found = await self._read(lambda: self._bucket.get(name), timeout_s)
        if stop > len(found.content):
            raise Malformed(f"{name} ends at byte {len(found.content)}, and not behind {stop}")
        self._bucket.got_bytes += stop - start
        return found.content[start:stop]

    async def head(self, name: str, *, timeout_s: float) -> ObjectInfo | None:
        check_name(name)
        return await self._read(lambda: self._bucket.info(name), timeout_s)

    async def list_page(
        self, prefix: str, *, after: str = "", limit: int = LIST_MAX, timeout_s: float
    ) -> list[ObjectInfo]:
        check_prefix(prefix)
        check_page(after, limit)
        return await self._read(lambda: self._bucket.list(prefix, after, limit), timeout_s)

    async def delete(self, names: Sequence[str], *, timeout_s: float) -> None:
        check_deletion(names)
        count, is_cut = len(names), self._happens(self._bucket.faults.cut_deletion)
        if is_cut:
            count = self._chance.randrange(len(names) + 1)

        def act() -> None:
            for name in names[:count]:
                self._bucket.delete(name)
            if is_cut:
                raise OutcomeUnknown(f"{count} of {len(names)} objects were deleted")

        await self._write(act, timeout_s)

    async def close(self) -> None:
        """Does nothing: this store holds no connection."""

    async def _read(self, act: Callable[[], Result], timeout_s: float) -> Result:
        if self._is_cut():
            await asyncio.sleep(timeout_s)
            raise Unreachable(f"no answer within {timeout_s} s")
        faults = self._bucket.faults
        lost = self._happens(faults.lost_request + faults.lost_answer + faults.late_request)
        slow_down = self._happens(faults.slow_down)
        if lost:
            await asyncio.sleep(timeout_s)
            raise Unreachable(f"no answer within {timeout_s} s")
        await self._travel(timeout_s, Unreachable)
        if slow_down:
            raise Overloaded("SlowDown: the store asks to be called less")
        result = act()
        await self._travel(timeout_s, Unreachable)
        return result

    async def _write(self, act: Callable[[], Result], timeout_s: float) -> Result:
        if self._is_cut():
            await asyncio.sleep(timeout_s)
            raise OutcomeUnknown(f"no answer within {timeout_s} s")
        faults = self._bucket.faults
        draw = self._chance.random()
        if self._happens(faults.slow_down):
            await self._travel(timeout_s, OutcomeUnknown)
            raise Overloaded("SlowDown: the store asks to be called less")
        if draw < faults.late_request:
            self._happen_later(act, timeout_s + self._chance.random() * faults.late_s)
            draw = 0.0
        elif draw < faults.late_request + faults.lost_answer:
            self._happen_later(act, self._chance.random() * timeout_s)
            draw = 0.0
        if draw < faults.late_request + faults.lost_answer + faults.lost_request:
            await asyncio.sleep(timeout_s)
            raise OutcomeUnknown(f"no answer within {timeout_s} s")
        await self._travel(timeout_s, OutcomeUnknown)
        result = act()
        await self._travel(timeout_s, OutcomeUnknown)
        return result

    def _happen_later(self, act: Callable[[], object], delay_s: float) -> None:
        """Carry a request to the store, even if the process that sent it dies."""

        def arrive() -> None:
            try:
                act()
            except (ObjectChanged, OutcomeUnknown):
                return  # no caller waits for the answer

        # An empty context belongs to no process, so a kill does not remove it.
        context = contextvars.Context()
        asyncio.get_running_loop().call_later(delay_s, arrive, context=context)

    async def _travel(self, timeout_s: float, late: type[Unreachable | OutcomeUnknown]) -> None:
        """Half of a call's time."""
        low, high = self._bucket.faults.latency_s
        half_s = (low + (high - low) * self._chance.random()) / 2
        if half_s > timeout_s / 2:
            await asyncio.sleep(timeout_s / 2)
            raise late(f"no answer within {timeout_s} s")
        await asyncio.sleep(half_s)

    def _happens(self, share: float) -> bool:
        # Without faults nothing is drawn, so a quiet store changes no other draw.
        return share > 0 and self._chance.random() < share
