"""Where a log is sequenced: redirects are followed, and not in circles."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values

from cordwood.nodes import NodeId
from cordwood.sequencer.mandate import Mandate
from cordwood.sequencer.role import SequencerRole

LOG = 1


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each APPEND frame that a node takes, a mark."""
    frames: list[bool] = []
    on_append = SequencerRole.on_append

    def counted(self, connection, frame) -> None:
        frames.append(True)
        on_append(self, connection, frame)

    monkeypatch.setattr(SequencerRole, "on_append", counted)
    return frames


def test_nodes_that_send_a_client_in_circles_are_told_to_sequence(
    monkeypatch: pytest.MonkeyPatch, asked: list[bool]
) -> None:
    """Each takes the next one for the log's owner, as two views of the members may."""

    def next_one(self: Mandate, log: int, activate_here: bool) -> NodeId:
        return NodeId(0 if activate_here else self._node % 3 + 1)

    monkeypatch.setattr(Mandate, "elsewhere", next_one)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=10) as store:
            began = asyncio.get_running_loop().time()
            await store.append("log", b"0")
            assert asyncio.get_running_loop().time() - began < 1
            assert len(asked) <= 5
            for number in range(1, 20):
                await store.append("log", b"%d" % number)
            assert len(asked) <= 5 + 19, "who sequences once is asked from then on"
            assert await values(store, "log") == [b"%d" % number for number in range(20)]

    simulate(scenario)


def test_a_client_that_asks_the_wrong_node_is_sent_on_once(asked: list[bool]) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.append("log", b"0")
            owner = cluster.sequencer_of(LOG)
            asked.clear()
            async with cluster.client() as other:
                order = other._cluster.sequencers
                wrong = next(node for node in order(LOG) if node != owner)
                other._cluster.sequencers = lambda log: (  # type: ignore[method-assign]
                    wrong, *(node for node in order(log) if node != wrong),
                )  # fmt: skip
                await other.append("log", b"1")
                assert cluster.sequencer_of(LOG) == owner
                assert len(asked) == 2

    simulate(scenario)
