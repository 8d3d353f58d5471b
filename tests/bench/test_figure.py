"""Medians, ratios and percentiles: what is reported of a measurement."""

from __future__ import annotations

import pytest

from cordwood.bench.figure import Sample, make_figure, percentile_ms
from cordwood.errors import BadSetting


def figure(*samples: Sample):
    return make_figure("f", "x/s", samples, reference_is="a stone", parameters={"size": 1})


class TestFigure:
    def test_it_is_the_median_of_values_references_and_ratios(self):
        made = figure(Sample(10, 100), Sample(30, 60), Sample(20, 50))
        assert (made.value, made.reference, made.ratio) == (20, 60, 0.4)
        assert made.repeats == 3

    def test_one_slow_repeat_does_not_count(self):
        assert figure(Sample(100, 100), Sample(1, 100), Sample(102, 100)).value == 100

    def test_latencies_are_medians_where_there_are_any(self):
        made = figure(Sample(1, 1, 2.0, 9.0), Sample(1, 1, 4.0, 5.0), Sample(1, 1, 3.0, 7.0))
        assert (made.p50_ms, made.p99_ms) == (3.0, 7.0)
        assert figure(Sample(1, 1)).p50_ms is None

    def test_no_more_digits_than_were_measured(self):
        assert figure(Sample(123_456.789, 3)).value == 123_500

    def test_no_repeats_are_no_figure(self):
        with pytest.raises(BadSetting, match="at least one repeat"):
            figure()


class TestPercentile:
    @pytest.mark.parametrize(
        ("share", "rank"), [(0.5, 50), (0.99, 99), (0.991, 100), (1.0, 100), (0.001, 1)]
    )
    def test_it_is_the_nearest_rank(self, share: float, rank: int):
        seconds = [number / 1000 for number in range(1, 101)]
        assert percentile_ms(seconds, share) == rank

    def test_of_one(self):
        assert percentile_ms([0.25], 0.99) == 250
