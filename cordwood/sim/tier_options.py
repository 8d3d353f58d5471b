"""A seed's run with main storage: its logs are tiered within seconds, into a store that misbehaves.

The swarm's draw stays as it is, but for what makes nodes upload, let go, merge, and delete within a
run: partitions of some seconds, and retention that looks every second. `cordwood sim run --tier`.

Source: docs/simulator.md; docs/protocol/main-storage.md.
"""

from __future__ import annotations

import random
from dataclasses import replace

from cordwood.log_attributes import LogAttributes
from cordwood.settings import TierSettings
from cordwood.sim.object_store import BucketFaults
from cordwood.sim.options import RunOptions

STORE = "sim://bucket"


def tiered(options: RunOptions, chance: random.Random) -> RunOptions:
    """These options, with main storage in use."""
    cluster = options.cluster
    asks = LogAttributes(
        tier=True,
        local_retention=chance.choice((0.0, 1.0, 4.0)),
        tier_after_s=chance.choice((0.0, 1.0, 3.0)),
        tier_after_bytes=chance.choice((1, 4000, 1 << 20)),
    )
    storage = replace(
        cluster.storage,
        flush_age_s=chance.choice((0.3, 1.0)),
        partition_age_s=chance.choice((1.0, 4.0)),
        retention_every_s=chance.choice((0.3, 1.0)),
    )
    tier = TierSettings(
        STORE,
        look_s=chance.choice((0.3, 1.0)),
        tend_s=2.0,
        grace_s=chance.choice((2.0, 20.0)),
    )
    bucket = chance.choice((BucketFaults(), BucketFaults.bad()))
    tier = replace(
        tier,
        merge_objects=chance.choice((0, 2, 2, 3)),
        merge_s=chance.choice((0.5, 2.0)),
        merge_object_bytes=chance.choice((40_000, 200_000, 1 << 20)),
        merge_shared_bytes=1,
        merge_turn_s=chance.choice((1.0, 30.0)),
    )
    attributes = asks.over(cluster.attributes)
    return replace(
        options,
        cluster=replace(cluster, attributes=attributes, storage=storage, tier=tier, bucket=bucket),
    )
