"""The sink, with places where everything of the query dies: driver, JVM and workers, by SIGKILL.

Spark runs the sink's parts in processes of their own, so what is to die is told by the environment,
which all of them inherit: DIE_AT is a point and a batch. The code between the points is the
production's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

from pyspark import TaskContext

from cordwood.spark.sink import CordwoodStreamWriter, query_and_batch
from cordwood.spark.source import CordwoodSource

POINTS = ("in-task", "before-publish", "in-publish", "after-publish", "worker")
"""All but `worker` kill the whole query; that one kills the first attempt of one task."""

IN_PUBLISH_S = 0.02
"""A publish of a few blocks takes some 50 ms here: about the middle of it."""


def die(point: str, batch: int) -> None:
    """Kill all processes of the query if it is to die here."""
    if os.environ.get("DIE_AT") == f"{point}:{batch}":
        kill_session()


def kill_session() -> None:
    """The driver leads a session of its own, which the JVM and all workers are in."""
    ours, session = os.getpid(), os.getsid(0)
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ProcessLookupError):
            if int(entry.name) != ours and os.getsid(int(entry.name)) == session:
                os.kill(int(entry.name), signal.SIGKILL)
    os.kill(ours, signal.SIGKILL)


class DyingSource(CordwoodSource):
    """`format("cordwood_dying")`."""

    @classmethod
    def name(cls) -> str:
        return "cordwood_dying"

    def streamWriter(self, schema, overwrite):  # noqa: N802
        writer = super().streamWriter(schema, overwrite)
        return DyingWriter(writer._options)


class DyingWriter(CordwoodStreamWriter):
    """The sink of a stream."""

    def write(self, iterator):
        written = super().write(iterator)
        _, batch = query_and_batch()
        die("in-task", batch)
        context = TaskContext.get()
        if (
            os.environ.get("DIE_AT") == f"worker:{batch}"
            and context.partitionId() == 0
            and context.attemptNumber() == 0
        ):
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    def commit(self, messages, batchId):  # noqa: N803
        die("before-publish", batchId)
        if os.environ.get("DIE_AT") == f"in-publish:{batchId}":
            threading.Thread(target=_kill_soon, daemon=True).start()
        super().commit(messages, batchId)
        die("after-publish", batchId)


def _kill_soon() -> None:
    time.sleep(IN_PUBLISH_S)
    kill_session()
