"""A landing in a process of its own, which dies by SIGKILL at a point that it is told.

Run as a script: one JSON argument, see `Order`. What it is killed at is what `landing_process`
patches before it starts; the code that lands is the production's.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

DIED = -signal.SIGKILL

POINTS = ("before-staging", "before-publish", "in-publish", "after-publish", "never")
"""`in-publish` is after the point of no return and before the files are in their places."""

RUN_TIMEOUT_S = 280


@dataclass(frozen=True)
class Order:
    """What to land, and when to die.

    Attributes:
        point: one of POINTS, in the batch of this number.
        step: die before this durable step, counted from 1 over the whole run; 0 for never.
        workers_die: kill a Python worker of the executor once, in the middle of a task.
    """

    source: dict[str, str]
    table: str
    format: str = "parquet"
    decode: str = ""
    point: str = "never"
    batch: int = 0
    step: int = 0
    compact: bool = False
    master: str = "local[2]"
    workers_die: bool = False
    options: dict[str, str] = field(default_factory=dict)


def run_landing(order: Order) -> int:
    """Run one; its exit code, and nothing that it started is left."""
    # A file, not a pipe: the JVM of a driver that was killed holds it open for a while.
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(asdict(order))],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
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
            raise AssertionError(f"the landing failed: {errors.read()[-3000:]}")
    return process.returncode


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def plant(order: Order) -> None:
    """Patch what is to die."""
    from cordwood.spark.jobs import delta_table, iceberg_table, parquet_table
    from cordwood.spark.jobs.land import Lander

    on_batch, write = Lander.on_batch, Lander._write

    def dying_on_batch(lander, frame, batch):
        if batch == order.batch and order.point == "before-staging":
            die()
        lander.now = batch
        on_batch(lander, frame, batch)
        if batch == order.batch and order.point == "after-publish":
            die()

    def dying_write(lander, *arguments):
        done = write(lander, *arguments)
        if lander.now == order.batch and order.point == "before-publish":
            die()
        return done

    Lander.on_batch, Lander._write = dying_on_batch, dying_write
    if order.step:
        die_at_step(order.step)
    if order.point == "in-publish":
        for module in (parquet_table, delta_table, iceberg_table):
            _die_in_move(module, order.batch)


def die_at_step(step: int) -> None:
    """Count every step by which a job makes something durable, and every commit of a table; die
    before the one of this number."""
    import deltalake
    from pyiceberg.catalog.sql import SqlCatalog

    from cordwood import durable

    left = [step]

    def dying(right):
        def wrong(*arguments, **named):
            left[0] -= 1
            if not left[0]:
                die()
            return right(*arguments, **named)

        return wrong

    places = [(durable, name) for name in STEPS]
    places += [(deltalake.DeltaTable, "create_write_transaction"), (SqlCatalog, "commit_table")]
    for owner, name in places:
        setattr(owner, name, dying(getattr(owner, name)))


STEPS = ("write_new", "sync_file", "sync_directory", "rename", "unlink", "make_directory")
"""Of `cordwood.durable`: all that it does to the disk."""


def _die_in_move(module, batch: int) -> None:
    move_in, calls = module.move_in, []

    def dying_move(table, files, *below):
        calls.append(files)
        if files and len(calls) > batch:
            # Half of them, as a kill between two renames would leave it.
            move_in(table, files[: len(files) // 2], *below)
            die()
        return move_in(table, files, *below)

    module.move_in = dying_move


def kill_a_worker_soon() -> None:
    """A thread that kills one Python worker as soon as there is one that reads."""
    import threading
    import time

    def hunt() -> None:
        for _ in range(2000):
            for entry in Path("/proc").glob("[0-9]*"):
                try:
                    line = (entry / "cmdline").read_bytes()
                    stat = (entry / "stat").read_bytes()
                except OSError:
                    continue
                fields = stat[stat.rindex(b")") + 2 :].split()
                ours = int(fields[3]) == os.getsid(0)
                parent = int(fields[1])
                # Other workers of a daemon plan for the driver, which tries nothing again.
                if ours and b"pyspark.worker" in line.split(b"\0") and _is_daemon(parent):
                    os.kill(int(entry.name), signal.SIGKILL)
                    return
            time.sleep(0.01)

    threading.Thread(target=hunt, daemon=True).start()


def _is_daemon(pid: int) -> bool:
    """Whether a process is the daemon itself: a worker is its child."""
    try:
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def main() -> None:
    order = Order(**json.loads(sys.argv[1]))
    plant(order)
    from cordwood.spark.jobs.land import land
    from cordwood.spark.jobs.landing import Landing
    from cordwood.spark.session import local_settings, open_session

    spark = open_session("crash", order.master, options=dict(local_settings(), **order.options))
    if order.workers_die:
        kill_a_worker_soon()
    by = () if order.format == "parquet" else ("event_date",)
    landing = Landing(
        order.source, order.table, order.format, by, order.decode, compact=order.compact
    )
    land(spark, landing)
    os._exit(0)  # stopping Spark takes a second, and nothing is left to be done


if __name__ == "__main__":
    main()
