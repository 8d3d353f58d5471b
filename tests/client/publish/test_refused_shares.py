"""What a publisher is told whose batch is committed, and whose log then refuses its share."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario
from swaps import swap_value
from test_publishing_cluster import Q, commit_only, records

from cordwood.client.publish import publishing
from cordwood.errors import AccessDenied, OutcomeUnknown
from cordwood.layout.message_staging import AskPublication
from cordwood.log_attributes import LogAttributes, token_digest

TOKEN = "a secret of the owner"
OWNED = LogAttributes(write_token=token_digest(TOKEN))
SHOWN = {"write_tokens": (TOKEN,)}


@pytest.mark.parametrize("look_ups_max", [16, 0])
def test_nothing_is_committed_for_a_log_whose_token_the_publisher_does_not_have(
    monkeypatch: pytest.MonkeyPatch, look_ups_max: int
) -> None:
    """It was told that it was rejected, and the next publisher of the query stored the batch."""
    swap_value(monkeypatch, lambda: publishing.LOOK_UPS_MAX, look_ups_max)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as driver, cluster.client(**SHOWN) as owner:
            await owner.create_log("a", attributes=OWNED)
            staged = [await owner.stage("b", records(0)), await owner.stage("a", records(0))]
            with pytest.raises(AccessDenied, match="/a wants a write token"):
                await driver.publish(Q, 0, staged)
            assert (await driver._publisher.call_store(AskPublication(Q))).batch == -1
            await owner.publish(Q, 1, [await owner.stage("a", records(1))])
            assert await values(owner, "a") == records(1)

    simulate(scenario)


@as_scenario(simulate)
async def test_a_committed_batch_that_a_token_keeps_out_is_of_unknown_outcome(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as driver, cluster.client(**SHOWN) as owner:
        await commit_only(driver, 0, [await driver.stage("a", records(0))])
        await owner.log_tree.set_attributes("a", OWNED)
        await asyncio.sleep(1)
        with pytest.raises(OutcomeUnknown, match="batch 0 of 'sink-1' is committed"):
            await driver.publish(Q, 0, [])
        assert (await owner.publish(Q, 0, [])).is_repeat
        assert await values(owner, "a") == records(0)


@as_scenario(simulate)
async def test_a_committed_batch_that_a_fence_keeps_out_is_of_unknown_outcome(
    cluster: ClusterAtHand,
) -> None:
    """It was told that nothing was stored, and the holder of the token stored the batch."""
    async with cluster.client() as driver, cluster.client() as holder:
        staged = await driver.stage("a", records(0))
        await holder.fence("a", 5)
        with pytest.raises(OutcomeUnknown, match="fencing token 0 is overtaken by 5"):
            await driver.publish(Q, 0, [staged])
        await holder.publish(Q, 1, [await holder.stage("a", records(1))])
        assert await values(holder, "a") == [*records(0), *records(1)]


@as_scenario(simulate)
async def test_a_publish_that_its_client_closes_in_is_of_unknown_outcome(
    cluster: ClusterAtHand,
) -> None:
    """It got Closed, by which nothing was stored, and its batch was in the log."""
    async with cluster.client() as other:
        async with cluster.client() as driver:
            staged = await driver.stage("a", records(0))
            call = asyncio.ensure_future(driver.publish(Q, 0, [staged]))
            for _ in range(1000):
                if (await other._publisher.call_store(AskPublication(Q))).batch == 0:
                    break
                await asyncio.sleep(0.0005)
            assert not call.done(), "it is closed between the commit and the answer"
        with pytest.raises(OutcomeUnknown, match="committed, and is not known to be in its logs"):
            await call
        assert (await other.publish(Q, 0, [])).is_repeat
        assert await values(other, "a") == records(0)
