"""What members say of releases and trims while their tails are read."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest

from cordwood.layout.message import Clean, pack, read_call
from cordwood.lsn import ESN_MAX, make_lsn
from cordwood.nodes import Authority, Member, NodeId, Nodeset, Replication
from cordwood.recovery.collect_digest import Collected, DigestReads, HeldTail, collect_digest
from cordwood.sim.loop import SimLoop

NODES = tuple(NodeId(n) for n in (1, 2, 3))
NODESET = Nodeset(tuple(Member(node, "") for node in NODES))


class Reads:
    """Members that hold nothing, and know these releases and trim points."""

    def __init__(self, told: dict[int, tuple[int, int]]) -> None:
        self.told = told

    async def read(self, node: NodeId, *rest: int) -> HeldTail:
        return HeldTail([], *self.told.get(node, (0, 0)))


def collected(told: dict[int, tuple[int, int]]) -> Collected:
    reads = cast(DigestReads, cast(Any, Reads(told)))
    with asyncio.Runner(loop_factory=lambda: SimLoop(random.Random(1))) as runner:
        return runner.run(
            collect_digest(5, 2, make_lsn(2, 3), NODES, NODESET, Replication(2, 1), reads, None, {})
        )


def test_an_lng_below_a_trim_of_a_higher_epoch_can_be_told_to_nodes() -> None:
    """It was an `Lsn`, which no message may hold: the node that recovered the log ended, and so did
    each node that took the log over."""
    found = collected({3: (int(make_lsn(4, 1)), int(make_lsn(3, 5)))})
    call = Clean(5, 2, 6, found.lng, b"", 1)
    assert read_call(pack(call)) == call


@pytest.mark.parametrize(
    ("told", "lng", "over_by"),
    [
        ({}, (2, 3), 0),
        ({1: (make_lsn(2, 2), 0)}, (2, 3), 2),
        # Heard since it sealed: what was trimmed up to there is no hole.
        ({2: (make_lsn(2, 7), 0)}, (2, 7), 2),
        ({1: (make_lsn(2, 7), 0), 3: (make_lsn(2, 9), 0)}, (2, 9), 2),
        ({2: (0, make_lsn(2, 6))}, (2, 6), 0),
        ({2: (0, make_lsn(1, 6))}, (2, 3), 0),
        # A release of a higher epoch says that this one is over, and nothing of its LNG.
        ({3: (make_lsn(4, 1), 0)}, (2, 3), 4),
        ({3: (make_lsn(4, 1), make_lsn(2, 5))}, (2, 5), 4),
        ({3: (make_lsn(4, 1), make_lsn(3, 5))}, (2, ESN_MAX - 1), 4),
    ],
)
def test_what_is_released_or_trimmed_is_no_hole(told, lng, over_by: int) -> None:
    found = collected(told)
    assert (found.lng, found.over_by) == (make_lsn(*lng), over_by)
    assert found.digest.mend().holes == ()
    assert found.digest.mend().end == found.lng


def test_an_epoch_of_which_all_members_lost_their_disks_ends_without_them() -> None:
    """Swarm seed 9500357: the highest of no releases was looked for, so the log was never
    recovered again. What was in the epoch is lost, and that is told."""
    lost = dict.fromkeys(NODES, Authority.UNDER_REPLICATED)
    reads = cast(DigestReads, cast(Any, Reads({})))
    with asyncio.Runner(loop_factory=lambda: SimLoop(random.Random(1))) as runner:
        found = runner.run(
            collect_digest(5, 2, make_lsn(2, 3), (), NODESET, Replication(2, 1), reads, None, lost)
        )
    assert (found.nodes, found.over_by, found.is_authoritative) == ((), 0, False)
    assert found.digest.mend().end == found.lng == make_lsn(2, 3)
