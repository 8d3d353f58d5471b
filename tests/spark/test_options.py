"""Options: what is taken, and that everything else is refused in words that help."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.errors import BadSetting
from cordwood.lsn import LSN_MAX, Lsn, format_lsn, make_lsn
from cordwood.spark.options import (
    COLUMNS,
    GAP_COLUMNS,
    MAX_TRIGGER_DELAY_S,
    NOT_YET,
    OPTIONS,
    READ_TOKENS,
    SELECTIONS,
    SERVERS,
    TARGET_PARTITION_BYTES,
    Selection,
    SourceOptions,
    parse_options,
)
from cordwood.spark.places import At, Cursor, Edge, Places, check_strangers, parse_places
from cordwood.spark.raw_options import shown

LEAST = {SERVERS: "127.0.0.1:4440", "subscribe": "orders"}


def options(**more: str) -> SourceOptions:
    return parse_options({**LEAST, **more})


def refusal(given_options: dict[str, str]) -> str:
    with pytest.raises(BadSetting) as refused:
        parse_options(given_options)
    return str(refused.value)


class TestWhatIsTaken:
    def test_two_options_are_enough(self):
        assert options() == SourceOptions(
            "cordwood://127.0.0.1:4440", Selection("subscribe", ("/orders",))
        )

    def test_case_does_not_matter(self):
        shouted = parse_options({name.upper(): value for name, value in LEAST.items()})
        assert shouted == options()

    @pytest.mark.parametrize(
        "servers",
        ["127.0.0.1:4440", " a.example:1,b.example:2 ", "cordwood://a.example:1,b.example:2"],
    )
    def test_servers_are_addresses_with_or_without_the_scheme(self, servers: str):
        found = parse_options({**LEAST, SERVERS: servers}).servers
        assert found == "cordwood://" + servers.strip().removeprefix("cordwood://")

    @pytest.mark.parametrize(
        ("option", "value", "logs"),
        [
            ("subscribe", "orders", ("/orders",)),
            ("subscribe", " b , /a/x,b", ("/a/x", "/b")),
            ("subscribe", "17", ("/17",)),
            ("assign", "[17]", ("17",)),
            ("assign", '["17", "orders", "/a"]', ("/a", "/orders", "17")),
        ],
    )
    def test_logs_are_selected(self, option: str, value: str, logs):
        found = parse_options({SERVERS: "h:1", option: value})
        assert found.selection == Selection(option, logs)

    def test_a_pattern_selects(self):
        found = parse_options({SERVERS: "h:1", "subscribePattern": "/orders/.*"})
        assert found.selection == Selection("subscribePattern", pattern="/orders/.*")

    @pytest.mark.parametrize(
        ("text", "size"),
        [("1", 1), ("64k", 1 << 16), ("64 MB", 1 << 26), ("1gib", 1 << 30), ("512b", 512)],
    )
    def test_sizes_have_sparks_units(self, text: str, size: int):
        assert options(targetPartitionBytes=text).target_partition_bytes == size

    def test_columns_follow_the_flags(self):
        assert options().columns == COLUMNS
        assert options(includeHeaders="TRUE").columns == (*COLUMNS, "headers")
        slim = options(includePayload="false").columns
        assert slim == tuple(name for name in COLUMNS if name != "value")

    def test_the_limit_has_kafkas_name_too(self):
        assert options(maxRecordsPerTrigger="5").max_records == 5
        assert options(maxOffsetsPerTrigger="5").max_records == 5
        assert options().max_records is None

    def test_the_rest(self):
        found = options(
            failOnDataLoss="false", minPartitions="7", **{"cordwood.request.timeout.ms": "1500"}
        )
        assert not found.fail_on_data_loss
        assert found.min_partitions == 7
        assert found.request_timeout_s == 1.5
        assert found.target_partition_bytes == TARGET_PARTITION_BYTES

    def test_read_tokens_go_to_the_client_and_are_not_shown(self):
        found = parse_options({**LEAST, READ_TOKENS: " one, ,hunter2 "})
        assert found.client_settings().read_tokens == ("one", "hunter2")
        assert "hunter2" not in repr(found)
        assert "hunter2" not in repr(found.client_settings())
        with pytest.raises(BadSetting, match="a token has at most") as raised:
            parse_options({**LEAST, READ_TOKENS: "hunter2" * 10_000})
        assert "hunter2" not in str(raised.value)

    def test_times_are_by_append_time_in_milliseconds(self):
        assert options(startingTimestamp="1500").starts == Places(At(1_500_000))
        found = options(startingOffsetsByTimestamp='{"orders": 1500, "17": 2}').starts
        assert found == Places(Edge.EARLIEST, {"/orders": At(1_500_000), "17": At(2_000)})
        assert options(endingTimestamp="1500").ends == Places(At(1_500_000))
        assert options().no_later == "error"

    def test_limits_of_a_micro_batch(self):
        found = options(maxBytesPerTrigger="64m", minOffsetsPerTrigger="10", maxTriggerDelay="90s")
        assert (found.max_bytes, found.min_records, found.max_delay_s) == (64 << 20, 10, 90.0)
        assert options(maxTriggerDelay="15m").max_delay_s == MAX_TRIGGER_DELAY_S
        assert (options().max_bytes, options().min_records) == (None, None)

    def test_gaps_have_columns_of_their_own(self):
        found = options(includeGaps="true", includeHeaders="true")
        assert found.gaps
        assert found.columns == (*COLUMNS, "headers", *GAP_COLUMNS)

    def test_a_group_and_its_cursors(self):
        assert options().group == ""
        found = options(groupId="billing", startingOffsets="cursor")
        assert (found.group, found.starts) == ("billing", Places(Cursor.CURSOR))
        found = options(groupId="billing", startingOffsets='{"orders": "cursor"}')
        assert found.starts == Places(Edge.EARLIEST, {"/orders": Cursor.CURSOR})

    def test_they_travel_to_executors(self):
        found = options(startingOffsets='{"orders": "e7n3"}', includeHeaders="true")
        assert pickle.loads(pickle.dumps(found)) == found


class TestWhatIsRefused:
    def test_an_unknown_option_lists_the_right_ones(self):
        told = refusal({**LEAST, "subscribtion": "x", "colour": "red"})
        assert "there is no subscribtion" in told
        assert "there is no colour" in told
        assert all(name in told for name in OPTIONS)

    @pytest.mark.parametrize(
        ("wrong", "right"),
        [
            ("kafka.bootstrap.servers", SERVERS),
            ("startingOffset", "startingOffsets"),
            ("failondataloss_", "failOnDataLoss"),
        ],
    )
    def test_a_near_miss_is_pointed_at(self, wrong: str, right):
        assert f"did you mean {right}?" in refusal({**LEAST, wrong: "x"})

    @pytest.mark.parametrize("name", NOT_YET)
    def test_what_is_planned_says_so_and_is_never_ignored(self, name):
        assert f"{name} is not built yet" in refusal({**LEAST, name.lower(): "1"})

    def test_nothing_is_both_built_and_not(self):
        assert not {name.lower() for name in NOT_YET} & {name.lower() for name in OPTIONS}

    def test_a_cursor_is_somebodys_and_only_a_start(self):
        told = refusal({**LEAST, "startingOffsets": "cursor"})
        assert told == "startingOffsets is cursor: name the consumer with groupId"
        assert "groupId is empty" in refusal({**LEAST, "groupId": " "})
        wrong = {**LEAST, "groupId": "g", "endingOffsets": "cursor"}
        assert "endingOffsets is cursor" in refusal(wrong)

    def test_no_servers(self):
        assert f"{SERVERS} is missing" in refusal({"subscribe": "x"})
        assert f"{SERVERS} is missing" in refusal({**LEAST, SERVERS: " "})

    @pytest.mark.parametrize("servers", ["./data", "/var/lib/cordwood", "~/data", "file:///d"])
    def test_a_directory_is_no_cluster(self, servers: str):
        told = refusal({**LEAST, SERVERS: servers})
        assert "embedded store" in told
        assert "cordwood up" in told

    def test_a_directory_that_is_there_is_seen_without_a_slash(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        (tmp_path / "data").mkdir()
        monkeypatch.chdir(tmp_path)
        assert "embedded store" in refusal({**LEAST, SERVERS: "data"})

    @pytest.mark.parametrize("servers", ["data", "host", "host:", "host:0", "host:99999", "h:1,,"])
    def test_other_texts_are_no_address(self, servers: str):
        assert f"{SERVERS}: " in refusal({**LEAST, SERVERS: servers})

    def test_no_selection_or_two(self):
        assert all(name in refusal({SERVERS: "h:1"}) for name in SELECTIONS)
        told = refusal({**LEAST, "assign": "[1]"})
        assert "subscribe and assign exclude one another" in told

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("subscribe", ""),
            ("subscribe", "a,,b"),
            ("subscribePattern", "("),
            ("assign", "17"),
            ("assign", "[]"),
            ("assign", "[true]"),
            ("assign", "[-1]"),
            ("assign", '[""]'),
            ("assign", '{"orders": [0, 1]}'),
        ],
    )
    def test_a_selection_that_is_none(self, option: str, value: str):
        assert refusal({SERVERS: "h:1", option: value}).startswith(option)

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("failOnDataLoss", "yes"),
            ("passedOver", "/orders"),
            ("passedOver", '["/orders"]'),
            ("passedOver", '{"/orders": "17"}'),
            ("passedOver", '{"/orders": true}'),
            ("includeHeaders", "1"),
            ("includePayload", ""),
            ("minPartitions", "0"),
            ("minPartitions", "-3"),
            ("minPartitions", "٣"),
            ("maxRecordsPerTrigger", "many"),
            ("targetPartitionBytes", "0"),
            ("targetPartitionBytes", "12 parsecs"),
            ("cordwood.request.timeout.ms", "0"),
            ("startingTimestamp", "2026-01-01"),
            ("startingTimestamp", "-5"),
            ("endingTimestamp", "1e9"),
            ("startingOffsetsByTimestamp", "5"),
            ("startingOffsetsByTimestamp", '{"orders": "e1n5"}'),
            ("startingOffsetsByTimestamp", '{"orders": -1}'),
            ("startingOffsetsByTimestampStrategy", "earliest"),
            ("maxBytesPerTrigger", "some"),
            ("maxTriggerDelay", "15"),
            ("minOffsetsPerTrigger", "0"),
            ("includeGaps", "yes"),
            ("filterPushdown", "1"),
            ("startingOffsets", "oldest"),
            ("startingOffsets", "{"),
            ("startingOffsets", "[1]"),
            ("endingOffsets", "earliest"),
            ("endingOffsets", '{"orders": "earliest"}'),
        ],
    )
    def test_a_wrong_value_names_its_option(self, option: str, value: str):
        assert refusal({**LEAST, option: value}).startswith(option)

    def test_two_names_for_one_limit(self):
        told = refusal({**LEAST, "maxRecordsPerTrigger": "1", "maxOffsetsPerTrigger": "1"})
        assert "are one" in told

    @pytest.mark.parametrize(
        "more",
        [
            {"startingOffsets": "latest"},
            {"startingOffsets": '{"orders": "latest"}'},
            {"maxRecordsPerTrigger": "5"},
            {"maxBytesPerTrigger": "5m"},
            {"minOffsetsPerTrigger": "5"},
        ],
    )
    def test_what_only_a_stream_can_do(self, more):
        found = options(**more)
        with pytest.raises(BadSetting, match="readStream"):
            found.check_batch()

    @pytest.mark.parametrize(
        "more",
        [
            {"endingTimestamp": "1700000000000"},
            {"endingOffsetsByTimestamp": '{"orders": 1700000000000}'},
            {"filterPushdown": "true"},
        ],
    )
    def test_what_only_a_batch_can_do(self, more):
        found = options(**more)
        found.check_batch()
        with pytest.raises(BadSetting, match="for batches"):
            found.check_stream()

    def test_two_ways_to_say_where_it_starts(self):
        told = refusal({**LEAST, "startingOffsets": "earliest", "startingTimestamp": "5"})
        assert "startingOffsets and startingTimestamp exclude one another" in told

    @pytest.mark.parametrize("name", ["cordwood.password", "accessToken", "aws.secret.key"])
    def test_the_value_of_a_secret_is_never_told(self, name: str):
        told = refusal({**LEAST, name: "hunter2", "minPartitions": "no"})
        assert name in told
        assert "hunter2" not in told
        assert "hunter2" not in shown(name, "hunter2")

    def test_a_plain_batch_is_fine(self):
        options(startingOffsets='{"orders": "e1n5"}').check_batch()


class TestPlaces:
    @given(st.dictionaries(st.integers(1, 2**62), st.integers(0, LSN_MAX), max_size=5))
    def test_every_way_to_write_an_lsn(self, places):
        as_text = {str(log): format_lsn(lsn) for log, lsn in places.items()}
        as_number = {str(log): lsn for log, lsn in places.items()}
        as_digits = {str(log): str(lsn) for log, lsn in places.items()}
        wanted = Places(Edge.EARLIEST, {str(log): Lsn(lsn) for log, lsn in places.items()})
        for written in (as_text, as_number, as_digits):
            assert parse_places("startingOffsets", json.dumps(written), Edge.EARLIEST) == wanted

    def test_a_log_is_found_by_name_or_number(self):
        text = '{"orders": "e1n5", "17": "latest"}'
        places = parse_places("startingOffsets", text, Edge.EARLIEST)
        assert places.of(3, "/orders") == make_lsn(1, 5)
        assert places.of(17, "/clicks") is Edge.LATEST
        assert places.of(4, "/other") is Edge.EARLIEST

    @pytest.mark.parametrize("at", ["", "e1", "n5", -1, 1.5, True, None, [1], str(1 << 63)])
    def test_what_is_no_place(self, at):
        with pytest.raises(BadSetting, match="takes earliest, latest, cursor or an LSN"):
            parse_places("startingOffsets", json.dumps({"a": at}), Edge.EARLIEST)

    def test_kafkas_partitions_get_a_hint(self):
        with pytest.raises(BadSetting, match="a log has no partitions"):
            parse_places("startingOffsets", '{"orders": {"0": 23}}', Edge.EARLIEST)

    def test_a_log_that_is_not_selected_is_refused(self):
        places = Places(Edge.EARLIEST, {"/ordres": Lsn(5), "1": Lsn(5)})
        with pytest.raises(BadSetting, match=r"names /ordres, .* there are /orders"):
            check_strangers("startingOffsets", places, {1: "/orders"})
        check_strangers("startingOffsets", places, {1: "/orders", 2: "/ordres"})
