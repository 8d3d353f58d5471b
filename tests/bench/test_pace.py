"""What is offered by the clock is never offered early."""

from __future__ import annotations

import asyncio
from time import perf_counter

import uvloop

from cordwood.bench.pace import TIME, stamped


def test_no_record_is_offered_before_it_is_due() -> None:
    """uvloop may wake a task up to a millisecond early; a lag is never less than nothing."""
    early: list[float] = []

    def offer(values: list[bytes]) -> None:
        assert [len(value) for value in values] == [20] * 3
        early.append(TIME.unpack_from(values[0])[0] - perf_counter())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(stamped(offer, 200, 3, 20))
    assert len(early) == 200
    assert max(early) <= 0
