"""Readers of one client at one log's tail: one stream feeds them, and nobody waits for anybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from hypothesis import given
from hypothesis import strategies as st
from scenarios import as_scenario
from swaps import swap, swap_value

from cordwood.block import Gap, GapKind, Record
from cordwood.client.read import shared_tail
from cordwood.client.read.read_health import HEALTH_S
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.read.shared_tail import Leftovers, SharedTail, SharedTails, SubscriberQueue
from cordwood.client.store import Store
from cordwood.errors import Closed
from cordwood.lsn import LSN_MAX, Lsn
from cordwood.protocol.gap_detection import Delivery
from cordwood.protocol.read_budget import ReadBudget

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
    def is_subscribed(self) -> bool:
        return self.stream._queue is not None

    @property
    def is_fed(self) -> bool:
        return self.stream._queue is not None and not self.stream._queue.is_over


def asked(cluster: ClusterAtHand) -> int:
    """Streams of readers that the first node sends to."""
    return len(cluster.running[1]._streams.describe())


Join = Callable[..., Awaitable[Taker]]
"""One more reader: from `start`, a word or an LSN, "tail" unless told."""


@asynccontextmanager
async def at_the_tail(
    cluster: ClusterAtHand, count: int = MEMBERS, **settings: Any
) -> AsyncIterator[tuple[Store, list[Taker], Join]]:
    """A client with so many readers at the tail of a log that has one record, until the end."""
    async with cluster.client(**settings) as store, asyncio.TaskGroup() as tasks:
        running: list[asyncio.Task[None]] = []

        async def join(start: str | int = "tail") -> Taker:
            taker = Taker(await store.read("log", start, None))
            running.append(tasks.create_task(taker.run()))
            return taker

        await store.append("log", b"before")
        yield store, [await join() for _ in range(count)], join
        for task in running:
            task.cancel()


def simulate_readers(
    scenario: Callable[[ClusterAtHand, Store, list[Taker]], Any], count: int = MEMBERS
) -> None:
    """So many readers at the tail of a log, which has one record by then."""

    async def main(cluster: ClusterAtHand) -> None:
        async with at_the_tail(cluster, count) as (store, takers, _):
            await append(store, 3)
            await until(lambda: all(len(each.values) == 3 for each in takers))
            await scenario(cluster, store, takers)

    simulate(main)


async def append(store: Store, count: int, size: int = 10) -> None:
    for number in range(count):
        await store.append("log", b"%d" % number + bytes(size))


@as_scenario(simulate_readers)
async def test_readers_at_the_tail_share_one_stream_and_each_gets_everything(
    cluster: ClusterAtHand, store: Store, takers: list[Taker]
) -> None:
    assert all(each.is_subscribed for each in takers)
    assert asked(cluster) == 1, "where it was one for each of them"
    await append(store, 20)
    await until(lambda: all(len(each.values) == 23 for each in takers))
    assert len({tuple(each.values) for each in takers}) == 1
    assert takers[0].stream.is_connected
    assert {view.is_connected for view in takers[0].stream.senders.views()} == {True}


def test_a_few_read_alone() -> None:
    async def scenario(cluster: ClusterAtHand, store: Store, takers: list[Taker]) -> None:
        assert not any(each.is_subscribed for each in takers)
        assert asked(cluster) == MEMBERS - 1

    simulate_readers(scenario, MEMBERS - 1)


def test_one_that_is_slow_leaves_and_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_value(monkeypatch, lambda: shared_tail.QUEUE_BYTES_MAX, 2000)

    async def scenario(cluster: ClusterAtHand, store: Store, takers: list[Taker]) -> None:
        slow, *others = takers
        slow.is_slow = True
        await append(store, 40, 500)
        await until(lambda: all(len(each.values) == 43 for each in others))
        queue = slow.stream._queue
        assert queue is not None
        assert queue.is_over
        assert len(queue._waiting) < 10, "it holds its share, and nothing more is held for it"
        slow.is_slow = False
        await until(lambda: len(slow.values) == 43)
        assert slow.values == others[0].values
        # At the tail again, it subscribes again.
        await append(store, 3)
        await until(lambda: slow.is_subscribed and len(slow.values) == 46)
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


@as_scenario(simulate, nodes=5)
async def test_all_go_on_through_another_sequencer_and_a_dead_node(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store, asyncio.TaskGroup() as tasks:
        await store.append("log", b"before")
        takers = [Taker(await store.read("log", "tail", None)) for _ in range(MEMBERS)]
        running = [tasks.create_task(each.run()) for each in takers]
        await append(store, 3)
        await until(lambda: all(each.is_subscribed for each in takers))
        cluster.kill(cluster.sequencer_of(1))
        await asyncio.sleep(5)
        await append(store, 3)
        await until(lambda: all(len(each.values) == 6 for each in takers))
        assert len({tuple(each.items) for each in takers}) == 1
        kinds = {item.kind for item in takers[0].items if isinstance(item, Gap)}
        assert kinds == {GapKind.BRIDGE}
        for task in running:
            task.cancel()


@as_scenario(simulate_readers)
async def test_a_trouble_is_told_to_all_and_its_end(
    cluster: ClusterAtHand, store: Store, takers: list[Taker]
) -> None:
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


@as_scenario(simulate_readers)
async def test_a_log_that_is_deleted_ends_for_all(
    cluster: ClusterAtHand, store: Store, takers: list[Taker]
) -> None:
    await store.log_tree.delete("log")
    await until(lambda: all(each.stream.is_done for each in takers))
    for each in takers:
        assert each.items[-1] == Gap(each.items[-1].first, Lsn(LSN_MAX), GapKind.NOT_IN_CONFIG)


@as_scenario(simulate)
async def test_one_whose_health_callback_fails_is_the_only_one_that_does(
    cluster: ClusterAtHand,
) -> None:
    failures: list[Exception] = []

    async def read(stream: ReadStream) -> None:
        try:
            while await stream.next_items():
                pass
        except ValueError as error:
            failures.append(error)

    def fail(stream: ReadStream, trouble: str) -> None:
        raise ValueError("the user's own")

    told: list[str] = []
    async with cluster.client() as store:
        await store.append("log", b"before")
        streams = [await store.read("log", "tail", None) for _ in range(MEMBERS)]
        running = [asyncio.ensure_future(read(each)) for each in streams]
        await append(store, 3)
        await until(lambda: all(each._queue is not None for each in streams))
        streams[0].on_health = fail
        for each in streams[1:]:
            each.on_health = lambda stream, trouble: told.append(trouble)
        for number in cluster.numbers:
            cluster.machine(number).pause()
        await asyncio.sleep(2 * HEALTH_S)
        for number in cluster.numbers:
            cluster.machine(number).resume()
        await append(store, 1)
        assert len(failures) == 1
        assert len([why for why in told if why]) == MEMBERS - 1
        for task in running:
            task.cancel()


@as_scenario(simulate)
async def test_one_that_is_cut_off_is_told_in_time_whoever_comes_meanwhile(
    cluster: ClusterAtHand,
) -> None:
    """An eighth that comes does not start the clocks of the other seven anew."""
    async with at_the_tail(cluster, MEMBERS - 1) as (_, takers, join):
        await asyncio.sleep(1)
        for number in cluster.numbers:
            cluster.kill(number)
        told: list[float] = []
        loop = asyncio.get_running_loop()
        killed_at = loop.time()
        for each in takers:
            each.stream.on_health = lambda stream, trouble: told.append(loop.time() - killed_at)
        await asyncio.sleep(HEALTH_S - 1)
        await join(takers[0].stream.taken_lsn)
        await asyncio.sleep(3)
        assert len(told) == MEMBERS - 1
        assert max(told) < HEALTH_S + 0.5


@as_scenario(simulate)
async def test_one_from_far_back_holds_nobody(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaders: list[int] = []
    real = SharedTail.__init__

    def told(self: SharedTail, leader: ReadStream, *rest: Any) -> None:
        leaders.append(leader.taken_lsn)
        real(self, leader, *rest)

    swap(monkeypatch, SharedTail.__init__, told)
    async with at_the_tail(cluster, 0) as (store, takers, join):
        await append(store, 50)
        tail = await store.tail("log")
        takers += [await join() for _ in range(MEMBERS - 1)]
        await asyncio.sleep(1)
        takers.append(await join("oldest"))
        await until(lambda: len(takers[-1].values) == 51)
        await append(store, 5)
        await until(lambda: all(each.is_subscribed for each in takers))
        assert len(leaders) == 1
        assert leaders[0] > tail


def test_a_leader_that_ended_is_kept_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_value(monkeypatch, lambda: shared_tail.QUEUE_BYTES_MAX, 2000)

    async def scenario(cluster: ClusterAtHand, store: Store, takers: list[Taker]) -> None:
        appended = 3
        for _ in range(5):
            for each in takers:
                each.is_slow = True
            await append(store, 20, 500)
            appended += 20
            for each in takers:
                each.is_slow = False
            await until(lambda n=appended: all(len(each.values) == n for each in takers))
            await append(store, 2)
            appended += 2
            await until(lambda: all(each.is_fed for each in takers))
        assert len(store._streams.by_number) == MEMBERS + 1
        assert not any(each.is_closed for each in store._streams.by_number.values())
        for each in takers:
            each.stream.close()
        assert store._streams.by_number == {}
        await until(lambda: store._budget.free == store._budget.limit)

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


def test_what_slow_ones_have_waiting_is_in_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that stop at different places would each hold other blocks."""
    swap_value(monkeypatch, lambda: shared_tail.QUEUE_BYTES_MAX, 400_000)
    swap_value(monkeypatch, lambda: shared_tail.RECENT_BYTES_MAX, 100_000)
    limit, size = 1_500_000, 50_000

    async def main(cluster: ClusterAtHand) -> None:
        settings = {"read_memory_bytes": limit, "read_bytes": 100_000}
        async with at_the_tail(cluster, 2 * MEMBERS, **settings) as (store, takers, _):
            await append(store, 3)
            await until(lambda: all(each.is_subscribed for each in takers))
            for each in takers[:-1]:
                each.is_slow = True
                await append(store, 10, size)
            blocks = {
                item.block
                for each in takers
                if each.stream._queue is not None
                for item in each.stream._queue._waiting
                if isinstance(item, Delivery)
            }
            assert 0 < sum(block.size for block in blocks) <= limit
            assert store._budget.free >= 0
            for each in takers:
                each.is_slow = False
            await until(lambda: all(len(each.values) == len(takers[-1].values) for each in takers))
            assert {tuple(each.values) for each in takers} == {tuple(takers[-1].values)}

    simulate(main)


def test_where_there_is_no_room_at_all_everybody_comes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 12000014: each give was too much for a queue, was let go of, and was given anew."""
    swap_value(monkeypatch, lambda: shared_tail.QUEUE_ITEMS_MAX, 2)

    async def main(cluster: ClusterAtHand) -> None:
        settings = {"read_memory_bytes": 4096, "block_records": 1}
        async with at_the_tail(cluster, **settings) as (store, takers, _):
            for _ in range(20):
                await store.append_many("log", [bytes(500)] * 20)
            await until(lambda: all(len(each.values) == 400 for each in takers))

    simulate(main)


@as_scenario(simulate, nodes=7)
async def test_a_subscriber_queue_shows_what_a_lone_reader_does(cluster: ClusterAtHand) -> None:
    """Its log by the name that it was opened by, the last bridge, and whether it is connected."""
    async with cluster.client() as store, asyncio.TaskGroup() as tasks:
        await store.append("first", b"before")
        early = Taker(await store.read("first", "tail", None))
        await store.log_tree.rename("first", "log")
        running = [tasks.create_task(early.run())]
        await asyncio.sleep(1)
        cluster.kill(cluster.sequencer_of(1))
        await asyncio.sleep(5)
        await append(store, 1)
        await until(lambda: len(early.values) == 1)
        bridge = early.stream.bridge
        assert bridge is not None
        takers = [Taker(await store.read("log", "tail", None)) for _ in range(MEMBERS - 1)]
        running += [tasks.create_task(each.run()) for each in takers]
        await append(store, 1)
        await until(lambda: early.is_subscribed and all(each.is_subscribed for each in takers))
        assert early.stream.bridge == bridge
        assert all(each.stream.is_connected for each in takers)
        assert {each.stream.info.name for each in takers} == {"/log"}
        cluster.kill(cluster.sequencer_of(1))
        await asyncio.sleep(5)
        await append(store, 1)
        await until(lambda: len(early.values) == 3)
        await until(lambda: all(each.stream.is_connected for each in takers))
        for tail in store._tails._by_log.values():
            tail.leader.close()
        await append(store, 1)
        await until(lambda: len(early.values) == 4)
        assert {each.stream.info.name for each in takers} == {"/log"}
        assert early.stream.bridge is not None
        assert early.stream.bridge > bridge
        for task in running:
            task.cancel()


@as_scenario(simulate)
async def test_reads_under_way_end_with_the_client(cluster: ClusterAtHand) -> None:
    tried = asyncio.Event()

    async def wait_tried(nodes: Any, *, timeout_s: float) -> None:
        await tried.wait()

    async def read(store: Store) -> None:
        stream = await store.read("log", "oldest", None)
        while await stream.next_items():
            pass

    async with asyncio.timeout(60), cluster.client() as store:
        await store.append("log", b"before")
        peers = store._cluster.peers
        patch = pytest.MonkeyPatch()
        patch.setattr(type(peers), "wait_tried", lambda self, *a, **k: wait_tried(*a, **k))
        reading = [asyncio.ensure_future(read(store)) for _ in range(MEMBERS)]
        await asyncio.sleep(0.1)
        patch.undo()
        close = store._cluster.close

        async def close_later() -> None:
            tried.set()
            await close()

        store._cluster.close = close_later
    ends = await asyncio.gather(*reading, return_exceptions=True)
    assert {type(end) for end in ends} == {Closed}


# A leader that is left behind.


class Leader:
    """A stream that gives what it is told to."""

    def __init__(self, next_lsn: int) -> None:
        self.taken_lsn = next_lsn
        self.info: Any = SimpleNamespace(log_id=1)
        self.on_health: Any = None
        self.trouble = ""
        self.is_closed = False
        self.asked: list[tuple[int, int]] = []
        self._given: asyncio.Queue[list[Any]] = asyncio.Queue()

    def give(self, items: list[Any]) -> None:
        self.taken_lsn = items[-1].last + 1
        self._given.put_nowait(items)

    async def next_many(self, bytes_max: int, items_max: int) -> list[Any]:
        self.asked.append((bytes_max, items_max))
        if self.is_closed:
            raise Closed("closed")
        return await self._given.get()

    def close(self) -> None:
        self.is_closed = True
        self._given.put_nowait([])


def hole(first: int, last: int) -> Gap:
    return Gap(Lsn(first), Lsn(last), GapKind.HOLE)


async def settled() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


def test_those_who_wait_further_on_take_a_leader_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swap_value(monkeypatch, lambda: shared_tail.BEHIND_S, 0.05)

    async def main() -> None:
        budget = ReadBudget(1 << 30)
        leaders: list[Leader] = []

        def open_leader(info: Any, start: int) -> Any:
            leaders.append(Leader(start))
            return leaders[-1]

        async with asyncio.TaskGroup() as tasks:
            tails = SharedTails(open_leader, lambda stream: 0, tasks, budget)

            def join(member: Member) -> None:
                member.queue = tails.join(cast(Any, member))

            back = [Member(10) for _ in range(MEMBERS)]
            for member in back:
                join(member)
            for member in back[:-1]:
                assert member.told == 1, "the last one made the leader, and they are to join it"
                join(member)
            further = [Member(1000) for _ in range(MEMBERS)]
            for member in further:
                join(member)
            assert len(leaders) == 1, "it is a turn behind for all they know"
            leaders[0].give([hole(10, 19)])
            await settled()
            assert [member.told for member in further] == [0] * MEMBERS, "it is not there yet"
            await asyncio.sleep(0.06)
            # One that is further on than the leader, and not so far as the others, draws nobody.
            short = Member(500)
            join(short)
            assert len(leaders) == 1
            join(further[0])
            assert [leader.taken_lsn for leader in leaders] == [20, 1000]
            for member in further[1:]:
                assert member.told == 1
                join(member)
            assert all(member.queue and member.queue.leader is leaders[1] for member in further)
            leaders[1].give([hole(1000, 1009)])
            leaders[0].give([hole(20, 999)])
            await settled()
            assert not leaders[0].is_closed, "the other one is further on"
            leaders[0].give([hole(1000, 1009)])
            await settled()
            assert leaders[0].is_closed
            for member in back:
                while member.queue is not None:
                    member.take()
                assert member.taken_lsn == 1010
                join(member)
                assert member.queue is not None
                assert member.queue.leader is leaders[1]
            share = shared_tail.QUEUE_BYTES_MAX // 4, shared_tail.QUEUE_ITEMS_MAX // 4
            assert {most for leader in leaders for most in leader.asked} == {share}
            for member in (*back, *further):
                assert member.queue is not None
                member.queue.leave()
        assert budget.free == budget.limit
        assert tails._by_log == {}

    asyncio.run(main())


# Whatever is given, taken and joined in whatever order.


class Member:
    """As much of a read stream as a queue needs, and what it took."""

    def __init__(self, next_lsn: int) -> None:
        self.taken_lsn = next_lsn
        self.info = SimpleNamespace(log_id=1)
        self.queue: SubscriberQueue | None = None
        self.told = 0
        self.is_closed = False

    def on_news(self) -> None:
        self.told += 1

    def take(self) -> None:
        assert self.queue is not None
        taken = self.queue.take()
        if taken is not None:
            assert taken.first == self.taken_lsn, "what it is given tiles"
            self.taken_lsn = taken.last + 1
        elif self.queue.is_over:
            self.queue = None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("give"), st.integers(1, 4)),
        st.tuples(st.just("join"), st.integers(0, 6)),
        st.tuples(st.just("take"), st.integers(0, 6)),
        st.tuples(st.just("leave"), st.integers(0, 6)),
    ),
    max_size=60,
)


class Block:
    """As much of a block as is counted."""

    def __init__(self, size: int) -> None:
        self.size = size


@given(STEPS, st.integers(0, 4), st.integers(1, 6), st.integers(1, 30))
def test_what_members_take_tiles_and_is_bounded(
    steps: list[tuple[str, int]], recent: int, queues: int, limit: int
) -> None:
    """Every member stands at a place that was given, a queue holds no more than its share, and
    what all of them hold is in the budget, each block once."""

    async def main() -> None:
        leader: Any = SimpleNamespace(taken_lsn=1, on_health=None, batch=None, is_closed=False)
        leader.close = lambda: setattr(leader, "is_closed", True)

        async def next_many(bytes_max: int, items_max: int) -> list[Any]:
            given, leader.batch = leader.batch, None
            return given or []

        leader.next_many = next_many
        budget = ReadBudget(limit)
        leftovers = Leftovers(budget)
        tail = SharedTail(leader, budget, leftovers)
        members: list[Member] = []

        def left_over() -> int:
            over = [each.queue for each in members if each.queue is not None and each.queue.is_over]
            held = {cast(Any, item).block for queue in over for item in queue._waiting}
            return sum(cast(int, block.size) for block in held)

        for what, n in steps:
            if what == "give":
                leader.batch = [Delivery(Block(1), tail.next + k, tail.next + k) for k in range(n)]
                subscribed = [each for each in members if each.queue and not each.queue.is_over]
                told = [each.told for each in subscribed]
                await tail.run()
                assert [each.told for each in subscribed] == [before + 1 for before in told]
            elif what == "join":
                member = Member(max(1, tail.next - n))
                member.queue = tail.subscribe(cast(Any, member))
                if member.queue is not None:
                    members.append(member)
                else:
                    # Of what the budget has, a fifth is for the recent ones: 1 at the least.
                    assert n > min(recent, 2 if limit >= 20 else 1), "it came too late"
            elif members:
                member = members[n % len(members)]
                if member.queue is None:
                    members.remove(member)
                elif what == "take":
                    member.take()
                else:
                    member.queue.leave()
                    members.remove(member)
            assert limit - budget.free == tail._reserved + left_over()
        tail.end()
        assert limit - budget.free == left_over()
        for member in members:
            while member.queue is not None:
                member.take()
        assert budget.free == limit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_tail, "RECENT_ITEMS_MAX", recent)
        patch.setattr(shared_tail, "QUEUE_ITEMS_MAX", queues)
        patch.setattr(shared_tail, "FLOOR_BYTES", 5)
        patch.setattr(shared_tail, "QUEUE_BYTES_MAX", 8)
        patch.setattr(shared_tail, "RECENT_BYTES_MAX", 2)
        asyncio.run(main())
