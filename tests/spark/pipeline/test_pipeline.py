"""Pipelines: what a file may say, that each mistake has its line, the drawing, and a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from live_cluster import LiveCluster
from pyspark.sql import SparkSession

from cordwood.block import Record
from cordwood.cli.app import run
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.errors import BadSetting
from cordwood.log_attributes import LogAttributes, token_digest
from cordwood.spark.jobs.landing import Landing
from cordwood.spark.options import SERVERS
from cordwood.spark.pipeline.show import draw
from cordwood.spark.pipeline.spec import LogSink, ObjectSink, parse_pipeline

WHOLE = """\
version: 1
name: orders
source:
  cluster: 127.0.0.1:4440
  logs: [orders, clicks]
  max_bytes: 1g
  options: {minPartitions: 4}
trigger: 5m
sinks:
  - table: ./lake/orders
    format: delta
    partition_by: [event_date, log]
    compact: true
  - log: orders-copy
    cluster: other:4440
    checkpoint: ./copy
"""


def without_values(text: str) -> str:
    return text.replace("minPartitions: 4", "includePayload: false")


def mistakes(text: str) -> list[str]:
    with pytest.raises(BadSetting) as raised:
        parse_pipeline(text, "p.yaml")
    return str(raised.value).splitlines()


@pytest.mark.parametrize("verb", ["validate", "show", "run"])
def test_without_yaml_the_verbs_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], verb: str
):
    rooms = "cordwood.spark.pipeline."
    for name in [each for each in sys.modules if each.startswith((rooms, "yaml"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert run(["pipeline", verb, "p.yaml"]) == 1
    told = capfd.readouterr().err
    assert "a pipeline needs `pip install 'cordwood[spark]'`" in told
    assert "Traceback" not in told


class TestReading:
    def test_a_whole_one(self):
        found = parse_pipeline(WHOLE, "dir/p.yaml")
        assert (found.name, found.trigger_s, found.decode) == ("orders", 300.0, "")
        assert found.source == {
            SERVERS: "127.0.0.1:4440",
            "subscribe": "orders,clicks",
            "startingOffsets": "earliest",
            "maxBytesPerTrigger": "1g",
            "minPartitions": "4",
        }
        table, log = found.sinks
        assert isinstance(table, Landing)
        assert (table.format, table.table) == ("delta", "dir/./lake/orders")
        assert (table.partition_by, table.compact) == (("event_date", "log"), True)
        assert isinstance(log, LogSink)
        assert log.options[SERVERS] == "other:4440"
        assert log.checkpoint == "dir/./copy"

    def test_the_least(self):
        found = parse_pipeline(
            "version: 1\nsource: {cluster: h:1, pattern: /a/.*}\nsinks: [{table: t}]\n", "p.yaml"
        )
        assert found.trigger_s is None
        assert found.source["subscribePattern"] == "/a/.*"

    def test_every_mistake_is_told_with_its_line(self):
        text = WHOLE.replace("format: delta", "format: orc").replace("logs:", "lgos:")
        text = text.replace("trigger: 5m", "triger: 5m\ntrigger: soon")
        told = mistakes(text.replace("    checkpoint: ./copy\n", ""))
        assert [line.split(": ")[0] for line in told] == [
            "p.yaml:5", "p.yaml:4", "p.yaml:1", "p.yaml:11", "p.yaml:15", "p.yaml:8",
        ]  # fmt: skip
        assert "there is no source.lgos (did you mean logs?)" in told[0]
        assert "no log is selected" in told[1]
        assert "trigger is 'soon'; it is a time with its unit" in told[2]
        assert "format is 'orc'; it is one of parquet, delta, iceberg" in told[3]
        assert "sinks[1].checkpoint is missing" in told[4]
        assert "there is no triger (did you mean trigger?)" in told[5]

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("", "p.yaml:1: the file is empty"),
            ("a: [", "p.yaml:1: "),
            ("- 1", "p.yaml:1: the file is a mapping"),
            (WHOLE.replace("version: 1", "version: 2"), "p.yaml:1: version is 2; this one reads 1"),
            (WHOLE + "  - {}\n", "p.yaml:17: sinks[2] has a table, a log, or objects"),
            (WHOLE + "  - {objects: ./h, object_mib: 0}\n", "sinks[2].object_mib is 1 to 512"),
            (WHOLE + "  - {objects: ./h, log: a}\n", "sinks[2] has a table, a log, or objects"),
            (WHOLE + "sinks: []\n", "p.yaml:17: sinks is given twice"),
            (WHOLE.replace("trigger", "decode: json\ntrigger"),
             "takes records as they are; decode is set"),
            (without_values(WHOLE), "log takes records with their values; includePayload=false"),
            (without_values(WHOLE).replace("trigger", "decode: json\ntrigger"),
             "table has decoded values; includePayload=false leaves values out"),
            (WHOLE.replace("minPartitions", "minPartition"),
             "p.yaml:7: there is no source.options.minPartition"),
            (WHOLE.replace("1g", "lots"), "maxBytesPerTrigger is 'lots'"),
            (WHOLE.replace("minPartitions: 4", "ledgers: 17"),
             "p.yaml:7: there is no source.options.ledgers"),
            (WHOLE.replace("minPartitions: 4", "cordwood.ledgers.password: x"),
             "p.yaml:7: there is no source.options.cordwood.ledgers.password"),
            # The second sink would begin behind what the first one had.
            (WHOLE.replace("minPartitions: 4", "groupId: app"),
             "p.yaml:4: source.options.groupId names the consumer of one query"),
        ],
    )  # fmt: skip
    def test_what_is_wrong(self, text, told: str):
        assert any(told in line for line in mistakes(text))

    def test_one_query_may_have_a_consumer(self):
        text = WHOLE.replace("minPartitions: 4", "groupId: app")
        text = text[: text.index("  - log:")] + "  - objects: ./history\n"
        assert parse_pipeline(text, "p.yaml").source["groupId"] == "app"

    def test_many_mistakes_are_not_all_told(self):
        text = "version: 1\n" + "".join(f"k{number}: 1\n" for number in range(40))
        assert mistakes(text)[-1] == "and 22 more"


def test_the_drawing():
    assert draw(parse_pipeline(WHOLE, "p.yaml")) == [
        "orders, every 300 s",
        "",
        "  orders, clicks    ─┬─► delta ./lake/orders by event_date, log, each record once, "
        "small files joined",
        "  at 127.0.0.1:4440  └─► log orders-copy, each record once (checkpoint ./copy)",
        "  from earliest",
    ]


def test_main_storage_is_merged_by_a_pipeline():
    text = WHOLE + "  - objects: ./history\n  - {objects: 's3://b/p', object_mib: 64}\n"
    found = parse_pipeline(text, "dir/p.yaml")
    assert found.sinks[2:] == (ObjectSink("dir/./history", 256), ObjectSink("s3://b/p", 64))
    assert "  └─► objects in s3://b/p, merged up to 64 MiB" in draw(found)[-1]


class TestTokens:
    """A file says where they are; a token in it is a mistake, and is not shown again."""

    def test_where_they_are_is_drawn_and_they_are_not(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ):
        monkeypatch.setenv("ORDERS", "hunter2")
        file = tmp_path / "p.yaml"
        for place, drawn in (
            ("env:ORDERS", "tokens from env:ORDERS)"),
            ("file:./t", f"tokens from file:{tmp_path}/./t)"),
        ):
            file.write_text(f"{WHOLE}    write_tokens: {place}\n")
            assert run(["pipeline", "show", str(file)]) == 0
            assert run(["pipeline", "show", str(file), "--json"]) == 0
            told = capfd.readouterr().out
            assert drawn in told
            assert "hunter2" not in told

    def test_those_of_the_source(self):
        text = WHOLE.replace("  max_bytes", "  read_tokens: env:ORDERS\n  max_bytes")
        found = parse_pipeline(text, "p.yaml")
        assert found.read_tokens == "env:ORDERS"
        assert any("tokens from env:ORDERS" in line for line in draw(found))

    def test_a_token_in_the_file(self):
        for text, place in (
            (WHOLE + "    write_tokens: hunter2\n", "p.yaml:14: sinks[1].write_tokens"),
            (WHOLE.replace("  max_", "  read_tokens: hunter2\n  max_"),
             "p.yaml:4: source.read_tokens"),
        ):  # fmt: skip
            (told,) = mistakes(text)
            assert told.startswith(f"{place} says where the tokens are, env:")
            assert "hunter2" not in told
        (told,) = mistakes(WHOLE.replace("{minP", "{cordwood.read.tokens: hunter2, minP"))
        assert "there is no source.options.cordwood.read.tokens" in told
        assert "hunter2" not in told


def test_the_verbs_tell_mistakes_line_by_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    file = tmp_path / "pipeline.yaml"
    file.write_text(WHOLE.replace("format", "fromat"))
    assert run(["pipeline", "validate", str(file)]) == 1
    assert (
        f"{file}:11: there is no sinks[0].fromat (did you mean format?)" in capfd.readouterr().err
    )
    file.write_text(WHOLE)
    assert run(["pipeline", "validate", str(file)]) == 0
    assert run(["pipeline", "show", str(file)]) == 0
    assert "orders, every 300 s" in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.real
def test_a_run_takes_each_sink_where_it_was(
    spark: SparkSession,
    cluster: LiveCluster,
    store: BlockingStore,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    store.append_many("/pipe/a", [b"%d" % n for n in range(50)])
    store.append_many("/pipe/b", [b"%d" % n for n in range(50, 80)])
    monkeypatch.setenv("PIPE_TOKENS", "other,sesame")
    attributes = LogAttributes(read_token=token_digest("sesame"))
    store.log_tree.set_attributes("/pipe/b", attributes)
    store.create_log("/piped", attributes=LogAttributes(write_token=token_digest("hunter2")))
    (tmp_path / "tokens").write_text("other\nhunter2\n")
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        f"version: 1\nsource: {{cluster: '{cluster.url}', pattern: /pipe/.*, "
        "read_tokens: 'env:PIPE_TOKENS'}\nsinks:\n"
        "  - {table: ./table, partition_by: log}\n"
        "  - {log: /piped, checkpoint: ./copy, write_tokens: 'file:./tokens'}\n"
    )
    assert run(["pipeline", "run", str(file)]) == 0
    assert "160 records" in capfd.readouterr().out
    store.append("/pipe/a", b"80")
    assert run(["pipeline", "run", str(file)]) == 0
    assert "2 records" in capfd.readouterr().out
    landed = ds.dataset(tmp_path / "table", format="parquet", partitioning="hive").to_table()
    assert sorted(int(value) for value in landed["value"].to_pylist()) == list(range(81))
    with store.read("/piped") as reader:
        copied = [int(item.value) for item in reader if isinstance(item, Record)]
    assert sorted(copied) == list(range(81))
