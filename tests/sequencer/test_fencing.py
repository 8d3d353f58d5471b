"""Fencing tokens on a whole cluster: who comes with a lower one is refused, and told by whom."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario

from cordwood.client.append.producer import Producer
from cordwood.errors import BadSetting, OutcomeUnknown, Retryable, TokenFenced, UnknownLog
from cordwood.sim.planted import find_bug, planted


@as_scenario(simulate)
async def test_a_higher_token_shuts_out_whoever_has_a_lower_one_or_none(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as old, cluster.client() as new, cluster.client() as third:
        await old.append("log", b"0")
        first = await old.fence("log", 5, holder="old worker")
        await old.append("log", b"1")
        with pytest.raises(TokenFenced, match="token 0 is overtaken by 5, which old worker"):
            await third.append("log", b"without one")
        epoch = await new.fence("log", 6, holder="new worker")
        assert epoch > first
        with pytest.raises(TokenFenced, match="token 5 is overtaken by 6, which new worker"):
            await old.append("log", b"with a lower one")
        with pytest.raises(TokenFenced, match="new worker"):
            await old.append_many("log", [b"a", b"b"], atomic=True)
        await new.append_many("log", [b"2", b"3"])
        await third.use_fencing_token("log", 6)
        await third.append("log", b"4")
        assert await values(third, "log") == [b"0", b"1", b"2", b"3", b"4"]


@as_scenario(simulate)
async def test_a_token_is_never_lowered_and_taking_it_again_changes_nothing(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as store, cluster.client() as other:
        await store.append("log", b"0")
        epoch = await store.fence("log", 5, holder="one")
        assert await store.fence("log", 5, holder="one") == epoch
        for token in (5, 4):
            with pytest.raises(TokenFenced, match="one holds"):
                await other.fence("log", token, holder="two")
        for token in (0, -1, 1 << 63):
            with pytest.raises(BadSetting):
                await store.fence("log", token)
        with pytest.raises(UnknownLog):
            await store.log_tree.raise_token("nowhere", 5, "")
        found = await store.log_tree.epochs("log")
        assert (found.token, found.holder) == (5, "one")


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_token_holds_whichever_node_sequences_and_whoever_dies(seed: int) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with (
            cluster.client(timeout_s=20) as old,
            cluster.client(timeout_s=20) as new,
        ):
            await old.append("log", b"0")
            for token in range(1, 4):
                appends = [
                    asyncio.ensure_future(old.append("log", b"old %d" % at)) for at in range(20)
                ]
                node = cluster.sequencer_of(1)
                fence = asyncio.ensure_future(new.fence("log", token, holder="new"))
                await asyncio.sleep(0.0005 * seed)
                cluster.kill(node)
                await fence
                with pytest.raises(TokenFenced):
                    await old.append("log", b"too late")
                await asyncio.gather(*appends, return_exceptions=True)
                await new.append("log", b"new %d" % token)
                await cluster.start(node)
                found = await values(new, "log")
                assert b"too late" not in found
                last_new = found.index(b"new %d" % token)
                assert last_new == len(found) - 1, "nothing older comes behind it"
                await old.use_fencing_token("log", token)

    simulate(scenario, nodes=5, copies=3, seed=seed)


@as_scenario(simulate)
async def test_a_token_is_for_the_log_that_has_the_name_now(cluster: ClusterAtHand) -> None:
    async with cluster.client() as holder, cluster.client() as third, cluster.client() as other:
        await other.append("elected", b"before")
        for store in (holder, third):
            await store.append("elected", b"remembers where the name led")
        await other.log_tree.rename("elected", "old")
        await other.append("elected", b"0")
        await holder.fence("elected", 5, holder="one")
        await holder.append("elected", b"1")
        await third.use_fencing_token("elected", 5)
        await third.append("elected", b"2")
        with pytest.raises(TokenFenced, match="one holds"):
            await other.append("elected", b"without one")
        assert await values(other, "elected") == [b"0", b"1", b"2"]
        await other.append("old", b"its token is another one")


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_token_that_was_raised_is_told_though_the_log_is_renamed_meanwhile(seed: int) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as holder, cluster.client() as other:
            await other.append("elected", b"0")
            fence = asyncio.ensure_future(holder.fence("elected", 5))
            await asyncio.sleep(0.0008)
            await other.log_tree.rename("elected", "old")
            is_told = True
            try:
                await fence
            except UnknownLog:
                is_told = False
            assert ((await other.log_tree.epochs("old")).token == 5) == is_told

    simulate(scenario, seed=seed)


@as_scenario(simulate)
async def test_a_producer_is_told_of_what_it_stored_before_it_was_shut_out(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as old, cluster.client() as new:
        first = await old.append("log", b"0", producer=Producer(7))
        await new.fence("log", 1)
        assert await old.append("log", b"0", producer=Producer(7)) == first
        with pytest.raises(TokenFenced):
            await old.append("log", b"1", producer=Producer(7, sequences={1: 1}))


@pytest.mark.parametrize("name", ["token-ignored", "token-without-epoch", None])
def test_a_wrong_rule_lets_an_overtaken_writer_in(name: str | None) -> None:
    async def scenario(cluster: ClusterAtHand) -> bool:
        async with cluster.client(timeout_s=5) as old, cluster.client(timeout_s=5) as new:
            await old.append("log", b"0")
            with contextlib.suppress(AssertionError):
                await new.fence("log", 1)
            try:
                await old.append("log", b"overtaken")
            except TokenFenced:
                return False
            except (Retryable, OutcomeUnknown) as error:
                raise AssertionError("no answer says nothing") from error
            return b"overtaken" in await values(new, "log")

    with planted(find_bug(name)) if name else contextlib.nullcontext():
        assert simulate(scenario) == (name is not None)
