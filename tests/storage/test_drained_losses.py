"""A drain after main storage lost a range of which other nodes let go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set
from dataclasses import replace

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate, until
from msgspec.structs import replace as replace_fields
from rebuild_scene import lose_disk, order
from swaps import swap
from test_lost_in_main_storage import (
    STORAGE,
    TIER,
    TIERED,
    copyset_of,
    holders,
    lose_objects,
    losses,
    write,
)

from cordwood.block import Record
from cordwood.layout.message_rebuilding import RebuildOrder
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import Lsn
from cordwood.metadata.log_info import LogInfo
from cordwood.nodes import NodeId
from cordwood.protocol.event_log import gives_last
from cordwood.protocol.rebuild_plan import Losses
from cordwood.rebuilding import LostNode, RebuildingSet
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.rebuild.donor_look import DonorLook
from cordwood.storage.rebuild.donor_pass import Pass
from cordwood.uploading.local_drops import LocalDrops


async def drained(cluster: ClusterAtHand, leaving: NodeId, other: NodeId) -> None:
    """Drain a node, and wait until the other node calls it empty."""
    await order(cluster, leaving, RebuildOrder.DRAIN)
    role = cluster.running[other]._rebuild
    await until(lambda: (entry := role.set.entry(leaving)) is not None and entry.is_empty)


async def a_member_began_anew(
    cluster: ClusterAtHand, places: Sequence[int], *, lost: slice, wait_s: float
) -> None:
    """One member let go of a range while a second one, which is drained now, was away. The third
    member lost its disk, and began anew: main storage had the range. Then it lost the range.

    Args:
        places: in the copyset, of the member that let go, of that which began anew, and of the
            drained one.
        lost: which objects main storage lost.
        wait_s: before the drain.
    """
    async with cluster.client() as store:
        await store.create_log("log", attributes=TIERED)
        await write(store, 15)
        tail = await store.tail("log")
    copyset = await copyset_of(cluster, 1)
    past, anew, leaving = (copyset[place] for place in places)
    await asyncio.sleep(1)
    cluster.kill(leaving)
    await asyncio.sleep(110)
    await cluster.start(leaving)
    await asyncio.sleep(1)
    assert cluster.running[past].engine.gone_of(1)
    lose_disk(cluster, anew)
    await order(cluster, anew, RebuildOrder.START)
    role = cluster.running[leaving]._rebuild
    await until(lambda: (entry := role.set.entry(anew)) is not None and entry.is_empty)
    first, last = await lose_objects(cluster, lost)
    await cluster.start(anew)
    await until(lambda: role.set.entry(anew) is None)
    held = await holders(cluster, first, last)
    assert len(held[leaving]) > 1
    assert anew not in held
    await asyncio.sleep(wait_s)
    await drained(cluster, leaving, past)
    await cluster.stop(leaving)
    async with cluster.client() as store:
        items = await read_all(store, "log", until=tail)
    assert losses(items) == []
    assert sum(isinstance(each, Record) for each in items) == 15


ANEW = replace(STORAGE, retention_every_s=30)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("places", "lost", "wait_s", "bug"),
    [
        ((0, 1, 2), slice(1, None), 15, "rebuild-counts-on-no"),
        ((1, 0, 2), slice(1, None), 0, "rebuild-by-old-looks"),
        ((2, 0, 1), slice(0, None), 15, "rebuild-no-is-no-doubt"),
    ],
)
def test_a_member_that_began_anew_is_not_left_what_main_storage_lost_since(
    places: tuple[int, ...], lost: slice, wait_s: float, bug: str
) -> None:
    """It was taken for the donor, and said NO. The drained node had the only copies."""

    async def scene(cluster: ClusterAtHand) -> None:
        await a_member_began_anew(cluster, places, lost=lost, wait_s=wait_s)

    def run() -> None:
        simulate(scene, nodes=6, copies=3, storage=ANEW, tier=TIER, seed=1)

    run()
    with planted(find_bug(bug)), pytest.raises(AssertionError):
        run()


async def a_drain_takes_long(cluster: ClusterAtHand, *, tiered_late: bool = False) -> None:
    """A drained node leaves its blocks to the member before it, whose other copies find no place.
    This member lets go of them, and then main storage loses some of them.

    Args:
        tiered_late: whether the log goes to main storage only after the drained node's first look.
    """
    leaving = NodeId(3)
    cluster.storages[leaving] = replace(STORAGE, retention_every_s=600)  # it lets go later
    await cluster.stop(leaving)
    await cluster.start(leaving)
    async with cluster.client() as store:
        attributes = LogAttributes() if tiered_late else TIERED
        await store.create_log("log", attributes=attributes)
        await write(store, 15)
        tail = await store.tail("log")
        before, second = await copyset_of(cluster, 1)
        assert second == leaving, "take another seed"
        takers = [node for node in cluster.running if node not in (before, leaving)]
        await asyncio.sleep(3)
        for node in takers:
            await store.set_storage(node, read_only=True)
        await asyncio.sleep(3)
    await order(cluster, leaving, RebuildOrder.DRAIN, forced=True)
    role = cluster.running[before]._rebuild
    if tiered_late:
        await asyncio.sleep(10)
        async with cluster.client() as store:
            await store.log_tree.set_attributes("log", TIERED)
    await until(lambda: cluster.running[before].engine.gone_of(1), timeout_s=200)
    assert not cluster.running[leaving].engine.gone_of(1)
    first, last = await lose_objects(cluster, slice(0, 1))
    assert set(await holders(cluster, first, last)) == {leaving}
    async with cluster.client() as store:
        for node in takers:
            await store.set_storage(node, read_only=False)
    await until(lambda: role.set.entry(leaving).is_empty, timeout_s=100)
    await cluster.stop(leaving)
    await asyncio.sleep(5)
    async with cluster.client() as store:
        items = await read_all(store, "log", until=tail)
    assert losses(items) == []
    assert sum(isinstance(each, Record) for each in items) == 15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tiered_late", "bug"),
    [(False, "drained-node-looks-once"), (True, "drained-node-has-no-tier-yet")],
)
def test_a_drained_node_looks_once_more_when_all_other_donors_are_done(
    tiered_late: bool, bug: str
) -> None:
    """It had said that it was done while the member before it still had the blocks."""

    def run() -> None:
        simulate(
            lambda cluster: a_drain_takes_long(cluster, tiered_late=tiered_late),
            nodes=6, copies=2, storage=ANEW, tier=TIER, seed=3,
        )  # fmt: skip

    run()
    with planted(find_bug(bug)), pytest.raises(AssertionError):
        run()


def test_two_nodes_that_are_drained_at_once_do_not_wait_for_each_other() -> None:
    async def scene(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.create_log("log", attributes=TIERED)
            await write(store, 5)
        leaving = await copyset_of(cluster, 1)
        for node in leaving:
            await order(cluster, node, RebuildOrder.DRAIN, forced=True)
        other = min({*cluster.running} - {*leaving})
        role = cluster.running[other]._rebuild
        await until(lambda: all(role.set.entry(node).is_empty for node in leaving), timeout_s=30)

    simulate(scene, nodes=5, copies=2, storage=STORAGE, tier=TIER, seed=1)


def kept_by(monkeypatch: pytest.MonkeyPatch, cluster: ClusterAtHand, nodes: Set[int]) -> None:
    """These nodes let go later than the others: they have a longer `retention_every_s`."""
    engines = [cluster.running[NodeId(node)].engine for node in nodes]
    right = LocalDrops._let_go

    async def let_go(self: LocalDrops, log: int, info: LogInfo) -> None:
        if self._engine not in engines:
            await right(self, log, info)

    swap(monkeypatch, right, let_go)


async def all_read_without(cluster: ClusterAtHand, leaving: Set[int], tail: Lsn) -> None:
    """Stop the drained nodes, and read all records of the log."""
    for node in leaving:
        await cluster.stop(NodeId(node))
    await asyncio.sleep(5)
    async with cluster.client() as store:
        items = await read_all(store, "log", until=tail)
    assert losses(items) == []
    assert sum(isinstance(each, Record) for each in items) == 15


async def two_drains(cluster: ClusterAtHand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes are drained, and the last look of the later one takes long. Main storage loses a
    range meanwhile, of which the third member of the copyset had let go."""
    async with cluster.client() as store:
        await store.create_log("log", attributes=TIERED)
        await write(store, 15)
        tail = await store.tail("log")
    past, earlier, later = await copyset_of(cluster, 1)
    kept_by(monkeypatch, cluster, {earlier, later})
    await until(lambda: cluster.running[past].engine.gone_of(1), timeout_s=200)
    begun, right = asyncio.Event(), DonorLook.look_at_all

    async def look(self: DonorLook, now: Pass, is_old: Callable[[], bool]) -> None:
        entry = now.rebuilding.entry(later)
        is_last = entry is not None and gives_last(now.rebuilding, later)
        if self._me == later and is_last and not begun.is_set():
            begun.set()
            await asyncio.sleep(10)
        await right(self, now, is_old)

    swap(monkeypatch, right, look)
    for node in (earlier, later):
        await order(cluster, node, RebuildOrder.DRAIN, forced=True)
    await begun.wait()
    await asyncio.sleep(5)
    role = cluster.running[past]._rebuild
    assert role.set.entry(earlier).is_empty
    first, last = await lose_objects(cluster, slice(0, 1))
    assert set(await holders(cluster, first, last)) == {earlier, later}
    await until(lambda: role.set.entry(later).is_empty, timeout_s=100)
    await all_read_without(cluster, {earlier, later}, tail)


@pytest.mark.slow
def test_a_later_drain_looks_once_more_when_an_earlier_one_has_ended() -> None:
    """It left its blocks to the other drained node, which was empty by then, and looks no more."""

    def run() -> None:
        with pytest.MonkeyPatch.context() as patched:
            simulate(
                lambda cluster: two_drains(cluster, patched),
                nodes=7, copies=3, storage=ANEW, tier=TIER, seed=1,
            )  # fmt: skip

    run()
    with planted(find_bug("drains-end-in-any-order")), pytest.raises(AssertionError):
        run()


async def a_node_is_silent(cluster: ClusterAtHand, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drained node has looked its last time, and waits in the same pass for a donor that does not
    say whether it lost records. Main storage loses a range meanwhile."""
    async with cluster.client() as store:
        await store.create_log("log", attributes=TIERED)
        await write(store, 15)
        tail = await store.tail("log")
    past, leaving = await copyset_of(cluster, 1)
    silent = max({*cluster.running} - {past, leaving})
    kept_by(monkeypatch, cluster, {leaving})
    await until(lambda: cluster.running[past].engine.gone_of(1), timeout_s=200)
    begun, right = asyncio.Event(), DonorLook.look_at_all

    async def look(self: DonorLook, now: Pass, is_old: Callable[[], bool]) -> None:
        if self._me == leaving and not begun.is_set():
            begun.set()
            await asyncio.sleep(8)  # the other donors are done meanwhile
        await right(self, now, is_old)

    swap(monkeypatch, right, look)
    await order(cluster, leaving, RebuildOrder.DRAIN, forced=True)
    await asyncio.sleep(6)
    cluster.kill(silent)
    await asyncio.sleep(40)
    donor, role = cluster.running[leaving]._rebuild._donor, cluster.running[past]._rebuild
    assert not donor.state().is_looking
    assert f"nodes [{silent}] do not say" in donor.state().blocked
    first, last = await lose_objects(cluster, slice(0, 1))
    assert set(await holders(cluster, first, last)) == {leaving}
    await asyncio.sleep(30)
    await cluster.start(silent)
    await until(lambda: role.set.entry(leaving).is_empty, timeout_s=100)
    await all_read_without(cluster, {leaving}, tail)


@pytest.mark.slow
def test_a_drained_node_that_waited_behind_its_last_look_looks_once_more() -> None:
    def run() -> None:
        with pytest.MonkeyPatch.context() as patched:
            simulate(
                lambda cluster: a_node_is_silent(cluster, patched),
                nodes=6, copies=2, storage=ANEW, tier=TIER, seed=1,
            )  # fmt: skip

    run()
    with planted(find_bug("drained-node-waits-after-look")), pytest.raises(AssertionError):
        run()


async def a_drained_node_is_cut_off(cluster: ClusterAtHand) -> None:
    """A drained node does not reach the metadata store. Its log got `tier=on` since; the member
    before it let go of the log, and main storage lost a range."""
    await asyncio.sleep(10)
    async with cluster.client() as store:
        await store.create_log("log", attributes=LogAttributes())
        await write(store, 15)
        tail = await store.tail("log")
    before, leaving = await copyset_of(cluster, 1)
    cluster.storages[leaving] = replace(STORAGE, retention_every_s=600)
    own = await cluster.start_with_own_way(leaving)
    await asyncio.sleep(5)
    own.is_out = True
    await asyncio.sleep(1)
    async with cluster.client() as store:
        await store.log_tree.set_attributes("log", TIERED)
    await until(lambda: cluster.running[before].engine.gone_of(1), timeout_s=400)
    await asyncio.sleep(5)
    first, last = await lose_objects(cluster, slice(0, 1))
    assert set(await holders(cluster, first, last)) == {leaving}
    await order(cluster, leaving, RebuildOrder.DRAIN, forced=True)
    await asyncio.sleep(30)
    role = cluster.running[before]._rebuild
    assert not role.set.entry(leaving).is_empty
    donor = cluster.running[leaving]._rebuild._donor
    assert "the metadata store did not answer" in donor.state().blocked
    own.is_out = False
    await until(lambda: role.set.entry(leaving).is_empty, timeout_s=100)
    await all_read_without(cluster, {leaving}, tail)


@pytest.mark.slow
def test_a_drained_node_without_the_metadata_store_waits_where_a_member_let_go() -> None:
    """It took the log for one without main storage, as it had read, and left its only copies."""

    def run() -> None:
        simulate(
            a_drained_node_is_cut_off,
            nodes=6, copies=2, storage=STORAGE, tier=TIER, seed=3, replicated_events=True,
        )  # fmt: skip

    run()
    with planted(find_bug("rebuild-by-an-old-tree")), pytest.raises(AssertionError):
        run()


DRAINED = LostNode(3, 1, relocates=True, donors=(1, 2, 3), done=(1, 2))


@pytest.mark.parametrize(
    ("entry", "has_main", "has_waited", "blocks", "is_old"),
    [
        (DRAINED, True, False, 0, False),
        (DRAINED, True, True, 0, True),
        (DRAINED, True, False, 1, True),
        (DRAINED, False, True, 1, False),
        # It looks once more in any case, when the others are done.
        (replace_fields(DRAINED, done=(1,)), True, False, 1, False),
        (replace_fields(DRAINED, done=(1,)), True, True, 0, True),
        # A node that stays keeps its copies.
        (replace_fields(DRAINED, node=2), True, False, 1, False),
    ],
)
def test_a_look_is_old_once_its_pass_took_long(
    entry: LostNode, has_main: bool, has_waited: bool, blocks: int, is_old: bool
) -> None:
    rebuilding = RebuildingSet(1, 1, (entry,))
    made = Pass(rebuilding, Losses.of(rebuilding), has_main=has_main, has_waited=has_waited)
    made.report.blocks = blocks
    assert made.is_look_old(3) == is_old
