"""Staged blocks of one node: durable, without LSNs, and gone when their time is over.

A client stages blocks on as many nodes as its log asks for, and publishes them later:
`protocol.publishing` tells how. A block may expire until it is pinned. A pinned block stays until
its attempt is over; `staging_sweep` asks the metadata store whether it is.

Like every other record, a staged block goes through the WAL, and a flush takes it to LogsDB: its
body leaves memory then. Staged bodies share the log cache's space with blocks.

Source: docs/design.md §9; docs/sources/spark.md §8 ("unpublished refs die by TTL").
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from crc32c import crc32c

from cordwood.block import Buffer
from cordwood.errors import (
    ChecksumMismatch,
    Overloaded,
    RecordTooLarge,
    Retryable,
    StageExpired,
)
from cordwood.layout.engine_record import RecordKind, StagingRecord
from cordwood.layout.message import DoneReply
from cordwood.layout.message_staging import (
    AskStaged,
    FindStaged,
    PinStaged,
    PlaceStaged,
    StageBlock,
    StagedPlaces,
    StagedReply,
    StagePlace,
    StagingCall,
    Unstage,
)
from cordwood.layout.staged import (
    PinRecord,
    PlaceRecord,
    StagedHead,
    StageRecord,
    UnstageRecord,
    check_head,
    pack_pin,
    pack_place,
    pack_stage_head,
    pack_unstage,
    packed_ids,
)
from cordwood.storage.engine import StorageEngine
from cordwood.storage.staging.staged_index import Pin, StagedBlock, StagedIndex

STAGED_BYTES_MAX = 8 << 30
"""Bodies that a node keeps staged: a batch of a gigabyte, of several queries, some times over."""

STAGED_BLOCK_BYTES_MAX = 6 << 20
"""The largest staged body until the node knows the smallest WAL of the members. It then has the
bound of an append."""


class Pinned(NamedTuple):
    """Blocks that one attempt of a query has pinned."""

    pin: Pin
    stages: tuple[bytes, ...]
    expires_us: int


class Staging:
    """See the module.

    Attributes:
        block_bytes_max: the largest body that sequencers take.
    """

    def __init__(
        self,
        engine: StorageEngine,
        now_us: Callable[[], int],
        me: int = 0,
    ) -> None:
        """
        Args:
            now_us: µs since 1970 UTC.
            me: this node.
        """
        self._me = me
        self.block_bytes_max = STAGED_BLOCK_BYTES_MAX
        self._engine = engine
        self.now_us = now_us
        # In the WAL and not durable yet. A block being pinned must not be dropped, and a block
        # being dropped must not be pinned: once the pin is answered, no later write may undo it.
        self._pinning: dict[bytes, list[Pin]] = {}
        self._going: Counter[bytes] = Counter()
        # Blocks that are being moved. Pins of them are refused, because the new copies would not
        # have the pin.
        self._moving: set[bytes] = set()

    @property
    def index(self) -> StagedIndex:
        """The staged blocks."""
        return self._engine.staged

    async def answer(self, call: StagingCall) -> StagedReply | StagedPlaces | DoneReply:
        """Do a client's call.

        Raises:
            Retryable: this node does not know yet whether its data is what the cluster has.
            CordwoodError: see those below.
        """
        if self._engine.unsure and not isinstance(call, Unstage):
            # Trap: this may be a lost node with its old disk, which is about to be emptied. A copy
            # here would be counted, and no donor would make it anew.
            raise Retryable(
                "this node does not know yet whether its data is what the cluster has: ask others"
            )
        if isinstance(call, AskStaged):
            return await self.read(call)
        if isinstance(call, FindStaged):
            return self.find(call)
        if isinstance(call, StageBlock):
            await self.stage(call)
        elif isinstance(call, PinStaged):
            await self.pin(call)
        elif isinstance(call, PlaceStaged):
            await self.place(call.place)
        else:
            await self.unstage(call)
        return DoneReply()

    async def stage(self, call: StageBlock) -> None:
        """Keep a block; returns once it is durable.

        Raises:
            ChecksumMismatch: it arrived damaged.
            Overloaded: there is no room for it, or it names a node that is drained or lost.
            Retryable: the block that was here before is about to go.
            RecordTooLarge: no append would take it.
            StageExpired: another block has this id.
        """
        if len(call.body) > self.block_bytes_max:
            # Trap: it could be committed and then never be appended, and the query would stop.
            raise RecordTooLarge(
                f"a staged block has at most {self.block_bytes_max} bytes as stored on nodes with "
                "WALs and caches of this size: stage with a lower block_bytes"
            )
        expires_us = self.now_us() + call.ttl_ms * 1000
        head = StagedHead(
            call.stage, call.log, expires_us, call.records, len(call.body), call.raw_bytes,
            call.stored_crc, call.raw_crc, call.codec, tuple(call.nodes), call.moves,
        )  # fmt: skip
        fault = check_head(head)
        if fault or crc32c(call.body) != call.stored_crc:
            raise ChecksumMismatch(f"a staged block arrived damaged: {fault or 'its checksum'}")
        held = self.index.get(call.stage)
        if held is not None:
            if (held.head.stored_crc, held.head.log) != (head.stored_crc, head.log):
                raise StageExpired("another block is staged under this id")
            await self._take_anew(call)
            return
        # The donors have looked through the staged blocks, or are about to: none would move it.
        away = self._engine.rebuilding & {self._me, *call.nodes}
        if away:
            raise Overloaded(f"node {min(away)} gives its data away, or lost it: stage on others")
        if self.index.bytes + len(call.body) > STAGED_BYTES_MAX:
            raise Overloaded(f"{self.index.bytes} bytes are staged on this node: publish some")
        if len(call.body) > self._engine.free_bytes:
            raise Overloaded("this node has no room to stage more until it has flushed")
        await self._write(
            RecordKind.STAGE, (pack_stage_head(head), call.body), StageRecord(head, call.body)
        )
        await self._take_pin(call)

    async def _take_anew(self, call: StageBlock) -> None:
        """A donor gives a block that is here already: its copyset and pin may be newer."""
        if self._going[call.stage]:
            # The donor would count this copy, but a drop on its way to the WAL removes it.
            raise Retryable("this node is about to drop that staged block; give it again")
        if call.moves:
            await self.place(StagePlace(call.stage, call.nodes, call.moves))
        await self._take_pin(call)

    async def _take_pin(self, call: StageBlock) -> None:
        """The pin that a donor gives with a block.

        Raises:
            Retryable: the block went meanwhile.
        """
        if not call.attempt:
            return
        held = self.index.get(call.stage)
        known = held.pin if held is not None else None
        is_later = known is None or (known.query == call.query and known.attempt < call.attempt)
        if held is not None and is_later and call.stage not in self._pinning:
            record = PinRecord(call.query, call.attempt, (call.stage,))
            await self._write(RecordKind.PIN, (pack_pin(record),), record)
        if call.stage not in self.index.blocks:
            raise Retryable("a staged block went while it was pinned")

    async def place(self, place: StagePlace) -> None:
        """Note a newer copyset of a block; drop the block if it does not name this node."""
        held = self.index.get(place.stage)
        if held is None or place.moves <= held.head.moves:
            return
        if self._me not in place.nodes:
            await self.drop([place.stage])
            return
        record = PlaceRecord(place.stage, tuple(place.nodes), place.moves)
        await self._write(RecordKind.PLACE, (pack_place(record),), record)

    def find(self, call: FindStaged) -> StagedPlaces:
        """The blocks of a list that are here, durably."""
        held = [(stage, self.index.get(stage)) for stage in packed_ids(call.stages)]
        return StagedPlaces(
            [
                StagePlace(stage, list(each.head.nodes), each.head.moves)
                for stage, each in held
                if each is not None and not self._going[stage]
            ]
        )

    @contextmanager
    def moving(self, stage: bytes) -> Iterator[StagedBlock | None]:
        """A block that is being given to other nodes for the length of the block. It is None if the
        block is gone, or is being pinned or dropped."""
        held = self.index.get(stage)
        if held is None or stage in self._pinning or self._going[stage] or stage in self._moving:
            yield None
            return
        self._moving.add(stage)
        try:
            yield held
        finally:
            self._moving.discard(stage)

    async def pin(self, call: PinStaged) -> None:
        """Pin blocks until the attempt is over; returns once the pins are durable.

        Raises:
            StageExpired: a block is gone or too old, or is pinned by an attempt of another query,
                or by a later attempt of this query; none is pinned.
            Retryable: a block has another copyset than the caller knows, or is about to get one;
                none is pinned.
        """
        now_us = self.now_us()
        stages = packed_ids(call.stages)
        pin = Pin(call.query, call.attempt)
        moves = dict(zip(map(bytes, call.stages), call.moves, strict=False))
        for stage in stages:
            held = self.index.get(stage)
            is_late = held is not None and held.pin is None and held.head.expires_us <= now_us
            if held is None or is_late or self._going[stage]:
                raise StageExpired("a staged block was kept for as long as was asked, and is gone")
            if stage in self._moving or held.head.moves != moves.get(stage, 0):
                raise Retryable("a staged block has moved, or is being moved, to other nodes")
            # A pin on its way counts too: of two that cross, the later write would hold.
            for other in (*filter(None, (held.pin,)), *self._pinning.get(stage, ())):
                if other.query != pin.query or other.attempt > pin.attempt:
                    raise StageExpired(
                        f"a staged block belongs to a later publish of {other.query!r}"
                    )
        if all(held.pin == pin for held in map(self.index.get, stages) if held is not None):
            return
        record = PinRecord(call.query, call.attempt, stages)
        for stage in stages:
            self._pinning.setdefault(stage, []).append(pin)
        try:
            await self._write(RecordKind.PIN, (pack_pin(record),), record)
        finally:
            for stage in stages:
                self._pinning[stage].remove(pin)
                if not self._pinning[stage]:
                    del self._pinning[stage]
        if any((held := self.index.get(stage)) is None or held.pin != pin for stage in stages):
            # Race: on a slow disk a later pin is on its way for longer than its caller waits, and
            # `_pinning` does not name the block any more.
            raise StageExpired("a staged block went, or was pinned anew, while it was pinned")

    async def unstage(self, call: Unstage) -> None:
        """Drop blocks, except those that another attempt pinned; durable when it returns."""
        pin = Pin(call.query, call.attempt)
        held = [(stage, self.index.get(stage)) for stage in packed_ids(call.stages)]
        await self.drop(
            stage for stage, each in held if each is not None and each.pin in (None, pin)
        )

    async def drop(self, stages: Iterable[bytes]) -> None:
        """Drop these blocks for good, except those just being pinned."""
        record = UnstageRecord(tuple(stage for stage in stages if stage not in self._pinning))
        if not record.stages:
            return
        parts = (bytes([RecordKind.UNSTAGE]), pack_unstage(record))
        durable = self._engine.begin_beside(parts, record, reserve_ok=True)
        self._count_going(record.stages, durable)
        await self._engine.settle(asyncio.shield(durable))

    def _count_going(self, stages: Sequence[bytes], durable: asyncio.Future[None]) -> None:
        """Count blocks as being dropped. On a slow disk a drop outlasts the wait of its caller."""
        self._going.update(stages)

        def on_settled(_: asyncio.Future[None]) -> None:
            self._going.subtract(stages)
            for stage in stages:
                if not self._going[stage]:
                    del self._going[stage]

        durable.add_done_callback(on_settled)

    async def read(self, call: AskStaged) -> StagedReply:
        """A staged block with its body.

        Raises:
            StageExpired: it is not here (any more).
            ChecksumMismatch: this copy is damaged.
        """
        head, body = await self.whole(call.stage)
        return StagedReply(
            head.log, head.records, head.codec, head.raw_bytes, head.stored_crc, head.raw_crc, body
        )

    async def whole(self, stage: bytes) -> tuple[StagedHead, bytes]:
        """A staged block's head and body; raises as `read`."""
        held = self.index.get(stage)
        body: Buffer | None = held.body if held is not None else None
        if held is not None and body is None:
            body = await self._engine.logs.staged.body(stage)
        if held is None or body is None:
            raise StageExpired("this staged block is gone from this node")
        if crc32c(body) != held.head.stored_crc:
            raise ChecksumMismatch("this copy of a staged block is damaged")
        return held.head, bytes(body)

    def expired(self) -> list[bytes]:
        """Expired blocks without a pin."""
        now_us = self.now_us()
        return [
            stage
            for stage, held in self.index.blocks.items()
            if held.pin is None and held.head.expires_us <= now_us
        ]

    def pins(self) -> list[Pinned]:
        """Pinned blocks by query and attempt, and when the last of them would have expired."""
        found: dict[Pin, list[bytes]] = {}
        expires: dict[Pin, int] = {}
        for stage, held in self.index.blocks.items():
            if held.pin is not None:
                found.setdefault(held.pin, []).append(stage)
                expires[held.pin] = max(expires.get(held.pin, 0), held.head.expires_us)
        return [Pinned(pin, tuple(found[pin]), expires[pin]) for pin in sorted(found)]

    async def _write(
        self, kind: RecordKind, parts: Sequence[Buffer], record: StagingRecord
    ) -> None:
        reserve_ok = kind != RecordKind.STAGE
        await self._engine.write_beside((bytes([kind]), *parts), record, reserve_ok=reserve_ok)
