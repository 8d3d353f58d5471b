"""How far a record goes through the code: functions, files and rooms of one append and one read.

A simulated cluster of three nodes with three copies appends one record and reads it back. Every
call of a Python function of the product is counted, on the client and on all nodes. A short way is
one that a newcomer can follow, so a change that lengthens it wants a reason.

    python tools/record_way.py            # a table
    python tools/record_way.py --json     # name, value, unit, a line each
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cordwood.testing.scenario import ScenarioRun  # noqa: E402
from cordwood.testing.simulated_cluster import SimulatedCluster  # noqa: E402

PACKAGE = str(ROOT / "cordwood") + "/"

APPARATUS = ("sim", "testing")
"""Rooms that stand in for the machine: their calls are none of a record's."""


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
    _room: str = ""

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
        self.changes += room != self._room
        self._room = room
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
    """The ways of one append and of one read, of the second record, when all is known."""
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
    return ways


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
