"""A log is deleted, or its attributes change, while a sequencer begins an epoch of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario
from swaps import swap

from cordwood.client.append.open_log import Appending
from cordwood.client.find import tail_calls
from cordwood.client.store import Store
from cordwood.errors import AccessDenied, NoSequencer, UnknownLog, Unreachable
from cordwood.log_attributes import LogAttributes, token_digest
from cordwood.lsn import LogId, Lsn
from cordwood.metadata.epoch_store import EpochStore
from cordwood.metadata.log_info import LogInfo
from cordwood.metadata.log_tree import LogTree
from cordwood.sequencer.log_watch import WATCH_S
from cordwood.sim.planted import find_bug, planted


def _with(bug: str) -> AbstractContextManager[None]:
    return planted(find_bug(bug)) if bug else nullcontext()


@asynccontextmanager
async def beginning(
    cluster: ClusterAtHand, store: Store, log: Appending, made: LogId
) -> AsyncIterator[asyncio.Future[Lsn]]:
    """Epoch 2 waits at its beginning for a node that is stopped, until the end of the block.

    Gives:
        an append that waits for the epoch.
    """
    killed = cluster.sequencer_of(made)
    nodes = (await store.log(made)).history[-1].nodes
    stopped = next(node for node in reversed(nodes[:-1]) if node != killed)
    cluster.machine(stopped).pause()
    cluster.kill(killed)
    await asyncio.sleep(0.1)  # the client has noticed that
    append = log.append_nowait(b"2")
    await asyncio.sleep(3)
    yield append
    await asyncio.sleep(3)
    assert not append.done()
    cluster.machine(stopped).resume()


@pytest.mark.parametrize("bug", ["", "deleted-in-part"])
def test_a_log_that_only_the_tree_knows_to_be_deleted_gets_no_epoch(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    """The metadata store went away between the two writes of a deletion, and its caller gave up.
    Sequencers were ended each minute, and began again at the next append. A client with an open log
    had its records acknowledged for good, and nodes would have trimmed them after a day."""

    async def not_told(self: EpochStore, log_id: int) -> None:
        raise Unreachable("the metadata store does not answer")

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=5) as owner, cluster.client(timeout_s=5) as other:
            await owner.create_log("log")
            log = await other.open_log("log")
            await log.append_nowait(b"1")
            swap(monkeypatch, EpochStore.delete, not_told)
            with pytest.raises(Unreachable):
                await owner.log_tree.delete("log")
            await asyncio.sleep(2)
            for _ in range(3):
                if bug:
                    assert (await log.append_nowait(b"2")).epoch > 1
                else:
                    with pytest.raises(UnknownLog, match="log 1 was deleted"):
                        await log.append_nowait(b"2")
                await asyncio.sleep(WATCH_S)

    with _with(bug):
        simulate(scenario)


@pytest.mark.parametrize("bug", ["", "deletion-unheard", "failure-outlives-log"])
def test_an_epoch_of_a_log_that_was_deleted_meanwhile_takes_nothing(bug: str) -> None:
    """It acknowledged records for up to a minute. If an activation had failed before the deletion,
    appends ended at their deadlines, and their clients never heard that the log was gone."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20) as owner, cluster.client(timeout_s=20) as other:
            attributes = LogAttributes(nodeset_size=3)
            made = await owner.create_log("log", copies=2, attributes=attributes)
            log = await other.open_log("log")
            await log.append_nowait(b"1")
            async with beginning(cluster, owner, log, made.log_id) as append:
                await owner.log_tree.delete("log")
            match bug:
                case "":
                    for waiting in (append, log.append_nowait(b"3")):
                        with pytest.raises(UnknownLog, match="log 1 was deleted"):
                            await waiting
                case "deletion-unheard":
                    assert (await append).epoch == (await log.append_nowait(b"3")).epoch == 2
                case _:
                    with pytest.raises(NoSequencer):
                        await append

    with _with(bug):
        simulate(scenario, nodes=6)


@pytest.mark.parametrize("bug", ["", "begins-unheard"])
def test_attributes_that_change_while_they_are_read_hold_from_the_beginning(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    """The metadata store's answer was on its way for some seconds. The epoch began with the
    attributes of that time, and went on with them for up to a minute."""
    swap(monkeypatch, tail_calls.check_write_token, lambda *_: None, within=tail_calls)
    token, right = "a secret of the owner", LogTree.described
    late: list[int] = []

    async def described(self: LogTree, log_id: LogId) -> LogInfo | None:
        found = await right(self, log_id)
        if not late:
            late.append(log_id)
            await asyncio.sleep(4)
        return found

    async def scenario(cluster: ClusterAtHand) -> None:
        async with (
            cluster.client(timeout_s=20) as outsider,
            cluster.client(timeout_s=20, write_tokens=(token,)) as owner,
        ):
            await owner.create_log("log")
            log = await outsider.open_log("log")
            swap(monkeypatch, LogTree.described, described)
            append = asyncio.ensure_future(owner.append("log", b"1"))
            await asyncio.sleep(1)
            owned = LogAttributes(write_token=token_digest(token))
            await owner.log_tree.set_attributes("log", owned)
            assert not append.done()
            last = await append
            assert late == [1]
            if bug:
                assert await log.append_nowait(b"2") > last
            else:
                with pytest.raises(AccessDenied, match="this client showed none"):
                    await log.append_nowait(b"2")
                assert await values(owner, "log", until=last) == [b"1"]

    with _with(bug):
        simulate(scenario)


@as_scenario(simulate, nodes=6)
async def test_a_smaller_nodeset_that_is_asked_for_meanwhile_is_taken(
    cluster: ClusterAtHand,
) -> None:
    """The size was noted as that of the epoch, which had the nodeset of before, and no later epoch
    was taken for it."""
    async with cluster.client(timeout_s=60) as store:
        attributes = LogAttributes(nodeset_size=5)
        made = await store.create_log("log", copies=2, attributes=attributes)
        log = await store.open_log("log")
        await log.append_nowait(b"1")
        async with beginning(cluster, store, log, made.log_id) as append:
            await store.log_tree.set_attributes("log", LogAttributes(nodeset_size=3))
        assert (await append).epoch == 2
        await asyncio.sleep(2 * WATCH_S)
        last = await store.append("log", b"3")
        assert last.epoch == 3
        assert len((await store.log("log")).history[-1].nodes) == 3
        assert await values(store, "log", until=last) == [b"1", b"2", b"3"]
