"""Write tokens: nodes refuse appends and trims of clients that do not show them."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario
from swaps import swap

from cordwood.client.admin import positions
from cordwood.client.admin.log_tree import check_write_token
from cordwood.client.append.producer import Producer
from cordwood.client.find import tail_calls
from cordwood.errors import AccessDenied, BadSetting, Unreachable
from cordwood.layout.tokens import TOKENS_MAX
from cordwood.log_attributes import LogAttributes, token_digest
from cordwood.settings import ClientSettings
from cordwood.sim.planted import find_bug, planted

TOKEN = "a secret of the owner"
OWNED = LogAttributes(write_token=token_digest(TOKEN))
HEARD_S = 1.0
"""Within which the sequencer's node hears of a change, while the metadata store answers."""

SHOWN = {"write_tokens": ("another", TOKEN)}


@pytest.fixture
def _careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients do not look themselves whether a log asks for a token that they do not have."""
    for room in (tail_calls, positions):
        swap(monkeypatch, check_write_token, lambda *_: None, within=room)


@pytest.mark.usefixtures("_careless")
def test_a_log_that_comes_to_ask_for_a_token_refuses_who_shows_none() -> None:
    """A client that had the log open went on to append for some seconds, and one that does not
    follow the protocol for ever."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as outsider, cluster.client(**SHOWN) as owner:
            await outsider.append("/a", b"1")
            await owner.append("/a", b"2")
            await owner.log_tree.set_attributes("/a", OWNED)
            await asyncio.sleep(HEARD_S)
            with pytest.raises(AccessDenied, match="this client showed none"):
                await outsider.append("/a", b"3")
            with pytest.raises(AccessDenied):
                await outsider.append_many("/a", [b"4", b"5"], atomic=True)
            with pytest.raises(AccessDenied):
                await outsider.append("/a", b"6", producer=Producer(7))
            await owner.append("/a", b"7")
            await owner.log_tree.set_attributes("/a", LogAttributes(), ("write_token",))
            await asyncio.sleep(HEARD_S)
            await outsider.append("/a", b"8")
            assert await values(owner, "/a") == [b"1", b"2", b"7", b"8"]

    simulate(scenario)
    with planted(find_bug("tokens-unasked")), pytest.raises(pytest.fail.Exception):
        simulate(scenario)


@pytest.mark.usefixtures("_careless")
@as_scenario(simulate, nodes=4, copies=2)
async def test_a_new_epoch_refuses_from_its_first_append_on(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=20) as outsider, cluster.client(**SHOWN) as owner:
        await owner.create_log("/a", attributes=OWNED)
        with pytest.raises(AccessDenied, match="this client showed none"):
            await outsider.append("/a", b"1")
        await owner.append("/a", b"2")
        cluster.kill(cluster.sequencer_of(1))
        with pytest.raises(AccessDenied, match="this client showed none"):
            await outsider.append("/a", b"3")
        assert await values(owner, "/a") == [b"2"]


@pytest.mark.usefixtures("_careless")
@as_scenario(simulate)
async def test_nothing_is_trimmed_for_who_shows_no_token(cluster: ClusterAtHand) -> None:
    async with cluster.client() as outsider, cluster.client(**SHOWN) as owner:
        await owner.create_log("/a", attributes=OWNED)
        first = await owner.append("/a", b"1")
        await owner.append("/a", b"2")
        with pytest.raises(Unreachable, match="this client showed none"):
            await outsider.trim("/a", "tail")
        assert not (await owner.trim("/a", first)).is_partial
        assert await values(owner, "/a") == [b"2"]


@as_scenario(simulate)
async def test_a_token_is_shown_again_after_the_nodes_restart(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=20, **SHOWN) as owner:
        await owner.create_log("/a", attributes=OWNED)
        await owner.append("/a", b"1")
        for number in cluster.numbers:
            await cluster.stop(number)
        await cluster.start()
        await owner.append("/a", b"2")
        assert await values(owner, "/a") == [b"1", b"2"]


@as_scenario(simulate)
async def test_a_client_with_too_many_tokens_is_told(cluster: ClusterAtHand) -> None:
    tokens = tuple(f"token-{n}" for n in range(TOKENS_MAX + 1))
    with pytest.raises(BadSetting, match="1000 write tokens at most, not 1001"):
        async with cluster.client(write_tokens=tokens):
            raise AssertionError("it was let in")
    async with cluster.client(write_tokens=tokens[1:]) as store:
        wanted = LogAttributes(write_token=token_digest(tokens[-1]))
        await store.create_log("/a", attributes=wanted)
        await store.append("/a", b"1")


def test_settings_show_no_token() -> None:
    assert TOKEN not in repr(ClientSettings(write_tokens=(TOKEN,)))
