"""Limits of production code that a seed may turn: small windows, small batches, short patience.

Every limit in the code is a named constant that is looked up when it is used, so a seed may give it
another value for the length of a run. All values are legal: a limit may be small, and then the code
beyond the limit runs often.

Source: FoundationDB randomises its knobs (docs/sources/reliability.md §1).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from cordwood.admin import ledger_autorecovery
from cordwood.client import cluster
from cordwood.client.append import log_appends
from cordwood.client.ledgers import ledger_tiering
from cordwood.client.read import consumer, read_stream, shared_tail
from cordwood.protocol import (
    event_log_follower,
    node_states,
    nodeset_growth,
    producers,
    read_window,
    slow_nodes,
    upload_turns,
)
from cordwood.protocol import ledger_autorecovery as ledger_rule
from cordwood.protocol.producers import Budget
from cordwood.recovery import ask, collect_digest
from cordwood.sequencer import activation, appender, releases, role
from cordwood.sim import ledger_clients, network, transport
from cordwood.sim.constants import find_constant
from cordwood.storage import data_directory
from cordwood.storage.push import read_ahead, read_streams
from cordwood.storage.repair import wal_healing
from cordwood.storage.wal import wal_recovery
from cordwood.storage.wal.wal_limits import WalLimits
from cordwood.tier import ledger_upload
from cordwood.wire import arrivals, connection, peers, server

T = TypeVar("T")

TURN_SHARE = 0.25
"""The share of the seeds in which a knob is turned, unless the knob says another share."""

OFTEN_SHARE = 0.6
"""The share for knobs without which some case would never be seen. Holes, for example, need runs of
one log that are in flight to different nodes."""


@dataclass(frozen=True, slots=True)
class Knob(Generic[T]):
    """A module's constant, its other values, and the share of the seeds that use them.

    Attributes:
        read: reads the constant, and thereby names it.
    """

    read: Callable[[], T]
    values: tuple[T, ...]
    share: float = TURN_SHARE

    @property
    def place(self) -> tuple[Any, str]:
        """The module, and the constant's name in it."""
        return find_constant(self.read)

    @property
    def name(self) -> str:
        """The name in reports and in options: `sequencer.appender.STICKY_BYTES`."""
        module, constant = self.place
        return f"{module.__name__.removeprefix('cordwood.')}.{constant}"


_WALS: tuple[Callable[..., WalLimits], ...] = tuple(
    partial(
        WalLimits,
        block_bytes=block,
        writes_in_flight=writes,
        window_bytes=window,
        window_step_bytes=4096,
    )
    for block, writes, window in (
        (4096, 8, 4096),
        (8192, 4, 16_384),
        (65_536, 1, 65_536),
        (4096, 16, 65_536),
    )
)

_SHAPES: tuple[tuple[tuple[int, int, int], ...], ...] = (((3, 3, 2), (4, 3, 2), (3, 2, 2)),)

KNOBS: Mapping[str, Knob[Any]] = {
    knob.name: knob
    for knob in (
        Knob(lambda: appender.STICKY_BYTES, (1, 1, 2000, 50_000), OFTEN_SHARE),
        Knob(lambda: appender.QUICK_WAVES, (1, 2, 8)),
        Knob(lambda: appender.GROUP_SENT_BYTES, (1, 4000)),
        Knob(lambda: releases.RELEASE_DELAY_S, (0.0005, 0.02, 0.2)),
        Knob(lambda: releases.RELEASE_REPEAT_S, (0.2, 3.0)),
        Knob(lambda: role.ACTIVATING_BYTES_MAX, (2000, 50_000)),
        Knob(lambda: activation.TRIES_MAX, (1, 5)),
        Knob(lambda: node_states.SLOW_S, (0.2, 6.0)),
        Knob(lambda: nodeset_growth.GROW_AFTER_S, (0.5, 3.0)),
        Knob(lambda: read_streams.BATCH_BYTES, (70_000, 100_000)),
        Knob(lambda: read_streams.BATCH_BLOCKS, (1, 5, 50)),
        Knob(lambda: read_streams.TICK_BATCHES, (1, 2)),
        Knob(lambda: wal_recovery.READ_BUFFER_BYTES, (4096, 16_384)),
        Knob(lambda: ask.GRACE_S, (0.0, 0.5)),
        Knob(lambda: collect_digest.CREDIT_BYTES, (4096, 20_000)),
        Knob(lambda: log_appends.SEEK_ONE_S, (0.2, 2.0)),
        Knob(lambda: log_appends.RETRY_MAX_S, (0.1, 0.4)),
        Knob(lambda: consumer.MEMBER_TTL_S, (1.0, 3.0, 6.0), OFTEN_SHARE),
        Knob(lambda: cluster.REFRESH_S, (1.0, 15.0)),
        Knob(lambda: read_window.LSNS_MIN, (16, 128)),
        Knob(lambda: read_window.LSNS_MAX, (128, 500)),
        Knob(lambda: read_window.CREDIT_BYTES_MIN, (1, 4096)),
        Knob(lambda: read_stream.NUDGE_MAX_S, (1.0, 3.0)),
        Knob(lambda: read_stream.STUCK_S, (0.3, 1.0)),
        Knob(lambda: slow_nodes.SLOW_MIN_S, (0.02, 0.1)),
        Knob(lambda: slow_nodes.PROBATION_MIN_S, (1.0, 3.0)),
        Knob(lambda: read_streams.CHOICES_MAX, (1,)),
        Knob(lambda: peers.PING_EVERY_S, (1.0, 3.0)),
        Knob(lambda: peers.REDIAL_MAX_S, (0.2, 0.5)),
        Knob(lambda: transport.MERGE_CHANCE, (0.0, 1.0)),
        Knob(lambda: network.RUDE_CLOSE_CHANCE, (0.0, 0.9)),
        Knob(lambda: data_directory.WalLimits, _WALS),
        Knob(lambda: connection.CLIENT_CALLS_AT_ONCE, (2, 8)),
        Knob(lambda: server.CLIENT_CALLS_MAX, (4, 32)),
        # New knobs stand last, so that the draws of the other knobs do not change.
        Knob(lambda: read_streams.FETCH_BYTES, (10_000, 70_000)),
        Knob(lambda: read_streams.AHEAD_AFTER_BYTES, (0, 0, 20_000), OFTEN_SHARE),
        Knob(lambda: read_ahead.KEPT_S, (0.02, 0.2)),
        Knob(lambda: shared_tail.MEMBERS_MIN, (1, 2, 2), OFTEN_SHARE),
        Knob(lambda: shared_tail.QUEUE_ITEMS_MAX, (1, 4, 20), OFTEN_SHARE),
        Knob(lambda: shared_tail.RECENT_ITEMS_MAX, (0, 4)),
        Knob(lambda: shared_tail.BEHIND_S, (0.0, 0.0, 0.1), OFTEN_SHARE),
        # A producer must be idle for longer than any append is tried. Until then a new producer is
        # refused, so a run with one of these knobs need not keep the promise that appends succeed
        # (`sim.run`).
        Knob(lambda: producers.USERS, (Budget(2, 15_000_000), Budget(5, 15_000_000)), 0.1),
        Knob(lambda: producers.QUERIES, (Budget(1, 15_000_000), Budget(2, 15_000_000)), 0.1),
        Knob(lambda: arrivals.FRAME_GRACE_S, (2.0, 8.0)),
        Knob(lambda: server.STRANGERS_MAX, (30, 100)),
        # For scenarios only: the value is so small that honest callers are cut off, too.
        Knob(lambda: arrivals.UNFINISHED_BYTES_MAX, (20_000,), 0.0),
        # For scenarios only: the wait for ledgers of lost nodes is longer than a run.
        Knob(lambda: ledger_autorecovery.LOOK_S, (1.0,), 0.0),
        Knob(lambda: ledger_autorecovery.CHECKED_A_LOOK, (0,), 0.0),
        Knob(lambda: ledger_rule.GRACE_US, (2_000_000,), 0.0),
        Knob(lambda: ledger_rule.AGAIN_MAX_S, (5.0,), 0.0),
        # For scenarios only: an operator must accept a loss before the node heals it.
        Knob(lambda: wal_healing.BEGINS_S, (1e6,), 0.0),
        # For scenarios only: an entry survives Qa-1 lost disks, and one disk is lost at a time.
        Knob(lambda: ledger_clients.SHAPES, _SHAPES, 0.0),
        # For runs with main storage: see `sim.tier_options`.
        Knob(lambda: ledger_upload.OBJECT_BYTES, (800,), 0.0),
        Knob(lambda: ledger_tiering.READ_AT_ONCE, (5,), 0.0),
        Knob(lambda: upload_turns.TURN_S, (1.0,), 0.0),
        # For runs with the statuses of lost nodes in the event log: a run has some dozen events.
        Knob(lambda: event_log_follower.SNAPSHOT_EVERY, (3, 8), 0.0),
    )
}  # fmt: skip
"""Every knob by its name."""

HEALING = "storage.repair.wal_healing.BEGINS_S"
"""When this knob is turned, no node gets back within the run the records that its WAL lost."""

TurnedKnobs = tuple[tuple[str, int], ...]
"""The turned knobs: their names, and the number of the value that each takes."""


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
    """Turn the knobs for the length of the block."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for name, index in turns:
            knob = KNOBS[name]
            module, constant = knob.place
            before.append((module, constant, getattr(module, constant)))
            setattr(module, constant, knob.values[index])
        yield
    finally:
        for module, constant, value in reversed(before):
            setattr(module, constant, value)
