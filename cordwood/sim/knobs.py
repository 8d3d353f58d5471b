"""Limits of production code that a seed may turn: small windows, small batches, short patience.

Every limit in the code is a named constant that is looked up when it is used, so a
seed may give it another value for the length of a run. Values are legal ones: a
limit may be small, and then what happens past it happens often.

Source: FoundationDB randomises its knobs (docs/sources/reliability.md §1).
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from cordwood.protocol.producers import Budget
from cordwood.storage.wal.wal_limits import WalLimits

TURN_SHARE = 0.25
"""Each knob is turned in this share of the seeds, unless it says another one."""

OFTEN_SHARE = 0.6
"""Of those without which something that must be seen is not: holes, for one, need runs of one
log that are in flight to different nodes."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A module's constant, the values it may take instead, and in which share of the seeds."""

    module: str
    constant: str
    values: tuple[Any, ...]
    share: float = TURN_SHARE

    @property
    def name(self) -> str:
        """As it is shown and kept: `sequencer.appender.STICKY_BYTES`."""
        return f"{self.module}.{self.constant}"


KNOBS: Mapping[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob("sequencer.appender", "STICKY_BYTES", (1, 1, 2000, 50_000), OFTEN_SHARE),
        Knob("sequencer.appender", "QUICK_WAVES", (1, 2, 8)),
        Knob("sequencer.appender", "GROUP_SENT_BYTES", (1, 4000)),
        Knob("sequencer.releases", "RELEASE_DELAY_S", (0.0005, 0.02, 0.2)),
        Knob("sequencer.releases", "RELEASE_REPEAT_S", (0.2, 3.0)),
        Knob("sequencer.role", "ACTIVATING_BYTES_MAX", (2000, 50_000)),
        Knob("sequencer.activation", "TRIES_MAX", (1, 5)),
        Knob("protocol.node_states", "SLOW_S", (0.2, 6.0)),
        Knob("storage.push.read_streams", "BATCH_BYTES", (70_000, 100_000)),
        Knob("storage.push.read_streams", "BATCH_BLOCKS", (1, 5, 50)),
        Knob("storage.push.read_streams", "TICK_BATCHES", (1, 2)),
        Knob("storage.wal.wal_recovery", "READ_BUFFER_BYTES", (4096, 16_384)),
        Knob("recovery.ask", "GRACE_S", (0.0, 0.5)),
        Knob("recovery.collect_digest", "CREDIT_BYTES", (4096, 20_000)),
        Knob("client.append.log_appends", "SEEK_ONE_S", (0.2, 2.0)),
        Knob("client.append.log_appends", "RETRY_MAX_S", (0.1, 0.4)),
        Knob("client.read.consumer", "MEMBER_TTL_S", (1.0, 3.0, 6.0), OFTEN_SHARE),
        Knob("client.cluster", "REFRESH_S", (1.0, 15.0)),
        Knob("protocol.read_window", "LSNS_MIN", (16, 128)),
        Knob("protocol.read_window", "LSNS_MAX", (128, 500)),
        Knob("protocol.read_window", "CREDIT_BYTES_MIN", (1, 4096)),
        Knob("client.read.read_stream", "NUDGE_MAX_S", (1.0, 3.0)),
        Knob("client.read.read_stream", "STUCK_S", (0.3, 1.0)),
        Knob("protocol.slow_nodes", "SLOW_MIN_S", (0.02, 0.1)),
        Knob("protocol.slow_nodes", "PROBATION_MIN_S", (1.0, 3.0)),
        Knob("storage.push.read_streams", "CHOICES_MAX", (1,)),
        Knob("wire.peers", "PING_EVERY_S", (1.0, 3.0)),
        Knob("wire.peers", "REDIAL_MAX_S", (0.2, 0.5)),
        Knob("sim.transport", "MERGE_CHANCE", (0.0, 1.0)),
        Knob("sim.network", "RUDE_CLOSE_CHANCE", (0.0, 0.9)),
        Knob(
            "storage.data_directory",
            "WalLimits",
            tuple(
                partial(
                    WalLimits,
                    block_bytes=block,
                    writes_in_flight=writes,
                    window_bytes=window,
                    window_step_bytes=4096,
                )
                for block, writes, window in (
                    (4096, 8, 4096), (8192, 4, 16_384), (65_536, 1, 65_536), (4096, 16, 65_536),
                )
            ),
        ),
        Knob("wire.connection", "CLIENT_CALLS_AT_ONCE", (2, 8)),
        Knob("wire.server", "CLIENT_CALLS_MAX", (4, 32)),
        # Those that came last: what the others draw does not change.
        Knob("storage.push.read_streams", "FETCH_BYTES", (10_000, 70_000)),
        Knob("storage.push.read_streams", "AHEAD_AFTER_BYTES", (0, 0, 20_000), OFTEN_SHARE),
        Knob("storage.push.read_ahead", "KEPT_S", (0.02, 0.2)),
        Knob("client.read.shared_tail", "MEMBERS_MIN", (1, 2, 2), OFTEN_SHARE),
        Knob("client.read.shared_tail", "QUEUE_ITEMS_MAX", (1, 4, 20), OFTEN_SHARE),
        Knob("client.read.shared_tail", "RECENT_ITEMS_MAX", (0, 4)),
        Knob("client.read.shared_tail", "BEHIND_S", (0.0, 0.0, 0.1), OFTEN_SHARE),
        # Idle for longer than any append is tried for. A new producer is refused until then, so
        # a run with one of these owes no promise that appends succeed (`sim.run`).
        Knob("protocol.producers", "USERS", (Budget(2, 15_000_000), Budget(5, 15_000_000)), 0.1),
        Knob("protocol.producers", "QUERIES", (Budget(1, 15_000_000), Budget(2, 15_000_000)), 0.1),
        Knob("wire.arrivals", "FRAME_GRACE_S", (2.0, 8.0)),
        Knob("wire.server", "STRANGERS_MAX", (30, 100)),
        # For scenarios alone: so little that honest callers are cut off, too.
        Knob("wire.arrivals", "UNFINISHED_BYTES_MAX", (20_000,), 0.0),
    )
}  # fmt: skip
"""Every knob by its name."""

TurnedKnobs = tuple[tuple[str, int], ...]
"""Which knobs are turned: names, and which of their values each takes."""


def draw_turns(chance: random.Random) -> TurnedKnobs:
    """Draw which knobs a seed turns, and how far."""
    drawn = [(knob, chance.randrange(len(knob.values)), chance.random()) for knob in KNOBS.values()]
    return tuple((knob.name, value) for knob, value, luck in drawn if luck < knob.share)


def value_text(turn: tuple[str, int]) -> str:
    """A turned knob for people."""
    name, index = turn
    value = KNOBS[name].values[index]
    if isinstance(value, partial):
        value = value()
    return f"{name} = {value}"


@contextmanager
def turned(turns: TurnedKnobs) -> Iterator[None]:
    """The knobs are turned for the length of the block."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for name, index in turns:
            knob = KNOBS[name]
            module = importlib.import_module(f"cordwood.{knob.module}")
            before.append((module, knob.constant, getattr(module, knob.constant)))
            setattr(module, knob.constant, knob.values[index])
        yield
    finally:
        for module, constant, value in reversed(before):
            setattr(module, constant, value)
