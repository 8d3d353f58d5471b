"""Runs, cuts and packs: whatever is planned tiles what was asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.errors import UnknownLog
from cordwood.lsn import ESN_MAX, OLDEST, make_lsn
from cordwood.spark.options import Selection
from cordwood.spark.runs import LsnRun, advance, records_in, runs_of
from cordwood.spark.selecting import select
from cordwood.spark.splitting import OPEN_COST_BYTES, PARTITIONS_MAX, Slice, Span, joined, plan

ENDS = {1: make_lsn(1, 101), 2: make_lsn(2, 1), 3: None, 4: make_lsn(4, 51)}
"""Epoch 1 holds 100 records, 2 none, of 3 nobody knows, 4 holds 50; 5 is open."""


def runs(start: int, stop: int) -> list[LsnRun]:
    return runs_of(start, stop, ENDS.__getitem__)


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    found = []
    for log in range(1, draw(st.integers(1, 6)) + 1):
        start = make_lsn(draw(st.integers(1, 5)), draw(st.integers(0, 120)))
        stop = make_lsn(draw(st.integers(start.epoch, 5)), draw(st.integers(0, 120)))
        if start < stop:
            size = draw(st.floats(1, 1 << 20))
            found.append(Span(Slice(log, f"/{log}", start, stop), runs(start, stop), size))
    return found


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 30), st.integers(1, 10)), max_size=8))
def test_joined_slices_have_each_lsn_once(drawn: list[tuple[int, int, int]]) -> None:
    """A lost range inside a file is a slice of its own, also where the source reads the file's."""
    slices = [Slice(log, f"/{log}", start, start + size) for log, start, size in drawn]
    found = joined(slices)
    lsns = [(each.log_id, lsn) for each in found for lsn in range(each.start, each.stop)]
    wanted = {(each.log_id, lsn) for each in slices for lsn in range(each.start, each.stop)}
    assert lsns == sorted(wanted)
    ends = {(each.log_id, each.stop) for each in found}
    assert not ends & {(each.log_id, each.start) for each in found}, "none follows another directly"


class TestRuns:
    def test_are_one_for_each_epoch_that_has_records(self):
        found = runs(OLDEST, make_lsn(5, 11))
        assert found == [
            LsnRun(OLDEST, make_lsn(1, 101)),
            LsnRun(make_lsn(4, 1), make_lsn(4, 51)),
            LsnRun(make_lsn(5, 1), make_lsn(5, 11)),
        ]
        assert records_in(found) == 160

    def test_of_one_epoch_ask_nobody(self):
        def refuse(epoch: int) -> int:
            raise AssertionError(epoch)

        assert runs_of(make_lsn(7, 5), make_lsn(7, 9), refuse) == [
            LsnRun(make_lsn(7, 5), make_lsn(7, 9))
        ]

    def test_begin_no_lower_than_any_record(self):
        assert runs(0, make_lsn(1, 3)) == [LsnRun(OLDEST, make_lsn(1, 3))]
        assert runs(make_lsn(5, 0), make_lsn(5, 3)) == [LsnRun(make_lsn(5, 1), make_lsn(5, 3))]

    @pytest.mark.parametrize(
        ("start", "stop"),
        [
            (make_lsn(1, 101), make_lsn(3, 7 - 7)),
            (make_lsn(1, 500), make_lsn(2, 1)),
            (make_lsn(1, 101), make_lsn(1, 101)),
        ],
    )
    def test_past_an_epochs_end_there_are_none(self, start, stop):
        assert runs(start, stop) == []

    def test_a_whole_epoch_reaches_its_last_esn(self):
        assert runs_of(OLDEST, make_lsn(2, 1), lambda _: make_lsn(1, ESN_MAX)) == [
            LsnRun(OLDEST, make_lsn(1, ESN_MAX))
        ]

    @given(st.integers(0, 160))
    def test_advance_counts_records(self, records):
        found = runs(OLDEST, make_lsn(5, 11))
        place = advance(found, records)
        assert records_in(runs(OLDEST, place)) == records

    def test_advance_stops_before_the_bridge(self):
        assert advance(runs(OLDEST, make_lsn(5, 11)), 100) == make_lsn(1, 101)


class TestPlan:
    @given(spans(), st.integers(1, 1 << 30), st.integers(0, 50))
    def test_tiles_the_spans_in_their_order(self, asked, target, least):
        partitions = plan(asked, target_bytes=target, min_partitions=least)
        assert all(partitions)
        slices = [each for partition in partitions for each in partition]
        assert all(each.start < each.stop for each in slices)
        joined: list[Slice] = []
        for each in slices:
            if joined and (joined[-1].log_id, joined[-1].stop) == (each.log_id, each.start):
                joined[-1] = Slice(each.log_id, each.name, joined[-1].start, each.stop)
            else:
                joined.append(each)
        assert joined == [span.slice for span in asked]

    @given(spans(), st.integers(1, 1 << 30), st.integers(0, 50))
    def test_is_the_same_when_asked_again(self, asked, target, least):
        once = plan(asked, target_bytes=target, min_partitions=least)
        assert plan(list(asked), target_bytes=target, min_partitions=least) == once

    @given(st.integers(1, 10_000), st.integers(1, 64))
    def test_gives_as_many_partitions_as_were_asked_for(self, records, least):
        span = Span(whole(records), [LsnRun(OLDEST, OLDEST + records)], 100.0)
        partitions = plan([span], target_bytes=1 << 30, min_partitions=least)
        assert len(partitions) >= min(least, records)

    def test_gives_no_more_partitions_than_a_driver_bears(self):
        span = Span(whole(10**7), [LsnRun(OLDEST, OLDEST + 10**7)], 100.0)
        for target, least in ((1, 0), (1 << 30, 10**15)):
            partitions = plan([span], target_bytes=target, min_partitions=least)
            assert len(partitions) <= PARTITIONS_MAX + 1

    def test_cuts_evenly(self):
        span = Span(whole(1000), [LsnRun(OLDEST, OLDEST + 1000)], 1000.0)
        partitions = plan([span], target_bytes=250_000, min_partitions=0)
        assert [each.stop - each.start for (each,) in partitions] == [250] * 4

    def test_cuts_across_epochs_by_records_and_not_by_lsns(self):
        stop = make_lsn(5, 11)
        span = Span(Slice(1, "/a", OLDEST, stop), runs(OLDEST, stop), 1000.0)
        partitions = plan([span], target_bytes=80_000, min_partitions=0)
        assert [(each.start, each.stop) for (each,) in partitions] == [
            (OLDEST, make_lsn(1, 81)),
            (make_lsn(1, 81), stop),
        ]

    def test_a_log_below_the_target_stays_whole(self):
        span = Span(whole(1000), [LsnRun(OLDEST, OLDEST + 1000)], 1000.0)
        assert plan([span], target_bytes=1_000_000, min_partitions=0) == [(span.slice,)]

    def test_small_logs_are_packed(self):
        tiny = [
            Span(Slice(log, f"/{log}", OLDEST, OLDEST + 10), [LsnRun(OLDEST, OLDEST + 10)], 100.0)
            for log in range(1, 1001)
        ]
        partitions = plan(tiny, target_bytes=100 * OPEN_COST_BYTES, min_partitions=0)
        assert len(partitions) == pytest.approx(10, abs=1)

    def test_small_logs_are_still_as_many_partitions_as_asked_for(self):
        tiny = [
            Span(Slice(log, f"/{log}", OLDEST, OLDEST + 10), [LsnRun(OLDEST, OLDEST + 10)], 100.0)
            for log in range(1, 21)
        ]
        assert len(plan(tiny, target_bytes=1 << 30, min_partitions=8)) >= 8

    def test_a_range_without_records_is_read_all_the_same(self):
        """What is in it is not known, and only reading tells."""
        empty = Slice(1, "/a", make_lsn(3, 1), make_lsn(4, 0))
        assert plan([Span(empty, [], 1.0)], target_bytes=1, min_partitions=4) == [(empty,)]

    def test_of_nothing_is_nothing(self):
        assert plan([], target_bytes=1, min_partitions=4) == []


class TestSelect:
    logs = {3: "/orders/us", 1: "/orders", 2: "/clicks", 4: "/17", 17: "/x"}  # noqa: RUF012

    @pytest.mark.parametrize(
        ("selection", "found"),
        [
            (Selection("subscribe", ("/orders", "/clicks")), [1, 2]),
            (Selection("subscribe", ("/17",)), [4]),
            (Selection("assign", ("17", "/17")), [4, 17]),
            (Selection("subscribePattern", pattern="/orders.*"), [1, 3]),
            (Selection("subscribePattern", pattern="/orders"), [1]),
            (Selection("subscribePattern", pattern="orders"), []),
            (Selection("subscribePattern", pattern="(?!/orders).*"), [2, 4, 17]),
        ],
    )
    def test_finds_logs_in_the_order_of_their_numbers(self, selection, found):
        assert list(select(selection, self.logs)) == found

    def test_a_log_that_is_not_there_is_named_with_those_that_are(self):
        with pytest.raises(UnknownLog, match=r"no log /ordres; there are /17, /clicks"):
            select(Selection("subscribe", ("/ordres", "/orders")), self.logs)


def whole(records: int) -> Slice:
    return Slice(1, "/a", OLDEST, OLDEST + records)
