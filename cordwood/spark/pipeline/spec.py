"""The definition of a pipeline: a source, a decoder for its records, and the sinks.

::

    version: 1
    name: orders
    source:
      cluster: 127.0.0.1:4440        # a directory of `cordwood up` will do
      logs: [orders, clicks]         # or  pattern: /orders/.*
      start: earliest                # latest, or JSON by log
      max_bytes: 1g                  # of a micro-batch, about
      headers: false
      read_tokens: env:ORDERS_TOKEN  # or file:./tokens, a line each; never the token itself
      options: {minPartitions: 4}    # any other option of the source
    decode: json                     # or your package.module:function; none lands raw records
    schema: "id BIGINT, name STRING" # of JSON; found by itself if it is left out
    trigger: once                    # or a time, to go on: 60s, 5m
    sinks:
      - table: ./lake/orders
        format: delta                # parquet, delta, iceberg
        partition_by: event_date
        compact: true
      - log: orders-copy             # exactly once, in micro-batches of at most 32m
        cluster: other:4440
        checkpoint: ./orders-copy
        write_tokens: file:./tokens  # likewise
      - objects: s3://lake/history   # main storage: small objects are merged, of all logs
        object_mib: 256

Each sink has a checkpoint of its own and goes its own pace; a table keeps its in itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cordwood.errors import BadSetting
from cordwood.spark.jobs.compact import OBJECT_MIB, OBJECT_MIB_MAX
from cordwood.spark.jobs.landing import EVENT_DATE, Landing
from cordwood.spark.ledger_options import LEDGERS, PASSWORD
from cordwood.spark.options import OPTIONS, READ_TOKENS, SERVERS, parse_options
from cordwood.spark.pipeline.yaml_lines import Mistakes, Reader, read_yaml
from cordwood.spark.raw_options import RawOptions
from cordwood.spark.secrets import FILE, check_place
from cordwood.spark.sink_options import parse_sink_options

VERSION = "1"

ONCE = "once"

GROUP = "groupId"


@dataclass(frozen=True, slots=True)
class LogSink:
    """A log that records are copied to, by `jobs.backfill.replay`.

    Attributes:
        options: of the sink.
        checkpoint: a directory.
        write_tokens: where they are, as `secrets.tokens_at` takes it; "" for none.
    """

    options: Mapping[str, str]
    checkpoint: str
    write_tokens: str = ""


@dataclass(frozen=True, slots=True)
class ObjectSink:
    """Main storage whose small objects are merged, by `jobs.compact`.

    Attributes:
        address: of the object store.
        object_mib: of bodies in a merged object.
    """

    address: str
    object_mib: int


Sink = Landing | LogSink | ObjectSink


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A checked pipeline.

    Attributes:
        source: options of the source.
        trigger_s: seconds between rounds, None to run once.
        read_tokens: where they are, as `secrets.tokens_at` takes it; "" for none.
    """

    name: str
    source: Mapping[str, str]
    decode: str
    trigger_s: float | None
    sinks: tuple[Sink, ...]
    read_tokens: str = ""


def load_pipeline(path: str) -> Pipeline:
    """Read and check a file; relative paths in it are relative to where it lies.

    Raises:
        BadSetting: it cannot be read, or something in it is wrong: all of it, line by line.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path} cannot be read: {error}") from error
    return parse_pipeline(text, path)


def parse_pipeline(text: str, file: str) -> Pipeline:
    """As `load_pipeline`, of a text.

    Args:
        file: its name, for errors and for the directory it lies in.
    """
    mistakes = Mistakes(file)
    top = read_yaml(text, mistakes)
    mistakes.check()
    assert top is not None, "without a mistake there is a file"
    pipeline = _pipeline(top, os.path.dirname(file))
    mistakes.check()
    assert pipeline is not None, "without a mistake there is a pipeline"
    return pipeline


def _pipeline(top: Reader, directory: str) -> Pipeline | None:
    version = top.text("version")
    if version and version != VERSION:
        top.wrong(top.value("version") or top.node, f"version is {version}; this one reads 1")
    name = top.text("name", "pipeline")
    source_reader = top.reader("source")
    source, tokens = ({}, "") if source_reader is None else _source(source_reader, directory)
    decode, schema = top.text("decode", ""), top.text("schema", "")
    trigger = top.text("trigger", ONCE)
    trigger_s = None
    if trigger != ONCE:
        trigger_s = top.made(lambda: RawOptions({"trigger": trigger}).duration_s("trigger", 0))
    sinks = [
        sink
        for reader in top.readers("sinks")
        if (sink := _sink(reader, source, decode, schema, directory)) is not None
    ]
    if source_reader is not None and GROUP in source and len(_queries(sinks)) > 1:
        # The first query moves the cursors, and the next would begin after records it never had.
        source_reader.wrong(
            source_reader.node,
            f"source.options.{GROUP} names the consumer of one query, and each table and each log "
            "is a query of its own: give it a pipeline of its own",
        )
    top.done()
    return Pipeline(name, source, decode, trigger_s, tuple(sinks), tokens)


def _queries(sinks: Sequence[Sink]) -> list[Sink]:
    """Those that read the source."""
    return [sink for sink in sinks if not isinstance(sink, ObjectSink)]


def _source(reader: Reader, directory: str) -> tuple[dict[str, str], str]:
    """The source's options, and where its tokens are."""
    options = {SERVERS: reader.text("cluster")}
    logs, pattern = reader.texts("logs"), reader.text("pattern", "")
    if logs:
        options["subscribe"] = ",".join(logs)
    if pattern:
        options["subscribePattern"] = pattern
    options["startingOffsets"] = reader.text("start", "earliest")
    if max_bytes := reader.text("max_bytes", ""):
        options["maxBytesPerTrigger"] = max_bytes
    if headers := reader.text("headers", ""):
        options["includeHeaders"] = headers
    if reader.value("options") is not None and (more := reader.reader("options")) is not None:
        # Tokens do not belong into a file beside the code: read_tokens names their place. No sink
        # takes ledgers.
        names = [name for name in OPTIONS if name not in (READ_TOKENS, LEDGERS, PASSWORD)]
        options.update({name: text for name in names if (text := more.text(name, ""))})
        more.done()
    tokens = _tokens(reader, "read_tokens", directory)
    reader.done()
    # A directory stands for the cluster in it, which need not run yet.
    checked = {**options, SERVERS: "h:1"} if os.path.isdir(options[SERVERS]) else options
    reader.made(lambda: parse_options(checked).check_stream())
    return options, tokens


def _sink(
    reader: Reader, source: Mapping[str, str], decode: str, schema: str, directory: str
) -> Sink | None:
    table, log, objects = (reader.text(key, "") for key in ("table", "log", "objects"))
    if sum(map(bool, (table, log, objects))) != 1:
        reader.wrong(reader.node, f"{reader.path.rstrip('.')} has a table, a log, or objects")
        return None
    if objects:
        return _object_sink(reader, objects, directory)
    if log:
        return _log_sink(reader, source, log, decode, directory)
    format_ = reader.text("format", "parquet")
    by = reader.texts("partition_by", (EVENT_DATE,))
    compact = reader.made(lambda: RawOptions({"compact": reader.text("compact", "false")}))
    path = os.path.join(directory, os.path.expanduser(table))
    reader.done()
    if decode and not _has_values(source):
        reader.wrong(
            reader.node,
            f"{reader.path}table has decoded values; includePayload=false leaves values out",
        )
    return reader.made(
        lambda: Landing(
            source,
            path,
            format_,
            tuple(name for name in by if name),
            decode,
            schema,
            compact=compact is not None and compact.flag("compact", False),
        )
    )


def _has_values(source: Mapping[str, str]) -> bool:
    try:
        return RawOptions(source).flag("includePayload", True)
    except BadSetting:
        return True  # the source's own mistake, which is told there


def _log_sink(
    reader: Reader, source: Mapping[str, str], log: str, decode: str, directory: str
) -> LogSink | None:
    options = {
        SERVERS: reader.text("cluster", source.get(SERVERS, "")),
        "log": log,
        "codec": reader.text("codec", "none"),
    }
    checkpoint = os.path.join(directory, os.path.expanduser(reader.text("checkpoint")))
    tokens = _tokens(reader, "write_tokens", directory)
    reader.done()
    if decode:
        reader.wrong(reader.node, f"{reader.path}log takes records as they are; decode is set")
    checked = {**options, SERVERS: "h:1"} if os.path.isdir(options[SERVERS]) else options
    if not _has_values(source):
        reader.wrong(
            reader.node,
            f"{reader.path}log takes records with their values; includePayload=false leaves "
            "them out",
        )
    if reader.made(lambda: parse_sink_options(checked)) is None:
        return None
    return LogSink(options, checkpoint, tokens)


def _object_sink(reader: Reader, address: str, directory: str) -> ObjectSink | None:
    text = reader.text("object_mib", str(OBJECT_MIB))
    reader.done()
    if not text.isdecimal() or not 1 <= int(text) <= OBJECT_MIB_MAX:
        reader.wrong(reader.node, f"{reader.path}object_mib is 1 to {OBJECT_MIB_MAX}")
        return None
    if "://" not in address:
        address = os.path.join(directory, os.path.expanduser(address))
    return ObjectSink(address, int(text))


def _tokens(reader: Reader, key: str, directory: str) -> str:
    """The place of tokens; a path is relative to the pipeline's file."""
    place = reader.text(key, "")
    if not place:
        return ""
    place = reader.made(lambda: check_place(f"{reader.path}{key}", place)) or ""
    if not place.startswith(FILE):
        return place
    return FILE + os.path.join(directory, os.path.expanduser(place.removeprefix(FILE)))
