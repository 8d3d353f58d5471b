"""A storage node's report about its logs for status pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from cordwood.layout.message import LogState
from cordwood.storage.engine import StorageEngine
from cordwood.storage.logs_db.partition import StoredLog


class Sequencing(Protocol):
    """A sequencer of a log, as far as its state is shown."""

    @property
    def epoch(self) -> int:
        """Its epoch."""

    @property
    def lng(self) -> int:
        """Its last known good."""


def log_states(engine: StorageEngine, active: Mapping[int, Sequencing]) -> list[LogState]:
    """The state of each log of which the node has data or that it sequences, by number.

    Args:
        active: the logs that it sequences.
    """
    states: list[LogState] = []
    for log in sorted(set(engine.cache.logs) | set(active)):
        held = engine.cache.log(log)
        stored = engine.logs.logs.get(log) or StoredLog()
        appender = active.get(log)
        states.append(
            LogState(
                log=log,
                sequencing=appender is not None,
                epoch=appender.epoch if appender else held.released >> 32,
                lng=appender.lng if appender else 0,
                released=held.released,
                blocks=len(held) + stored.blocks,
                bytes=held.bytes + stored.bytes,
                sealed=engine.sealed(log),
                readable=held.readable,
            )
        )
    return states
