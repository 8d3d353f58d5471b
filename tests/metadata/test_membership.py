"""Membership: one identity for a cluster, an incarnation for each start of a node."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from metadata_play import Act, run_patiently
from scenarios import as_scenario, awaited_by

from cordwood.errors import BadSetting, Fenced, Malformed, Rejected, Unreachable
from cordwood.metadata.membership import CLUSTER_BYTES, NODE_MAX, WEIGHT_MAX, Membership
from cordwood.metadata.memory import MemoryMetadata
from cordwood.nodes import Authority, Member, NodeId
from cordwood.quorum.authority import HAS_DATA


class TestCluster:
    @as_scenario("play")
    async def test_it_is_drawn_once(self, store) -> None:
        membership = Membership(store)
        assert await membership.cluster() is None
        first = await membership.ensure_cluster(random.Random(1))
        assert len(first) == CLUSTER_BYTES
        assert await membership.ensure_cluster(random.Random(2)) == first
        assert await membership.cluster() == first

    @as_scenario("play")
    async def test_those_who_race_agree(self, store) -> None:
        calls = (Membership(store).ensure_cluster(random.Random(n)) for n in range(8))
        assert len(set(await asyncio.gather(*calls))) == 1

    @pytest.mark.parametrize("seed", range(20))
    @as_scenario(awaited_by(run_patiently))
    async def test_those_who_were_told_agree_however_answers_are_lost(self, *, seed) -> None:
        chance = random.Random(seed)
        data = MemoryMetadata(chance).data

        async def one() -> bytes | None:
            store = MemoryMetadata(chance, data)
            store.answer_loss = 0.5
            try:
                return await Membership(store).ensure_cluster(chance)
            except Unreachable:
                return None

        told = await asyncio.gather(*(one() for _ in range(5)))
        await asyncio.sleep(60)
        final = await Membership(MemoryMetadata(chance, data)).cluster()
        assert {cluster for cluster in told if cluster} <= {final}

    @pytest.mark.parametrize("value", [b"", b"xyz", b"00" * 15, b"\xff" * 32])
    @as_scenario(awaited_by(run_patiently))
    async def test_one_that_cannot_be_read(self, *, memory: MemoryMetadata, value: bytes) -> None:
        await memory.compare_and_set("cluster", value, 0)
        with pytest.raises(Malformed):
            await Membership(memory).cluster()
        with pytest.raises(Malformed):
            await Membership(memory).ensure_cluster(random.Random(1))


class TestMembers:
    @as_scenario("play")
    async def test_a_node_that_starts_again_has_a_higher_incarnation(self, store) -> None:
        membership = Membership(store)
        first = await membership.register(NodeId(3), "host:1", "eu.rack1", 2.5)
        assert first == Member(NodeId(3), "host:1", "eu.rack1", 1, 2.5)
        second = await membership.register(NodeId(3), "[::1]:2")
        assert second == Member(NodeId(3), "[::1]:2", "", 2, 1.0)
        assert await membership.members() == (second,)

    @as_scenario("play")
    async def test_a_node_that_moves_has_not_started_again(self, store) -> None:
        membership = Membership(store)
        await membership.register(NodeId(3), "host:1", "eu.rack1", 2.5)
        moved = await membership.move(NodeId(3), "host:2")
        assert moved == Member(NodeId(3), "host:2", "eu.rack1", 1, 2.5)
        assert await membership.members() == (moved,)
        with pytest.raises(BadSetting, match="never registered"):
            await membership.move(NodeId(4), "host:2")

    @as_scenario("play")
    async def test_members_come_in_node_order(self, store) -> None:
        membership = Membership(store)
        assert await membership.members() == ()
        for node in (10, 9, 100, NODE_MAX, 1):
            await membership.register(NodeId(node), f"host:{node % 60_000}")
        members = await membership.members()
        assert [member.node for member in members] == [1, 9, 10, 100, NODE_MAX]

    @as_scenario("play")
    async def test_starts_that_race_get_incarnations_of_their_own(self, store) -> None:
        starts = (Membership(store).register(NodeId(1), f"host:{n}") for n in range(1, 7))
        members = await asyncio.gather(*starts)
        assert sorted(member.incarnation for member in members) == [1, 2, 3, 4, 5, 6]
        newest = max(members, key=lambda member: member.incarnation)
        assert await Membership(store).members() == (newest,)

    @pytest.mark.parametrize("seed", range(20))
    @as_scenario(awaited_by(run_patiently))
    async def test_no_incarnation_is_told_twice_however_answers_are_lost(self, *, seed) -> None:
        store = MemoryMetadata(random.Random(seed))
        store.answer_loss = 0.4
        told = []
        for _ in range(10):
            try:
                told.append((await Membership(store).register(NodeId(1), "host:1")).incarnation)
            except Unreachable:
                continue
        assert told == sorted(set(told))

    @pytest.mark.parametrize(
        "arguments",
        [
            (0, "host:1"),
            (NODE_MAX + 1, "host:1"),
            (1, ""),
            (1, "host"),
            (1, "h" * 300 + ":1"),
            (1, "host:1", "a..b"),
            (1, "host:1", ".a"),
            (1, "host:1", "a.b.c.d.e.f"),
            (1, "host:1", "räck"),
            (1, "host:1", "a", -1.0),
            (1, "host:1", "a", float("nan")),
            (1, "host:1", "a", float("inf")),
            (1, "host:1", "a", WEIGHT_MAX * 2),
        ],
    )
    @as_scenario(awaited_by(run_patiently))
    async def test_what_is_refused(self, *, memory: MemoryMetadata, arguments) -> None:
        with pytest.raises(BadSetting):
            await Membership(memory).register(*arguments)
        assert await Membership(memory).members() == ()

    @pytest.mark.parametrize("weight", [0, 0.0, WEIGHT_MAX])
    @as_scenario(awaited_by(run_patiently))
    async def test_weights_at_the_ends(self, *, memory: MemoryMetadata, weight) -> None:
        await Membership(memory).register(NodeId(1), "host:1", "a.b.c.d.e", weight)
        (member,) = await Membership(memory).members()
        assert (member.weight, member.location) == (weight, "a.b.c.d.e")

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("nodes/0000000001", b"{}"),
            ("nodes/x", b'{"address":"host:1","location":"","incarnation":1,"weight":1}'),
        ],
    )
    @as_scenario(awaited_by(run_patiently))
    async def test_an_entry_that_cannot_be_read(
        self, *, memory: MemoryMetadata, key: str, value: bytes
    ) -> None:
        await memory.compare_and_set(key, value, 0)
        with pytest.raises(Malformed):
            await Membership(memory).members()


class TestAuthority:
    """What became of a node's data."""

    @as_scenario("play")
    async def test_it_is_kept_until_the_node_is_back_and_has_sealed(self, store) -> None:
        membership = Membership(store)
        await membership.register(NodeId(3), "host:1", "rack1", 2.0)
        gone = await membership.set_authority(NodeId(3), Authority.UNDER_REPLICATED)
        assert gone.authority is Authority.UNDER_REPLICATED
        assert (gone.address, gone.location, gone.weight) == ("host:1", "rack1", 2.0)
        assert await membership.members() == (gone,)
        assert (await membership.move(NodeId(3), "host:2")).authority is gone.authority
        back = await membership.register(NodeId(3), "host:1", "rack1", 2.0)
        assert back.authority is Authority.UNAVAILABLE, "it is there, and may not be sealed"
        assert await membership.come_back(NodeId(3)) == back
        back = await membership.end_return(NodeId(3), await membership.version(NodeId(3)))
        assert back.authority is Authority.FULLY_AUTHORITATIVE
        assert await membership.come_back(NodeId(3)) == back
        again = await membership.register(NodeId(3), "host:1", "rack1", 2.0)
        assert again.authority is Authority.FULLY_AUTHORITATIVE

    @pytest.mark.parametrize("before", Authority)
    @as_scenario("play")
    async def test_whoever_was_said_to_be_away_takes_it_back_in_two_steps(
        self, store, *, before
    ) -> None:
        membership = Membership(store)
        await membership.register(NodeId(3), "host:1")
        await membership.set_authority(NodeId(3), before)
        fully = Authority.FULLY_AUTHORITATIVE
        if before not in HAS_DATA:
            with pytest.raises(Rejected, match="did not come back"):
                await membership.end_return(NodeId(3), await membership.version(NodeId(3)))
        first = await membership.come_back(NodeId(3))
        assert first.authority is (fully if before is fully else Authority.UNAVAILABLE)
        version = await membership.version(NodeId(3))
        assert (await membership.end_return(NodeId(3), version)).authority is fully
        assert (await membership.end_return(NodeId(3), version)).authority is fully
        for step in (membership.come_back(NodeId(4)), membership.end_return(NodeId(4), 0)):
            with pytest.raises(BadSetting, match="no node 4"):
                await step

    @as_scenario("play")
    async def test_a_return_does_not_end_by_seals_from_before_the_next_ones_were_owed(
        self, store
    ) -> None:
        """The node had sealed for an earlier return, and did not know of the next one."""
        membership = Membership(store)
        await membership.register(NodeId(3), "host:1")
        await membership.owe_seals(NodeId(3))
        version = await membership.version(NodeId(3))
        await membership.owe_seals(NodeId(3))
        with pytest.raises(Fenced):
            await membership.end_return(NodeId(3), version)
        (member,) = await membership.members()
        assert member.authority is Authority.UNAVAILABLE

    @as_scenario("play")
    async def test_it_is_a_compare_and_set(self, store) -> None:
        membership = Membership(store)
        with pytest.raises(BadSetting, match="no node 3"):
            await membership.set_authority(NodeId(3), Authority.UNAVAILABLE)
        await membership.register(NodeId(3), "host:1")
        full, gone = Authority.FULLY_AUTHORITATIVE, Authority.UNDER_REPLICATED
        with pytest.raises(Rejected, match="fully-authoritative by now, not under-replicated"):
            await membership.set_authority(NodeId(3), Authority.UNAVAILABLE, gone)
        await membership.set_authority(NodeId(3), gone, full)
        await membership.set_authority(NodeId(3), gone, full)  # it is so already

    @pytest.mark.parametrize("after", Authority)
    @pytest.mark.parametrize("before", Authority)
    def test_what_may_follow_what(self, play: Callable[[Act[Any]], Any], before, after):
        """Whoever is empty stays so until it is fully authoritative; all else may change."""
        allowed = before is not Authority.AUTHORITATIVE_EMPTY or after in (
            before, Authority.FULLY_AUTHORITATIVE,
        )  # fmt: skip

        async def act(store) -> None:
            membership = Membership(store)
            await membership.register(NodeId(3), "host:1")
            await membership.set_authority(NodeId(3), before)
            try:
                await membership.set_authority(NodeId(3), after)
            except Rejected:
                assert not allowed
            else:
                assert allowed

        play(act)

    @as_scenario(awaited_by(asyncio.run))
    async def test_an_entry_of_before_there_were_any(self, *, memory: MemoryMetadata) -> None:
        old = b'{"address":"host:1","location":"","incarnation":4,"weight":1.0}'
        await memory.compare_and_set("nodes/0000000003", old, 0)
        (member,) = await Membership(memory).members()
        assert member.authority is Authority.FULLY_AUTHORITATIVE
