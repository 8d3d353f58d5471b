"""A job or a compaction in a process of its own, which dies between two durable steps.

Run as a script: one JSON argument, see `run_job`.
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
from typing import Any

ROOT = Path(__file__).resolve().parents[3]

DIED = -signal.SIGKILL

RUN_TIMEOUT_S = 280


def run_job(job: str, *, step: int = 0, **how: Any) -> Any:
    """Run one; what it found, or None if it died.

    Args:
        step: die before this durable step, counted from 1; 0 for never.
        how: what `main` hands to the job.
    """
    order = {"job": job, "step": step, **how}
    path = f"{ROOT}{os.pathsep}{Path(__file__).parent}"
    with tempfile.TemporaryFile("w+") as told, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(order)],
            env={**os.environ, "PYTHONPATH": path},
            stdout=told,
            stderr=errors,
            start_new_session=True,
        )
        try:
            process.wait(RUN_TIMEOUT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if process.returncode == DIED:
            return None
        for file in (told, errors):
            file.seek(0)
        assert process.returncode == 0, f"the job failed: {errors.read()[-3000:]}"
        return json.loads(told.read().splitlines()[-1])


def main() -> None:
    order = json.loads(sys.argv[1])
    from landing_process import die_at_step

    from cordwood.spark.session import local_settings, open_session

    spark = open_session("crash", "local[2]", options=local_settings())
    if order["step"]:
        die_at_step(order["step"])
    print(json.dumps(_run(spark, order)), flush=True)
    os._exit(0)  # stopping Spark takes a second, and nothing is left to be done


def _run(spark: Any, order: dict[str, Any]) -> Any:
    if order["job"] == "compact":
        from cordwood.spark.jobs.compact import compact

        done = compact(spark, order["store"])
        return {"merged": done.merged, "records": done.records, "left": done.left}
    source, notes = order.get("source", {}), order["notes"]
    if order["job"] == "backfill":
        from cordwood.spark.jobs.backfill import backfill

        done = backfill(spark, order["table"], order["sink"], notes, step_bytes=1)
        return {"records": done.records, "steps": done.steps, "skipped": done.skipped}
    if order["job"] == "stats":
        from cordwood.spark.jobs.stats import stats

        found = stats(spark, source, progress=notes, step_bytes=1)
        return {"records": sum(each.records for each in found.hours)}
    from cordwood.spark.jobs.audit import audit_into

    rows = audit_into(spark, source, notes).collect()
    return {"findings": sorted(str(row.asDict()) for row in rows)}


if __name__ == "__main__":
    main()
