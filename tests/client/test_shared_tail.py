"""Readers of one client at one log's tail: one stream feeds them, and nobody waits for anybody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from hypothesis import given
from hypothesis import strategies as st

from cordwood.block import Gap, GapKind, Record
from cordwood.client import shared_tail
from cordwood.client.read_health import HEALTH_S
from cordwood.client.read_stream import ReadStream
from cordwood.client.shared_tail import Seat, SharedTail
from cordwood.client.store import Store
from cordwood.lsn import LSN_MAX, Lsn

MEMBERS = shared_tail.MEMBERS_MIN


class Taker:
    """One reader, and what it was given."""

    def __init__(self, stream: ReadStream) -> None:
        self.stream = stream
        self.items: list[Record | Gap] = []
        self.is_slow = False

    async def run(self) -> None:
        while items := await self.stream.next_items():
            self.items += items
            while self.is_slow:  # noqa: ASYNC110 - the test says when
                await asyncio.sleep(0.05)

    @property
    def values(self) -> list[bytes]:
        return [item.value for item in self.items if isinstance(item, Record)]

    @property
    def is_seated(self) -> bool:
        return self.stream._seat is not None


def asked(cluster: ClusterAtHand) -> int:
    """Streams of readers that the first node sends to."""
    return len(cluster.running[1]._streams.describe())


def simulate_readers(
    scenario: Callable[[ClusterAtHand, Store, list[Taker]], Any], count: int = MEMBERS
) -> None:
    """So many readers at the tail of a log, which has one record by then."""

    async def main(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, asyncio.TaskGroup() as tasks:
            await store.append("log", b"before")
            takers = [Taker(await store.read("log", "tail", None)) for _ in range(count)]
            running = [tasks.create_task(each.run()) for each in takers]
            await append(store, 3)
            await until(lambda: all(len(each.values) == 3 for each in takers))
            await scenario(cluster, store, takers)
            for task in running:
                task.cancel()

    simulate(main)


async def append(store: Store, count: int, size: int = 10) -> None:
    for number in range(count):
        await store.append("log", b"%d" % number + bytes(size))


def test_readers_at_the_tail_share_one_stream_and_each_gets_everything() -> None:
    async def scenario(cluster: ClusterAtHand, store: Store, takers: list[Taker]) -> None:
        assert all(each.is_seated for each in takers)
        assert asked(cluster) == 1, "where it was one for each of them"
        await append(store, 20)
        await until(lambda: all(len(each.values) == 23 for each in takers))
        assert len({tuple(each.values) for each in takers}) == 1
        assert takers[0].stream.is_connected
        assert {view.is_connected for view in takers[0].stream.senders.views()} == {True}

    simulate_readers(scenario)


def test_a_few_read_alone() -> None:
    async def scenario(cluster: ClusterAtHand, store: Store, takers: list[Taker]) -> None:
        assert not any(each.is_seated for each in takers)
        assert asked(cluster) == MEMBERS - 1

    simulate_readers(scenario, MEMBERS - 1)


def test_one_that_is_slow_leaves_and_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_tail, "SEAT_BYTES_MAX", 2000)

    async def scenario(cluster: ClusterAtHand, store: Store, takers: list[Taker]) -> None:
        slow, *others = takers
        slow.is_slow = True
        await append(store, 40, 500)
        await until(lambda: all(len(each.values) == 43 for each in others))
        seat = slow.stream._seat
        assert seat is not None
        assert seat.is_over
        assert len(seat._waiting) < 10, "it holds its share, and nothing more is held for it"
        slow.is_slow = False
        await until(lambda: len(slow.values) == 43)
        assert slow.values == others[0].values
        # At the tail again, it takes a seat again.
        await append(store, 3)
        await until(lambda: slow.is_seated and len(slow.values) == 46)
        assert asked(cluster) == 1

    simulate_readers(scenario)


def test_the_last_to_close_ends_it_and_the_next_ones_begin_anew() -> None:
    async def scenario(cluster: ClusterAtHand, store: Store, takers: list[Taker]) -> None:
        for each in takers[1:]:
            each.stream.close()
        await append(store, 2)
        await until(lambda: len(takers[0].values) == 5)
        assert asked(cluster) == 1
        takers[0].stream.close()
        await until(lambda: asked(cluster) == 0)
        assert store._tails._by_log == {}
        alone = await store.read("log", "tail", None)
        nothing = asyncio.create_task(alone.next())
        await asyncio.sleep(0.1)
        assert store._tails._alone == {1: {alone: None}}
        nothing.cancel()
        alone.close()
        assert store._tails._alone == {}, "who is closed is not remembered"

    async def quietly(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.append("log", b"before")
            takers = [Taker(await store.read("log", "tail", None)) for _ in range(MEMBERS)]
            running = [asyncio.ensure_future(each.run()) for each in takers]
            await append(store, 3)
            await until(lambda: all(len(each.values) == 3 for each in takers))
            await scenario(cluster, store, takers)
            await asyncio.gather(*running, return_exceptions=True)

    simulate(quietly)


def test_all_go_on_through_another_sequencer_and_a_dead_node() -> None:
    async def main(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, asyncio.TaskGroup() as tasks:
            await store.append("log", b"before")
            takers = [Taker(await store.read("log", "tail", None)) for _ in range(MEMBERS)]
            running = [tasks.create_task(each.run()) for each in takers]
            await append(store, 3)
            await until(lambda: all(each.is_seated for each in takers))
            cluster.kill(cluster.sequencer_of(1))
            await asyncio.sleep(5)
            await append(store, 3)
            await until(lambda: all(len(each.values) == 6 for each in takers))
            assert len({tuple(each.items) for each in takers}) == 1
            kinds = {item.kind for item in takers[0].items if isinstance(item, Gap)}
            assert kinds == {GapKind.BRIDGE}
            for task in running:
                task.cancel()

    simulate(main, nodes=5)


def test_a_trouble_is_told_to_all_and_its_end() -> None:
    async def scenario(cluster: ClusterAtHand, store: Store, takers: list[Taker]) -> None:
        said: list[str] = []
        for each in takers:
            each.stream.on_health = lambda stream, trouble: said.append(trouble)
        for number in cluster.numbers:
            cluster.machine(number).pause()
        await asyncio.sleep(2 * HEALTH_S)
        assert len(said) == MEMBERS
        assert all(each.stream.trouble for each in takers)
        said.clear()
        for number in cluster.numbers:
            cluster.machine(number).resume()
        await append(store, 1)
        await until(lambda: all(len(each.values) == 4 for each in takers))
        assert said == [""] * MEMBERS
        assert not any(each.stream.trouble for each in takers)

    simulate_readers(scenario)


def test_a_log_that_is_deleted_ends_for_all() -> None:
    async def scenario(cluster: ClusterAtHand, store: Store, takers: list[Taker]) -> None:
        await store.log_tree.delete("log")
        await until(lambda: all(each.stream.is_done for each in takers))
        for each in takers:
            assert each.items[-1] == Gap(each.items[-1].first, Lsn(LSN_MAX), GapKind.NOT_IN_CONFIG)

    simulate_readers(scenario)


# Whatever is given, taken and joined in whatever order.


class Member:
    """As much of a read stream as a seat needs, and what it took."""

    def __init__(self, next_lsn: int) -> None:
        self.next_lsn = next_lsn
        self.seat: Seat | None = None
        self.told = 0
        self.is_closed = False

    def on_news(self) -> None:
        self.told += 1

    def take(self) -> None:
        assert self.seat is not None
        taken = self.seat.take()
        if taken is not None:
            assert taken.first == self.next_lsn, "what it is given tiles"
            self.next_lsn = taken.last + 1
        elif self.seat.is_over:
            self.seat = None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("give"), st.integers(1, 4)),
        st.tuples(st.just("join"), st.integers(0, 6)),
        st.tuples(st.just("take"), st.integers(0, 6)),
        st.tuples(st.just("leave"), st.integers(0, 6)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(0, 4), st.integers(1, 6))
def test_what_members_take_tiles_and_is_bounded(
    steps: list[tuple[str, int]], recent: int, seats: int
) -> None:
    """Every member stands at a place that was given, and a seat holds no more than its share."""

    async def main() -> None:
        lead = SimpleNamespace(next_lsn=1, on_health=None, batch=None, is_closed=False)
        lead.close = lambda: setattr(lead, "is_closed", True)

        async def next_many(most: int) -> list[Gap]:
            given, lead.batch = lead.batch, None
            return given or []

        lead.next_many = next_many
        tail = SharedTail(lead)
        members: list[Member] = []
        for what, n in steps:
            if what == "give":
                batch = [
                    Gap(Lsn(tail.next + k), Lsn(tail.next + k), GapKind.HOLE) for k in range(n)
                ]
                lead.batch = batch
                seated = [each for each in members if each.seat and not each.seat.is_over]
                told = [each.told for each in seated]
                await tail.run()
                assert [each.told for each in seated] == [before + 1 for before in told]
            elif what == "join":
                member = Member(max(1, tail.next - n))
                member.seat = tail.seat(member)
                if member.seat is not None:
                    members.append(member)
                else:
                    assert n > recent, "it came too late"
            elif members:
                member = members[n % len(members)]
                if member.seat is None:
                    members.remove(member)
                elif what == "take":
                    member.take()
                else:
                    member.seat.leave()
                    members.remove(member)
        for member in members:
            while member.seat is not None and member.next_lsn < tail.next:
                before = member.next_lsn
                member.take()
                if member.next_lsn == before:
                    break
            assert member.seat is None or member.seat.is_over or member.next_lsn == tail.next

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_tail, "RECENT_ITEMS_MAX", recent)
        patch.setattr(shared_tail, "SEAT_ITEMS_MAX", seats)
        asyncio.run(main())
