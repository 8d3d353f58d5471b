"""A query from the source to the sink in a process of its own, which dies where it is told.

Run as a script: one JSON argument with the options of both ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

DIED = -signal.SIGKILL

RUN_TIMEOUT_S = 400


def run_copy(
    source: dict[str, str], sink: dict[str, str], checkpoint: str, *, die_at: str = "",
    parts: int = 0,
) -> int:  # fmt: skip
    """Run one; its exit code, and nothing that it started is left.

    Args:
        die_at: a point of `dying_sink.POINTS` and a batch, as `after-publish:0`.
        parts: tasks that write, if they are to be others than those that read.
    """
    order = {"source": source, "sink": sink, "checkpoint": checkpoint, "parts": parts}
    path = f"{ROOT}{os.pathsep}{Path(__file__).parent}"
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(order)],
            env={**os.environ, "PYTHONPATH": path, "DIE_AT": die_at},
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            process.wait(RUN_TIMEOUT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if process.returncode not in (0, DIED):
            errors.seek(0)
            raise AssertionError(f"the query failed: {errors.read()[-3000:]}")
    return process.returncode


def main() -> None:
    order = json.loads(sys.argv[1])
    from dying_sink import DyingSource

    from cordwood.spark.session import local_settings, open_session

    # Four attempts, as a cluster gives a task; `local[2]` alone gives one.
    spark = open_session("crash", "local[2,4]", options=local_settings())
    spark.dataSource.register(DyingSource)
    frame = spark.readStream.format("cordwood").options(**order["source"]).load()
    frame = frame.select("value", "key")
    if order["parts"]:
        frame = frame.repartition(order["parts"])
    query = (
        frame.writeStream.format("cordwood_dying")
        .options(**order["sink"])
        .option("checkpointLocation", order["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    os._exit(0)  # stopping Spark takes a second, and nothing is left to be done


if __name__ == "__main__":
    main()
