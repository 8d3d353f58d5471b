"""Objects: what is written comes back, other programs read it, and damage does not pass."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_damage import flipped
from made_objects import NOW_US, Made, all_blocks, logs, odd_bodies, read_run, written

from cordwood.block import Codec, Gap, GapKind
from cordwood.errors import BadSetting, ChecksumMismatch, Corrupt, Malformed
from cordwood.layout.body import encode_body, open_body, payload_bytes
from cordwood.layout.object_columns import (
    OBJECT_COLUMNS,
    SMALL_RECORDS,
    block_to_rows,
    is_plain,
    object_schema,
    rows_to_blocks,
    small_blocks_to_rows,
)
from cordwood.layout.object_file import (
    INDEX_KEY,
    TRAILER_BYTES,
    Group,
    ObjectIndex,
    ObjectRun,
    _check_index,
    check_object,
    footer_bytes,
    read_footer,
)
from cordwood.layout.object_names import own_name, parse_object_name
from cordwood.layout.object_writer import ObjectWriter
from cordwood.lsn import Lsn, make_lsn

GROUP_BYTES = st.sampled_from([1, 100, 1000, 1 << 20])


def opened(body: bytes):
    header, stored = Made(1).block(body).items[0]
    return header, open_body(header, stored)


def with_raw(items):
    """Blocks as they come back: the header as it was, the body uncompressed."""
    return [
        item if isinstance(item, Gap) else (item[0], bytes(open_body(*item).raw)) for item in items
    ]


def two_logs() -> list[Made]:
    """Two logs with all that a log has, in some row groups."""
    one = Made(7, "/orders")
    values = [b"value %d" % number for number in range(40)]
    one.block(encode_body(values, timestamps_us=NOW_US), Codec.ZSTD)
    one.gap(3, GapKind.HOLE)
    one.block(
        encode_body(
            values[:20],
            timestamps_us=[NOW_US + 5 * number for number in range(20)],
            keys=[b"k%d" % number if number % 3 else None for number in range(20)],
            headers=[[("trace", b"x"), ("none", None)][: number % 2 * 2] for number in range(20)],
        ),
        producer=12, producer_epoch=3, producer_sequence=100,
    )  # fmt: skip
    one.bridge()
    one.next += 1
    one.items[-1] = Gap(one.items[-1].first, Lsn(one.next - 1), GapKind.BRIDGE)
    one.block(encode_body([b"lone"], timestamps_us=NOW_US, keys=[b"key"]), Codec.LZ4)
    two = Made(9, "/clicks").gap(5, GapKind.TRIM)
    for number in range(30):
        two.block(encode_body([b"click %d" % number], timestamps_us=NOW_US + number))
    return [one, two]


class TestRoundTrips:
    @pytest.mark.slow
    @settings(max_examples=60)
    @given(logs(), GROUP_BYTES)
    def test_any_run_of_blocks_and_gaps_comes_back(self, made, group_bytes):
        done = written(made, group_bytes)
        footer = check_object(done.content, done.footer_crc)
        assert [(run.log, run.name) for run in footer.index.runs] == [
            (each.log, each.name) for each in made
        ]
        for each, run in zip(made, footer.index.runs, strict=True):
            assert (run.first, run.last) == (each.first, each.next - 1)
            assert read_run(run, footer, done.content) == with_raw(each.items)

    @pytest.mark.parametrize("name", sorted(odd_bodies()))
    def test_a_body_that_no_writer_of_ours_makes_comes_back_too(self, name):
        raw = odd_bodies()[name]
        assert not is_plain(opened(raw)[1])
        made = Made(1).block(raw).block(raw, Codec.ZSTD)
        done = written([made])
        blocks = read_run(done.footer.index.runs[0], done.footer, done.content)
        assert blocks == with_raw(made.items)

    @settings(max_examples=60)
    @given(logs())
    def test_what_encode_body_writes_is_not_kept_twice(self, made):
        for each in made:
            for header, stored in (item for item in each.items if not isinstance(item, Gap)):
                body = open_body(header, stored)
                rows = list(body.records(header.first, 0))
                again = encode_body(
                    [row.value for row in rows],
                    timestamps_us=[row.timestamp_us for row in rows],
                    keys=[row.key for row in rows],
                    headers=[row.headers for row in rows],
                )
                assert is_plain(body) is (again == bytes(body.raw))

    @settings(max_examples=60)
    @given(logs())
    def test_small_blocks_become_the_same_rows_by_either_way(self, made):
        for each in made:
            for header, stored in (item for item in each.items if not isinstance(item, Gap)):
                body = open_body(header, stored)
                if body.count <= SMALL_RECORDS:
                    one = pa.Table.from_batches([block_to_rows(header, body, "/x")])
                    other = pa.Table.from_batches([small_blocks_to_rows([(header, body)], "/x")])
                    assert one.equals(other)

    def test_a_piece_tells_times_bytes_and_places(self):
        done = written(two_logs(), 400)
        one, two = done.footer.index.runs
        assert one.pieces[0][:5] == (0, 0, 40, make_lsn(3, 40), make_lsn(3, 79))
        assert [piece.append_first_us for piece in one.pieces] == [NOW_US, NOW_US + 1000,
                                                                   NOW_US + 2000]  # fmt: skip
        assert (one.pieces[1].time_min_us, one.pieces[1].time_max_us) == (NOW_US, NOW_US + 95)
        assert [gap.kind for gap in one.gap_list()] == [GapKind.HOLE, GapKind.BRIDGE]
        assert two.gaps == ((make_lsn(3, 40), make_lsn(3, 44), "trim"),)
        assert sum(piece.rows for piece in two.pieces) == 30
        raw = sum(item[0].raw_bytes for made in two_logs() for item in made.items
                  if not isinstance(item, Gap))  # fmt: skip
        assert sum(piece.bytes for run in (one, two) for piece in run.pieces) == raw
        stored = sum(payload_bytes(item[0]) for made in two_logs() for item in made.items
                     if not isinstance(item, Gap))  # fmt: skip
        assert sum(piece.payload for run in (one, two) for piece in run.pieces) == stored > 0

    def test_small_logs_share_a_row_group_and_a_large_one_has_its_own(self):
        def log(number: int, size: int) -> Made:
            return Made(number).block(encode_body([bytes(size)], timestamps_us=NOW_US))

        done = written([log(1, 10), log(2, 10), log(3, 600), log(4, 10)], 1600)
        groups = [[piece.group for piece in run.pieces] for run in done.footer.index.runs]
        assert groups == [[0], [0], [0], [1]]

    def test_no_row_group_is_much_larger_than_asked(self):
        made = Made(1)
        for _ in range(60):
            made.block(encode_body([bytes(500)], timestamps_us=NOW_US))
        done = written([made], 2000)
        assert {group.rows for group in done.footer.index.groups} == {4}

    def test_equal_blocks_give_equal_objects_and_so_equal_names(self):
        one, other = written(two_logs(), 400), written(two_logs(), 400)
        assert bytes(one.content) == bytes(other.content)
        alone = written(two_logs()[:1])
        name = parse_object_name(alone.name("20261124", 1))
        assert (name.log, name.first, name.footer_crc) == (7, make_lsn(3, 40), alone.footer_crc)
        assert parse_object_name(one.name("20261124", 1)).footer_crc == one.footer_crc

    def test_an_object_of_gaps_alone_holds_them(self):
        done = written([Made(1).gap(10, GapKind.HOLE).bridge()])
        footer = check_object(done.content, done.footer_crc)
        kinds = [gap.kind for gap in footer.index.runs[0].gap_list()]
        assert kinds == [GapKind.HOLE, GapKind.BRIDGE]
        assert footer.metadata.num_rows == 0


class TestOtherReaders:
    @pytest.fixture
    def file(self, tmp_path: Path):
        path = tmp_path / "object.parquet"
        path.write_bytes(written(two_logs(), 400).content)
        return path

    def expected(self):
        rows = []
        for made in two_logs():
            for item in made.items:
                if not isinstance(item, Gap):
                    header = item[0]
                    for record in open_body(*item).records(header.first, header.append_time_us):
                        rows.append(
                            (made.name, made.log, int(record.lsn), record.value, record.key)
                        )
        return rows

    def test_pyarrow_reads_it_as_a_table(self, file):
        table = pq.read_table(file)
        assert table.schema.equals(object_schema())
        columns = ("log", "log_id", "lsn", "value", "key")
        assert list(zip(*(table[name].to_pylist() for name in columns), strict=True)) == (
            self.expected()
        )
        where = pq.read_table(file, filters=[("lsn", ">=", make_lsn(4, 0)), ("log_id", "=", 7)])
        assert where["value"].to_pylist() == [b"lone"]

    def test_pandas_reads_it_as_a_table(self, file):
        pandas = pytest.importorskip("pandas")
        frame = pandas.read_parquet(file, columns=["log", "lsn", "timestamp", "producer_sequence"])
        assert len(frame) == 91
        assert frame["producer_sequence"].dropna().tolist() == list(range(100, 120))
        assert frame["timestamp"].dt.year.unique().tolist() == [2026]

    def test_duckdb_reads_it_as_a_table(self, file, require):
        try:
            import duckdb
        except ImportError:
            require("duckdb", "is not installed: pip install duckdb")
        # Without the time zone: duckdb wants pytz to show times in one.
        query = f"SELECT log, log_id, lsn, value, key FROM '{file}' ORDER BY log_id, lsn"
        assert duckdb.sql(query).fetchall() == self.expected()
        count = f"SELECT count(*) FROM '{file}' WHERE headers[1].key = 'trace'"
        assert duckdb.sql(count).fetchall() == [(10,)]
        index = f"SELECT value FROM parquet_kv_metadata('{file}') WHERE key = 'cordwood'"
        text = duckdb.sql(index).fetchall()[0][0]
        assert [run["log"] for run in msgspec.json.decode(text)["runs"]] == [7, 9]


class TestDamage:
    def test_every_truncation_is_refused(self):
        done = written(two_logs(), 400)
        content = bytes(done.content)
        for size in range(0, len(content), 7):
            with pytest.raises(Corrupt):
                check_object(content[:size], done.footer_crc)

    def test_every_byte_is_covered(self):
        """Each byte has one bit flipped, the ends have all of theirs."""
        done = written(two_logs(), 2000)
        content = bytes(done.content)
        chance = random.Random(5)
        bits = {8 * byte + chance.randrange(8) for byte in range(len(content))}
        bits |= set(range(64)) | set(range(8 * len(content) - 512, 8 * len(content)))
        for bit in sorted(bits):
            with pytest.raises(Corrupt):
                check_object(flipped(content, bit), done.footer_crc)

    def test_footers_that_are_none_are_refused(self):
        done = written(two_logs(), 400)
        size = len(done.content)
        tail = bytes(done.content[size - done.footer_bytes :])
        assert footer_bytes(tail[-TRAILER_BYTES:]) == done.footer_bytes
        for wrong in (b"", b"PAR1", bytes(8), b"\xff\xff\xff\x7fPAR1", tail[:-1], tail[1:]):
            with pytest.raises(Corrupt):
                read_footer(wrong, crc32c(wrong), size)
        with pytest.raises(Malformed, match="does not follow"):
            read_footer(tail, done.footer_crc, size - 1)
        renamed = tail.replace(b"producer_sequence", b"producer_sequenke")
        with pytest.raises(Malformed, match="other columns"):
            read_footer(renamed, crc32c(renamed), size)
        plain = pa.BufferOutputStream()
        pq.write_table(pa.table({"a": [1]}), plain)
        other = plain.getvalue().to_pybytes()
        tail = other[len(other) - footer_bytes(other[-8:]) :]
        with pytest.raises(Malformed, match="cannot be read"):
            read_footer(tail, crc32c(tail), len(other))

    CHANGES = (
        lambda index: {"version": 2},
        lambda index: {"groups": index.groups[:-1]},
        lambda index: {"groups": (Group(5, *index.groups[0][1:]), *index.groups[1:])},
        lambda index: {"groups": (*index.groups[:-1], index.groups[-1]._replace(rows=1))},
        lambda index: {"runs": ()},
        lambda index: {"runs": index.runs[::-1]},
        lambda index: {"runs": index.runs[:1]},
        lambda index: {"runs": (index.runs[0], index.runs[0])},
    )

    @pytest.mark.parametrize("change", CHANGES)
    def test_an_index_of_another_file_is_refused(self, change):
        done = written(two_logs(), 400)
        index = msgspec.structs.replace(done.footer.index, **change(done.footer.index))
        with pytest.raises(Malformed):
            _check_index(index, done.footer.metadata, len(done.content) - done.footer_bytes)

    RUN_CHANGES = (
        lambda run: {"log": 0},
        lambda run: {"first": run.first + 1},
        lambda run: {"last": run.last + 1},
        lambda run: {"last": run.first - 1},
        lambda run: {"pieces": run.pieces[1:]},
        lambda run: {"pieces": run.pieces[::-1]},
        lambda run: {"pieces": (run.pieces[0]._replace(rows=0), *run.pieces[1:])},
        lambda run: {"pieces": (run.pieces[0]._replace(rows=10**6), *run.pieces[1:])},
        lambda run: {"pieces": (run.pieces[0]._replace(row=1), *run.pieces[1:])},
        lambda run: {"pieces": (run.pieces[0]._replace(group=99), *run.pieces[1:])},
        lambda run: {"pieces": (run.pieces[0]._replace(first=run.first + 1), *run.pieces[1:])},
        lambda run: {"gaps": run.gaps[1:]},
        lambda run: {"gaps": ((*run.gaps[0][:2], "filtered"), *run.gaps[1:])},
        lambda run: {"gaps": ((run.gaps[0][0], run.gaps[0][1] + 1, "hole"), *run.gaps[1:])},
    )

    @pytest.mark.parametrize("change", RUN_CHANGES)
    def test_a_run_that_does_not_tile_its_range_is_refused(self, change):
        done = written(two_logs(), 400)
        one, two = done.footer.index.runs
        runs = (msgspec.structs.replace(one, **change(one)), two)
        index = msgspec.structs.replace(done.footer.index, runs=runs)
        with pytest.raises(Malformed):
            _check_index(index, done.footer.metadata, len(done.content) - done.footer_bytes)

    @pytest.mark.parametrize("name", ["value", "timestamp"])
    def test_a_row_without_its_value_or_time_is_refused(self, name: str):
        header, body = opened(encode_body([b"%d" % n for n in range(40)], timestamps_us=NOW_US))
        rows = pa.Table.from_batches([block_to_rows(header, body, "/x")])
        at = OBJECT_COLUMNS.index(name)
        field = rows.schema.field(at)
        values = rows[name].to_pylist()
        values[3] = None
        changed = rows.set_column(at, field, pa.array(values, field.type))
        with pytest.raises(Malformed, match="lacks"):
            list(rows_to_blocks(changed))

    def test_a_header_without_a_name_is_refused(self):
        raw = encode_body([b"x"], timestamps_us=1, headers=[[("name", b"v")]])
        header, body = opened(raw)
        rows = pa.Table.from_batches([block_to_rows(header, body, "/x")])
        at = OBJECT_COLUMNS.index("headers")
        field = rows.schema.field(at)
        nameless = pa.array([[{"key": None, "value": b"v"}]], field.type)
        with pytest.raises(Malformed, match="lacks"):
            list(rows_to_blocks(rows.set_column(at, field, nameless)))

    def test_a_body_that_changed_in_its_row_is_told(self):
        header, body = opened(encode_body([b"%d" % n for n in range(40)], timestamps_us=NOW_US))
        rows = pa.Table.from_batches([block_to_rows(header, body, "/x")])
        values = rows["value"].to_pylist()
        values[17] = b"99"
        at = OBJECT_COLUMNS.index("value")
        changed = rows.set_column(at, rows.schema.field(at), pa.array(values, pa.binary()))
        with pytest.raises(ChecksumMismatch, match="e3n40"):
            list(rows_to_blocks(changed))
        with pytest.raises(Malformed):
            list(rows_to_blocks(rows.slice(1)))
        with pytest.raises(Malformed):
            list(rows_to_blocks(rows.slice(0, 39)))


class TestTheWriter:
    def test_what_does_not_follow_is_refused(self):
        made = Made(7).block(encode_body([b"x"], timestamps_us=1))
        header, stored = made.items[0]

        def begun() -> ObjectWriter:
            writer = ObjectWriter()
            writer.begin_log(7, "/x", made.first)
            return writer

        with pytest.raises(BadSetting, match="which log"):
            ObjectWriter().add_block(header, stored)
        with pytest.raises(BadSetting, match="nothing"):
            ObjectWriter().finish()
        with pytest.raises(BadSetting, match="nothing was added"):
            begun().finish()
        with pytest.raises(BadSetting, match="comes next"):
            begun().add_gap(Gap(Lsn(made.first + 1), Lsn(made.first + 2), GapKind.HOLE))
        with pytest.raises(BadSetting, match="in the run"):
            begun().add_block(replace(header, log=8), stored)
        writer = begun()
        writer.add_block(header, stored)
        with pytest.raises(BadSetting, match="comes next"):
            writer.add_block(header, stored)
        with pytest.raises(BadSetting, match="by number"):
            writer.begin_log(7, "/x", made.next)

    @pytest.mark.parametrize(("name", "wrong"), [("lsn", 1), ("log_id", 1)])
    def test_rows_with_other_numbers_than_their_blocks_are_not_handed_out(
        self, name: str, wrong: int
    ):
        made = Made(7).block(encode_body([b"%d" % n for n in range(40)], timestamps_us=1))
        writer = ObjectWriter()
        writer.begin_log(7, "/x", made.first)
        writer.add_block(*made.items[0])
        (rows,) = writer._rows
        at = OBJECT_COLUMNS.index(name)
        shifted = pa.array([number + wrong for number in rows.column(at).to_pylist()], pa.int64())
        writer._rows = [rows.set_column(at, rows.schema.field(at), shifted)]
        with pytest.raises(Malformed, match="LSNs"):
            writer.finish()

    @pytest.mark.parametrize("kind", [GapKind.ACCESS, GapKind.NOT_IN_CONFIG, GapKind.FILTERED])
    def test_a_gap_that_may_end_is_no_history(self, kind):
        writer = ObjectWriter()
        writer.begin_log(7, "/x", 1 << 33)
        with pytest.raises(BadSetting, match="history"):
            writer.add_gap(Gap(Lsn(1 << 33), Lsn((1 << 33) + 5), kind))

    def test_a_body_that_is_damaged_does_not_get_in(self):
        header, stored = Made(7).block(encode_body([b"value"], timestamps_us=1)).items[0]
        writer = ObjectWriter()
        writer.begin_log(7, "/x", header.first)
        with pytest.raises(ChecksumMismatch):
            writer.add_block(header, flipped(bytes(stored), 200))

    def test_headers_come_back_as_they_were(self):
        done = written(two_logs(), 400)
        given_ = [item[0] for made in two_logs() for item in made.items
                  if not isinstance(item, Gap)]  # fmt: skip
        assert all_blocks(done.footer, done.content) == given_


class TestNames:
    @pytest.mark.parametrize(
        "name",
        [
            "",
            "logs/0000000000000007/head",
            "logs/7/objects/1-2-3.parquet",
            own_name(7, 5, 4, 1, 0),
            own_name(0, 5, 5, 1, 0),
            own_name(7, 5, 2**64 - 1, 1, 0),
            "shared/20261124/12-00000000.parquet",
            "shared/20261124/" + "0" * 32 + "-00000000.parquet\n",
        ],
    )
    def test_what_is_no_name_of_an_object_is_refused(self, name):
        with pytest.raises(Malformed):
            parse_object_name(name)


def test_the_index_is_json_that_anybody_reads():
    done = written(two_logs(), 400)
    text = done.footer.metadata.metadata[INDEX_KEY]
    plain = msgspec.json.decode(text)
    assert sorted(plain) == ["groups", "runs", "version"]
    assert msgspec.json.decode(text, type=ObjectIndex) == done.footer.index
    assert isinstance(done.footer.index.runs[0], ObjectRun)
