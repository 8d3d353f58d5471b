"""A seed's run with main storage: its logs are tiered within seconds, into a store that misbehaves.
Every other ledger is tiered too, after it is closed.

The swarm's draw stays as it is, except for options that let nodes upload, let go, merge, and delete
within a run: partitions of some seconds, and retention that looks every second. The command is
`cordwood sim run --tier`.

Source: docs/simulator.md; docs/protocol/main-storage.md.
"""

from __future__ import annotations

import random
from dataclasses import replace

from cordwood.log_attributes import LogAttributes
from cordwood.nodes import NodeId
from cordwood.settings import TierSettings
from cordwood.sim.knobs import TurnedKnobs
from cordwood.sim.object_store import BucketFaults
from cordwood.sim.options import RunOptions

STORE = "sim://bucket"

SMALL_SHARE = 0.7
SMALL_OBJECTS: TurnedKnobs = (
    ("tier.ledger_upload.OBJECT_BYTES", 0),
    ("client.ledgers.ledger_tiering.READ_AT_ONCE", 0),
)
"""With this size ledgers of a run have several objects; otherwise one object would hold a whole
ledger."""

QUICK_TURNS_SHARE = 0.5
QUICK_TURNS: TurnedKnobs = (("protocol.upload_turns.TURN_S", 0),)
"""With turns of a minute no node stands in for another within a run. With these turns it does, for
one second or three of five or fifteen."""


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
        ledger_keep_s=chance.choice((0.0, 0.0, 3.0)),
    )
    small = chance.random() < SMALL_SHARE
    turns = SMALL_OBJECTS if small else ()
    # Last, so that the other draws do not change.
    turns += QUICK_TURNS if chance.random() < QUICK_TURNS_SHARE else ()
    attributes = asks.over(cluster.attributes)
    return replace(
        options,
        workload=replace(options.workload, tiers_ledgers=True),
        turns=(*options.turns, *turns),
        cluster=replace(cluster, attributes=attributes, storage=storage, tier=tier, bucket=bucket),
    )


def with_one_left(options: RunOptions) -> RunOptions:
    """These options, and only the last node reaches main storage. Turns of uploaders are short."""
    names = {name for name, _ in QUICK_TURNS}
    turns = (*(turn for turn in options.turns if turn[0] not in names), *QUICK_TURNS)
    cut_off = tuple(NodeId(n) for n in range(1, options.cluster.nodes))
    return replace(options, turns=turns, cut_off=cut_off)
