"""A log's attributes change while its epoch ends for another reason."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, say_of_dead, simulate, until, values
from scenarios import as_scenario
from swaps import swap, swap_value

from cordwood.client.find import tail_calls
from cordwood.errors import AccessDenied, BadSetting, OutcomeUnknown, UnknownLog, Unreachable
from cordwood.log_attributes import LogAttributes, token_digest
from cordwood.metadata import pages
from cordwood.metadata import store as store_rules
from cordwood.metadata.log_entries import id_key
from cordwood.metadata.log_tree import LogTree
from cordwood.nodes import Authority
from cordwood.protocol.nodeset_growth import GROW_AFTER_S
from cordwood.sequencer.activation import Activation
from cordwood.sequencer.appender import LogAppender
from cordwood.sequencer.log_watch import AGAIN_S, DRAIN_S, WATCH_S, LogWatch
from cordwood.sim.planted import find_bug, planted


def test_an_epoch_that_ends_while_its_attributes_are_looked_at_is_not_drained_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seed 22001242. The next epoch was being taken already, was taken to be the one that had
    drained, and the node ended by that."""
    ended: list[int] = []
    right = LogWatch._may_have_it

    async def scenario(cluster: ClusterAtHand) -> None:
        async def look(self: LogWatch, log: int, appender: LogAppender) -> bool:
            may_have_it = await right(self, log, appender)
            if not ended:
                ended.append(appender.epoch)
                appender.drain()  # as where its numbers run out
            return may_have_it

        swap(monkeypatch, LogWatch._may_have_it, look)
        async with cluster.client(timeout_s=20.0) as store:
            await store.create_log("log", attributes=LogAttributes(nodeset_size=3))
            await store.append("log", b"1")
            await store.log_tree.set_attributes("log", LogAttributes(nodeset_size=5))
            await until(lambda: bool(ended))
            last = await store.append("log", b"2")
            assert (ended, last.epoch) == ([1], 2)
            assert len((await store.log("log")).history[-1].nodes) == 5
            assert await values(store, "log", until=last) == [b"1", b"2"]
        assert len(cluster.running) == 5

    simulate(scenario, nodes=5)


@as_scenario(simulate, nodes=6)
async def test_an_epoch_that_does_not_drain_is_ended(cluster: ClusterAtHand) -> None:
    """Its last run waits for a node that is stopped, and the change of attributes for the run."""
    async with cluster.client(timeout_s=60.0) as store, cluster.client(timeout_s=60.0) as other:
        made = await store.create_log("log", attributes=LogAttributes(nodeset_size=3))
        await store.append("log", b"1")
        sequencer = cluster.sequencer_of(made.log_id)
        stopped = next(n for n in made.history[-1].nodes if n != sequencer)
        cluster.machine(stopped).pause()
        waits = asyncio.ensure_future(store.append("log", b"2"))
        await asyncio.sleep(0.5)
        assert not waits.done()
        changed = asyncio.get_running_loop().time()
        await other.log_tree.set_attributes("log", LogAttributes(nodeset_size=5))
        with pytest.raises(OutcomeUnknown, match="epoch 1 was fenced"):
            await waits
        assert asyncio.get_running_loop().time() - changed < 4 * DRAIN_S
        cluster.machine(stopped).resume()
        last = await other.append("log", b"3")
        assert last.epoch > 1
        assert b"3" in await values(other, "log", until=last)


async def a_token_is_set_while_an_epoch_begins(cluster: ClusterAtHand, heard_s: float) -> None:
    """The epoch waits for a node that is stopped; then an outsider appends after `heard_s`."""
    token = "a secret of the owner"
    async with (
        cluster.client(timeout_s=60) as outsider,
        cluster.client(timeout_s=60, write_tokens=(token,)) as owner,
    ):
        made = await owner.create_log("/a", copies=2, attributes=LogAttributes(nodeset_size=3))
        await owner.append("/a", b"1")
        killed = cluster.sequencer_of(made.log_id)
        stopped = made.history[-1].nodes[-2]
        assert stopped != killed
        cluster.machine(stopped).pause()
        cluster.kill(killed)
        await asyncio.sleep(0.1)  # the client has noticed that
        append = asyncio.ensure_future(owner.append("/a", b"2"))
        await asyncio.sleep(1.3)
        owned = LogAttributes(write_token=token_digest(token))
        await owner.log_tree.set_attributes("/a", owned)
        await asyncio.sleep(1.3)
        assert not append.done()
        cluster.machine(stopped).resume()
        last = await append
        assert last.epoch == 2
        for batch in range(round(heard_s)):
            await owner.publish("busy", batch, [])  # a write to the metadata store
            await asyncio.sleep(1)
        with pytest.raises(AccessDenied, match="this client showed none"):
            await outsider.append("/a", b"3")
        assert await values(owner, "/a", until=last) == [b"1", b"2"]


def test_an_epoch_begins_with_the_attributes_that_were_set_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It went on with those from before it waited for nodes, until the next change of any log."""
    swap(monkeypatch, tail_calls.check_write_token, lambda *_: None, within=tail_calls)
    simulate(lambda cluster: a_token_is_set_while_an_epoch_begins(cluster, 0), nodes=6)


def test_all_logs_are_checked_once_a_minute_whatever_else_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every write to the metadata store put the check off, and there is always another one."""
    swap(monkeypatch, tail_calls.check_write_token, lambda *_: None, within=tail_calls)
    swap(monkeypatch, Activation.note_attributes, lambda *_: None)  # a change that is missed
    heard_s = 2 * WATCH_S
    simulate(lambda cluster: a_token_is_set_while_an_epoch_begins(cluster, heard_s), nodes=6)


@as_scenario(simulate, nodes=3)
async def test_nodes_that_join_get_a_share_of_logs_that_are_written_already(
    cluster: ClusterAtHand,
) -> None:
    """A log took in new nodes with its next epoch, which may be weeks away."""
    async with cluster.client(timeout_s=30.0) as store:
        for name in ("a", "b"):
            await store.create_log(name, copies=2)
            assert (await store.append(name, b"1")).epoch == 1
        cluster.add_nodes(1)
        await cluster.start(4)
        await asyncio.sleep(GROW_AFTER_S / 2)
        assert (await store.append("a", b"2")).epoch == 1, "it may be gone again soon"
        await asyncio.sleep(GROW_AFTER_S)
        for name, count in (("a", 3), ("b", 2)):
            last = await store.append(name, b"%d" % count)
            assert last.epoch == 2
            assert (await store.log(name)).history[-1].nodes == [1, 2, 3, 4]
            wanted = [b"%d" % number for number in range(1, count + 1)]
            assert await values(store, name, until=last) == wanted
        await asyncio.sleep(3 * GROW_AFTER_S)
        assert (await store.append("a", b"4")).epoch == 2, "and nothing more comes of it"


@as_scenario(simulate, nodes=5)
async def test_a_log_of_fewer_nodes_takes_in_a_new_one_only_where_that_is_for_it(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=30.0) as store:
        names = [f"log-{number}" for number in range(12)]
        for name in names:
            await store.create_log(name, copies=2, attributes=LogAttributes(nodeset_size=3))
            await store.append(name, b"1")
        cluster.add_nodes(1)
        await cluster.start(6)
        await asyncio.sleep(2 * GROW_AFTER_S)
        took = 0
        for name in names:
            last = await store.append(name, b"2")
            nodes = (await store.log(name)).history[-1].nodes
            assert (last.epoch, len(nodes)) == (2 if 6 in nodes else 1, 3)
            took += 6 in nodes
        assert 0 < took < 12


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_change_that_could_not_be_read_is_looked_at_again_without_another_write(
    monkeypatch: pytest.MonkeyPatch, is_planted: bool
) -> None:
    """The watch told of the change, and the store did not answer the look that followed. Nodes
    looked again after the next write of anybody, or after a minute."""
    swap(monkeypatch, tail_calls.check_write_token, lambda *_: None, within=tail_calls)
    token, right = "a secret of the owner", LogTree.changes
    failed: set[LogTree] = set()

    async def scenario(cluster: ClusterAtHand) -> None:
        before = 0

        async def changes(self: LogTree) -> int:
            count = await right(self)
            if count > before and self not in failed:
                failed.add(self)
                raise Unreachable("the metadata store does not answer")
            return count

        async with cluster.client() as outsider, cluster.client(write_tokens=(token,)) as owner:
            await owner.create_log("log")
            log = await outsider.open_log("log")
            await log.append_nowait(b"1")
            await asyncio.sleep(WATCH_S / 2)
            before = await right(LogTree(cluster.metadata))
            swap(monkeypatch, LogTree.changes, changes)
            owned = LogAttributes(write_token=token_digest(token))
            await owner.log_tree.set_attributes("log", owned)
            await asyncio.sleep(AGAIN_S + 2)
            assert len(failed) == len(cluster.running)
            with nullcontext() if is_planted else pytest.raises(AccessDenied):
                await log.append_nowait(b"2")

    with planted(find_bug("look-put-off")) if is_planted else nullcontext():
        simulate(scenario)


@pytest.mark.parametrize("is_planted", [False, True])
def test_however_many_logs_were_deleted_a_sequencer_hears_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch, is_planted: bool
) -> None:
    """After 100,000 logs no list of logs could be read any more: appends to a deleted log were
    acknowledged and lost, and a node whose data was reported gone did not start."""
    swap_value(monkeypatch, lambda: store_rules.LIST_KEYS_MAX, 10)
    swap_value(monkeypatch, lambda: pages.PAGE_KEYS, 4)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as owner, cluster.client() as user:
            await owner.create_log("log")
            log = await user.open_log("log")
            await log.append_nowait(b"1")
            for number in range(10):
                await owner.create_log(f"job{number}")
                await owner.log_tree.delete(f"job{number}")
            await owner.log_tree.delete("log")
            await asyncio.sleep(3)
            with nullcontext() if is_planted else pytest.raises(UnknownLog):
                await log.append_nowait(b"2")
            if not is_planted:
                assert await owner.logs() == []
            await cluster.stop(5)
            await say_of_dead(owner, 5, Authority.UNDER_REPLICATED)
            starting = cluster.start_once(5)
            if is_planted:
                with pytest.raises(BadSetting, match="keys begin with 'epochs/'"):
                    await starting
            else:
                await until(lambda: 5 in cluster.running)

    with planted(find_bug("lists-end")) if is_planted else nullcontext():
        simulate(scenario, nodes=5, copies=3)


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_log_that_a_newer_version_wrote_holds_up_no_change_of_another(
    monkeypatch: pytest.MonkeyPatch, is_planted: bool
) -> None:
    """A node that could not read its entry looked at no log any more: none got its new attributes,
    and deleted logs were sequenced on."""
    swap(monkeypatch, tail_calls.check_write_token, lambda *_: None, within=tail_calls)
    token = "a secret of the owner"

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as outsider, cluster.client(write_tokens=(token,)) as owner:
            newer = (await owner.create_log("newer")).log_id
            await owner.create_log("log")
            logs = [await outsider.open_log(name) for name in ("newer", "log")]
            for log in logs:
                await log.append_nowait(b"1")
            found = await cluster.metadata.get(id_key(newer))
            assert found is not None
            unknown = found.value.replace(b'"attributes":{', b'"attributes":{"x":1')
            assert await cluster.metadata.compare_and_set(id_key(newer), unknown, found.version)
            owned = LogAttributes(write_token=token_digest(token))
            await owner.log_tree.set_attributes("log", owned)
            await asyncio.sleep(3)
            await logs[0].append_nowait(b"2")
            with nullcontext() if is_planted else pytest.raises(AccessDenied):
                await logs[1].append_nowait(b"2")

    with planted(find_bug("one-unread-fails-all")) if is_planted else nullcontext():
        simulate(scenario)
