"""A stream's offsets: one text each, never back, and the same range whenever asked."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.block import GapKind
from cordwood.errors import BadSetting
from cordwood.lsn import LSN_MAX, OLDEST, make_lsn
from cordwood.spark.bounds import batch_ranges, check_any, initial_places, stream_stops
from cordwood.spark.offsets import (
    KnownOffsets,
    StreamOffset,
    check_cluster,
    data_loss,
    move_on,
    parse_offset,
    ranges,
    share_out,
)
from cordwood.spark.options import SERVERS, parse_options

log_ids = st.integers(1, 2**62 - 1)
lsns = st.integers(OLDEST, LSN_MAX)
places = st.dictionaries(log_ids, lsns, max_size=6)
offsets = st.builds(
    StreamOffset, st.text("0123456789abcdef", min_size=1), places, places, st.just(False)
) | st.builds(StreamOffset, st.just("c1"), places, is_initial=st.just(True))
sets = st.frozensets(log_ids, max_size=3)
names = st.none() | st.dictionaries(st.text(), log_ids, max_size=3)


def at(esn: int, epoch: int = 1) -> int:
    return make_lsn(epoch, esn)


def initial(**logs: int) -> StreamOffset:
    return StreamOffset("c1", numbered(logs), is_initial=True)


def offset(**logs: int) -> StreamOffset:
    return StreamOffset("c1", numbered(logs))


def numbered(logs: dict[str, int]) -> dict[int, int]:
    """`l17=…` is log 17."""
    return {int(name[1:]): lsn for name, lsn in logs.items()}


class TestJson:
    def test_is_the_text_of_the_specification(self):
        written = StreamOffset(
            "c1", {23: make_lsn(9, 12), 17: make_lsn(7, 4096)}, {17: make_lsn(7, 0)}
        )
        assert json.dumps(written.to_json(), separators=(",", ":")) == (
            '{"cluster":"c1","from":{"17":"e7n0"},"logs":{"17":"e7n4096","23":"e9n12"},"v":1}'
        )

    def test_of_the_initial_offset(self):
        assert json.dumps(initial(l2=at(5)).to_json(), separators=(",", ":")) == (
            '{"cluster":"c1","init":true,"logs":{"2":"e1n5"},"v":1}'
        )

    @given(offsets, sets, names)
    def test_is_canonical_and_comes_back(self, written, away, names):
        written = dataclasses.replace(written, away=away, names=names)
        text = json.dumps(written.to_json())
        assert text == json.dumps(json.loads(text), sort_keys=True)
        assert parse_offset(json.loads(text)) == written
        assert json.dumps(parse_offset(json.loads(text)).to_json()) == text

    @given(offsets)
    def test_holds_no_number_that_javascript_would_round(self, written):
        text = json.dumps(written.to_json())
        assert [int(each) for each in re.findall(r": (\d+)", text)] == [1]

    @pytest.mark.parametrize(
        "stored",
        [
            {},
            {"offset": 5},
            {"v": 1, "cluster": "c", "logs": [1]},
            {"v": 1, "cluster": "c", "logs": {"orders": "e1n1"}},
            {"v": 1, "cluster": "c", "logs": {"1": "soon"}},
            {"v": 1, "cluster": "c", "logs": {"1": 7}},
            {"v": 1, "cluster": "c", "logs": {}, "away": ["orders"]},
            {"v": 1, "cluster": "c", "logs": {}, "away": 7},
            {"v": 1, "cluster": "c", "logs": {}, "names": ["/a"]},
            {"v": 1, "cluster": "c", "logs": {}, "names": {"/a": "/b"}},
        ],
    )
    def test_of_another_source_is_refused(self, stored):
        with pytest.raises(BadSetting, match="did not write"):
            parse_offset(stored)

    def test_of_a_later_version_is_refused(self):
        with pytest.raises(BadSetting, match="version 2"):
            parse_offset({"v": 2, "anything": "else"})

    def test_of_another_cluster_is_refused(self):
        check_cluster(offset().cluster, "c1")
        with pytest.raises(BadSetting, match="belongs to cluster c1, and this one is c2"):
            check_cluster(offset().cluster, "c2")


class TestMoveOn:
    @given(offsets)
    def test_nothing_new_is_the_start_itself(self, start):
        assert move_on(start, {}) is start
        assert move_on(start, dict(start.logs)) is start

    @given(offsets, places)
    def test_never_goes_back(self, start, stops):
        moved = move_on(start, stops)
        for log, lsn in start.logs.items():
            assert moved.logs[log] == max(lsn, stops.get(log, 0))

    def test_batch_0_tells_where_every_log_began(self):
        moved = move_on(initial(l1=at(5), l2=at(9)), {1: at(8)})
        assert moved == StreamOffset("c1", {1: at(8), 2: at(9)}, {1: at(5), 2: at(9)})

    def test_a_discovered_log_begins_at_its_oldest_record(self):
        moved = move_on(offset(l1=at(5)), {1: at(7), 3: at(4)})
        assert moved == StreamOffset("c1", {1: at(7), 3: at(4)}, {3: OLDEST})

    def test_the_next_offset_forgets_where_logs_began(self):
        first = move_on(initial(l1=at(5)), {1: at(8)})
        assert move_on(first, {1: at(9)}) == offset(l1=at(9))

    def test_a_log_that_is_selected_no_more_keeps_its_place(self):
        moved = move_on(offset(l1=at(5), l2=at(6)), {2: at(7)})
        assert moved.logs == {1: at(5), 2: at(7)}

    def test_a_log_that_is_away_keeps_its_place_and_need_not_be_there(self):
        start = offset(l1=at(5), l2=at(6))
        moved = move_on(start, {}, frozenset({2}))
        assert (moved.logs, moved.to_find()) == (start.logs, {1: at(5)})
        assert ranges(start, moved) == {}
        assert move_on(moved, {}, frozenset({2})) is moved
        back = move_on(moved, {2: at(9)})
        assert ranges(moved, back) == {2: (at(6), at(9))}
        assert back.to_find() == back.logs

    def test_names_that_lead_elsewhere_are_news(self):
        moved = move_on(offset(l1=at(5)), {}, names={"/a": 1})
        assert (moved.logs, moved.names) == ({1: at(5)}, {"/a": 1})
        assert ranges(offset(l1=at(5)), moved) == {}
        assert move_on(moved, {}, names={"/a": 1}) is moved
        assert move_on(moved, {}, names={"/a": 2}).names == {"/a": 2}


class TestRanges:
    @given(offsets, places)
    def test_are_what_moved(self, start, stops):
        end = move_on(start, stops)
        began = {**dict.fromkeys(end.logs, int(OLDEST)), **start.logs}
        wanted = {log: (began[log], stop) for log, stop in end.logs.items() if began[log] < stop}
        assert ranges(start, end) == (wanted if end is not start else {})

    @given(places, places, places)
    def test_batch_0_is_the_same_wherever_latest_is_now(self, then, now, stops):
        """It crashed, and the initial offset was asked for again."""
        end = move_on(StreamOffset("c1", then, is_initial=True), stops)
        again = StreamOffset("c1", now, is_initial=True)
        assert ranges(again, end) == ranges(StreamOffset("c1", then, is_initial=True), end)

    def test_the_digests_crash_in_batch_0(self):
        end = move_on(initial(l1=at(500)), {1: at(540)})
        for latest in (500, 540, 570):
            assert ranges(initial(l1=at(latest)), end) == {1: (at(500), at(540))}
        assert ranges(end, move_on(end, {1: at(600)})) == {1: (at(540), at(600))}

    def test_an_initial_end_is_an_empty_batch(self):
        assert ranges(initial(l1=at(5)), initial(l1=at(9))) == {}

    def test_a_log_that_the_end_discovered_is_read_whole_again_and_again(self):
        start = offset(l1=at(5))
        end = move_on(start, {3: at(4)})
        assert ranges(start, end) == {3: (OLDEST, at(4))}

    @pytest.mark.parametrize(
        ("start", "end"),
        [
            (offset(l1=at(9)), offset(l1=at(5))),
            (offset(), offset(l1=at(5))),
            (initial(l1=at(1)), offset(l1=at(5))),
            (StreamOffset("c2", {1: at(1)}), offset(l1=at(5))),
        ],
    )
    def test_a_pair_that_is_none_is_refused(self, start, end):
        with pytest.raises(BadSetting):
            ranges(start, end)


class TestShareOut:
    backlogs = st.dictionaries(log_ids, st.integers(1, 10**9), min_size=1, max_size=20)

    @given(st.integers(1, 10**9), backlogs, st.integers(0, 10**6))
    def test_gives_out_the_limit_and_no_log_more_than_it_has(self, limit, backlog, turn):
        shares = share_out(limit, backlog, turn)
        assert sum(shares.values()) == min(limit, sum(backlog.values()))
        assert all(1 <= share <= backlog[log] for log, share in shares.items())
        if limit >= len(backlog):
            assert shares.keys() == backlog.keys()

    @given(st.integers(1, 19), backlogs)
    def test_every_log_has_its_turn(self, limit, backlog):
        turns = range(-(-len(backlog) // limit) * 2)
        seen = {log for turn in turns for log in share_out(limit, backlog, turn)}
        assert seen == set(backlog)

    def test_a_large_backlog_gets_more(self):
        assert share_out(100, {1: 900, 2: 90, 3: 10}, 0) == {1: 88, 2: 10, 3: 2}


class TestDataLoss:
    def test_the_first_line_is_for_machines(self):
        error = data_loss(17, "/orders", make_lsn(7, 100), make_lsn(7, 250), GapKind.TRIM.name)
        assert str(error).splitlines()[0] == (
            "CORDWOOD_DATA_LOSS log=17 requested=e7n100 oldest=e7n250 type=TRIM"
        )
        assert "failOnDataLoss=false" in str(error)

    def test_of_a_log_that_is_gone(self):
        assert "oldest=none type=LOG_GONE" in str(data_loss(1, "log 1", OLDEST, None, "LOG_GONE"))


class TestBounds:
    logs = {1: "/a", 2: "/b"}  # noqa: RUF012
    tails = {1: at(10), 2: at(0, epoch=3)}  # noqa: RUF012

    def options(self, **more: str):
        return parse_options({SERVERS: "h:1", "subscribe": "a,b", **more})

    def test_a_batch_reads_all_there_is(self):
        assert batch_ranges(self.options(), self.logs, self.tails) == {
            1: (OLDEST, at(11)),
            2: (OLDEST, at(1, epoch=3)),
        }

    def test_a_batch_reads_from_and_to_where_it_is_told(self):
        options = self.options(startingOffsets='{"a":"e1n3"}', endingOffsets='{"a":"e1n5"}')
        assert batch_ranges(options, self.logs, self.tails)[1] == (at(3), at(5))

    def test_nothing_to_read_is_no_range(self):
        options = self.options(startingOffsets='{"a":"e1n11","b":"e3n1"}')
        assert batch_ranges(options, self.logs, self.tails) == {}

    @pytest.mark.parametrize(
        ("starts", "ends", "said"),
        [
            ('{"a":"e1n12"}', "latest", "startingOffsets: /a ends before e1n11"),
            ("earliest", '{"a":"e1n12"}', "endingOffsets: /a ends before e1n11"),
            ('{"a":"e1n5"}', '{"a":"e1n4"}', "e1n5 of /a is after endingOffsets e1n4"),
            ('{"c":"e1n5"}', "latest", "startingOffsets names /c"),
            ("earliest", '{"c":"e1n5"}', "endingOffsets names /c"),
        ],
    )
    def test_a_place_outside_its_log_is_refused(self, starts: str, ends: str, said: str):
        options = self.options(startingOffsets=starts, endingOffsets=ends)
        with pytest.raises(BadSetting, match=re.escape(said)):
            batch_ranges(options, self.logs, self.tails)

    def test_an_end_beyond_the_log_is_clipped_where_loss_is_allowed(self):
        options = self.options(endingOffsets='{"a":"e1n99"}', failOnDataLoss="false")
        assert batch_ranges(options, self.logs, self.tails)[1] == (OLDEST, at(11))

    def test_a_stream_starts_at_latest_unless_told(self):
        assert initial_places(self.options(), self.logs, self.tails) == {
            1: at(11),
            2: at(1, epoch=3),
        }
        options = self.options(startingOffsets='{"a":"e1n3","2":"latest"}')
        assert initial_places(options, self.logs, self.tails) == {1: at(3), 2: at(1, epoch=3)}
        with pytest.raises(BadSetting, match="/a ends before e1n11"):
            initial_places(self.options(startingOffsets='{"a":"e9n1"}'), self.logs, self.tails)

    def test_a_stream_stops_at_its_end_and_waits_for_one_that_is_to_come(self):
        assert stream_stops(self.options(), self.logs, self.tails) == {
            1: at(11),
            2: at(1, epoch=3),
        }
        options = self.options(endingOffsets='{"a":"e1n7","b":"e3n9"}')
        assert stream_stops(options, self.logs, self.tails) == {1: at(7), 2: at(1, epoch=3)}

    def test_a_pattern_without_a_log_names_the_logs(self):
        options = parse_options({SERVERS: "h:1", "subscribePattern": "a.*"})
        with pytest.raises(BadSetting, match=r"'a\.\*' matches no log .* there are /a, /b"):
            check_any(options, {}, self.logs)


class TestKnownOffsets:
    def test_say_what_offsets_say_themselves(self):
        known = KnownOffsets()
        now = StreamOffset("c", {2: 5, 10: 7, 1: 9}, {2: 1})
        for stops in ({2: 8}, {}, {10: 9, 1: 30}, {3: 4}, {3: 6, 2: 9}):
            assert known.to_json(now) == now.to_json()
            assert json.dumps(known.to_json(now)) == json.dumps(now.to_json())
            again = known.parse(json.loads(json.dumps(now.to_json())))
            assert again is now
            now = move_on(now, stops)

    def test_say_the_names_of_each_offset(self):
        known = KnownOffsets()
        now = StreamOffset("c", {1: 9, 2: 5}, names={"/b": 2})
        changes = ({"/b": 2}, {"/b": 2, "/a": 1}, None, {"/b": 1}, {})
        for turn, named in enumerate(changes):
            assert json.dumps(known.to_json(now)) == json.dumps(now.to_json())
            now = move_on(now, {1: 10 + turn}, names=named)

    def test_read_what_they_have_not_seen(self):
        offset = StreamOffset("c", {1: 2}, {}, is_initial=True)
        known = KnownOffsets()
        assert known.parse(offset.to_json()) == offset
        assert known.to_json(move_on(offset, {1: 9})) == move_on(offset, {1: 9}).to_json()

    def test_tasks_are_sent_none_of_it(self):
        known = KnownOffsets()
        known.to_json(StreamOffset("c", dict.fromkeys(range(1, 1000), 5)))
        assert len(pickle.dumps(known)) < 200
