"""A user's script that reads, streams and writes on whatever master it is told.

One JSON argument: `master`, `servers`, `log`, `copy` (a log to write to), `scratch` (a
directory). It prints one JSON object. Run by tests in a process of its own, perhaps by another
Python.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    told = json.loads(sys.argv[1])
    from cordwood.spark import register
    from cordwood.spark.session import open_session

    options = {"spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    spark = open_session("any-master", told["master"], options=options)
    if told.get("register"):
        register(spark)
    source = {
        "cordwood.bootstrap.servers": told["servers"], "subscribe": told["log"],
        "startingOffsets": "earliest", "minPartitions": "4",
    }  # fmt: skip
    frame = spark.read.format("cordwood").options(**source).load()
    rows = sorted((row.lsn, bytes(row.value)) for row in frame.select("lsn", "value").collect())
    sink = {"cordwood.bootstrap.servers": told["servers"], "log": told["copy"]}
    sink |= told.get("sink", {})
    scratch = Path(told["scratch"])
    stream = (
        spark.readStream.format("cordwood")
        .options(**source, maxRecordsPerTrigger="100")
        .load()
        .select("value")
        .writeStream.format("cordwood")
        .options(**sink)
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert stream.awaitTermination(240)
    frame.select("value").write.format("cordwood").options(**sink).mode("append").save()
    print(json.dumps({
        "version": spark.version, "values": [value.decode() for _, value in rows],
        "partitions": len({row[0] for row in frame.selectExpr("spark_partition_id()").collect()}),
        "batches": len([each for each in stream.recentProgress if rows_of(each)]),
    }))  # fmt: skip
    spark.stop()


def rows_of(progress) -> int:
    """What a micro-batch read; Spark Connect's progress has it by source only."""
    return sum(source.numInputRows for source in progress.sources)


if __name__ == "__main__":
    main()
