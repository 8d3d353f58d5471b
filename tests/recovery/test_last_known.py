"""What producers had at the end of the last clean epoch: who is believed, and when nobody is."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest

from cordwood.block import Produced, ProducedBlock
from cordwood.errors import CordwoodError, NoSequencer, Unreachable
from cordwood.layout.message import AskEpoch, EpochReply
from cordwood.layout.produced import pack_produced
from cordwood.lsn import make_lsn
from cordwood.metadata.epoch_store import EpochRecord, NodesetSince
from cordwood.nodes import NodeId
from cordwood.recovery.recover_log import _last_known
from cordwood.sim.loop import SimLoop
from cordwood.wire.peers import Peers

LOG = 5
NODES = (1, 2, 3)
RECORD = EpochRecord(
    3, 1, 0, (NodesetSince(1, NODES, 2, 1),), clean_seal=2, clean_attempt=2
)  # fmt: skip


class Answers:
    """Peers that know these ends, in node order."""

    def __init__(self, ends: list[EpochReply | CordwoodError]) -> None:
        self.ends = ends

    async def call(self, node: NodeId, call: AskEpoch, *, timeout_s: float) -> EpochReply:
        await asyncio.sleep(0.01 * node)
        end = self.ends[node - 1]
        if isinstance(end, CordwoodError):
            raise end
        return end


def end(seal: int, attempt: int, producer: int) -> EpochReply:
    place = ProducedBlock(0, 1, make_lsn(1, 4))
    packed = pack_produced([Produced(producer, 0, (place,))])
    return EpochReply(True, seal, make_lsn(1, 3), packed, attempt)


UNKNOWN = EpochReply(False, 0, 0)
GONE = Unreachable("it is gone")


def known(*ends: EpochReply | CordwoodError) -> tuple[list[int], int]:
    """The producers that are learnt, and the epoch up to which."""
    asked = _last_known(LOG, RECORD, {}, cast(Peers, cast(Any, Answers(list(ends)))), {})
    with asyncio.Runner(loop_factory=lambda: SimLoop(random.Random(1))) as runner:
        produced, epoch = runner.run(asked)
    return [each.producer for each in produced], epoch


@pytest.mark.parametrize(
    ("ends", "found"),
    [
        ([end(2, 2, 7), GONE, GONE], ([7], 1)),
        ([GONE, GONE, end(3, 1, 7)], ([7], 1)),
        # An attempt that was given up may know less, as long as somebody knows better.
        ([end(2, 1, 6), end(2, 2, 7), GONE], ([7], 1)),
        ([end(2, 1, 6), UNKNOWN, end(2, 2, 7)], ([7], 1)),
        # All have answered: it is all that anybody knows.
        ([end(2, 1, 6), UNKNOWN, UNKNOWN], ([6], 1)),
        ([UNKNOWN, end(1, 9, 5), end(2, 1, 6)], ([6], 1)),
        # All have lost it, and the epoch is recovered once more.
        ([UNKNOWN, UNKNOWN, UNKNOWN], ([], 0)),
    ],
)
def test_the_end_that_the_epoch_store_names_is_believed(ends, found) -> None:
    assert known(*ends) == found


@pytest.mark.parametrize(
    "ends",
    [
        [GONE, GONE, GONE],
        [UNKNOWN, UNKNOWN, GONE],
        [UNKNOWN, GONE, GONE],
        [end(2, 1, 6), GONE, UNKNOWN],
        [end(2, 1, 6), end(1, 1, 5), GONE],
    ],
)
def test_while_one_that_may_know_is_away_nobody_is(ends) -> None:
    """Without what it knows, blocks of producers would be stored twice."""
    with pytest.raises(NoSequencer, match="learning the producers of epoch 1"):
        known(*ends)
