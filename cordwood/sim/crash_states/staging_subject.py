"""Staged blocks of a node as a subject of crashes: blocks are staged, pinned, released and flushed,
and get other copysets.

Their promises (`storage.staging.staging`): a block that was reported staged is there with its body
until it is reported gone. A reported pin and a reported copyset hold. A block that was reported
gone stays away. An operation without an answer was done or not; a block has one operation at a
time.

Source: `storage.staging.staging`; docs/design.md §9.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from crc32c import crc32c

from cordwood.errors import Overloaded, Retryable
from cordwood.layout.message_staging import (
    AskStaged,
    PinStaged,
    StageBlock,
    StagePlace,
    Unstage,
)
from cordwood.nodes import NodeId
from cordwood.settings import StorageSettings
from cordwood.sim.crash_states.engine_subject import (
    BODY_SIZES,
    DIRECTORY,
    REST_S,
    RING_UNITS,
    STORAGE,
)
from cordwood.sim.crash_states.explorer import Life, PromiseBroken
from cordwood.sim.crash_states.wal_subject import Formatted, Opening, opened
from cordwood.sim.memory_logs import memory_tables
from cordwood.sim.process import Process
from cordwood.storage.engine import StorageEngine
from cordwood.storage.logs_db.flusher import Flusher
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.staging.staging import Staging

QUERY = "query"
SELF = NodeId(1)
TTL_MS = 1 << 30
"""Nothing expires by itself in a life."""

State = tuple[bytes, int, int] | None
"""A block's body, the attempt that pinned it (0 for none), and the number of its copyset's changes;
None if the block is not there."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An operation on a block was called; `then` is the state after it."""

    stage: bytes
    then: State


@dataclass(frozen=True, slots=True)
class Answered:
    """The operation was answered; `then` is the state after it."""

    stage: bytes
    then: State


@dataclass(frozen=True, slots=True)
class FoundStaged:
    """What a start found."""

    states: tuple[tuple[bytes, State], ...]


@dataclass(slots=True)
class StagingPromises:
    """The staged blocks that a disk must and may hold.

    Attributes:
        is_formatted: it must be a WAL.
        may: by id, the possible states of a block; one state if no operation is in flight.
    """

    is_formatted: bool = False
    may: dict[bytes, tuple[State, ...]] = field(default_factory=dict)

    def after(self, facts: Sequence[object]) -> StagingPromises:
        """See `Promised`."""
        then = replace(self, may=dict(self.may))
        for fact in facts:
            match fact:
                case Formatted():
                    then.is_formatted = True
                case Asked(stage, state):
                    then.may[stage] = (*then.may.get(stage, (None,)), state)
                case Answered(stage, state):
                    then.may[stage] = (state,)
                case FoundStaged(states):
                    then.may = {stage: (state,) for stage, state in states}
                case _:
                    assert isinstance(fact, Opening), f"{fact} is no fact of staged blocks"
        return then

    def judge(self, found: Mapping[bytes, State]) -> str:
        """The error in the state that a start found; "" for none."""
        wrong = []
        for stage in sorted({*self.may, *found}):
            may, state = self.may.get(stage, (None,)), found.get(stage)
            if state not in may:
                wrong.append(f"{stage.hex()} is {_words(state)}, not {[*map(_words, may)]}")
        return "; ".join(wrong)


def _words(state: State) -> str:
    if state is None:
        return "not there"
    body, attempt, moves = state
    pinned = f"pinned by {attempt}" if attempt else "free"
    return f"{len(body)} B {crc32c(body):08x}, {pinned}, moved {moves} times"


class StagingSubject:
    """See the module; a `Subject`."""

    name = "staging"

    def nothing_promised(self) -> StagingPromises:
        """See `Subject`."""
        return StagingPromises()

    async def live(self, life: Life, promised: StagingPromises) -> None:
        """See `Subject`."""
        wal = await opened(life, is_formatted=promised.is_formatted, units=RING_UNITS)
        host = life.host(Process("node"))
        settings: StorageSettings = life.chance.choice(STORAGE)
        tables = memory_tables(DIRECTORY, settings, host)
        logs, states = await LogsStore.open(tables, settings, SELF)
        engine = await StorageEngine.open(wal, logs, states, settings, lambda log: None)
        staging = Staging(engine, host.clock.now_us, SELF)
        await self._compare(life, staging, promised)
        flusher = Flusher(engine, settings, host.clock, lambda: None)
        flushing = asyncio.create_task(flusher.run())
        try:
            await _Script(life, staging, flusher).run(life.steps)
        finally:
            await flusher.close()
            await flushing

    async def _compare(self, life: Life, staging: Staging, promised: StagingPromises) -> None:
        found: dict[bytes, State] = {}
        in_tables = 0
        for stage, held in staging.index.blocks.items():
            in_tables += held.body is None
            reply = await staging.read(AskStaged(stage))
            attempt = held.pin.attempt if held.pin is not None else 0
            found[stage] = (reply.body, attempt, held.head.moves)
        if wrong := promised.judge(found):
            raise PromiseBroken(wrong)
        seen = {
            "a staged block came back": found,
            "a changed copyset came back": any(state and state[2] for state in found.values()),
            "a pin came back": any(state and state[1] for state in found.values()),
            "LogsDB held staged blocks": in_tables,
            "an operation on a staged block was in doubt": any(
                len(states) > 1 for states in promised.may.values()
            ),
        }
        life.probes.update(name for name, is_so in seen.items() if is_so)
        life.log.promise(FoundStaged(tuple(found.items())))


class _Script:
    """Stage, pin, release and flush blocks, drawn by chance."""

    def __init__(self, life: Life, staging: Staging, flusher: Flusher) -> None:
        self._log = life.log
        self._probes = life.probes
        self._chance = life.chance
        self._staging = staging
        self._flusher = flusher
        self._calls: list[asyncio.Task[None]] = []
        # Blocks without an operation in flight.
        self._free: dict[bytes, tuple[bytes, int, int]] = {
            stage: (b"", held.pin.attempt if held.pin is not None else 0, held.head.moves)
            for stage, held in staging.index.blocks.items()
        }

    async def run(self, steps: int) -> None:
        """Do this many steps, then wait for operations in flight."""
        for stage in self._free:
            reply = await self._staging.read(AskStaged(stage))
            self._free[stage] = (reply.body, *self._free[stage][1:])
        for _ in range(steps):
            draw = self._chance.random()
            if draw < 0.4 or (draw < 0.75 and not self._free):
                await self._begin(self._stage())
            elif draw < 0.55:
                await self._begin(self._pin())
            elif draw < 0.6:
                await self._begin(self._place())
            elif draw < 0.75:
                await self._begin(self._unstage())
            elif draw < 0.85:
                await self._begin(self._flush())
            else:
                await asyncio.sleep(REST_S * self._chance.random())
        await asyncio.gather(*self._calls)

    async def _begin(self, call: Coroutine[Any, Any, None]) -> None:
        self._calls.append(asyncio.create_task(call))
        await asyncio.sleep(0)

    async def _stage(self) -> None:
        stage = self._chance.randbytes(16)
        body = self._chance.randbytes(self._chance.choice(BODY_SIZES[1:]))
        crc = crc32c(body)
        block = StageBlock(stage, 1, TTL_MS, 1, 0, len(body), crc, crc, body, [SELF, 2])
        await self._do(stage, (body, 0, 0), self._staging.stage(block))

    async def _pin(self) -> None:
        stage = self._chance.choice(sorted(self._free))
        body, attempt, moves = self._free.pop(stage)
        call = PinStaged(QUERY, attempt + 1, [stage], [moves])
        await self._do(stage, (body, attempt + 1, moves), self._staging.pin(call))

    async def _place(self) -> None:
        stage = self._chance.choice(sorted(self._free))
        body, attempt, moves = self._free.pop(stage)
        place = StagePlace(stage, [SELF, 3 + moves], moves + 1)
        await self._do(stage, (body, attempt, moves + 1), self._staging.place(place))

    async def _unstage(self) -> None:
        stage = self._chance.choice(sorted(self._free))
        _, attempt, _ = self._free.pop(stage)
        call = Unstage(QUERY, max(attempt, 1), [stage])
        await self._do(stage, None, self._staging.unstage(call))

    async def _do(self, stage: bytes, then: State, call: Coroutine[Any, Any, None]) -> None:
        self._log.waive(Asked(stage, then))
        try:
            await call
        except Overloaded:
            self._probes["no room to stage"] += 1
            return
        self._log.promise(Answered(stage, then))
        if then is not None:
            self._free[stage] = then

    async def _flush(self) -> None:
        with contextlib.suppress(Retryable):  # if the WAL failed
            await self._flusher.flush()
