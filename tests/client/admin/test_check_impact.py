"""What a running cluster says would stop without some of its nodes."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood.errors import BadSetting


@as_scenario(simulate, nodes=4)
async def test_a_cluster_judges_its_logs_by_nodes_racks_and_those_that_are_down(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=10) as store:
        for log in ("a", "b", "c"):
            await store.append(log, b"value")
        found = await store.check_impact([1])
        assert (found.logs, found.findings, found.down) == (3, [], ())
        found = await store.check_impact([1], ["rack2"])
        assert found.absent == (1, 2)
        stopped = {each.stops: each for each in found.findings}
        assert list(stopped) == ["writes", "rebuilding", "capacity"]
        assert sorted(each.name for each in stopped["writes"].examples) == ["/a", "/b", "/c"]
        assert stopped["writes"].replicate_across == {"node": 3, "rack": 1}
        cluster.kill(4)
        await asyncio.sleep(8)
        found = await store.check_impact([1])
        assert found.down == (4,)
        assert "bring back nodes 4" in found.findings[0].first
        for nodes, racks in (([9], []), ([], ["rack9"]), ([], [])):
            with pytest.raises(BadSetting):
                await store.check_impact(nodes, racks)
