"""Staged blocks on one node: what is pinned stays, what goes is not pinned."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from crc32c import crc32c
from made_blocks import LIMITS, LOG, Made, at, packed, run, turns
from scenarios import as_scenario

from cordwood.errors import Overloaded, Retryable, StageExpired
from cordwood.layout.message_staging import (
    FindStaged,
    PinStaged,
    StageBlock,
    StagePlace,
    Unstage,
)
from cordwood.nodes import NodeId
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.staging.staging import Staging

STAGE = bytes(range(16))
BODY = b"staged"


def block(nodes: tuple[int, ...] = (1, 2), moves: int = 0, attempt: int = 0) -> StageBlock:
    crc = crc32c(BODY)
    return StageBlock(
        stage=STAGE, log=LOG, ttl_ms=60_000, records=1, raw_bytes=len(BODY), stored_crc=crc,
        raw_crc=crc, codec=0, body=BODY, nodes=[*nodes], moves=moves, query="q", attempt=attempt,
    )  # fmt: skip


async def staged(made: Made) -> Staging:
    staging = Staging(made.engine, lambda: 0, me=1)
    await staging.stage(block())
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
    await turns()
    assert staging.index.get(STAGE) is None


@pytest.mark.parametrize("given", [block(), block((1, 3), moves=2), block((1, 3), 2, attempt=1)])
@pytest.mark.parametrize("is_pinned", [False, True])
@as_scenario(run)
async def test_a_block_that_is_about_to_go_is_no_copy_that_is_given_again(
    *, given: StageBlock, is_pinned: bool
) -> None:
    """A donor took the node for a holder, and dropped its own copy."""
    made = await Made.new()
    staging = await staged(made)
    if is_pinned:
        await staging.pin(pin())
    made.disk.by_hand = made.disk.file.by_hand = True
    going = asyncio.ensure_future(staging.place(StagePlace(STAGE, [2, 3], 1)))  # moved away
    await turns()
    giving = asyncio.ensure_future(staging.stage(given))
    await turns()
    made.disk.by_hand = made.disk.file.by_hand = False
    made.disk.file.end_all()
    with pytest.raises(Retryable):
        await giving
    await going
    assert staging.index.get(STAGE) is None
    await staging.stage(given)
    held = staging.index.get(STAGE)
    assert held is not None
    assert held.head.moves == given.moves


@pytest.mark.parametrize("ask", ["stage", "pin"])
@as_scenario(run)
async def test_what_nobody_waits_for_any_more_goes_all_the_same(*, ask: str) -> None:
    """An earlier pin is in front of the record that lets go, and both are slow: to pin once more,
    or to give the block again, was answered by what was still there."""
    slow = replace(LIMITS, writes_in_flight=1, writes_ahead=0)
    made = await Made.new(limits=slow)
    staging = await staged(made)
    await staging.pin(pin())
    file = made.disk.file
    made.disk.by_hand = file.by_hand = True
    for esn in (1, 2, 3):
        made.store(packed(at(esn), bytes(15 << 10)))  # a write of the WAL each
    going = asyncio.ensure_future(staging.unstage(Unstage(stages=(STAGE,), query="q", attempt=1)))
    for _ in range(2):
        await asyncio.sleep(4)
        file.end(file.pending[0])
    await asyncio.sleep(4)
    with pytest.raises(Overloaded):
        await going
    with pytest.raises((Retryable, StageExpired)):
        await (staging.pin(pin()) if ask == "pin" else staging.stage(block()))
    made.disk.by_hand = file.by_hand = False
    file.end_all()
    await turns()
    assert staging.index.get(STAGE) is None
    await staging.stage(block())


def test_it_is_found_where_what_goes_is_forgotten() -> None:
    bug = find_bug("unstaged-unsaid")
    for ask in ("stage", "pin"):
        with planted(bug), pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            test_what_nobody_waits_for_any_more_goes_all_the_same(ask=ask)


@as_scenario(run)
async def test_a_pin_holds_under_the_newest_copyset_only_and_not_while_the_block_moves() -> None:
    made = await Made.new()
    staging = await staged(made)
    with staging.moving(STAGE) as held:
        assert held is not None
        with pytest.raises(Retryable, match="being moved"):
            await staging.pin(pin())
        with staging.moving(STAGE) as again:
            assert again is None
    await staging.place(StagePlace(STAGE, [1, 3], 2))
    await staging.place(StagePlace(STAGE, [1, 9], 1))  # one of before comes late
    assert staging.find(FindStaged([STAGE, bytes(16)])).places == [StagePlace(STAGE, [1, 3], 2)]
    with pytest.raises(Retryable, match="has moved"):
        await staging.pin(pin())
    await staging.pin(PinStaged("q", 1, [STAGE], [2]))
    assert [each.stages for each in staging.pins()] == [(STAGE,)]


@as_scenario(run)
async def test_a_node_that_a_copyset_does_not_name_any_more_drops_the_block() -> None:
    made = await Made.new()
    staging = await staged(made)
    await staging.place(StagePlace(STAGE, [2, 3], 1))
    assert staging.index.get(STAGE) is None


@as_scenario(run)
async def test_a_donor_gives_a_block_with_its_pin_once_and_again() -> None:
    made = await Made.new()
    staging = Staging(made.engine, lambda: 0, me=1)
    for attempt in (1, 1, 2):
        await staging.stage(block((1, 3), 1, attempt))
        assert [each.pin.attempt for each in staging.pins()] == [attempt]
    await staging.stage(block((1, 4), 2, 1))
    held = staging.index.get(STAGE)
    assert held is not None
    assert held.pin is not None
    assert (held.head.nodes, held.pin.attempt) == ((1, 4), 2)


@as_scenario(run)
async def test_a_block_is_not_staged_with_a_node_that_lost_its_data_or_gives_it_away() -> None:
    made = await Made.new()
    staging = Staging(made.engine, lambda: 0, me=1)
    for away in (1, 2):
        made.engine.rebuilding = frozenset({NodeId(away)})
        with pytest.raises(Overloaded, match=f"node {away}"):
            await staging.stage(block())
    made.engine.rebuilding = frozenset({NodeId(3)})
    await staging.stage(block())
