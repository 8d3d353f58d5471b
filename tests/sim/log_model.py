"""A log store that cannot be wrong, for making correct histories: one list of slots.

Clients pipeline appends; an epoch ends with some of them unanswered, which recovery
keeps or plugs with holes; readers are given what is released, start over at
will, and come to the tail in the end; then the disks are dumped.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from cordwood.block import GapKind
from cordwood.lsn import make_lsn
from cordwood.sim.history import (
    AppendFailed,
    AppendInvoked,
    AppendOk,
    AppendUnknown,
    DumpedSlots,
    EndReason,
    Event,
    GapDelivered,
    HistoryRecorder,
    NodeDumped,
    PayloadMark,
    ReadEnded,
    ReadStarted,
    RecordDelivered,
    SlotKind,
)

LOG = 1
NODES = ((1, "rack1"), (2, "rack1"), (3, "rack2"), (4, "rack3"))
COPIES, RACKS = 3, 2


@dataclass
class Op:
    """A call on its way."""

    number: int
    client: str
    marks: tuple[PayloadMark, ...]


@dataclass
class Slot:
    """LSNs `[first, last]` with a record's mark, or a kind of plug, and who holds them."""

    first: int
    last: int
    mark: PayloadMark | None
    gap: GapKind | None
    seal_epoch: int
    nodes: tuple[int, ...]


@dataclass
class Reader:
    """Where a reader stands: index of the next slot it will be given."""

    name: str
    next_slot: int = 0
    is_open: bool = False


@dataclass
class Model:
    """The store, its clients and its readers; `run` plays them at random.

    Attributes:
        chance: where all choices come from.
        actions: what may happen in a turn; named twice is twice as likely.
        ticks_us: how far time may go on between two looks at the clock.
    """

    chance: random.Random
    actions: tuple[str, ...] = ("send", "send", "ack", "read", "restart", "fail", "tail")
    ticks_us: tuple[int, ...] = (0, 1, 500, 2000)
    tail: int = make_lsn(1, 0)
    slots: list[Slot] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=lambda: [Reader("r1"), Reader("r2")])
    time_us: int = 0
    sequence: int = 0
    ops: int = 0

    def __post_init__(self) -> None:
        self.recorder = HistoryRecorder(self.now_us, copies=COPIES, racks=RACKS)

    def now_us(self) -> int:
        """Time goes on a little with every look, or stands."""
        self.time_us += self.chance.choice(self.ticks_us)
        return self.time_us

    def run(self, epochs: int, turns: int) -> list[Event]:
        """Play; at least one record is acknowledged in each epoch."""
        recorder = self.recorder
        open_ops: list[Op] = []
        next_esn = 1
        for epoch in range(1, epochs + 1):
            recorder.epoch_taken(LOG, epoch, node=self.chance.choice(NODES)[0])
            if epoch > 1:
                self._recover(epoch - 1, open_ops, next_esn)
                recorder.fault_eased("crash")
            if epoch == epochs:
                recorder.faults_healed()
            open_ops, next_esn = self._epoch(epoch, turns)
            if epoch < epochs:
                recorder.fault_struck("crash", [1])
        for op in open_ops:
            next_esn = self._ack(op, epochs, next_esn)
        self._ask_tail("w1")
        for reader in self.readers:
            self._restart(reader, EndReason.STOPPED, oldest=reader.name == "r1")
            self._read(reader, len(self.slots))
            recorder.read_ended(reader.name, EndReason.TAIL)
        self._dump()
        return list(recorder)

    def _epoch(self, epoch: int, turns: int) -> tuple[list[Op], int]:
        open_ops: list[Op] = []
        next_esn = 1
        first = True
        for _ in range(turns):
            action = self.chance.choice(self.actions)
            if action == "send" or first:
                open_ops.append(self._send())
            if (action == "ack" and open_ops) or first:
                next_esn = self._ack(open_ops.pop(0), epoch, next_esn)
                first = False
            reader = self.chance.choice(self.readers)
            if action == "read" and reader.is_open:
                self._read(reader, self.chance.randint(reader.next_slot, len(self.slots)))
            elif action == "restart":
                self._restart(reader, self.chance.choice((EndReason.STOPPED, EndReason.ERROR)))
            elif action == "fail":
                op = self._send()
                self.recorder.add(AppendFailed(self.now_us(), op.number, "NoSequencer"))
            elif action == "tail":
                self._ask_tail(self.chance.choice(("w1", "w2")))
        return open_ops, next_esn

    def _send(self) -> Op:
        client = self.chance.choice(("w1", "w2"))
        self.ops += 1
        marks = []
        for _ in range(self.chance.randint(1, 3)):
            self.sequence += 1
            marks.append(PayloadMark(f"{client}/{self.sequence}", self.sequence, 64))
        op = Op(self.ops, client, tuple(marks))
        self.recorder.add(AppendInvoked(self.now_us(), op.number, client, LOG, op.marks))
        return op

    def _store(self, op: Op, epoch: int, esn: int, seal_epoch: int) -> int:
        for index, mark in enumerate(op.marks):
            lsn = make_lsn(epoch, esn + index)
            self.slots.append(Slot(lsn, lsn, mark, None, seal_epoch, self._copyset()))
            self.tail = lsn
        return esn + len(op.marks)

    def _copyset(self) -> tuple[int, ...]:
        """Three of four nodes span two racks, whichever they are."""
        return tuple(sorted(self.chance.sample([node for node, _ in NODES], COPIES)))

    def _ack(self, op: Op, epoch: int, next_esn: int) -> int:
        after = self._store(op, epoch, next_esn, 0)
        lsns = tuple(make_lsn(epoch, esn) for esn in range(next_esn, after))
        self.recorder.add(AppendOk(self.now_us(), op.number, lsns))
        return after

    def _recover(self, epoch: int, open_ops: list[Op], next_esn: int) -> None:
        """Keep or plug what was not answered; end the epoch at the last record kept."""
        holes: list[Slot] = []
        for op in open_ops:
            if self.chance.random() < 0.5:
                self.slots += holes
                holes = []
                next_esn = self._store(op, epoch, next_esn, epoch + 1)
            else:
                last = next_esn + len(op.marks) - 1
                ends = make_lsn(epoch, next_esn), make_lsn(epoch, last)
                holes.append(Slot(*ends, None, GapKind.HOLE, epoch + 1, self._copyset()))
                next_esn = last + 1
            self.recorder.add(AppendUnknown(self.now_us(), op.number, "OutcomeUnknown"))
        until = make_lsn(epoch + 1, 0)
        bridge = Slot(self.tail + 1, until, None, GapKind.BRIDGE, epoch + 1, self._copyset())
        self.recorder.clean_epoch_set(LOG, epoch, self.tail)
        self.slots.append(bridge)

    def _restart(self, reader: Reader, reason: EndReason, *, oldest: bool = False) -> None:
        if reader.is_open:
            self.recorder.add(ReadEnded(self.now_us(), reader.name, reason))
        reader.next_slot = 0 if oldest else self.chance.randint(0, len(self.slots) // 2)
        reader.is_open = True
        start = self.slots[reader.next_slot].first if self.slots else make_lsn(1, 1)
        self.recorder.add(ReadStarted(self.now_us(), reader.name, LOG, start))

    def _read(self, reader: Reader, stop: int) -> None:
        for slot in self.slots[reader.next_slot : stop]:
            if slot.mark is not None:
                event = RecordDelivered(self.now_us(), reader.name, slot.first, slot.mark)
                self.recorder.add(event)
            elif slot.gap is not None:
                span = slot.first, slot.last
                self.recorder.add(GapDelivered(self.now_us(), reader.name, *span, slot.gap))
        reader.next_slot = max(reader.next_slot, stop)

    def _ask_tail(self, client: str) -> None:
        asked_us = self.now_us()
        self.recorder.tail_answered(client, LOG, self.tail, invoked_us=asked_us)

    def _dump(self) -> None:
        for node, rack in NODES:
            held = tuple(_held(slot) for slot in self.slots if node in slot.nodes)
            self.recorder.add(NodeDumped(self.now_us(), node, rack, LOG, held))


def _held(slot: Slot) -> DumpedSlots:
    if slot.mark is not None:
        marks = (slot.mark,)
        return DumpedSlots(slot.first, slot.last, SlotKind.DATA, marks, seal_epoch=slot.seal_epoch)
    kind = SlotKind.HOLE if slot.gap is GapKind.HOLE else SlotKind.BRIDGE
    last = slot.last if kind is SlotKind.HOLE else slot.last - 1
    return DumpedSlots(slot.first, last, kind, seal_epoch=slot.seal_epoch)
