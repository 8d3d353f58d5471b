"""Which functions decode, found in the code itself, and which of them the targets reach.

A function decodes if it takes bytes apart (`unpack`, `iter_unpack`, `json.loads`,
`msgspec`'s decoders, YAML, …) or is a public function of `layout` that reads something. What
was added and fuzzed by nobody is thereby told by a test, and not by a list that somebody
must remember.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parents[2]

_TAKES_APART = frozenset({
    "unpack", "unpack_from", "iter_unpack", "frombuffer", "loads", "read_json", "convert",
    "from_bytes", "fromhex", "compose", "safe_load", "parse_lsn",
})  # fmt: skip
_DECODERS = re.compile(r"msgspec|decoder|_calls|_replies|_faults", re.IGNORECASE)
_READS = re.compile(r"^(read|unpack|parse|open_body|inflate|decode)")
_ROOMS_LEFT_OUT = frozenset({"bench", "chaos", "cli", "demo", "sim", "testing"})
"""They read what they wrote themselves, or hand it on to the rest; `sim.history` does not."""
_LEFT_OUT_ALL_THE_SAME = ("sim/history.py",)

Place = tuple[str, str]
"""A file below `cordwood`, and a function's name in it."""


def decoders() -> list[Place]:
    """Every function that decodes, in order."""
    return sorted(place for file in _files() for place in _of_file(file))


def _files() -> Iterator[Path]:
    for file in sorted((ROOT / "cordwood").rglob("*.py")):
        below = file.relative_to(ROOT / "cordwood")
        if below.parts[0] not in _ROOMS_LEFT_OUT or below.as_posix() in _LEFT_OUT_ALL_THE_SAME:
            yield file


def _of_file(file: Path) -> set[Place]:
    below = file.relative_to(ROOT / "cordwood").as_posix()
    is_layout = below.startswith("layout/")
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
            if any(map(_takes_apart, calls)) or (is_layout and _READS.match(node.name)):
                found.add((below, node.name))
    return found


def _takes_apart(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Attribute):
        if function.attr == "decode":
            return _DECODERS.search(ast.unparse(function.value)) is not None
        return function.attr in _TAKES_APART
    return isinstance(function, ast.Name) and function.id in _TAKES_APART


def reached(run: Callable[[], object]) -> set[Place]:
    """Functions of Cordwood that `run` calls."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    top = ROOT / "cordwood"
    return {
        (Path(code.co_filename).relative_to(top).as_posix(), code.co_name)
        for code in codes
        if Path(code.co_filename).is_relative_to(top)
    }
