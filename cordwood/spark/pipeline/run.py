"""Run a pipeline: each sink in turn takes the available records, round after round.

One after another, because a driver has one Spark, and a sink that fails must not leave others
half-way: the error ends the run, and the next one goes on where each sink was.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cordwood.spark.jobs.backfill import REPLAY_BYTES, replay
from cordwood.spark.jobs.compact import compact
from cordwood.spark.jobs.land import describe, land
from cordwood.spark.jobs.landing import Landing
from cordwood.spark.options import READ_TOKENS, SERVERS
from cordwood.spark.pipeline.spec import ObjectSink, Pipeline, Sink
from cordwood.spark.raw_options import RawOptions
from cordwood.spark.secrets import tokens_at
from cordwood.spark.sink_options import WRITE_TOKENS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPLAY_BYTES_MAX = RawOptions({"at": REPLAY_BYTES}).size("at", 0)

Say = Callable[[str], None]
FindServers = Callable[[str], str]
"""The address of a cluster by its name in a file."""


def run(
    spark: SparkSession,
    pipeline: Pipeline,
    find_servers: FindServers,
    say: Say = lambda _: None,
    *,
    rounds: int | None = None,
) -> int:
    """Run once, or round after round until a KeyboardInterrupt; the records that came through.

    Objects that are merged bring none.

    Args:
        rounds: end after this number of rounds, if the pipeline has a trigger.
    Raises:
        CordwoodError, StreamingQueryException: of the sink that failed.
    """
    total = 0
    limit = 1 if pipeline.trigger_s is None else rounds
    done = 0
    while limit is None or done < limit:
        began = time.monotonic()
        for sink in pipeline.sinks:
            total += _run_sink(spark, pipeline, sink, find_servers, say)
        done += 1
        if pipeline.trigger_s is not None and (limit is None or done < limit):
            time.sleep(max(0.0, pipeline.trigger_s - (time.monotonic() - began)))
    return total


def _run_sink(
    spark: SparkSession, pipeline: Pipeline, sink: Sink, find_servers: FindServers, say: Say
) -> int:
    if isinstance(sink, ObjectSink):
        done = compact(spark, sink.address, (), sink.object_mib, say)
        for line in done.left:
            say(line)
        return 0
    source = _found(pipeline.source, find_servers)
    if pipeline.read_tokens:
        source[READ_TOKENS] = tokens_at("read_tokens", pipeline.read_tokens)
    if isinstance(sink, Landing):
        landed = land(spark, dataclasses.replace(sink, source=source), say)
        if landed.records:
            for line in describe(landed):
                say(f"{sink.table}: {line}")
        return landed.records
    to = _found(sink.options, find_servers)
    if sink.write_tokens:
        to[WRITE_TOKENS] = tokens_at("write_tokens", sink.write_tokens)
    copied = replay(spark, _publishable(source), to, sink.checkpoint, say=say)
    if copied.records:
        say(f"log {sink.options['log']}: {copied.records:,} records in {copied.seconds:.1f} s")
    return copied.records


def _publishable(source: Mapping[str, str]) -> dict[str, str]:
    """The source with micro-batches that fit into one publish, however large a table's may be."""
    named = RawOptions(source).size("maxBytesPerTrigger", REPLAY_BYTES_MAX)
    rest = {name: value for name, value in source.items() if name != "maxBytesPerTrigger"}
    return {**rest, "maxBytesPerTrigger": str(min(named, REPLAY_BYTES_MAX))}


def _found(options: Mapping[str, str], find_servers: FindServers) -> dict[str, str]:
    return {**options, SERVERS: find_servers(options[SERVERS])}
