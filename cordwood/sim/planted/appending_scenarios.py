"""Scenarios for bugs of a client's appends; see `scenarios`."""

from __future__ import annotations

from dataclasses import replace

from cordwood.log_attributes import LogAttributes
from cordwood.settings import ClientSettings, SequencerSettings, StorageSettings
from cordwood.sim.fault_plan import SEQUENCER, Fault
from cordwood.sim.links import LinkSettings
from cordwood.sim.options import RunOptions
from cordwood.sim.planted.scenarios import LATE_RELEASES, both, cluster_of, planned, scenario


def _far_with_space(options: RunOptions) -> RunOptions:
    """Many appends are in flight at any time, and no disk is full."""
    cluster = replace(
        options.cluster,
        storage=StorageSettings(disk_look_s=0.5, scrub_bytes_s=0),
        sequencer=SequencerSettings(),
        attributes=LogAttributes(),
    )
    link = LinkSettings(delay_min_s=0.01, delay_jitter_s=0.02)
    return replace(options, cluster=cluster, link=link, fills=False)


REFUSED_LATER = scenario(
    "crash",
    shape=both(
        cluster_of(5, 3),
        _far_with_space,
        planned(*(Fault("crash", (SEQUENCER,), 3.0 + 4.0 * at, 1.5) for at in range(4))),
    ),
    append_timeout_s=1.0,
    idempotent=1.0, lanes=4, burst=3, lull_s=0.0, pause_s=0.05, grouped=0.0, buffered=0.0,
    length_s=18.0, readers=2,
)  # fmt: skip
"""Sequencers die with producers' blocks in flight. The next sequencers are starting, and refuse
these blocks until their deadline."""

SENT_AGAIN = scenario(
    "crash", "client_partition", "reset", every_s=1.0,
    append_timeout_s=1.0, client=ClientSettings(block_records=1),
    idempotent=1.0, lanes=3, burst=1, lull_s=0.0, pause_s=0.05, grouped=0.0, buffered=0.0,
    logs=("/sim/a",), readers=1, length_s=15.0,
)  # fmt: skip
"""Producers with calls that fail together and are sent again at their places."""

QUERIES_MANY = scenario(
    "client_crash", "crash", every_s=2.0, publishers=3, publish_s=0.5,
    logs=("/sim/a", "/sim/b"), readers=2, length_s=45.0,
    turns=(("protocol.producers.QUERIES", 0),),
)  # fmt: skip
"""More queries than a log remembers: each query waits until others are idle."""

CROSSINGS = scenario(
    "metadata_slow", "pause", every_s=1.0, crossers=5, producers=1, readers=1, publishers=0,
    members=0, holders=0, outsiders=0, browsers=0, crowds=0, callers=0, length_s=40.0,
)  # fmt: skip
"""Administrators change the same names at the same moments, and each step takes a different
time."""

AGAIN = scenario(
    "torn_sequencer", "crash", "reset", "client_partition", every_s=0.8, resenders=2, producers=1,
    logs=("/sim/a", "/sim/b"), readers=2, publishers=0, scribes=0, turns=LATE_RELEASES,
)  # fmt: skip
"""Appends fail all the time, some stored and some not, and are sent again at their place."""
