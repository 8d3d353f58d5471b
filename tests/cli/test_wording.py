"""Records and gaps as text and as JSON; sizes and times as people say them."""

from __future__ import annotations

import base64
import io
import json

import pytest

from cordwood.block import Gap, GapKind, Record
from cordwood.cli.form import Form
from cordwood.cli.record_output import Printer, gap_words, record_json
from cordwood.cli.wording import bytes_words, duration_words, utc_words
from cordwood.lsn import Lsn, make_lsn


def record(esn: int, value: bytes) -> Record:
    return Record(make_lsn(1, esn), value)


def gap(kind: GapKind) -> Gap:
    return Gap(make_lsn(1, 4), make_lsn(1, 9), kind)


class TestWords:
    @pytest.mark.parametrize("kind", list(GapKind))
    def test_every_kind_of_gap_has_a_sentence(self, kind):
        assert gap_words(gap(kind)).startswith("gap e1n4 to e1n9: ")

    def test_a_gap_of_one_names_it_once(self):
        assert gap_words(Gap(Lsn(7), Lsn(7), GapKind.TRIM)) == "gap e0n7: deleted on purpose"

    @pytest.mark.parametrize(
        ("count", "words"),
        [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (128 << 20, "128 MiB"),
         (3 << 40, "3.0 TiB")],
    )  # fmt: skip
    def test_bytes(self, count: int, words: str):
        assert bytes_words(count) == words

    @pytest.mark.parametrize(
        ("seconds", "words"),
        [(0.2, "0 s"), (119, "119 s"), (150, "2 min"), (7300, "2 h"), (400_000, "5 d")],
    )
    def test_durations(self, seconds: float, words: str):
        assert duration_words(seconds) == words

    def test_times_are_utc(self):
        assert utc_words(1_700_000_000_999_999) == "2023-11-14 22:13:20 UTC"


class TestJson:
    def test_text_stays_text(self):
        shown = record_json(
            Record(make_lsn(7, 1), "grün".encode(), b"k", 5, (("h", None), ("h", b"v")), 6)
        )
        assert shown == {
            "lsn": "e7n1",
            "key": "k",
            "value": "grün",
            "timestamp_us": 5,
            "append_time_us": 6,
            "headers": [{"name": "h", "value": None}, {"name": "h", "value": "v"}],
        }

    def test_other_bytes_go_as_base64_under_another_name(self):
        shown = record_json(Record(make_lsn(1, 1), b"\xff\x00", b"\xfe"))
        assert "value" not in shown
        assert "key" not in shown
        assert base64.b64decode(shown["value_base64"]) == b"\xff\x00"
        assert base64.b64decode(shown["key_base64"]) == b"\xfe"


class TestPrinter:
    def show(
        self, portions, *, as_json: bool = False, form=Form.RAW, gaps: bool = True, count_max=None
    ) -> tuple[bytes, Printer]:
        output = io.BytesIO()
        printer = Printer(output, Form.JSON if as_json else form, gaps=gaps)
        printer.print_all(portions, count_max)
        return output.getvalue(), printer

    def test_payloads_are_written_as_they_are(self, capsys: pytest.CaptureFixture[str]):
        portions = [
            [record(1, b"a\r"), record(2, b"")],
            [gap(GapKind.BRIDGE)],
            [record(3, b"\xff")],
        ]
        shown, printer = self.show(portions)
        assert shown == b"a\r\n\n\xff\n"
        assert capsys.readouterr().err.startswith("gap e1n4 to e1n9: an epoch ended here")
        assert printer.lost == 0

    def test_hex_shows_every_byte_beside_its_lsn(self):
        shown, _ = self.show([[record(1, b"a\n"), record(2, b"\xff\x00")]], form=Form.HEX)
        assert shown == b"e1n1 610a\ne1n2 ff00\n"

    def test_gaps_may_be_left_out_and_losses_not(self, capsys: pytest.CaptureFixture[str]):
        portions = [[gap(GapKind.BRIDGE)], [gap(GapKind.DATA_LOSS)]]
        _, printer = self.show(portions, gaps=False)
        said = capsys.readouterr().err
        assert said.count("gap") == 1
        assert "LOST" in said
        assert printer.lost == 1

    def test_in_json_gaps_stand_among_the_records(self):
        shown, _ = self.show([[record(1, b"a")], [gap(GapKind.HOLE)]], as_json=True)
        lines = [json.loads(line) for line in shown.splitlines()]
        assert lines[0]["value"] == "a"
        assert lines[1] == {"gap": "hole", "first": "e1n4", "last": "e1n9"}

    def test_it_stops_inside_a_portion_and_asks_for_no_more(self):
        def portions():
            yield [record(1, b"a"), record(2, b"b")]
            yield [record(3, b"c"), record(4, b"d")]
            raise AssertionError("asked for a third portion")

        assert self.show(portions(), count_max=3)[0] == b"a\nb\nc\n"

    def test_none_wanted_is_none_read(self):
        assert self.show(iter(lambda: pytest.fail("read"), 0), count_max=0)[0] == b""

    def test_lost_ranges_are_counted(self):
        assert self.show([[gap(GapKind.DATA_LOSS)], [gap(GapKind.HOLE)]])[1].lost == 1
