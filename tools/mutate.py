"""Make small random changes in the rooms that keep acknowledged records, and see which tests fail.

`python tools/mutate.py --count 20 --seed 7` draws changes of meaning (a comparison turned, an `and`
made an `or`, a call left out). It makes each change in a copy of the tree, and runs the tests that
mirror the module, then the tests of its room, then some seeds of the simulator. If all of them
pass, the change is a survivor: either it has no visible effect, or a test is missing.

The seed decides the draws, so a run can be repeated; `--only K` repeats its change number K. With
ENOUGH changes or more, the exit code is 1 if a smaller share than `--noticed` was noticed.

Source: docs/reliability.md ("Mutants").
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

ROOMS = ("protocol", "quorum", "recovery", "sequencer", "storage", "client", "metadata")
"""The rooms whose decisions keep acknowledged records."""

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}

NAME_SWAPS = {"min": "max", "max": "min", "any": "all", "all": "any"}

QUIET = ("logger", "log_info", "warnings")
"""Calls on these objects only report, and decide nothing."""

UNIT_S = 120.0
ROOM_S = 240.0
SIM_S = 240.0
"""Time limits. A change that makes a run hang is noticed; normally each step takes a fraction of
its limit."""

NO_END = " (no end)"
"""The verdict of a step that exceeded its time. On a busy machine the unchanged code may do so too,
which is checked at the end."""

SIM_SEEDS = 10

LAST_LINES = 20
"""Lines of output shown of a step that fails without a change: enough for a traceback's end."""

ENOUGH = 20
"""The share of fewer mutants says little: a single mutant without a visible effect would decide
it."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change.

    Attributes:
        path: of the module, below the root.
        start, end: the bytes of the module that are replaced.
        before, after: the text there, and its replacement.
    """

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before!r} becomes {self.after!r}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a mutant; `noticed_by` is "" for a survivor."""

    number: int
    mutant: Mutant
    noticed_by: str
    seconds: float


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """Every small change of one module, in the order of its lines."""
    lines = [0]
    for line in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def place(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = lines[node.lineno - 1] + node.col_offset
        return start, lines[node.end_lineno - 1] + node.end_col_offset

    data = source.encode()
    # A module's constants are bounds and paces: a small change of one breaks no promise.
    module = ast.parse(source)
    module.body = [each for each in module.body if not isinstance(each, ast.Assign | ast.AnnAssign)]
    for node in _decisions(module):
        for changed in _changes(node):
            start, end = place(node)
            before = data[start:end].decode()
            after = ast.unparse(changed)
            # In parentheses, so that a neighbouring operator does not change the meaning.
            if isinstance(node, ast.expr):
                after = f"({after})"
            yield Mutant(path, node.lineno, start, end, before, after)


def _decisions(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Nodes that decide something: no annotation, assertion, docstring or log line."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from _decisions(ast.Expr(node.value))
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == "__repr__":
                continue
            for statement in node.body:
                yield from _decisions(ast.Module([statement], []))
            continue
        if isinstance(node, ast.ClassDef):
            # Its decorators make it frozen or slotted: no test can see the difference.
            yield from _decisions(ast.Module(node.body, []))
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant) or _is_quiet(node.value):
                continue
            yield node
        if isinstance(node, ast.Raise):
            # The text of an error decides nothing; only the raise does.
            yield node
            continue
        if isinstance(node, ast.expr):
            yield node
        if isinstance(node, ast.Assign):
            yield node
        yield from _decisions(node)


def _is_quiet(call: ast.expr) -> bool:
    text = ast.unparse(call)
    return any(text.startswith(f"{name}.") for name in QUIET)


def _changes(node: ast.expr | ast.stmt) -> Iterator[ast.AST]:
    """Small changes of one node."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            changed = copy.deepcopy(node)
            changed.ops = [SWAPS[type(op)]()]  # type: ignore[list-item]
            yield changed
        case ast.BoolOp() | ast.BinOp() if type(node.op) in SWAPS:
            other = copy.deepcopy(node)
            other.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
            yield other
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.IfExp():
            turned = copy.deepcopy(node)
            turned.body, turned.orelse = node.orelse, node.body
            yield turned
        case ast.Call(func=ast.Name(id=name)) if name in NAME_SWAPS:
            called = copy.deepcopy(node)
            called.func = ast.Name(NAME_SWAPS[name])
            yield called
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


def draw(rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Mutants drawn by a seed: a room first, so that a large one does not take them all."""
    by_room = []
    for room in rooms:
        found = [
            mutant
            for path in sorted((ROOT / "cordwood" / room).rglob("*.py"))
            for mutant in mutants_of(str(path.relative_to(ROOT)), path.read_text())
        ]
        if found:
            by_room.append(found)
    chance = random.Random(seed)
    return [chance.choice(chance.choice(by_room)) for _ in range(count)]


class Tree:
    """A copy of the tree to make changes in.

    It holds everything but hidden directories and the built site: tests also read pages of `docs`,
    scripts of `tools` and the `Makefile`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.last_lines = ""
        skipped = shutil.ignore_patterns(".*", "__pycache__", "site")
        shutil.copytree(ROOT, directory, ignore=skipped, dirs_exist_ok=True)

    def judge(self, mutant: Mutant, sim_seed: int) -> str:
        """The step that notices a mutant, "" if none does."""
        path = self._directory / mutant.path
        original = path.read_bytes()
        path.write_bytes(original[: mutant.start] + mutant.after.encode() + original[mutant.end :])
        try:
            return self.check(mutant.path, sim_seed)
        finally:
            path.write_bytes(original)

    def check(self, path: str, sim_seed: int) -> str:
        """The step that fails with the unchanged tree, "" for none."""
        module = Path(path)
        room = Path("tests", *module.parts[1:-1])
        mirror = room / f"test_{module.stem}.py"
        steps: list[tuple[str, list[str], float]] = []
        python = sys.executable
        pytest = [python, "-m", "pytest", "-q", "-x", "-n", "0", "-m", "not slow and not real"]
        if (self._directory / mirror).exists():
            steps.append(("unit", [*pytest, str(mirror)], UNIT_S))
        if (self._directory / room).exists():
            steps.append(("room", [*pytest, str(room)], ROOM_S))
        seeds = ["--seeds", str(SIM_SEEDS), "--seed", str(sim_seed), "-j", "1"]
        steps.append(("simulator", [python, "-m", "cordwood", "sim", "run", *seeds], SIM_S))
        for name, command, limit_s in steps:
            how = self._fails(command, limit_s)
            if how is not None:
                return name + how
        return ""

    def _fails(self, command: Sequence[str], limit_s: float) -> str | None:
        """How a step fails: "" for a failure, NO_END if it does not come to an end.

        `last_lines` then holds the end of the step's output.
        """
        environment = {**os.environ, "PYTHONPATH": str(self._directory)}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        try:
            done = subprocess.run(
                command, cwd=self._directory, env=environment, timeout=limit_s,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            self.last_lines = ""
            return NO_END
        self.last_lines = "\n".join(done.stdout.splitlines()[-LAST_LINES:])
        return "" if done.returncode else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--count", type=int, default=10, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=1, help="what they are drawn by")
    parser.add_argument("--rooms", default=",".join(ROOMS), help=f"some of {','.join(ROOMS)}")
    parser.add_argument("--only", type=int, help="the number of one mutant of this seed")
    parser.add_argument("--minutes", type=float, default=600.0, help="draw no more after these")
    parser.add_argument("--noticed", type=float, default=0.95, help="the share that must be")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    parser.add_argument("--json", action="store_true", help="print verdicts for programs")
    options = parser.parse_args(arguments)
    rooms = options.rooms.split(",")
    if not set(rooms) <= set(ROOMS):
        parser.error(f"--rooms takes some of {','.join(ROOMS)}")
    drawn = list(enumerate(draw(rooms, options.count, options.seed)))
    if options.only is not None:
        drawn = [each for each in drawn if each[0] == options.only]
    if options.list:
        for number, mutant in drawn:
            print(f"{number}: {mutant}")
        return 0
    verdicts: list[Verdict] = []
    ends_s = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="cordwood-mutants-") as directory:
        tree = Tree(Path(directory))
        for number, mutant in drawn:
            if verdicts and time.monotonic() > ends_s:
                break
            begun_s = time.monotonic()
            noticed_by = tree.judge(mutant, options.seed + number)
            verdict = Verdict(number, mutant, noticed_by, time.monotonic() - begun_s)
            verdicts.append(verdict)
            said = f"noticed by: {noticed_by}" if noticed_by else "SURVIVED"
            print(f"{number}: {mutant}\n   {said} ({verdict.seconds:.0f} s)", file=sys.stderr)
        doubtful = {v.mutant.path for v in verdicts if v.noticed_by not in ("", "simulator")}
        for path in sorted(doubtful):
            # A test that fails without a change proves nothing.
            failed = tree.check(path, options.seed)
            if failed:
                print(f"{failed} fails for {path} without any change", file=sys.stderr)
                print(tree.last_lines, file=sys.stderr)
                return 2
    noticed = sum(bool(verdict.noticed_by) for verdict in verdicts)
    if options.json:
        print(json.dumps([asdict(verdict) for verdict in verdicts]))
    print(f"{noticed} of {len(verdicts)} mutants were noticed", file=sys.stderr)
    return int(len(verdicts) >= ENOUGH and noticed < options.noticed * len(verdicts))


if __name__ == "__main__":
    raise SystemExit(main())
