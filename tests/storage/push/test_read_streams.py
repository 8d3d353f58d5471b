"""Push streams: what is sent, in which bounds, and how streams share a connection."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from made_blocks import LOG, at, block, run
from scenarios import as_scenario
from stream_ends import ReaderEnd, pumped
from swaps import swap_value

from cordwood.block import BlockKind, EnvelopeFlag
from cordwood.errors import Overloaded
from cordwood.layout.frame import Kind
from cordwood.layout.reading import (
    BlocksHead,
    OneCopy,
    ReadRequest,
    ReadStatus,
    read_reading,
    read_shared_frame,
)
from cordwood.lsn import ESN_MAX, LSN_MAX
from cordwood.nodes import NodeId
from cordwood.protocol.single_copy import Shuffle
from cordwood.storage.log_cache import LogCache
from cordwood.storage.log_reader import LogReader
from cordwood.storage.push import read_streams
from cordwood.storage.push.read_streams import BATCH_BYTES, ReadStreams

ALL = ReadRequest(
    stream=1, log=LOG, start=at(1), until=LSN_MAX, window_high=LSN_MAX, bytes_limit=1 << 40
)
BLOCK = block(at(1))
"""One of the blocks that `cache_of` puts in; all have its size."""


def cache_of(*esns: int, released: int | None = None, body: bytes = b"ten bytes!") -> LogCache:
    """Blocks of one record; everything is released unless told."""
    cache = LogCache()
    for esn in esns:
        cache.log(LOG).insert(block(at(esn), body))
    cache.log(LOG).release(at(max(esns, default=0)) if released is None else released)
    return cache


class Sent:
    """The frames of one stream, told apart."""

    def __init__(self, end: ReaderEnd) -> None:
        found = end.blocks()
        self.firsts = [each.header.first & ESN_MAX for _, blocks in found for each in blocks]
        self.next = found[-1][0].next if found else None
        self.frames = len(found)


class TestTrimmed:
    @as_scenario(run)
    async def test_a_reader_below_the_trim_point_is_told_at_once_whatever_its_window(self) -> None:
        cache, end = cache_of(1, 2, 5), ReaderEnd()
        cache.log(LOG).trim_to(at(4))
        streams = ReadStreams(LogReader(cache))
        streams.start(end.connection, replace(ALL, window_high=at(2)))
        await pumped()
        assert end.blocks() == [(BlocksHead(1, 0, at(5), at(5), at(4)), [])]
        streams.move_window(end.connection, 1, LSN_MAX, 1 << 40)
        await pumped()
        ((head, blocks),) = end.blocks()
        assert (head.trim, [each.header.first for each in blocks]) == (at(4), [at(5)])

    @as_scenario(run)
    async def test_a_reader_that_waits_is_told_of_a_trim_past_it(self) -> None:
        cache, end = cache_of(1, 2, 5), ReaderEnd()
        streams = ReadStreams(LogReader(cache))
        streams.start(end.connection, replace(ALL, window_high=at(1)))
        await pumped()
        assert [head.next for head, _ in end.blocks()] == [at(2)]
        cache.log(LOG).trim_to(at(4))
        streams.on_change(LOG)
        streams.on_change(LOG)
        await pumped()
        assert [head for head, _ in end.blocks()] == [BlocksHead(1, 0, at(5), at(5), at(4))]


class TestWhatIsSent:
    @as_scenario(run)
    async def test_a_stream_is_answered_then_sends_all_that_is_released_and_how_far_it_came(
        self,
    ) -> None:
        cache, end = cache_of(1, 2, 5, 9, released=at(5)), ReaderEnd()
        ReadStreams(LogReader(cache)).start(end.connection, ALL)
        await pumped()
        frames = end.frames()
        assert [each.kind for each in frames] == [Kind.READING, Kind.BLOCKS]
        assert read_reading(frames[0].payload) == (1, ReadStatus.OK, at(5), 0, 0)
        end._taken = 0
        ((head, blocks),) = end.blocks()
        assert head == BlocksHead(1, 3, at(6), at(5))
        assert [each.header.first for each in blocks] == [at(1), at(2), at(5)]

    @pytest.mark.parametrize(
        ("changes", "firsts", "marker"),
        [
            ({}, [1, 4, 7], 9),
            ({"start": at(2)}, [1, 4, 7], 9),  # inside the first block
            ({"start": at(3)}, [4, 7], 9),
            ({"until": at(4)}, [1, 4], 6),  # inside the second one: it goes whole
            ({"until": at(3)}, [1], 4),
            ({"window_high": at(6)}, [1, 4], 7),
            ({"window_high": at(1)}, [1], 3),
            ({"start": at(7), "until": at(8)}, [7], 9),
            ({"start": at(9), "until": at(20)}, [], None),  # not released yet
            ({"start": at(5), "until": at(2)}, [], None),
            ({"window_high": at(0)}, [], None),
        ],
    )
    @as_scenario(run)
    async def test_bounds(self, *, changes, firsts, marker: int | None) -> None:
        """Blocks of two records at 1, 4 and 7; released up to 8."""
        cache, end = LogCache(), ReaderEnd()
        for esn in (1, 4, 7, 10):
            cache.log(LOG).insert(block(at(esn), count=2))
        cache.log(LOG).release(at(8))
        ReadStreams(LogReader(cache)).start(end.connection, replace(ALL, **changes))
        await pumped()
        sent = Sent(end)
        assert sent.firsts == firsts
        assert sent.next == (at(marker) if marker is not None else None)

    @as_scenario(run)
    async def test_a_marker_comes_without_blocks_where_the_node_holds_none(self) -> None:
        cache, end = cache_of(3, released=at(10)), ReaderEnd()
        streams = ReadStreams(LogReader(cache))
        streams.start(end.connection, replace(ALL, start=at(4)))
        streams.start(end.connection, replace(ALL, stream=2, log=77))
        await pumped()
        assert [(head.stream, head.blocks, head.next) for head, _ in end.blocks()] == [
            (1, 0, at(11))
        ]

    @as_scenario(run)
    async def test_what_is_released_later_is_sent_then(self) -> None:
        cache, end = cache_of(1, 2, released=at(1)), ReaderEnd()
        streams = ReadStreams(LogReader(cache))
        streams.start(end.connection, ALL)
        await pumped()
        assert end.firsts() == [at(1)]
        cache.log(LOG).insert(block(at(3)))
        cache.log(LOG).release(at(3))
        streams.on_change(LOG)
        streams.on_change(LOG + 1)
        await pumped()
        assert end.firsts() == [at(2), at(3)]

    @as_scenario(run)
    async def test_a_log_that_is_written_to_for_the_first_time_reaches_who_waits_for_it(
        self,
    ) -> None:
        cache, end = LogCache(), ReaderEnd()
        streams = ReadStreams(LogReader(cache))
        streams.start(end.connection, ALL)
        await pumped()
        assert end.readings() == [(1, ReadStatus.OK, 0)]
        cache.log(LOG).insert(block(at(1)))
        cache.log(LOG).release(at(1))
        streams.on_change(LOG)
        await pumped()
        assert end.firsts() == [at(1)]

    @as_scenario(run)
    async def test_a_digest_sends_what_is_not_released_too(self) -> None:
        cache, end = cache_of(1, 2, 6, released=at(1)), ReaderEnd()
        cache.log(LOG).insert(block(at(7), kind=BlockKind.BRIDGE, seal=2))
        cache.log(LOG).insert(block(at(1, epoch=2)))
        until = at(ESN_MAX)
        request = replace(ALL, start=at(2), until=until, window_high=until, digest=True)
        ReadStreams(LogReader(cache)).start(end.connection, request)
        await pumped()
        sent = Sent(end)
        assert (sent.firsts, sent.next) == ([2, 6, 7], until + 1)


def held_by(*copysets: tuple[int, ...], kind: BlockKind = BlockKind.DATA) -> LogCache:
    """Blocks of one record, one for each copyset; all are released."""
    cache = LogCache()
    for esn, copyset in enumerate(copysets, 1):
        made = block(at(esn), kind=kind)
        cache.log(LOG).insert(replace(made, envelope=replace(made.envelope, copyset=copyset)))
    cache.log(LOG).release(at(len(copysets)))
    return cache


class TestSingleCopies:
    @pytest.mark.parametrize(
        ("asked", "firsts"),
        [
            (None, [1, 2, 3, 4]),
            (OneCopy(), [1]),
            (OneCopy(known_down=(2,)), [1, 2]),
            (OneCopy(known_down=(2, 3)), [1, 2, 3]),
            (OneCopy(known_down=(1,)), [1]),  # told that it is down, and here it is
            (OneCopy(known_down=(1, 2, 3, 4, 5)), [1, 2, 3, 4]),
            (OneCopy(region="eu"), [1, 2, 3, 4]),
            (OneCopy(region="us"), []),
            (OneCopy(region="mars"), [1]),
            (OneCopy(copies=2), [1, 3, 4]),
        ],
    )
    @as_scenario(run)
    async def test_node_1_sends_what_is_its_to_send(self, *, asked, firsts) -> None:
        cache = held_by((1, 2, 4), (2, 1, 4), (3, 2, 1), (4, 5, 1))
        end, streams = (
            ReaderEnd(),
            ReadStreams(LogReader(cache), NodeId(1), lambda name: LOCAL[name]),
        )
        streams.start(end.connection, replace(ALL, one_copy=asked))
        await pumped()
        sent = Sent(end)
        assert sent.firsts == firsts
        assert sent.next == at(5), "what others send it has passed too"
        assert streams.sent_blocks == len(firsts)
        assert streams.filtered_blocks == 4 - len(firsts)

    @as_scenario(run)
    async def test_plugs_and_bridges_come_from_everybody_drained_copies_from_nobody(self) -> None:
        cache = held_by((2, 1), (2, 1), kind=BlockKind.HOLE)
        drained = block(at(3))
        envelope = replace(drained.envelope, copyset=(1, 2), flags=EnvelopeFlag.DRAINED)
        cache.log(LOG).insert(replace(drained, envelope=envelope))
        cache.log(LOG).release(at(3))
        end, streams = ReaderEnd(), ReadStreams(LogReader(cache), NodeId(1))
        streams.start(end.connection, replace(ALL, one_copy=OneCopy()))
        await pumped()
        assert Sent(end).firsts == [1, 2]
        streams.start(end.connection, replace(ALL, stream=2))
        await pumped()
        assert Sent(end).firsts == [1, 2, 3]

    @as_scenario(run)
    async def test_of_three_nodes_just_one_sends_each_block(self) -> None:
        """With three copies each byte leaves a disk once, and three times where all send."""
        sets = list(permutations((1, 2, 3)))
        nodes = [ReadStreams(LogReader(held_by(*sets * 20)), NodeId(n)) for n in (1, 2, 3)]
        for shuffle in Shuffle:
            before = sum(each.sent_bytes for each in nodes)
            for streams in nodes:
                asked = OneCopy(int(shuffle), seed=5)
                streams.start(ReaderEnd().connection, replace(ALL, one_copy=asked))
            await pumped()
            assert sum(each.sent_bytes for each in nodes) - before == 120 * BLOCK.wire_bytes

    def test_copysets_remembered_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        swap_value(monkeypatch, lambda: read_streams.CHOICES_MAX, 2)

        async def scenario() -> None:
            sets = list(permutations((1, 2, 3)))
            end, streams = ReaderEnd(), ReadStreams(LogReader(held_by(*sets)), NodeId(1))
            streams.start(end.connection, replace(ALL, one_copy=OneCopy()))
            await pumped()
            assert Sent(end).firsts == [1, 2]

        run(scenario)

    @as_scenario(run)
    async def test_an_answer_names_the_version_that_it_obeys(self) -> None:
        end, streams = ReaderEnd(), ReadStreams(LogReader(cache_of(1)))
        for version in (1, 7):
            streams.start(end.connection, replace(ALL, version=version))
        await pumped()
        found = [read_reading(each.payload) for each in end.frames()
                 if each.kind == Kind.READING]  # fmt: skip
        assert [version for *_, version, _ in found] == [1, 7]


LOCAL = {"eu": frozenset({1, 6}), "us": frozenset({2, 5}), "mars": frozenset()}


class TestWindows:
    @as_scenario(run)
    async def test_the_window_moves_forwards_only(self) -> None:
        cache, end = cache_of(*range(1, 10)), ReaderEnd()
        streams = ReadStreams(LogReader(cache))
        streams.start(end.connection, replace(ALL, window_high=at(3)))
        await pumped()
        assert Sent(end).firsts == [1, 2, 3]
        streams.move_window(end.connection, 1, at(2), 0)
        await pumped()
        assert end.frames() == []
        streams.move_window(end.connection, 1, at(5), 0)
        await pumped()
        sent = Sent(end)
        assert (sent.firsts, sent.next) == ([4, 5], at(6))
        streams.move_window(end.connection, 99, at(9), 0)

    @pytest.mark.parametrize(("changes", "marker"), [
        ({}, at(900)),
        ({"until": at(500)}, at(501)),
        ({"digest": True}, at(51)),
    ])  # fmt: skip
    @as_scenario(run)
    async def test_behind_an_empty_window_it_tells_where_the_next_block_is(
        self, *, changes, marker
    ) -> None:
        cache, end = cache_of(1, 2, 900, 901), ReaderEnd()
        streams = ReadStreams(LogReader(cache))
        streams.start(end.connection, replace(ALL, window_high=at(2), **changes))
        await pumped()
        assert Sent(end).next == at(3), "there was something in this one"
        streams.move_window(end.connection, 1, at(50), 0)
        await pumped()
        sent = Sent(end)
        assert (sent.firsts, sent.next) == ([], marker)

    @as_scenario(run)
    async def test_behind_an_empty_window_nothing_is_said_of_what_is_not_released(self) -> None:
        cache, end = cache_of(1, 2, 900, released=at(40)), ReaderEnd()
        streams = ReadStreams(LogReader(cache))
        streams.start(end.connection, replace(ALL, start=at(3), window_high=at(30)))
        await pumped()
        assert Sent(end).next == at(41)

    @as_scenario(run)
    async def test_byte_credit_is_a_total_that_the_last_block_may_overstep(self) -> None:
        cache, end = cache_of(*range(1, 10)), ReaderEnd()
        streams = ReadStreams(LogReader(cache))
        size = BLOCK.wire_bytes
        streams.start(end.connection, replace(ALL, bytes_limit=2 * size + 1))
        await pumped()
        sent = Sent(end)
        assert (sent.firsts, sent.next) == ([1, 2, 3], at(4))
        streams.move_window(end.connection, 1, LSN_MAX, 3 * size)
        await pumped()
        assert end.frames() == []
        streams.move_window(end.connection, 1, LSN_MAX, 3 * size + 1)
        await pumped()
        assert Sent(end).firsts == [4]
        streams.move_window(end.connection, 1, LSN_MAX, 1 << 40)
        await pumped()
        sent = Sent(end)
        assert (sent.firsts, sent.next) == ([5, 6, 7, 8, 9], at(10))

    @as_scenario(run)
    async def test_no_credit_at_all_still_tells_of_an_empty_range(self) -> None:
        cache, end = cache_of(5, released=at(5)), ReaderEnd()
        streams = ReadStreams(LogReader(cache))
        streams.start(end.connection, replace(ALL, bytes_limit=0, until=at(3)))
        await pumped()
        assert [head.next for head, _ in end.blocks()] == [at(4)]

    @as_scenario(run)
    async def test_a_block_larger_than_the_credit_comes_all_the_same(self) -> None:
        cache, end = cache_of(1, 2, body=bytes(100_000)), ReaderEnd()
        ReadStreams(LogReader(cache)).start(end.connection, replace(ALL, bytes_limit=10))
        await pumped()
        assert Sent(end).firsts == [1]


class TestBatches:
    @as_scenario(run)
    async def test_a_batch_ends_after_a_megabyte_and_goes_on_next_turn(self) -> None:
        body = bytes(BATCH_BYTES // 4)
        cache, end = cache_of(*range(1, 11), body=body), ReaderEnd()
        ReadStreams(LogReader(cache)).start(end.connection, ALL)
        await pumped()
        found = end.blocks()
        assert [head.blocks for head, _ in found] == [4, 4, 2]
        assert [head.next for head, _ in found] == [at(5), at(9), at(11)]

    def test_a_batch_ends_after_so_many_tiny_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        swap_value(monkeypatch, lambda: read_streams.BATCH_BLOCKS, 3)

        async def scenario() -> None:
            cache, end = cache_of(*range(1, 9)), ReaderEnd()
            ReadStreams(LogReader(cache)).start(end.connection, ALL)
            await pumped()
            assert [head.blocks for head, _ in end.blocks()] == [3, 3, 2]

        run(scenario)

    @as_scenario(run)
    async def test_streams_take_turns_a_batch_each(self) -> None:
        body = bytes(BATCH_BYTES)
        cache, end = cache_of(1, 2, 3, body=body), ReaderEnd()
        streams = ReadStreams(LogReader(cache))
        for number in (1, 2):
            streams.start(end.connection, replace(ALL, stream=number))
        await pumped()
        assert [head.stream for head, _ in end.blocks()] == [1, 2] * 3

    @as_scenario(run)
    async def test_a_slow_reader_holds_one_batch_and_disturbs_nobody(self) -> None:
        body = bytes(BATCH_BYTES // 2)
        cache, slow, quick = cache_of(*range(1, 11), body=body), ReaderEnd(), ReaderEnd()
        streams = ReadStreams(LogReader(cache))
        slow.transport.is_slow = True
        streams.start(slow.connection, ALL)
        streams.start(quick.connection, ALL)
        await pumped()
        assert quick.firsts() == [at(esn) for esn in range(1, 11)]
        assert slow.firsts() == [at(1), at(2)]
        await pumped()
        assert slow.frames() == []
        slow.transport.drain()
        await pumped()
        assert slow.firsts() == [at(3), at(4)]
        slow.transport.is_slow = False
        slow.transport.drain()
        await pumped()
        assert slow.firsts() == [at(esn) for esn in range(5, 11)]

    def test_many_streams_of_a_slow_reader_hold_about_one_batch_and_take_turns(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each used to send one: a client that read 256 logs at once had 256 MiB queued in one
        turn, and was cut off as one that does not read."""
        batch = 128 << 10
        swap_value(monkeypatch, lambda: read_streams.BATCH_BYTES, batch)

        async def scenario() -> None:
            cache, end = LogCache(), ReaderEnd()
            streams = ReadStreams(LogReader(cache))
            end.transport.is_slow = True
            for number in range(30):
                log = cache.log(100 + number)
                for esn in (1, 2):
                    log.insert(block(at(esn), bytes(batch), log=100 + number))
                log.release(at(2))
                streams.start(end.connection, replace(ALL, stream=number, log=100 + number))
            for _ in range(10):
                await pumped()
                assert 0 < end.transport.waiting_bytes < 2 * batch
                end.transport.drain()
            end.transport.is_slow = False
            end.transport.drain()
            await pumped(300)
            sent = [head.stream for head, blocks in end.blocks() for _ in blocks]
            assert sent == [*range(30), *range(30)]

        run(scenario)


class TestShared:
    """Streams that stand at one place are sent the same frame."""

    @as_scenario(run)
    async def test_streams_of_one_client_share_a_frame(self) -> None:
        cache, end = cache_of(1, 2), ReaderEnd()
        streams = ReadStreams(LogReader(cache))
        for number in (1, 2, 7):
            streams.start(end.connection, replace(ALL, stream=number))
        await pumped()
        (shared,) = [each for each in end.frames() if each.kind == Kind.SHARED]
        numbers, head, blocks = read_shared_frame(shared.payload)
        assert numbers == (1, 2, 7)
        assert (head.next, head.released, len(blocks)) == (at(3), at(2), 2)
        assert streams.sent_blocks == 6
        assert streams.sent_bytes == sum(each.wire_bytes for each in blocks)

    @as_scenario(run)
    async def test_clients_get_a_frame_each_with_a_right_checksum(self) -> None:
        cache, ends = cache_of(1, 2), [ReaderEnd(), ReaderEnd(), ReaderEnd()]
        streams = ReadStreams(LogReader(cache))
        for number, end in enumerate(ends):
            streams.start(end.connection, replace(ALL, stream=number))
        streams.start(ends[0].connection, replace(ALL, stream=9))
        await pumped()
        found = [sorted(head.stream for head, _ in end.blocks()) for end in ends]
        assert found == [[0, 9], [1], [2]]

    @as_scenario(run)
    async def test_what_differs_is_sent_apart(self) -> None:
        """Another place, another window's end, another rule: none of them joins the first."""
        cache, end = cache_of(1, 2, 3), ReaderEnd()
        streams = ReadStreams(LogReader(cache), me=NodeId(1))
        others = (
            replace(ALL, stream=2, start=at(2)),
            replace(ALL, stream=3, window_high=at(1)),
            replace(ALL, stream=4, one_copy=OneCopy(known_down=(2, 3))),
            replace(ALL, stream=5, heads_only=True),
            replace(ALL, stream=6, bytes_limit=1),
        )
        for request in (ALL, *others):
            streams.start(end.connection, request)
        await pumped()
        frames = end.frames()
        assert Kind.SHARED not in [each.kind for each in frames]
        end._taken = 0
        sent = {head.stream: [b.header.first for b in blocks] for head, blocks in end.blocks()}
        assert sent == {
            1: [at(1), at(2), at(3)], 2: [at(2), at(3)], 3: [at(1)],
            4: [at(1), at(2), at(3)], 6: [at(1)],
        }  # fmt: skip

    @as_scenario(run)
    async def test_one_with_little_credit_holds_up_nobody(self) -> None:
        cache, end = cache_of(1, 2, 3), ReaderEnd()
        streams = ReadStreams(LogReader(cache))
        streams.start(end.connection, replace(ALL, stream=2, bytes_limit=1))
        streams.start(end.connection, replace(ALL, stream=1))
        streams.start(end.connection, replace(ALL, stream=3))
        await pumped()
        sent: dict[int, list[int]] = {}
        for head, blocks in end.blocks():
            sent.setdefault(head.stream, []).extend(b.header.first for b in blocks)
        assert sent == {2: [at(1)], 1: [at(1), at(2), at(3)], 3: [at(1), at(2), at(3)]}


class TestLife:
    @as_scenario(run)
    async def test_a_stopped_stream_sends_nothing_more_even_from_the_queue(self) -> None:
        cache, end = cache_of(1, 2), ReaderEnd()
        streams = ReadStreams(LogReader(cache))
        streams.start(end.connection, ALL)
        streams.start(end.connection, replace(ALL, stream=2))
        streams.stop(end.connection, 1)
        streams.stop(end.connection, 55)
        await pumped()
        assert {head.stream for head, _ in end.blocks()} == {2}
        cache.log(LOG).insert(block(at(3)))
        cache.log(LOG).release(at(3))
        streams.on_change(LOG)
        await pumped()
        assert {head.stream for head, _ in end.blocks()} == {2}

    @as_scenario(run)
    async def test_a_stream_of_the_same_number_takes_the_place_of_the_old_one(self) -> None:
        cache, end = cache_of(1, 2, 3), ReaderEnd()
        streams = ReadStreams(LogReader(cache))
        streams.start(end.connection, ALL)
        streams.start(end.connection, replace(ALL, start=at(3)))
        await pumped()
        frames = end.frames()
        assert [each.kind for each in frames] == [Kind.READING, Kind.READING, Kind.BLOCKS]
        end._taken = 0
        assert Sent(end).firsts == [3]

    @as_scenario(run)
    async def test_numbers_belong_to_their_connection(self) -> None:
        cache, one, two = cache_of(1), ReaderEnd(), ReaderEnd()
        streams = ReadStreams(LogReader(cache))
        for end in (one, two):
            streams.start(end.connection, ALL)
        streams.stop(one.connection, 1)
        await pumped()
        assert (one.firsts(), two.firsts()) == ([], [at(1)])

    @as_scenario(run)
    async def test_a_lost_connection_takes_its_streams_along(self) -> None:
        cache, one, two = cache_of(1), ReaderEnd(), ReaderEnd()
        streams = ReadStreams(LogReader(cache))
        for end in (one, two):
            streams.start(end.connection, ALL)
        streams.drop_connection(one.connection)
        streams.drop_connection(one.connection)
        await pumped()
        assert (one.firsts(), two.firsts()) == ([], [at(1)])
        streams.drop_connection(two.connection)
        streams.on_change(LOG)

    def test_streams_on_one_connection_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        swap_value(monkeypatch, lambda: read_streams.STREAMS_MAX, 3)

        async def scenario() -> None:
            streams, end = ReadStreams(LogReader(cache_of(1))), ReaderEnd()
            for number in range(3):
                streams.start(end.connection, replace(ALL, stream=number))
            streams.start(end.connection, replace(ALL, stream=2))
            with pytest.raises(Overloaded, match="more than 3 read streams"):
                streams.start(end.connection, replace(ALL, stream=3))
            streams.stop(end.connection, 0)
            streams.start(end.connection, replace(ALL, stream=3))

        run(scenario)
