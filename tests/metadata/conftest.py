"""The metadata tests' stores."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from metadata_play import Act, run_on_sqlite, run_patiently

from cordwood.metadata.memory import MemoryMetadata


@pytest.fixture(params=["sqlite", "memory"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Act[Any]], Any]:
    """`play(act)` runs `act(store)`; every play of one test is on the same data."""
    if request.param == "sqlite":
        return lambda act: run_on_sqlite(tmp_path / "metadata.sqlite", act)
    chance = random.Random(1)
    data = MemoryMetadata(chance).data
    return lambda act: run_patiently(act(MemoryMetadata(chance, data)))


@pytest.fixture
def memory() -> MemoryMetadata:
    """A store whose faults a test can set; run it with `run_patiently`."""
    return MemoryMetadata(random.Random(1))
