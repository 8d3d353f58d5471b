"""Scenarios for planted bugs of readers; see `sim.planted.scenarios`."""

from __future__ import annotations

from dataclasses import replace

from cordwood.sim.options import RunOptions
from cordwood.sim.planted.scenarios import both, cluster_of, kept_by_time, scenario

SPREAD = scenario(
    "crash", "link_cut", shape=cluster_of(5, 2), restart_s=2.0, readers=3,
    turns=(("sequencer.appender.STICKY_BYTES", 0),),
)  # fmt: skip
"""Each block has a copyset of its own, and readers start over."""

BOUNDS = scenario(
    "crash", "pause", every_s=2.0, shape=cluster_of(5, 2), ask_s=0.1, trim_s=1.0,
    turns=(("sequencer.appender.STICKY_BYTES", 0),),
)  # fmt: skip
"""A client asks all the time where logs begin and end, and nodes that know do not answer."""

COLD = scenario(
    "pause", "slow_disk", every_s=3.0, shape=kept_by_time, readers=4, restart_s=1.0,
    turns=(
        ("storage.push.read_streams.AHEAD_AFTER_BYTES", 0), ("protocol.read_window.LSNS_MAX", 0),
        ("protocol.read_window.LSNS_MIN", 0),
    ),
)  # fmt: skip
"""Readers start over, far behind, with windows so small that they wait for each window."""

RESETS = scenario(
    "crash",
    "pause",
    every_s=3.0,
    members=2,
    reset_s=1.0,
    logs=("/sim/a", "/sim/b"),
    readers=2,
)
"""A consumer's positions are reset all the time."""

CROWDED = scenario(
    "crash", "client_pause", every_s=3.0, crowds=1,
    turns=(
        ("client.read.shared_tail.MEMBERS_MIN", 1), ("client.read.shared_tail.QUEUE_ITEMS_MAX", 1),
        ("client.read.shared_tail.RECENT_ITEMS_MAX", 1),
    ),
)  # fmt: skip
"""Several readers of one client share a tail, and a few blocks make a reader too slow for it."""

QUEUED = scenario(
    "crash", every_s=3.0, readers=3, restart_s=40.0,
    turns=(("client.read.shared_tail.MEMBERS_MIN", 0), ("client.read.shared_tail.QUEUE_ITEMS_MAX", 0)),
)  # fmt: skip
"""Every reader at the tail has a shared tail alone, and two blocks are too many for its queue."""


def _little_memory(options: RunOptions) -> RunOptions:
    client = replace(options.workload.client, read_memory_bytes=64 << 10)
    return replace(options, workload=replace(options.workload, client=client))


CRAMPED = scenario(
    "crash", "client_pause", every_s=3.0, shape=_little_memory, crowds=1,
    turns=(("client.read.shared_tail.MEMBERS_MIN", 1), ("client.read.shared_tail.QUEUE_ITEMS_MAX", 0)),
)  # fmt: skip
"""The same, without free space for blocks that slow readers have not taken."""

LOST = scenario(
    "crash", length_s=8.0, every_s=4.0,
    shape=lambda options: replace(options, loses="copies"),
    turns=(("sequencer.appender.STICKY_BYTES", 0),),
)  # fmt: skip
"""All nodes that hold some block are lost for ever, and readers are told so."""

LOST_TAILS = scenario(
    "crash", length_s=8.0, every_s=4.0,
    shape=both(cluster_of(5, 2), lambda options: replace(options, loses="copies")),
)  # fmt: skip
"""The same while a client appends, and the remaining nodes take the appends over."""
