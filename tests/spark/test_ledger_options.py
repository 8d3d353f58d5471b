"""The options of a source of ledgers, and the offsets of its streams: rules only."""

from __future__ import annotations

import json

import pytest

from cordwood.errors import BadSetting
from cordwood.spark.ledger_offsets import (
    LedgerOffset,
    ledger_ranges,
    move_ledgers_on,
    parse_ledger_offset,
)
from cordwood.spark.ledger_options import (
    LEDGER_OPTIONS,
    LEDGERS,
    PASSWORD,
    LedgerOptions,
    are_of_ledgers,
    batch_of,
    parse_ledger_options,
)
from cordwood.spark.options import COLUMNS, OPTIONS, SERVERS

LEAST = {SERVERS: "127.0.0.1:4440", "ledgers": "9, 7,7"}


def refusal(**more: str) -> str:
    with pytest.raises(BadSetting) as raised:
        parse_ledger_options({**LEAST, **more})
    return str(raised.value)


class TestOptions:
    def test_the_least_that_is_needed(self):
        found = parse_ledger_options(LEAST)
        assert (found.ledgers, found.columns, found.password) == ((7, 9), COLUMNS, b"")
        assert (found.starts, found.ends, found.max_records) == ({}, {}, None)

    def test_every_option(self):
        found = parse_ledger_options({
            **LEAST, PASSWORD: "söster", "startingOffsets": '{"7": 5}',
            "endingOffsets": '{"7": "9", "9": 9223372036854775807}', "includePayload": "false",
            "minPartitions": "3", "targetPartitionBytes": "1m", "maxOffsetsPerTrigger": "10",
            "cordwood.request.timeout.ms": "500",
        })  # fmt: skip
        assert found.password == "söster".encode()
        assert "söster" not in repr(found)
        assert (found.starts, found.ends) == ({7: 5}, {7: 9, 9: 2**63 - 1})
        assert "value" not in found.columns
        assert (found.min_partitions, found.target_partition_bytes) == (3, 1 << 20)
        assert (found.max_records, found.request_timeout_s) == (10, 0.5)

    def test_they_are_options_of_the_source(self):
        assert LEDGER_OPTIONS.keys() <= OPTIONS.keys()
        assert are_of_ledgers({"Ledgers": "1"})
        assert not are_of_ledgers({"subscribe": "ledgers"})

    @pytest.mark.parametrize("wrong", ["", "a", "1,", "-1", "1.5", "9223372036854775808", "٧"])
    def test_what_is_no_list_of_ledgers(self, wrong: str):
        assert refusal(ledgers=wrong).startswith("ledgers is")

    @pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
    @pytest.mark.parametrize(
        "wrong",
        ["soon", "[]", "{}", "7", '{"a": 1}', '{"7": -1}', '{"7": true}', '{"7": 1.5}',
         '{"7": 9223372036854775808}', "[" * 5000],
    )  # fmt: skip
    def test_what_is_no_place(self, name: str, wrong: str):
        assert refusal(**{name: wrong}).startswith(f"{name} is")

    def test_places_of_other_ledgers(self):
        assert "names ledger 8, which" in refusal(startingOffsets='{"8": 1}')

    @pytest.mark.parametrize("name", ["subscribe", "subscribePattern", "assign"])
    def test_logs_and_ledgers_do_not_mix(self, name: str):
        assert f"{name} and ledgers exclude one another" in refusal(**{name: "x"})

    @pytest.mark.parametrize("name", ["includeGaps", "groupId", "filterPushdown", "includeHeaders"])
    def test_what_ledgers_do_not_have(self, name: str):
        assert f"there is no {name}" in refusal(**{name: "true"})

    def test_a_batch_has_no_triggers(self):
        with pytest.raises(BadSetting, match="readStream"):
            parse_ledger_options({**LEAST, "maxRecordsPerTrigger": "5"}).check_batch()


class TestBatch:
    def options(self, **more: str) -> LedgerOptions:
        return parse_ledger_options({SERVERS: "h:1", LEDGERS: "7,8", **more})

    def test_ranges(self):
        asked = self.options(startingOffsets='{"7": 3, "8": 4}', endingOffsets='{"7": 5}')
        assert batch_of({7: 5, 8: 4}, asked) == {7: (3, 5)}

    @pytest.mark.parametrize(
        ("places", "told"),
        [
            ({"endingOffsets": '{"7": 6}'}, "7 5 entries are confirmed, .* up to 6"),
            ({"startingOffsets": '{"8": 5}'}, "8 entries are read up to 4, .* from 5 on"),
        ],
    )
    def test_what_is_not_there_is_no_silent_end(self, places: dict[str, str], told: str):
        with pytest.raises(BadSetting, match=told):
            batch_of({7: 5, 8: 4}, self.options(**places))


def offset(**places: int) -> LedgerOffset:
    return LedgerOffset("c1", {int(ledger[1:]): entry for ledger, entry in places.items()})


class TestOffsets:
    def test_there_is_one_text_for_one_offset(self):
        written = offset(l23=0, l7=2**62).to_json()
        assert json.dumps(written) == (
            '{"cluster": "c1", "ledgers": {"7": "4611686018427387904", "23": "0"}, "v": 1}'
        )
        assert parse_ledger_offset(json.loads(json.dumps(written)), "c1").to_json() == written

    @pytest.mark.parametrize(
        "wrong",
        [{}, {"cluster": "c1", "logs": {}, "v": 1}, {"cluster": "c1", "ledgers": {"a": "1"}},
         {"cluster": "c1", "ledgers": ["7"]}, {"cluster": "c1", "ledgers": {"7": None}}],
    )  # fmt: skip
    def test_what_is_no_offset(self, wrong):
        with pytest.raises(BadSetting, match="checkpoint holds an offset"):
            parse_ledger_offset(wrong, "c1")

    def test_another_cluster_and_a_later_version(self):
        with pytest.raises(BadSetting, match="cluster c1"):
            parse_ledger_offset(offset(l7=1).to_json(), "c2")
        with pytest.raises(BadSetting, match="version 2"):
            parse_ledger_offset({**offset(l7=1).to_json(), "v": 2}, "c1")

    @pytest.mark.parametrize(
        ("before", "starts", "ends", "most", "after"),
        [
            ({"l7": 3}, {}, {7: 3}, None, {"l7": 3}),  # nothing is new
            ({"l7": 3}, {}, {7: 2}, None, {"l7": 3}),  # a node that lags is heard
            ({"l7": 3}, {}, {7: 9}, None, {"l7": 9}),
            ({"l7": 3}, {}, {7: 9}, 2, {"l7": 5}),
            ({"l7": 0, "l8": 0}, {}, {7: 10, 8: 10}, 10, {"l7": 5, "l8": 5}),
            ({"l7": 3}, {8: 2}, {7: 3, 8: 4}, None, {"l7": 3, "l8": 4}),  # a ledger is added
            ({"l7": 3, "l8": 1}, {}, {8: 4}, None, {"l7": 3, "l8": 4}),  # and one is left out
        ],
    )
    def test_they_move_by_what_is_confirmed(self, before, starts, ends, most: int | None, after):
        start = offset(**before)
        moved = move_ledgers_on(start, starts, ends, most, 0)
        assert moved.ledgers == offset(**after).ledgers
        assert moved.started == {each: starts[each] for each in starts if each not in start.ledgers}
        assert (moved is start) == (before == after)

    def test_each_ledger_has_its_turn(self):
        start, reached = offset(l1=0, l2=0, l3=0), set()
        for turn in range(3):
            moved = move_ledgers_on(start, {}, {1: 5, 2: 5, 3: 5}, 1, turn)
            reached |= {each for each, entry in moved.ledgers.items() if entry}
        assert reached == {1, 2, 3}

    def test_a_planned_batch_begins_where_it_was_planned_to(self):
        """A crash in batch 0, and Spark asks where the stream begins, with other options by now."""
        planned = LedgerOffset("c1", {7: 100, 8: 3}, is_initial=True)
        end = move_ledgers_on(planned, {}, {7: 500, 8: 3}, None, 0)
        end = parse_ledger_offset(json.loads(json.dumps(end.to_json())), "c1")
        assert (end.started, end.is_initial) == ({7: 100, 8: 3}, False)
        again = LedgerOffset("c1", {7: 0, 9: 2}, is_initial=True)
        assert ledger_ranges(again, end, {7: 0, 9: 2}) == {7: (100, 500)}
        after = move_ledgers_on(end, {9: 2}, {7: 500, 8: 4, 9: 6}, None, 1)
        assert after.to_json()["from"] == {"9": "2"}
        assert ledger_ranges(end, after, {9: 5}) == {8: (3, 4), 9: (2, 6)}

    def test_nothing_is_read_before_the_first_entry_comes(self):
        first = parse_ledger_offset(LedgerOffset("c1", {7: 5}, is_initial=True).to_json(), "c1")
        assert first.is_initial
        assert move_ledgers_on(first, {}, {7: 5}, None, 0) is first
        assert ledger_ranges(first, first, {}) == {}
        assert ledger_ranges(first, move_ledgers_on(first, {}, {7: 9}, None, 0), {}) == {7: (5, 9)}

    def test_a_checkpoint_of_an_earlier_version_goes_on(self):
        again = LedgerOffset("c1", {7: 3}, is_initial=True)
        assert ledger_ranges(again, offset(l7=9), {7: 3}) == {7: (3, 9)}

    def test_a_batch_reads_between_two_of_them(self):
        start, end = offset(l7=3, l8=1), offset(l7=9, l8=1, l9=4)
        assert ledger_ranges(start, end, {9: 2}) == {7: (3, 9), 9: (2, 4)}
        with pytest.raises(BadSetting, match="goes back in ledger 7"):
            ledger_ranges(end, offset(l7=5), {})
