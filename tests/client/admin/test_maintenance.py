"""Requests for maintenance on a running cluster: granted, blocked, drained, and over."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood.client.store import Store
from cordwood.errors import BadSetting, OutcomeUnknown
from cordwood.layout.message_maintenance import MaintenanceRequest
from cordwood.metadata.maintenance import MaintenanceStore


async def ask(store: Store, *nodes: int, **more: object) -> MaintenanceRequest:
    given = {"reason": "a new disk", "user": "ann", **more}
    return await store.apply_maintenance(nodes, **given)  # type: ignore[arg-type]


async def state(store: Store, number: int) -> str:
    return next(each.state for each in await store.maintenance() if each.number == number)


async def wait_state(store: Store, number: int, wanted: str, timeout_s: float = 120) -> None:
    async with asyncio.timeout(timeout_s):
        while await state(store, number) != wanted:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.5)


@as_scenario(simulate, nodes=4)
async def test_a_second_node_waits_until_the_first_is_back(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=10) as store:
        await store.append("a", b"value")
        first = await ask(store, 1, ttl_s=3600)
        second = await ask(store, 2)
        assert (first.state, second.state) == ("GRANTED", "BLOCKED_UNTIL_SAFE")
        assert "writes would stop" in second.blocked
        assert first.ends_us == first.made_us + 3_600_000_000
        await store.remove_maintenance(first.number)
        await wait_state(store, second.number, "GRANTED")
        with pytest.raises(BadSetting, match="no request 1"):
            await store.remove_maintenance(first.number)


@as_scenario(simulate, nodes=4)
async def test_a_request_that_is_blocked_is_granted_while_nobody_asks(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=10) as store:
        await store.append("a", b"value")
        await ask(store, 1, ttl_s=20)
        await ask(store, 2)
    await asyncio.sleep(60)
    known, _ = await MaintenanceStore(cluster.metadata).read()
    assert [(each.nodes, each.is_granted) for each in known.requests] == [((2,), True)]


@as_scenario(simulate, nodes=5)
async def test_a_drain_empties_the_node_and_ends_with_its_request(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=10) as store:
        for number in range(20):
            await store.append("a", b"%d" % number)
        made = await ask(store, 3, wanted="DRAINED")
        assert made.state == "DRAINING"
        await store.remove_maintenance(made.number)
        assert (await store.rebuilding()).lost == ()
        made = await ask(store, 3, wanted="DRAINED")
        await wait_state(store, made.number, "DRAINED")
        assert [entry.node for entry in (await store.rebuilding()).lost] == [3]


@as_scenario(simulate, nodes=3)
async def test_bad_input_is_refused_and_changes_nothing(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=10) as store:
        for nodes, more in (
            ((9,), {}), ((), {}), ((1,), {"racks": ["rack9"]}), ((1,), {"wanted": "GONE"}),
            ((1,), {"reason": ""}), ((1,), {"user": " "}), ((1,), {"ttl_s": 10**9}),
        ):  # fmt: skip
            with pytest.raises(BadSetting):
                await ask(store, *nodes, **more)
        assert await store.maintenance() == []


@as_scenario(simulate, nodes=4)
async def test_a_write_of_unknown_outcome_makes_one_request(
    cluster: ClusterAtHand, *, monkeypatch
) -> None:
    right = cluster.metadata.compare_and_set
    lost: list[str] = []

    async def written_without_a_word(key: str, value: bytes | None, expected: int) -> int | None:
        version = await right(key, value, expected)
        if key == "maintenance" and not lost:
            lost.append(key)
            raise OutcomeUnknown("the answer was lost")
        return version

    async with cluster.client(timeout_s=10) as store:
        await store.append("a", b"value")
        monkeypatch.setattr(cluster.metadata, "compare_and_set", written_without_a_word)
        made = await ask(store, 1)
        assert lost
        assert [each.number for each in await store.maintenance()] == [made.number] == [1]
        lost.clear()
        await store.remove_maintenance(made.number)
        assert await store.maintenance() == []
