"""What a task makes of blocks: every record once, in order, in batches that Spark takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cordwood
from cordwood.block import BlockHeader, Codec, Envelope, Gap, GapKind
from cordwood.client.read.arrow_batches import (
    BATCH_BYTES,
    ROWS_MAX,
    SMALL_BLOCK_RECORDS,
    BatchGatherer,
)
from cordwood.client.read.read_stream import HeldBlock
from cordwood.errors import AccessDenied
from cordwood.layout.arrow import COLUMNS, batch_schema
from cordwood.layout.body import encode_body, seal_body
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import OLDEST, Lsn, make_lsn
from cordwood.nodes import NodeId
from cordwood.protocol.gap_detection import Delivery
from cordwood.spark.offsets import DataLoss
from cordwood.spark.slice_reader import Taken, read_slices, tiled
from cordwood.spark.splitting import Slice

LOG = 17
EVERY = (*COLUMNS, "headers")


def block(
    first: int, count: int, *, log: int = LOG, size: int = 8, codec: Codec = Codec.NONE
) -> Delivery[HeldBlock]:
    """A block whose values say where they are."""
    raw = encode_body(
        [b"%d" % (first + at) + bytes(size) for at in range(count)],
        timestamps_us=range(first & 0xFFFF, (first & 0xFFFF) + count),
        keys=[None if at % 3 else b"k%d" % at for at in range(count)],
        headers=[[("h", b"x")] * (at % 2) for at in range(count)],
    )
    stored, stored_crc, raw_crc = seal_body(raw, codec)
    header = BlockHeader(
        log=log, first=first, count=count, append_time_us=1, codec=codec,
        stored_bytes=len(stored), raw_bytes=len(raw), stored_crc=stored_crc, raw_crc=raw_crc,
    )  # fmt: skip
    held = HeldBlock(NodeId(1), StoredBlock(header, Envelope((1,)), b"", stored))
    return Delivery(held, first, header.last)


def gather(blocks: list[tuple[str, Delivery[HeldBlock]]], columns=EVERY):
    gatherer = BatchGatherer(columns)
    batches = [batch for name, each in blocks for batch in gatherer.add(name, each)]
    return [*batches, *gatherer.finish()]


def in_a_row(counts: list[int], **more) -> list[tuple[str, Delivery[HeldBlock]]]:
    blocks, first = [], int(OLDEST)
    for count in counts:
        blocks.append(("/log", block(first, count, **more)))
        first += count
    return blocks


class TestBatches:
    @given(st.lists(st.integers(1, 200), min_size=1, max_size=40))
    def test_hold_every_record_once_and_in_order(self, counts):
        batches = gather(in_a_row(counts))
        total = sum(counts)
        assert [lsn for batch in batches for lsn in batch["lsn"].to_pylist()] == list(
            range(OLDEST, OLDEST + total)
        )
        values = [value for batch in batches for value in batch["value"].to_pylist()]
        assert values == [b"%d" % lsn + bytes(8) for lsn in range(OLDEST, OLDEST + total)]

    @given(st.lists(st.sampled_from([1, 29, 30, 500, 5000]), min_size=1, max_size=12))
    def test_have_sparks_schema_however_the_blocks_lie(self, counts):
        for batch in gather(in_a_row(counts)):
            assert batch.schema == batch_schema(EVERY)
            assert 0 < batch.num_rows < 2 * ROWS_MAX
            batch.validate(full=True)

    @pytest.mark.parametrize("count", [1, SMALL_BLOCK_RECORDS - 1, SMALL_BLOCK_RECORDS, 1000])
    def test_small_blocks_are_gathered(self, count):
        batches = gather(in_a_row([count] * (20_000 // count)))
        assert len(batches) <= 4

    def test_a_large_block_is_cut(self):
        batches = gather(in_a_row([20_000]))
        assert [batch.num_rows for batch in batches] == [8192, 8192, 20_000 - 2 * 8192]

    def test_large_records_fill_a_batch_by_bytes(self):
        batches = gather(in_a_row([4] * 300, size=16 << 10))
        assert sum(batch.num_rows for batch in batches) == 1200
        assert len(batches) == 5

    def test_what_is_large_as_it_is_is_not_copied(self):
        batches = gather(in_a_row([40] * 30, size=16 << 10))
        assert [batch.num_rows for batch in batches] == [40] * 30

    @pytest.mark.parametrize("count", [5, 31])
    def test_a_block_of_large_records_is_cut_by_bytes(self, count: int):
        batches = gather(in_a_row([count], size=1 << 20))
        assert sum(batch.num_rows for batch in batches) == count
        assert max(batch.nbytes for batch in batches) < 2 * BATCH_BYTES

    def test_rows_of_several_logs_share_a_batch(self):
        blocks = [
            ("/a", block(OLDEST, 5, log=1)),
            ("/b", block(OLDEST, 5, log=2)),
            ("/c", block(OLDEST, 50, log=3)),
            ("/a", block(OLDEST + 5, 5, log=1)),
        ]
        (batch,) = gather(blocks)
        wanted = [("/a", 1)] * 5 + [("/b", 2)] * 5 + [("/c", 3)] * 50 + [("/a", 1)] * 5
        found = zip(batch["log"].to_pylist(), batch["log_id"].to_pylist(), strict=True)
        assert list(found) == wanted

    @pytest.mark.parametrize("codec", list(Codec))
    def test_a_clipped_block_gives_only_its_part(self, codec):
        whole = block(OLDEST, 100, codec=codec)
        part = Delivery(whole.block, OLDEST + 10, OLDEST + 89)
        (batch,) = gather([("/log", part)])
        assert batch["lsn"].to_pylist() == list(range(OLDEST + 10, OLDEST + 90))
        assert batch["offset"].to_pylist() == list(range(11, 91))
        assert batch["key"].to_pylist() == [None if at % 3 else b"k%d" % at for at in range(10, 90)]

    def test_columns_that_are_not_wanted_are_not_there(self):
        (batch,) = gather(in_a_row([5, 50]), columns=("lsn", "log"))
        assert batch.schema.names == ["lsn", "log"]

    def test_of_nothing_are_none(self):
        assert gather([]) == []


class TestContinuity:
    asked = Slice(LOG, "/log", OLDEST, OLDEST + 20)

    def walk(self, *runs: list[Taken], fail: bool = True) -> list[int]:
        found = tiled(self.asked, runs, fail_on_data_loss=fail)
        return [each.first for each in found if isinstance(each, Delivery)]

    def test_blocks_that_tile_the_slice_pass(self):
        assert self.walk([block(OLDEST, 5)], [block(OLDEST + 5, 15)]) == [OLDEST, OLDEST + 5]

    @pytest.mark.parametrize(
        "taken",
        [
            [block(OLDEST + 1, 19)],
            [block(OLDEST, 5), block(OLDEST + 6, 14)],
            [block(OLDEST, 5), block(OLDEST + 4, 16)],
            [block(OLDEST, 19)],
            [block(OLDEST, 21)],
            [],
        ],
    )
    def test_a_skip_a_repeat_or_a_wrong_end_stops_the_task(self, taken):
        with pytest.raises(AssertionError, match="skipped or repeated records"):
            self.walk(taken)

    @pytest.mark.parametrize("kind", [GapKind.BRIDGE, GapKind.HOLE])
    def test_where_nothing_was_acknowledged_is_passed_over(self, kind):
        gap = Gap(Lsn(OLDEST + 5), Lsn(OLDEST + 19), kind)
        assert self.walk([block(OLDEST, 5), gap]) == [OLDEST]

    @pytest.mark.parametrize("kind", [GapKind.TRIM, GapKind.DATA_LOSS])
    def test_a_loss_fails_or_is_clipped_as_asked(self, kind):
        gap = Gap(Lsn(OLDEST), Lsn(OLDEST + 4), kind)
        taken: list[Taken] = [gap, block(OLDEST + 5, 15)]
        said = f"CORDWOOD_DATA_LOSS log=17 requested=e1n1 oldest=e1n6 type={kind.name}"
        with pytest.raises(DataLoss, match=said):
            self.walk(taken)
        assert self.walk(taken, fail=False) == [OLDEST + 5]

    def test_a_log_that_is_deleted_while_it_is_read_has_nowhere_to_go_on(self):
        gap = Gap(Lsn(OLDEST + 5), Lsn(OLDEST + 19), GapKind.NOT_IN_CONFIG)
        said = "CORDWOOD_DATA_LOSS log=17 requested=e1n6 oldest=none type=LOG_GONE"
        with pytest.raises(DataLoss, match=said):
            self.walk([block(OLDEST, 5), gap])
        assert self.walk([block(OLDEST, 5), gap], fail=False) == [OLDEST]

    @pytest.mark.parametrize("fail", [True, False])
    def test_what_may_not_be_read_is_never_passed_over(self, fail: bool):
        gap = Gap(Lsn(OLDEST + 5), Lsn(OLDEST + 19), GapKind.ACCESS)
        with pytest.raises(AccessDenied, match=r"cordwood\.read\.tokens"):
            self.walk([block(OLDEST, 5), gap], fail=fail)

    def test_a_slice_over_a_bridge_goes_on_in_the_next_epoch(self):
        asked = Slice(LOG, "/log", OLDEST, make_lsn(2, 3))
        bridge = Gap(Lsn(OLDEST + 5), make_lsn(2, 0), GapKind.BRIDGE)
        taken: list[Taken] = [block(OLDEST, 5), bridge, block(make_lsn(2, 1), 2)]
        found = list(tiled(asked, [taken], fail_on_data_loss=True))
        assert [each.first for each in found if isinstance(each, Delivery)] == [
            OLDEST,
            make_lsn(2, 1),
        ]


def test_a_log_that_has_the_name_of_a_planned_one_is_not_read_for_it(tmp_path: Path):
    """Deleted and made again between the plan and the task: none of its records were planned."""
    with cordwood.connect(tmp_path) as store:
        planned = store.create_log("/log").log_id
        store.append_many("/log", [b"old"] * 3)
        asked = [Slice(planned, "/log", OLDEST, OLDEST + 3)]
        (batch,) = read_slices(lambda: store, asked, ["value"], fail_on_data_loss=True)
        assert batch["value"].to_pylist() == [b"old"] * 3
        store.log_tree.delete("/log")
        assert store.create_log("/log").log_id != planned
        store.append_many("/log", [b"new"] * 3)
        with pytest.raises(DataLoss, match=f"log={planned} .*type=LOG_GONE"):
            list(read_slices(lambda: store, asked, ["value"], fail_on_data_loss=True))
        assert list(read_slices(lambda: store, asked, ["value"], fail_on_data_loss=False)) == []


def test_a_task_that_fails_has_stopped_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its reader was left to the garbage collector, which cannot close it in every thread."""
    opened = []
    with cordwood.connect(tmp_path) as store:
        log = store.create_log("/log").log_id
        store.append_many("/log", [b"value"] * 3)
        store.trim("/log", OLDEST + 1)
        asked = [Slice(log, "/log", OLDEST, OLDEST + 3)]
        read = type(store).read
        monkeypatch.setattr(
            type(store), "read", lambda *args: opened.append(read(*args)) or opened[-1]
        )
        with pytest.raises(DataLoss) as failed:
            list(read_slices(lambda: store, asked, ["value"], fail_on_data_loss=True))
        # The error is held here, and with it all that its frames hold.
        assert failed.value.__traceback__ is not None
        assert [each._stream.is_closed for each in opened] == [True]
