"""What is handed over is not dealt with yet: readers that are left, broken off, cancelled."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_at_hand import ClusterAtHand, at, numbers, simulate
from embedded_at_hand import open_at
from scenarios import as_scenario
from swaps import swap, swap_value

from cordwood.block import Gap, GapKind, Record
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.client.read.stream_items import StreamItems
from cordwood.errors import Closed, Corrupt, Overloaded, Unreachable
from cordwood.host import loop_thread, waits
from cordwood.layout.message import StreamsReply
from cordwood.protocol.gap_detection import Delivery
from cordwood.storage.push import read_gate, read_streams


class Soft(Exception):
    """A time limit that a signal handler raises."""


@contextmanager
def alarm_after(seconds: float, error: type[BaseException]) -> Iterator[None]:
    """Have a signal handler raise `error` in this thread."""

    def raise_it(*_: object) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, raise_it)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def collected() -> Iterator[None]:
    """Coroutines that an alarm left behind are collected in their own test, not in a later one."""
    yield
    gc.collect()


def node_streams(store: BlockingStore) -> int:
    """Streams that the nodes have."""
    found = 0
    for reply in store.streams().values():
        assert isinstance(reply, StreamsReply)
        found += len(reply.streams)
    return found


def soon(holds: Callable[[], bool]) -> bool:
    """Whether it comes to hold within a few seconds."""
    until = time.monotonic() + 5
    while not holds() and time.monotonic() < until:
        gc.collect()
        time.sleep(0.02)
    return holds()


def take_by_reader(store: BlockingStore) -> Callable[[], list[int]]:
    reader = store.reader("a", start="tail")
    return lambda: numbers(reader.read())


def take_by_loop(store: BlockingStore) -> Callable[[], list[int]]:
    reading = store.read("a", start="tail", until=None)
    return lambda: numbers([next(reading)])


def take_by_reader_loop(store: BlockingStore) -> Callable[[], list[int]]:
    reader = store.reader("a", start="tail")
    return lambda: numbers([next(reader)[1]])


def take_by_blocks(store: BlockingStore) -> Callable[[], list[int]]:
    reading = store.read("a", start="tail", until=None)
    blocks = reading.blocks()
    return lambda: numbers(reading._stream.items_of(next(blocks)))


def take_by_runs(store: BlockingStore) -> Callable[[], list[int]]:
    reading = store.read("a", start="tail", until=None)
    runs = reading.block_runs()
    return lambda: numbers(itertools.chain.from_iterable(map(reading._stream.items_of, next(runs))))


def take_by_arrow(store: BlockingStore) -> Callable[[], list[int]]:
    batches = store.read("a", start="tail", until=None).arrow(["value"])
    return lambda: [int(each) for each in next(batches).column("value").to_pylist()]


def take_by_consumer(store: BlockingStore) -> Callable[[], list[int]]:
    consumer = store.consumer("c", "a", start="tail", save_every_s=None).__enter__()
    return lambda: numbers(consumer.read())


def take_by_consumer_loop(store: BlockingStore) -> Callable[[], list[int]]:
    consumer = store.consumer("c", "a", start="tail", save_every_s=None).__enter__()
    reading = iter(consumer)
    return lambda: numbers([next(reading)[1]])


WAYS = [
    take_by_reader, take_by_loop, take_by_reader_loop, take_by_blocks, take_by_runs,
    take_by_arrow, take_by_consumer, take_by_consumer_loop,
]  # fmt: skip


class TestBrokenOff:
    @pytest.mark.slow
    @pytest.mark.parametrize("error", [Soft, SystemExit, KeyboardInterrupt])
    @pytest.mark.parametrize("way", WAYS)
    def test_what_a_signal_breaks_off_takes_nothing_with_it(
        self, tmp_path: Path, way, error: type[BaseException]
    ) -> None:
        """The call waits at the tail; what is appended next comes by the next calls, all of it."""
        with open_at(tmp_path) as store:
            store.append("a", b"0")
            take = way(store)
            with pytest.raises(error), alarm_after(0.1, error):
                take()
            store.append_many("a", [b"%d" % n for n in range(1, 6)])
            time.sleep(0.1)  # an abandoned call would take them now
            store.append_many("a", [b"%d" % n for n in range(6, 9)])
            found: list[int] = []
            while len(found) < 8:
                found += take()
            assert found == [*range(1, 9)]

    def test_a_signal_that_does_not_end_the_wait_is_seen(self, tmp_path: Path) -> None:
        """It comes right before the wait begins; here, to another thread, which is the same."""
        with open_at(tmp_path) as store:
            store.append("a", b"0")
            reading = store.read("a", start="tail", until=None)

            def ring() -> None:
                time.sleep(0.1)
                signal.pthread_kill(threading.get_ident(), signal.SIGALRM)
                if not seen.wait(3 * waits.LOOK_S):
                    store.append("a", b"late")

            seen = threading.Event()
            ringing = threading.Thread(target=ring)
            with alarm_after(60, Soft):
                ringing.start()
                with pytest.raises(Soft):
                    next(reading)
            seen.set()
            ringing.join()
            assert store.tail("a") == at(1), "nothing had to be appended for it"

    @pytest.mark.slow
    @pytest.mark.parametrize("error", [Soft, KeyboardInterrupt])
    def test_a_call_that_is_broken_off_has_ended(self, error: type[BaseException]) -> None:
        """What it still did on the loop met what its thread had taken and worked on by then."""
        thread = loop_thread.LoopThread("broken off")
        ended = threading.Event()

        async def work() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.05)  # some ticks
                ended.set()

        with pytest.raises(error), alarm_after(0.05, error):
            thread.call(work())
        assert ended.is_set()
        ended.clear()
        with pytest.raises(Unreachable):
            thread.call(work(), timeout_s=0.01)
        assert ended.is_set()
        thread.close()

    # An alarm may hit a weak reference's callback, or a coroutine before it is under way.
    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    @pytest.mark.usefixtures("collected")
    @pytest.mark.parametrize("way", ["loop", "read", "consumer"])
    def test_alarms_at_any_moment_of_a_read(self, tmp_path: Path, way: str) -> None:
        """Alarms hit waits, hops and hand-overs while another thread appends."""
        taken: list[object] = []
        broken, count, left = 0, 0, 0
        got: object = None
        with open_at(tmp_path) as store:
            store.append("a", b"0")
            if way == "loop":
                take = store.read("a", start="tail", until=None).__next__
            elif way == "read":
                take = store.reader("a", start="tail").read
            else:
                consumer = store.consumer("c", "a", start="tail", save_every_s=0.01)
                take = iter(consumer.__enter__()).__next__

            def append(first: int, after: int) -> None:
                for number in range(first, after, 5):
                    store.append_many("a", [b"%d" % n for n in range(number, number + 5)])

            def take_all() -> None:
                """A function of its own: in CPython 3.13 an alarm that meets the jump of a loop may
                pass the `try` around that loop."""
                nonlocal got, left
                while left > 0:
                    got = take()
                    taken.append(got)
                    left -= len(got.records) if way == "read" else 1

            ticks = itertools.count(1)
            # On a fast machine, all records of a portion may be read between two alarms.
            for _ in range(20):
                appending = threading.Thread(target=append, args=(count, count + 3000))
                count, left = count + 3000, 3000
                appending.start()
                while left > 0:
                    got = None
                    try:
                        with alarm_after(0.0003 + next(ticks) % 17 * 0.0002, Soft):
                            take_all()
                    except (Soft, RuntimeError):
                        # `Condition.wait` raises "cannot release un-acquired lock" for it.
                        broken += 1
                        # The alarm may hit this loop between its lines.
                        if got is not None and (not taken or taken[-1] is not got):
                            taken.append(got)
                        left = count - sum(len(x.records) if way == "read" else 1 for x in taken)
                appending.join()
                if broken > 5:
                    break
            assert broken > 5
            if way == "read":
                found = [item for portion in taken for item in portion]
            else:
                found = taken if way == "loop" else [item for _, item in taken]
            assert numbers(found) == [*range(count)]

    def test_blocks_that_come_as_a_call_gives_up_are_not_dropped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A timeout cancels the call on the loop, which may have taken something by then."""
        swap_value(monkeypatch, lambda: loop_thread.LATE_S, 0.0)
        count = 400
        with open_at(tmp_path) as store:
            store.append("a", b"0")
            reading = store.read("a", start="tail", until=None)

            def append() -> None:
                for number in range(count):
                    store.append("a", b"%d" % number)

            appending = threading.Thread(target=append)
            appending.start()
            found: list[int] = []
            given_up = 0
            for tick in itertools.count():
                if len(found) >= count:
                    break
                try:
                    run = next(reading.block_runs(timeout_s=tick % 20 * 0.0002))
                except Unreachable:
                    given_up += 1
                    continue
                found += numbers(itertools.chain.from_iterable(map(reading._stream.items_of, run)))
            appending.join()
            assert given_up > 10
            assert found == [*range(count)]


class TestLeft:
    def test_a_second_loop_goes_on(self, tmp_path: Path) -> None:
        with open_at(tmp_path) as store:
            store.append_many("a", [b"%d" % n for n in range(1, 101)])
            reading = store.read("a")
            assert numbers(itertools.islice(reading, 5)) == [1, 2, 3, 4, 5]
            assert reading.next_lsn == at(5), "what is in hand was not asked past"
            assert len(list(reading)) == 95
            assert reading.next_lsn == at(101)
            reading = store.read("a")
            assert numbers([next(iter(reading))]) == [1]
            assert len(list(reading)) == 99
            reader = store.reader("a", until="tail")
            assert numbers(item for _, item in itertools.islice(reader, 5)) == [1, 2, 3, 4, 5]
            assert reader.position("a") == at(5)
            assert len(list(reader)) == 95
            assert reader.position("a") == at(101)

    def test_a_loop_that_was_left_is_gone_on_with_in_every_other_way(self, tmp_path: Path) -> None:
        with open_at(tmp_path) as store:
            store.append_many("a", [b"%d" % n for n in range(1, 101)])
            for rest in (
                lambda r: [n for each in r.blocks() for n in numbers(r._stream.items_of(each))],
                lambda r: [
                    n for run in r.block_runs() for e in run for n in numbers(r._stream.items_of(e))
                ],
                lambda r: [
                    int(v) for b in r.arrow(["value"]) for v in b.column("value").to_pylist()
                ],
            ):
                reading = store.read("a")
                assert numbers(itertools.islice(reading, 40)) == [*range(1, 41)]
                assert rest(reading) == [*range(41, 101)]

    def test_a_batch_in_hand_is_not_dealt_with(self, tmp_path: Path) -> None:
        with open_at(tmp_path) as store:
            store.append_many("a", [b"%d" % n for n in range(1, 20_001)])
            reading = store.read("a")
            first, second = itertools.islice(reading.arrow(["value"]), 2)
            assert reading.next_lsn == at(first.num_rows + 1)
            left = numbers(reading)
            assert left == [*range(first.num_rows + second.num_rows + 1, 20_001)]

    @as_scenario(simulate)
    async def test_a_cancelled_anext_ends_nothing(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.append("log", b"1")
            stream = await store.read("log", start="tail", until=None)
            reader = await store.reader("log", start="tail")
            async with await store.consumer("c", "log", start="tail") as consumer:
                ways = [aiter(stream), aiter(reader), aiter(consumer), stream.arrow(["value"])]
                for way in ways:
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(anext(way), 0.2)
                await store.append("log", b"2")
                item, (_, read), (_, consumed) = [
                    await asyncio.wait_for(anext(way), 2) for way in ways[:3]
                ]
                assert numbers([item, read, consumed]) == [2, 2, 2]
                await store.append("log", b"3")
                batch = await asyncio.wait_for(anext(ways[3]), 2)
                assert batch.column("value").to_pylist() == [b"3"]

    @as_scenario(simulate)
    async def test_a_loop_that_is_left_in_asyncio_too(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.append_many("log", [b"%d" % n for n in range(1, 101)])
            stream = await store.read("log")
            async for item in stream:
                if item.lsn == at(5):
                    break
            assert stream.next_lsn == at(5)
            assert len([item async for item in stream]) == 95
            assert (stream.next_lsn, stream.is_closed) == (at(101), True)
            stream = await store.read("log")
            await anext(stream)
            stream.close()
            assert stream.next_lsn == at(1)
            with pytest.raises(Closed):
                await anext(stream)


def read_over_and_over(directory: Path, reads: int) -> None:
    """Read a log to its end, eight times `reads` times, in a process of its own. Print the bytes
    that the process holds after each of the eight parts, and the lines whose bytes have grown.

    In a process with other tests, stores that those left would count: what they held before the
    first measurement, and renew between two.
    """
    tracemalloc.start()
    not_measured = (tracemalloc.Filter(inclusive=False, filename_pattern=tracemalloc.__file__),)
    with pytest.MonkeyPatch.context() as monkeypatch, open_at(directory) as store:
        swap_value(monkeypatch, lambda: read_streams.STREAMS_MAX, reads - 50)
        swap_value(monkeypatch, lambda: read_gate.STREAMS_MAX, reads - 50)
        store.append("a", b"x")
        shots = []
        for _ in range(8):
            for _ in range(reads):
                for item in store.read("a", start="oldest", until="tail"):
                    assert isinstance(item, Record)
            assert soon(lambda: node_streams(store) == 0)
            assert not store._inner._streams.by_number
            gc.collect()
            shots.append(tracemalloc.take_snapshot().filter_traces(not_measured))
        tracemalloc.stop()
        store.append("a", b"y")
    sizes = [sum(trace.size for trace in shot.traces) for shot in shots]
    grown = [str(each) for each in shots[-1].compare_to(shots[1], "lineno")[:10]]
    print(json.dumps([sizes, grown]))


class TestEnds:
    @pytest.mark.parametrize("reads", [100, pytest.param(600, marks=pytest.mark.slow)])
    def test_readers_that_came_to_their_end_leave_nothing_behind(
        self, tmp_path: Path, reads: int
    ) -> None:
        """README's loop, for ever: no more memory, no stream left, and no bound is met."""
        script = (
            "import pathlib, sys, test_hand_over\n"
            "test_hand_over.read_over_and_over(pathlib.Path(sys.argv[1]), int(sys.argv[2]))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path), str(reads)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        sizes, grown = json.loads(done.stdout)
        assert max(sizes[2:]) - sizes[1] < reads * 500, "\n".join(map(str, (sizes, *grown)))

    def test_readers_that_nobody_has_any_more_are_closed(self, tmp_path: Path) -> None:
        with open_at(tmp_path) as store:
            store.append_many("a", [b"1", b"2"])
            for n in range(300):
                start = "oldest" if n % 2 else "tail"
                reading = store.read("a", start=start, until=None)
                reader = store.reader("a", start=start)
                if start == "oldest":
                    next(reading)
                    next(reader)
            del reading, reader
            assert soon(lambda: node_streams(store) == 0)
            assert not store._inner._streams.by_number

    def test_one_stream_too_many_is_refused_by_itself(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        swap_value(monkeypatch, lambda: read_streams.STREAMS_MAX, 5)
        swap_value(monkeypatch, lambda: read_gate.STREAMS_MAX, 5)
        with open_at(tmp_path) as store:
            store.append("a", b"1")
            kept = [store.read("a", start="tail", until=None) for _ in range(5)]
            with pytest.raises(Overloaded, match="no room for one more read stream"):
                list(store.read("a"))
            store.append("a", b"2")
            assert [numbers([next(each)]) for each in kept] == [[2]] * 5
            kept.pop().close()
            assert len(list(store.read("a"))) == 2


class TestNames:
    def test_a_log_by_two_spellings_is_one(self, tmp_path: Path) -> None:
        with open_at(tmp_path) as store:
            store.append_many("x", [b"1", b"2"])
            reader = store.reader("x", "/x", until="tail")
            assert numbers(item for _, item in reader) == [1, 2]
            reader = store.reader("x")
            assert reader.position("/x") == at(1) or reader.position("/x") <= at(1)
            reader.seek("/x", at(2))
            assert numbers(reader.read()) == [2]
            reader.stop("/x")
            assert reader.logs == ()


class TestGapsLeftOut:
    def test_a_second_run_of_an_embedded_store_reads_records_only(self, tmp_path: Path) -> None:
        for run in range(1, 4):
            with open_at(tmp_path) as store:
                store.append("orders", b"%d" % run)
        with open_at(tmp_path) as store:
            found = store.read("orders", until="tail", gaps=False)
            assert [item.value for item in found] == [b"1", b"2", b"3"]
            kinds = {item.kind for item in store.read("orders") if isinstance(item, Gap)}
            assert kinds == {GapKind.BRIDGE}


class TestUnopened:
    @as_scenario(simulate)
    async def test_what_cannot_be_opened_is_not_passed(
        self, cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The other logs go on, and the cursor stays before it."""
        async with cluster.client() as store:
            for log in ("a", "b"):
                for first in (1, 11, 21):
                    await store.append_many(log, [b"%d" % n for n in range(first, first + 10)])
            log_id = (await store.log("a")).log_id
            right = StreamItems.items_of

            def items_of(self, taken):
                is_block = isinstance(taken, Delivery) and taken.block.header.log == log_id
                if is_block and taken.first == at(11):
                    raise Corrupt("it cannot be opened")
                return right(self, taken)

            swap(monkeypatch, StreamItems.items_of, items_of)
            found: dict[str, list[int]] = {"/a": [], "/b": []}
            async with await store.consumer("c", "a", "b") as consumer:
                errors = 0
                for _ in range(12):
                    try:
                        portion = await consumer.read(timeout_s=1)
                    except Corrupt:
                        errors += 1
                        continue
                    if portion:
                        found[portion.log] += numbers(portion)
            assert errors == 1
            assert found == {"/a": [*range(1, 11)], "/b": [*range(1, 31)]}
            (group,) = await store.cursors.list("c")
            assert group.positions == {"/a": at(11), "/b": at(31)}
