"""What is measured when options leave something open, and how large a cluster that takes."""

from __future__ import annotations

import pytest

from cordwood.bench import append, read
from cordwood.bench.append import SINGLES, custom_profile
from cordwood.bench.append_loops import AppendRun, client_settings
from cordwood.bench.place import bench_shape
from cordwood.errors import BadSetting
from cordwood.settings import MIB


class TestAppendProfiles:
    def test_the_standard_ones_are_those_of_the_issue(self):
        singles, blocks, records = append.STANDARD
        assert (singles.size, singles.in_flight, singles.batch) == (256, 2048, 0)
        assert (blocks.size * blocks.batch, blocks.in_flight) == (65_536, 16)
        assert (records.size * records.batch, records.unit) == (131_072, "records/s")
        assert records.value(AppendRun(seconds=2.0, records=1000, latencies_s=[])) == 500
        assert records.per_bytes(2560.0) == 10

    def test_options_alone_decide_what_they_name(self):
        made = custom_profile(100, None, None, 5, None)
        assert (made.size, made.in_flight, made.batch, made.records) == (100, 2048, 0, 5)
        made = custom_profile(None, None, 10, None, 2.5)
        assert (made.size, made.in_flight, made.batch, made.seconds) == (1024, 16, 10, 2.5)

    def test_a_repeat_of_seconds_has_room_for_what_it_may_append(self):
        made = custom_profile(1024, 1, None, None, 2.0)
        assert made.records * 1024 == pytest.approx(2.0 * append.PLANNED_BYTES_PER_S, rel=0.01)

    @pytest.mark.parametrize(
        "options", [(256, 0, None, 1), (256, 1, 70_000, 1), (1 << 20, 1, 5, 1), (256, 1, None, 0)]
    )
    def test_what_cannot_be_is_refused(self, options):
        with pytest.raises(BadSetting):
            custom_profile(*options, None)

    def test_units(self):
        run = AppendRun(seconds=2.0, records=1000, latencies_s=[])
        assert custom_profile(500, 1, None, 1, None).value(run) == 500
        assert custom_profile(500, 1, 2, 1, None).value(run) == 0.25
        assert SINGLES.per_bytes(2560.0) == 10

    def test_the_client_cuts_blocks_where_batches_end_and_never_waits_for_its_window(self):
        settings = client_settings(1024, 16, 64)
        assert (settings.block_bytes, settings.block_records) == (65_536, 64)
        assert client_settings(1 << 20, 100, 0).window_bytes >= 200 * MIB


class TestReadProfiles:
    def test_options_alone_decide_what_they_name(self):
        made = read.custom_profile(None, 10, 100)
        assert (made.size, made.batch, made.records, made.as_objects) == (256, 10, 100, True)

    def test_what_cannot_be_is_refused(self):
        with pytest.raises(BadSetting):
            read.custom_profile(0, None, None)


class TestShape:
    def test_any_node_could_hold_all_of_it(self):
        shape = bench_shape(5, 1000, 65_536)
        assert shape.wal_bytes > 1000 * 65_536
        assert (shape.nodes, shape.copies, shape.copy_racks) == (5, 3, 2)

    def test_few_nodes_hold_fewer_copies(self):
        assert bench_shape(1, 1, 1).copies == 1

    def test_more_than_memory_is_refused(self):
        with pytest.raises(BadSetting, match="fewer --records"):
            bench_shape(5, 100_000, 65_536)
