"""Staged blocks on one node: what is pinned stays, what goes is not pinned."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from crc32c import crc32c
from made_blocks import LIMITS, LOG, Made, at, packed, run, turns
from scenarios import as_scenario

from cordwood.errors import Overloaded, StageExpired
from cordwood.layout.message_staging import PinStaged, StageBlock, Unstage
from cordwood.storage.staging.staging import Staging

STAGE = bytes(range(16))
BODY = b"staged"


async def staged(made: Made) -> Staging:
    staging = Staging(made.engine, lambda: 0)
    crc = crc32c(BODY)
    call = StageBlock(
        stage=STAGE, log=LOG, ttl_ms=60_000, records=1, raw_bytes=len(BODY), stored_crc=crc,
        raw_crc=crc, codec=0, body=BODY,
    )  # fmt: skip
    await staging.stage(call)
    return staging


def pin(attempt: int = 1) -> PinStaged:
    return PinStaged(stages=(STAGE,), query="q", attempt=attempt)


@as_scenario(run)
async def test_a_pin_that_meets_an_unstage_under_way_is_refused() -> None:
    made = await Made.new()
    staging = await staged(made)
    made.disk.by_hand = made.disk.file.by_hand = True
    going = asyncio.ensure_future(staging.unstage(Unstage(stages=(STAGE,), query="q", attempt=1)))
    await turns()
    assert made.disk.file.pending, "the record that lets go is written, and not durable"
    pinning = asyncio.ensure_future(staging.pin(pin()))
    await turns()
    made.disk.by_hand = made.disk.file.by_hand = False
    made.disk.file.end_all()
    with pytest.raises(StageExpired):
        await pinning
    await going
    assert staging.index.get(STAGE) is None
    assert not staging.pins()


@as_scenario(run)
async def test_an_unstage_of_another_attempt_leaves_what_is_being_pinned() -> None:
    made = await Made.new()
    staging = await staged(made)
    made.disk.by_hand = made.disk.file.by_hand = True
    pinning = asyncio.ensure_future(staging.pin(pin(attempt=2)))
    await turns()
    going = asyncio.ensure_future(staging.unstage(Unstage(stages=(STAGE,), query="q", attempt=1)))
    await turns()
    made.disk.by_hand = made.disk.file.by_hand = False
    made.disk.file.end_all()
    await asyncio.gather(pinning, going)
    assert [each.stages for each in staging.pins()] == [(STAGE,)]


@pytest.mark.parametrize(
    "other", [pin(attempt=1), PinStaged(stages=(STAGE,), query="p", attempt=9)]
)
@as_scenario(run)
async def test_a_pin_that_crosses_a_later_one_does_not_take_its_place(*, other: PinStaged) -> None:
    """The earlier attempt's pin was written last and held. So the sweep took the block for one
    of an attempt that is over, and let go of what the later attempt had committed."""
    made = await Made.new()
    staging = await staged(made)
    made.disk.by_hand = made.disk.file.by_hand = True
    later = asyncio.ensure_future(staging.pin(pin(attempt=2)))
    await turns()
    with pytest.raises(StageExpired, match="belongs to a later publish of 'q'"):
        await staging.pin(other)
    again = asyncio.ensure_future(staging.pin(pin(attempt=2)))
    await turns()
    made.disk.by_hand = made.disk.file.by_hand = False
    made.disk.file.end_all()
    await asyncio.gather(later, again)
    assert [each.pin for each in staging.pins()] == [("q", 2)]
    await staging.pin(pin(attempt=3))
    assert [each.pin for each in staging.pins()] == [("q", 3)]


@as_scenario(run)
async def test_a_pin_behind_an_unstage_that_nobody_waits_for_is_refused() -> None:
    """On a slow disk the record that lets go took longer than its caller waits. A pin that was
    written behind it was answered, and its block was gone."""
    slow = replace(LIMITS, writes_in_flight=1, writes_ahead=0)
    made = await Made.new(limits=slow)
    staging = await staged(made)
    file = made.disk.file
    made.disk.by_hand = file.by_hand = True
    for esn in (1, 2, 3):
        made.store(packed(at(esn), bytes(15 << 10)))  # a write of the WAL each
    unstage = Unstage(stages=(STAGE,), query="q", attempt=1)
    going = asyncio.ensure_future(staging.unstage(unstage))
    for _ in range(2):
        await asyncio.sleep(4)
        file.end(file.pending[0])
    await asyncio.sleep(4)
    with pytest.raises(Overloaded):
        await going
    pinning = asyncio.ensure_future(staging.pin(pin(attempt=2)))
    await turns()
    made.disk.by_hand = file.by_hand = False
    file.end_all()
    with pytest.raises(StageExpired):
        await pinning
    assert staging.index.get(STAGE) is None
