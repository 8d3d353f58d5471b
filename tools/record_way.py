"""The way of a record through the code: functions, files and rooms of an append, a read, a row.

A simulated cluster of three nodes with three copies appends one record and reads it back. Then a
Spark task reads one record of an embedded store into an Arrow batch, without Spark itself. Every
call of a Python function of the product is counted, on the client and on all nodes. A newcomer can
follow a short way, so a change that lengthens it needs a reason. The row's figures may differ by a
few calls from run to run, because the embedded store's timers run in real time.

    python tools/record_way.py            # a table
    python tools/record_way.py --json     # name, value, unit, a line each
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import cordwood  # noqa: E402
from cordwood.spark.slice_reader import read_slices  # noqa: E402
from cordwood.spark.splitting import Slice  # noqa: E402
from cordwood.testing.scenario import ScenarioRun  # noqa: E402
from cordwood.testing.simulated_cluster import SimulatedCluster  # noqa: E402

PACKAGE = str(ROOT / "cordwood") + "/"

APPARATUS = ("sim", "testing")
"""Rooms that replace the machine: their calls are not part of a record's way."""


@dataclass
class Way:
    """The calls of one trip, in their order.

    Attributes:
        calls: how many Python functions of the product ran.
        changes: how often the room changed from one call to the next.
        codes: the functions that ran, each once.
    """

    calls: int = 0
    changes: int = 0
    codes: set[CodeType] = field(default_factory=set)
    # By thread, so that two threads that take turns do not make a way longer.
    _rooms: dict[int, str] = field(default_factory=dict)

    def on_call(self, frame: FrameType, event: str, _: object) -> None:
        """Count one call; see `sys.setprofile`."""
        if event != "call":
            return
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return
        room = room_of(code)
        if room in APPARATUS:
            return
        self.calls += 1
        thread = threading.get_ident()
        self.changes += room != self._rooms.get(thread, "")
        self._rooms[thread] = room
        self.codes.add(code)

    @property
    def files(self) -> int:
        """How many modules ran."""
        return len({code.co_filename for code in self.codes})

    @property
    def rooms(self) -> int:
        """How many rooms ran."""
        return len({room_of(code) for code in self.codes})

    def figures(self, trip: str) -> Iterator[dict[str, object]]:
        """One row a count, as `cordwood bench` prints them."""
        counts = {
            "calls": self.calls,
            "functions": len(self.codes),
            "files": self.files,
            "rooms": self.rooms,
            "room_changes": self.changes,
        }
        for name, value in counts.items():
            yield {"name": f"way_{trip}_{name}", "value": value, "unit": name.replace("_", " ")}


def room_of(code: CodeType) -> str:
    """The folder of a function's module, such as `storage`; a module on top is its own room."""
    return code.co_filename.removeprefix(PACKAGE).split("/")[0].removesuffix(".py")


@contextmanager
def followed(way: Way) -> Iterator[None]:
    sys.setprofile(way.on_call)
    try:
        yield
    finally:
        sys.setprofile(None)


def measure() -> dict[str, Way]:
    """The ways of one append, one read and one row of the second record, when all look-ups are
    cached."""
    ways = {"append": Way(), "read": Way()}

    async def scenario(cluster: SimulatedCluster) -> None:
        async with await cluster.connect() as store:
            await store.append("log", b"first")
            async for _ in store.read("log"):
                pass
            with followed(ways["append"]):
                lsn = await store.append("log", b"second")
            with followed(ways["read"]):
                async for _ in store.read("log", lsn, lsn):
                    pass

    ScenarioRun(scenario, seed=1, nodes=3).run()
    return {**ways, "row": measure_row()}


def measure_row() -> Way:
    """The way of one record from an embedded store into a Spark task's Arrow batch."""
    way = Way()
    is_followed = threading.Event()

    def on_call(frame: FrameType, event: str, argument: object) -> None:
        if is_followed.is_set():
            way.on_call(frame, event, argument)

    # Threads that start from here on are profiled: the client's loop, and its host's threads.
    threading.setprofile(on_call)
    try:
        with tempfile.TemporaryDirectory() as directory, cordwood.connect(directory) as store:
            first, second = store.append_many("log", [b"first", b"second"])
            log_id = store.log("log").log_id
            for lsn in (first, second):
                if lsn == second:
                    is_followed.set()
                    sys.setprofile(on_call)
                asked = [Slice(log_id, "/log", lsn, lsn + 1)]
                rows = [*read_slices(lambda: store, asked, ["value"], fail_on_data_loss=True)]
                assert sum(batch.num_rows for batch in rows) == 1, "one record is one row"
            is_followed.clear()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return way


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    as_json = parser.parse_args().json
    for trip, way in measure().items():
        figures = list(way.figures(trip))
        if as_json:
            for figure in figures:
                print(json.dumps(figure))
        else:
            counted = ", ".join(f"{each['value']} {each['unit']}" for each in figures)
            print(f"{trip}: {counted}")


if __name__ == "__main__":
    main()
