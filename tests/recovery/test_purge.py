"""Purging: of the ends that peers tell, the last attempt of the highest recovery counts."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest

from cordwood.errors import CordwoodError, Unreachable
from cordwood.layout.message import AskEpoch, EpochReply
from cordwood.lsn import make_lsn
from cordwood.nodes import NodeId
from cordwood.recovery.purge import purge_log
from cordwood.sim.loop import SimLoop
from cordwood.wire.peers import Peers

LOG = 5


class Store:
    """Holds blocks of `epochs`; of all below `over` a release was heard."""

    def __init__(self, epochs: list[int], over: int) -> None:
        self.known = epochs, over
        self.purged: list[tuple[int, ...]] = []

    def unclean_epochs(self, log: int) -> tuple[list[int], int]:
        return self.known

    async def purge(
        self, log: int, epoch: int, seal: int, lng: int, produced: bytes = b"", attempt: int = 1
    ) -> None:
        self.purged.append((epoch, seal, lng, attempt) if seal else (epoch, 0))


class Answers:
    """Peers that know these ends; the later in the list, the later it answers."""

    def __init__(self, ends: list[EpochReply | CordwoodError]) -> None:
        self.ends = ends

    async def call(self, node: NodeId, call: AskEpoch, *, timeout_s: float) -> EpochReply:
        await asyncio.sleep(0.01 * node)
        end = self.ends[node - 1]
        if isinstance(end, CordwoodError):
            raise end
        return end


def end(seal: int, lng: int, attempt: int = 1) -> EpochReply:
    return EpochReply(True, seal, make_lsn(1, lng), b"", attempt)


UNKNOWN = EpochReply(False, 0, 0)
GONE = Unreachable("it is gone")


def purge(store: Store, *ends: EpochReply | CordwoodError) -> list[tuple[int, ...]]:
    peers = cast(Peers, cast(Any, Answers(list(ends))))
    others = [NodeId(n + 1) for n in range(len(ends))]
    with asyncio.Runner(loop_factory=lambda: SimLoop(random.Random(1))) as runner:
        runner.run(purge_log(LOG, store, others, peers))
    return store.purged


@pytest.mark.parametrize(
    ("ends", "found"),
    [
        ([end(2, 3)], (2, 3, 1)),
        ([end(2, 3), end(3, 5)], (3, 5, 1)),
        ([end(3, 5), end(2, 3)], (3, 5, 1)),
        ([end(2, 3, attempt=1), end(2, 4, attempt=2)], (2, 4, 2)),
        ([end(2, 4, attempt=2), end(2, 3, attempt=1)], (2, 4, 2)),
        ([end(2, 9, attempt=7), end(3, 1, attempt=1)], (3, 1, 1)),
        ([UNKNOWN, GONE, end(2, 3)], (2, 3, 1)),
    ],
)
def test_the_highest_end_that_is_told_counts(ends, found) -> None:
    seal, lng, attempt = found
    assert purge(Store([1], 1), *ends) == [(1, seal, make_lsn(1, lng), attempt)]


@pytest.mark.parametrize("ends", [[], [UNKNOWN], [GONE, UNKNOWN]])
def test_where_nobody_knows_nothing_is_dropped(ends) -> None:
    store = Store([1], 1)
    with pytest.raises(Unreachable, match="no peer knows how epoch 1"):
        purge(store, *ends)
    assert store.purged == []


def test_epochs_of_which_nothing_is_held_are_closed_without_asking() -> None:
    assert purge(Store([], 4)) == [(4, 0)]
    assert purge(Store([1], 4), end(2, 3)) == [(1, 2, make_lsn(1, 3), 1), (4, 0)]
