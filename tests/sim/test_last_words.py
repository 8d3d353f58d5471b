"""What the dead say when a simulation is disposed of is heard by nobody."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys

import pytest

from cordwood.sim.host import Simulation


async def close(answer):
    """As a node is closed: it waits for somebody, and then says something."""
    try:
        await answer
    finally:
        raise RuntimeError("last words")


@contextlib.asynccontextmanager
async def resource():
    answer = asyncio.get_running_loop().create_future()
    try:
        yield answer
    finally:
        await close(answer)


async def life(host):
    async with resource():
        await asyncio.Event().wait()


async def scenario(simulation):
    for name in ("killed", "alive"):
        simulation.machine(name).start(life)
    await asyncio.sleep(1)
    simulation.machine("killed").kill()
    await asyncio.sleep(1)


def test_dead_processes_raise_nothing_that_a_test_run_would_report(monkeypatch: pytest.MonkeyPatch):
    heard = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)
    Simulation(1).run(scenario)
    gc.collect()
    assert heard == []
    assert sys.unraisablehook == heard.append
