"""The WAL as a subject of crashes: a tiny ring, so that it wraps, fills and grows its window.

Its promises (`storage.wal.delta_wal`): every acknowledged record comes back unchanged until it is
trimmed. No record comes back that was not appended, or that a finished trim removed. A record that
came back once comes back again. Nothing is reported damaged. A WAL that was closed says so.

Source: `storage.wal.delta_wal`; docs/sources/reliability.md §3 (S2, S3, S16, S18).
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cordwood.errors import CordwoodError
from cordwood.layout.wal_block import WAL_RING_START, WAL_UNIT_BYTES, unpack_wal_header
from cordwood.nodes import NodeId
from cordwood.sim.crash_states.disk_log import Begin, Bytes
from cordwood.sim.crash_states.explorer import Life, PromiseBroken
from cordwood.sim.damage import damage_wal
from cordwood.sim.disk import SimDisk
from cordwood.storage.wal.delta_wal import Wal, WalBlank, WalFull, WalLimits, WalRecovery

OWNER = NodeId(3)
PATH = "/wal"
RING_UNITS = (16, 17, 23)
"""The smallest size, and primes, so that blocks meet the ring's end at every place."""

LIMITS = (
    WalLimits(
        block_bytes=12 << 10,
        writes_in_flight=4,
        window_bytes=8192,
        window_step_bytes=8192,
        window_bytes_max=48 << 10,
        reserve_bytes=8192,
    ),
    WalLimits(
        block_bytes=4096,
        writes_in_flight=8,
        window_bytes=4096,
        window_step_bytes=0,
        window_bytes_max=32 << 10,
        reserve_bytes=0,
    ),
    WalLimits(block_bytes=32 << 10, writes_in_flight=1),
)
"""Drawn anew for each life, because these settings are not on disk."""

SIZES = (0, 30, 300, 3000, 4056, 9000, 20_000)
"""Sizes of bodies: small bodies share a block, 4056 bytes fill a block exactly, and large bodies
take several blocks."""

SMALL_SIZES = (0, 30, 300)
TOGETHER = (1, 3, 40)
"""Number of records appended together: trims end inside their batch."""

BURST = 20
"""Number of records appended one by one in one step: recovery reads them as a run."""

REST_S = 0.000_4
"""Longest rest: a few writes end meanwhile."""


@dataclass(frozen=True, slots=True)
class Formatted:
    """`Wal.format` returned."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A WAL that may have been closed is about to be opened."""


@dataclass(frozen=True, slots=True)
class Back:
    """A record that recovery gave back."""

    offset: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Recovered:
    """Recovery ended; nothing else will come back."""

    trim: int


@dataclass(frozen=True, slots=True)
class Appended:
    """An append of a record was called."""

    offset: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A record was acknowledged as durable."""

    offset: int


@dataclass(frozen=True, slots=True)
class TrimAsked:
    """A trim was called."""

    offset: int


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A trim returned."""

    offset: int


@dataclass(frozen=True, slots=True)
class ClosedWell:
    """`close` returned."""


Item = tuple[int, bytes]


@dataclass(slots=True)
class WalPromises:
    """The records that a WAL's disk must and may hold.

    Attributes:
        is_formatted: it must be a WAL.
        kept: records that must come back, unless a trim was called.
        in_doubt: records that may come back.
        back: records that the present recovery gave back so far.
        trim_asked, trim_done: records at or below may be gone; must be gone.
        is_closed: recovery must report a clean close.
    """

    is_formatted: bool = False
    kept: dict[int, bytes] = field(default_factory=dict)
    in_doubt: dict[int, bytes] = field(default_factory=dict)
    back: dict[int, bytes] = field(default_factory=dict)
    trim_asked: int = -1
    trim_done: int = -1
    is_closed: bool = False

    def after(self, facts: Sequence[object]) -> WalPromises:
        """See `Promised`."""
        then = replace(
            self, kept=dict(self.kept), in_doubt=dict(self.in_doubt), back=dict(self.back)
        )
        for fact in facts:
            then._learn(fact)
        return then

    def _learn(self, fact: object) -> None:
        match fact:
            case Formatted():
                self.is_formatted = True
            case Opening():
                self.is_closed = False
                self.back = {}
            case Back(offset, body):
                self.back[offset] = self.kept[offset] = body
            case Recovered(trim):
                self.kept, self.in_doubt = self.back, {}
                self.trim_asked = self.trim_done = trim
            case Appended(offset, body):
                self.in_doubt[offset] = body
            case Acknowledged(offset):
                self.kept[offset] = self.in_doubt.pop(offset)
            case TrimAsked(offset):
                self.trim_asked = max(self.trim_asked, offset)
            case Trimmed(offset):
                self.trim_done = max(self.trim_done, offset)
            case ClosedWell():
                self.is_closed = True
            case _:
                raise AssertionError(f"{fact} is no fact of a WAL")

    def judge(self, found: Sequence[Item], recovery: WalRecovery, *, has_rot: bool = False) -> str:
        """The error in the records that a recovery found; "" for none.

        Args:
            has_rot: whether bits flipped: records may be missing if this is reported as damage.
        """
        back = dict(found)
        told = recovery.damage if has_rot else ()
        lost = [
            offset
            for offset, body in self.kept.items()
            if offset > self.trim_asked
            and back.get(offset) != body
            and (offset in back or not any(start <= offset < stop for start, stop in told))
        ]
        phantom = [o for o, body in found if body not in (self.kept.get(o), self.in_doubt.get(o))]
        trimmed = [offset for offset, _ in found if offset <= self.trim_done]
        wrongs = {
            f"lost, acknowledged: {lost}": lost,
            f"never appended: {phantom}": phantom,
            f"trimmed, and back: {trimmed}": trimmed,
            f"out of order: {[offset for offset, _ in found]}": sorted(back)
            != [o for o, _ in found],
            f"damage where there is none: {recovery.damage}": recovery.damage and not has_rot,
            f"{recovery.records} counted, {len(found)} given": recovery.records != len(found),
            "closed well, found otherwise": self.is_closed and not recovery.was_graceful,
        }
        return "; ".join(wrong for wrong, is_so in wrongs.items() if is_so)


class WalSubject:
    """See the module; a `Subject`."""

    name = "wal"

    def nothing_promised(self) -> WalPromises:
        """See `Subject`."""
        return WalPromises()

    def rot(self, disk: SimDisk, chance: random.Random) -> int:
        """Flip bits in records that were certainly durable. Returns the number of records hit."""
        return damage_wal(disk, chance, PATH)

    async def live(self, life: Life, promised: WalPromises) -> None:
        """See `Subject`. A long life closes its WAL and opens it again now and then."""
        left = life.steps
        while True:
            wal = await _started(life, promised.after(life.log.facts()))
            count = left if life.chance.random() < 0.5 else life.chance.randint(0, left)
            left -= count
            await _Script(life, wal).run(count)
            _probe_window(life)
            if left or life.chance.random() < 0.3:
                await wal.close()
                life.log.promise(ClosedWell())
            if not left:
                return


async def opened(life: Life, *, is_formatted: bool, units: int) -> Wal:
    """Open the WAL of a life's disk, or format a new WAL if none is promised."""
    life.log.waive(Opening())
    limits = life.chance.choice(LIMITS)
    try:
        return await Wal.open(life.disk, PATH, owner=OWNER, limits=limits)
    except (FileNotFoundError, WalBlank) as error:
        if is_formatted:
            raise PromiseBroken(f"the WAL was formatted, and is gone: {error}") from error
    left = life.log.base.names.get(PATH)
    # A blank file of an earlier try is formatted with its present size.
    capacity = WAL_RING_START + units * WAL_UNIT_BYTES
    if left is not None:
        capacity = life.log.base.files[left].size
    await Wal.format(life.disk, PATH, capacity, owner=OWNER, salt=life.chance.getrandbits(32))
    life.log.promise(Formatted())
    return await Wal.open(life.disk, PATH, owner=OWNER, limits=limits)


async def _started(life: Life, promised: WalPromises) -> Wal:
    """Open, recover, and compare."""
    units = life.chance.choice(RING_UNITS)
    wal = await opened(life, is_formatted=promised.is_formatted, units=units)
    found: list[Item] = []
    async for offset, body in wal.recover():
        found.append((offset, body))
        life.log.promise(Back(offset, body))
    assert wal.recovery is not None
    wrong = promised.judge(found, wal.recovery, has_rot=life.has_rot)
    if wrong:
        raise PromiseBroken(wrong)
    life.log.promise(Recovered(wal.trim_offset))
    _probe(life, promised, found, wal)
    return wal


def _probe(life: Life, promised: WalPromises, found: Sequence[Item], wal: Wal) -> None:
    recovery = wal.recovery
    assert recovery is not None
    ring = wal.capacity_bytes - WAL_RING_START
    in_doubt = [offset for offset, _ in found if offset not in promised.kept]
    live = range(found[0][0], found[-1][0] + 1) if found else range(0)
    seen = {
        "records across the ring's end": found and live[0] // ring < live[-1] // ring,
        "a record not acknowledged came back": in_doubt,
        "one not acknowledged did not": len(in_doubt) < len(promised.in_doubt),
        "holes were passed": recovery.holes,
        "holes were told": recovery.holes and life.steps,
        "a trim not answered was kept": promised.trim_done < wal.trim_offset,
        "a trim not answered was lost": wal.trim_offset < promised.trim_asked,
        "closed well": recovery.was_graceful,
        "rot was told": life.has_rot and recovery.damage,
        "cut off": not recovery.was_graceful,
    }
    life.probes.update(name for name, is_so in seen.items() if is_so)


def _probe_window(life: Life) -> None:
    """Whether a header was written with a wider window than the header before."""
    writes = [event.operation.effects for event in life.log.events if isinstance(event, Begin)]
    windows = [
        unpack_wal_header(effect.data).window
        for effects in writes
        for effect in effects
        if isinstance(effect, Bytes) and effect.offset < WAL_RING_START
    ]
    grew = any(one < other for one, other in itertools.pairwise(windows))
    life.probes["the window grew"] += grew


class _Script:
    """Appends, trims and rests, drawn by chance; every acknowledgement is marked."""

    def __init__(self, life: Life, wal: Wal) -> None:
        self._wal = wal
        self._log = life.log
        self._probes = life.probes
        self._chance = life.chance
        self._durable: list[int] = []
        self._trims: list[asyncio.Task[None]] = []

    async def run(self, steps: int) -> None:
        """Do this many steps, then wait for the trims; appends may still be in flight."""
        for _ in range(steps):
            draw = self._chance.random()
            if draw < 0.48:
                self._append()
            elif draw < 0.52:
                for _ in range(BURST):
                    self._append(self._chance.choice(SMALL_SIZES))
            elif draw < 0.6:
                self._append_many()
            elif draw < 0.7:
                self._trim(self._chance.random())
            else:
                await asyncio.sleep(REST_S * self._chance.random())
        await asyncio.gather(*self._trims)

    def _append(self, size: int | None = None) -> None:
        if size is None:
            size = min(self._chance.choice(SIZES), self._wal.record_bytes_max)
        body = self._chance.randbytes(size)

        def on_durable(error: CordwoodError | None) -> None:
            assert error is None, error
            self._durable.append(offset)
            self._log.promise(Acknowledged(offset))

        try:
            offset = self._wal.submit([body], on_durable, reserve_ok=self._chance.random() < 0.1)
        except WalFull:
            self._probes["the ring was full"] += 1
            self._trim(1.0)
            return
        self._log.news(Appended(offset, body))

    def _append_many(self) -> None:
        sizes = [self._chance.choice(SMALL_SIZES) for _ in range(self._chance.choice(TOGETHER))]
        bodies = [self._chance.randbytes(size) for size in sizes]
        items: list[Item] = []

        def on_durable(error: CordwoodError | None) -> None:
            assert error is None, error
            for offset, _ in items:
                self._durable.append(offset)
                self._log.promise(Acknowledged(offset))

        try:
            offsets = self._wal.submit_many(bodies, on_durable)
        except WalFull:
            self._probes["the ring was full for a batch"] += 1
            self._trim(1.0)
            return
        items += zip(offsets.tolist(), bodies, strict=True)
        for offset, body in items:
            self._log.news(Appended(offset, body))

    def _trim(self, share: float) -> None:
        """Trim this share of the durable records."""
        if self._durable:
            offset = self._durable[int(share * (len(self._durable) - 1))]
            self._log.waive(TrimAsked(offset))
            self._trims.append(asyncio.create_task(self._trimmed(offset)))

    async def _trimmed(self, offset: int) -> None:
        await self._wal.trim(offset)
        self._log.promise(Trimmed(offset))
