"""The checkers against a model: correct runs are never flagged, spoilt ones always are.

Each mutation is one way for a store (or its metadata) to be wrong. It spoils a
correct history at a random place and names promises of which one must be broken.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from log_model import Model

from cordwood.block import GapKind
from cordwood.lsn import make_lsn
from cordwood.sim.checkers import check_all
from cordwood.sim.history import (
    AppendFailed,
    AppendInvoked,
    AppendOk,
    AppendUnknown,
    CleanEpochSet,
    EndReason,
    EpochTaken,
    Event,
    GapDelivered,
    NodeDumped,
    PayloadMark,
    ReadEnded,
    ReadStarted,
    RecordDelivered,
    SlotKind,
    TailAnswered,
    from_jsonl,
    to_jsonl,
)

Kind = TypeVar("Kind")
Mutation = Callable[[list[Event], random.Random], None]
SEEDS = st.integers(0, 2**32)
"""Seeds, not hypothesis's own chance: ten times as fast, and a seed is all one needs."""

replace = msgspec.structs.replace


def correct_run(chance: random.Random) -> list[Event]:
    return Model(chance).run(epochs=chance.randint(2, 4), turns=chance.randint(3, 12))


@settings(max_examples=300)
@given(SEEDS)
def test_a_correct_run_is_never_flagged(seed: int) -> None:
    history = correct_run(random.Random(seed))
    assert list(map(str, check_all(history))) == []
    assert check_all(from_jsonl(to_jsonl(history))) == []


def pick(events: list[Event], kind: type[Kind], chance: random.Random) -> tuple[int, Kind]:
    """A random event of a kind, and where it is."""
    return chance.choice([(at, e) for at, e in enumerate(events) if isinstance(e, kind)])


def final_record(events: list[Event], chance: random.Random) -> tuple[int, RecordDelivered]:
    """A random acknowledged record of a read that went to the tail."""
    acked = {lsn for event in events if isinstance(event, AppendOk) for lsn in event.lsns}
    reader = chance.choice(("r1", "r2"))
    found: list[tuple[int, RecordDelivered]] = []
    for at, event in enumerate(events):
        if isinstance(event, RecordDelivered) and event.reader == reader and event.lsn in acked:
            found.append((at, event))
        elif isinstance(event, ReadEnded) and event.reader == reader:
            if event.reason is EndReason.TAIL:
                return chance.choice(found)
            found = []
    raise AssertionError("the model ends every reader at the tail")


def another_record(
    events: list[Event], chance: random.Random, record: RecordDelivered
) -> tuple[int, RecordDelivered]:
    """A random delivery of some other payload."""
    return chance.choice(
        [
            (at, event)
            for at, event in enumerate(events)
            if isinstance(event, RecordDelivered) and event.payload != record.payload
        ]
    )


def drop_record(events: list[Event], chance: random.Random) -> None:
    at, _ = final_record(events, chance)
    del events[at]


def skip_to_the_end(events: list[Event], chance: random.Random) -> None:
    at, record = final_record(events, chance)
    events[at:] = [
        event
        for event in events[at:]
        if not (isinstance(event, RecordDelivered | GapDelivered) and event.reader == record.reader)
    ]


def deliver_at_two_lsns(events: list[Event], chance: random.Random) -> None:
    at, record = final_record(events, chance)
    events.insert(at + 1, replace(record, lsn=record.lsn + 1))


def deliver_twice(events: list[Event], chance: random.Random) -> None:
    at, record = final_record(events, chance)
    events.insert(at + 1, record)


def swap_two(events: list[Event], chance: random.Random) -> None:
    at, record = final_record(events, chance)
    other_at, other = another_record(events, chance, record)
    events[at] = replace(record, payload=other.payload)
    events[other_at] = replace(other, payload=record.payload)


def corrupt_payload(events: list[Event], chance: random.Random) -> None:
    at, record = pick(events, RecordDelivered, chance)
    crc = record.payload.crc ^ 1 << chance.randrange(32)
    events[at] = replace(record, payload=replace(record.payload, crc=crc))


def forge_payload(events: list[Event], chance: random.Random) -> None:
    at, record = pick(events, RecordDelivered, chance)
    events[at] = replace(record, payload=PayloadMark("w9/1", 1, 64))


def gap_over_acked(kind: GapKind) -> Mutation:
    def mutate(events: list[Event], chance: random.Random) -> None:
        at, record = final_record(events, chance)
        gap = GapDelivered(record.time_us, record.reader, record.lsn, record.lsn, kind)
        events[at] = gap

    return mutate


def wide_gap(events: list[Event], chance: random.Random) -> None:
    """A gap takes in slots that its read delivers next: one that nothing follows may be true."""
    wide = [
        (at, gap)
        for at, gap in enumerate(events)
        if isinstance(gap, GapDelivered) and _goes_on(events, at, gap.reader)
    ]
    assume(wide)
    at, gap = chance.choice(wide)
    events[at] = replace(gap, last=gap.last + chance.randint(1, 3))


def _goes_on(events: list[Event], at: int, reader: str) -> bool:
    """Whether the read that was given the event at `at` was given another one after it."""
    for event in events[at + 1 :]:
        if isinstance(event, RecordDelivered | GapDelivered) and event.reader == reader:
            return True
        if isinstance(event, ReadEnded | ReadStarted) and event.reader == reader:
            return False
    return False


def early_bridge(events: list[Event], chance: random.Random) -> None:
    """The last record before a bridge goes into the bridge."""
    bridges = [
        (before, at)
        for before, at in zip(range(len(events)), range(1, len(events)), strict=False)
        if isinstance(event := events[at], GapDelivered)
        and event.kind is GapKind.BRIDGE
        and isinstance(record := events[before], RecordDelivered)
        and record.reader == event.reader
    ]
    before, at = chance.choice(bridges)
    gap, record = events[at], events[before]
    assert isinstance(gap, GapDelivered)
    assert isinstance(record, RecordDelivered)
    events[before : at + 1] = [replace(gap, first=record.lsn)]


def restart_with_other_content(events: list[Event], chance: random.Random) -> None:
    at, record = final_record(events, chance)
    _, other = another_record(events, chance, record)
    events[at] = replace(record, payload=other.payload)


def epoch_twice(events: list[Event], chance: random.Random) -> None:
    at, taken = pick(events, EpochTaken, chance)
    events.insert(at + 1, replace(taken, node=taken.node + 1))


def epoch_never_taken(events: list[Event], chance: random.Random) -> None:
    at, _ = pick(events, EpochTaken, chance)
    del events[at]


def clean_below_the_tail(events: list[Event], chance: random.Random) -> None:
    at, cleaned = pick(events, CleanEpochSet, chance)
    events[at] = replace(cleaned, tail=make_lsn(cleaned.epoch, 0))


def clean_again_elsewhere(events: list[Event], chance: random.Random) -> None:
    at, cleaned = pick(events, CleanEpochSet, chance)
    events.insert(at + 1, replace(cleaned, tail=cleaned.tail + 1))


def fail_what_was_acked(events: list[Event], chance: random.Random) -> None:
    _, record = final_record(events, chance)
    at, end = next(
        (at, event)
        for at, event in enumerate(events)
        if isinstance(event, AppendOk) and record.lsn in event.lsns
    )
    events[at] = AppendFailed(end.time_us, end.op, "NoSequencer")


def ack_elsewhere(events: list[Event], chance: random.Random) -> None:
    at, end = pick(events, AppendOk, chance)
    events[at] = replace(end, lsns=tuple(lsn + 1 for lsn in end.lsns))


def zombie_ack(events: list[Event], chance: random.Random) -> None:
    """A fenced sequencer acknowledges one more record of its epoch."""
    at, cleaned = pick(events, CleanEpochSet, chance)
    lsn, time_us = max(cleaned.tail, make_lsn(cleaned.epoch, 0)) + 1, cleaned.time_us
    mark = PayloadMark("w9/1", 1, 64)
    events[at + 1 : at + 1] = [
        AppendInvoked(time_us, 999, "w9", cleaned.log, (mark,)),
        AppendOk(time_us, 999, (lsn,)),
    ]


def lose_copies(events: list[Event], chance: random.Random) -> None:
    """Two of four nodes lose what they held."""
    dumps = [(at, e) for at, e in enumerate(events) if isinstance(e, NodeDumped)]
    for at, dump in chance.sample(dumps, 2):
        events[at] = replace(dump, slots=())


def rot_a_copy(events: list[Event], chance: random.Random) -> None:
    at, dump, index = pick_copy(events, chance)
    slots = list(dump.slots)
    slots[index] = replace(slots[index], intact=False)
    events[at] = replace(dump, slots=tuple(slots))


def swap_a_copy(events: list[Event], chance: random.Random) -> None:
    """One node holds another record at a slot, its checksum right."""
    at, dump, index = pick_copy(events, chance)
    others = [
        payload
        for event in events
        if isinstance(event, AppendInvoked)
        for payload in event.payloads
        if payload not in dump.slots[index].payloads
    ]
    slots = list(dump.slots)
    slots[index] = replace(slots[index], payloads=(chance.choice(others),))
    events[at] = replace(dump, slots=tuple(slots))


def pick_copy(events: list[Event], chance: random.Random) -> tuple[int, NodeDumped, int]:
    copies: list[tuple[int, NodeDumped, int]] = []
    for at, event in enumerate(events):
        if isinstance(event, NodeDumped):
            data = [i for i, held in enumerate(event.slots) if held.kind is SlotKind.DATA]
            copies += [(at, event, index) for index in data]
    return chance.choice(copies)


MUTATIONS: list[tuple[Mutation, str]] = [
    (drop_record, "S2 S6"),
    (skip_to_the_end, "S2"),
    (deliver_at_two_lsns, "S4"),
    (deliver_twice, "S6"),
    (swap_two, "S1 S4"),
    (corrupt_payload, "S3"),
    (forge_payload, "S3"),
    (gap_over_acked(GapKind.HOLE), "S7"),
    (gap_over_acked(GapKind.TRIM), "S7"),
    (gap_over_acked(GapKind.DATA_LOSS), "S7"),
    (gap_over_acked(GapKind.BRIDGE), "S2"),
    (wide_gap, "S6 S7"),
    (early_bridge, "S7"),
    (restart_with_other_content, "S1"),
    (epoch_twice, "S11"),
    (epoch_never_taken, "S11"),
    (clean_below_the_tail, "S13"),
    (clean_again_elsewhere, "S13"),
    (fail_what_was_acked, "S4"),
    (ack_elsewhere, "S1 S2 S4"),
    (zombie_ack, "S12"),
    (lose_copies, "S15"),
    (rot_a_copy, "S15"),
    (swap_a_copy, "S1"),
]


@pytest.mark.parametrize(("mutate", "promises"), MUTATIONS)
@settings(max_examples=50)
@given(seed=SEEDS)
def test_a_spoilt_run_is_flagged(mutate: Mutation, promises: str, seed: int) -> None:
    chance = random.Random(seed)
    history = correct_run(chance)
    mutate(history, chance)
    broken = {violation.invariant for violation in check_all(history)}
    assert broken & set(promises.split()), broken


def test_the_model_makes_all_that_is_checked() -> None:
    """So that the runs above are about holes, kept records and restarts too."""
    runs = [correct_run(random.Random(seed)) for seed in range(30)]
    events = [event for run in runs for event in run]
    dumps = [event for event in events if isinstance(event, NodeDumped)]
    assert {held.kind for dump in dumps for held in dump.slots} == set(SlotKind)
    assert {event.kind for event in events if isinstance(event, GapDelivered)} == {
        GapKind.HOLE,
        GapKind.BRIDGE,
    }
    assert {type(event) for event in events} >= {AppendUnknown, AppendFailed, TailAnswered}
    assert sum(isinstance(event, ReadStarted) for event in events) > 4 * len(runs)
    assert any(
        held.kind is SlotKind.DATA and held.seal_epoch for dump in dumps for held in dump.slots
    )


def test_a_long_history_is_checked_fast() -> None:
    """100,000 events and as many copies on four disks: four times what it takes to make them
    up, and as much again and more of grace. A busy machine slows both alike."""
    busy = ("send", "send", "ack", "ack", "read", "tail")
    began = time.process_time()
    model = Model(random.Random(7), actions=busy, ticks_us=(0, 1))
    history = model.run(epochs=4, turns=13_500)
    made = time.process_time()
    assert len(history) > 100_000
    assert check_all(history) == []
    assert time.process_time() - made < 10 * (made - began)
