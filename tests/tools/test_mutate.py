"""tools/mutate.py: its changes are changes, they compile, and a known one is noticed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import mutate  # noqa: E402


def changed(mutant: mutate.Mutant, data: bytes) -> str:
    return (data[: mutant.start] + mutant.after.encode() + data[mutant.end :]).decode()


@pytest.mark.parametrize(
    ("source", "after"),
    [
        ("def f(a):\n    return a < 3\n", ["(a <= 3)", "(4)"]),
        ("def f(a, b):\n    return not a or b\n", ["(not a and b)", "(a)"]),
        ("def f(a):\n    a.close()\n", ["pass"]),
        ("def f(a):\n    raise ValueError(3)\n", ["pass"]),
        ("def f(a):\n    a.b = a\n", ["pass"]),
        ("LIMIT = 3\ndef f(a: int = 3) -> None:\n    'ü'\n    assert a < 3\n", []),
        ("def f(a):\n    'ü'; x = a + b\n", ["(a - b)"]),
        ("def f(a):\n    logger.info('%s', a < 3)\n", []),
        (
            "@dataclass(frozen=True)\nclass A:\n    b: int = 3\n    c = d or e\n",
            ["(4)", "(d and e)"],
        ),
    ],
)
def test_what_is_changed(source: str, after: list[str]) -> None:
    found = list(mutate.mutants_of("x.py", source))
    assert [each.after for each in found] == after
    for each in found:
        assert ast.dump(ast.parse(changed(each, source.encode()))) != ast.dump(ast.parse(source))


@pytest.mark.slow
def test_a_seed_draws_the_same_and_what_it_draws_compiles() -> None:
    drawn = mutate.draw(mutate.ROOMS, 300, seed=5)
    assert drawn == mutate.draw(mutate.ROOMS, 300, seed=5)
    assert len({each.path.split("/")[1] for each in drawn}) == len(mutate.ROOMS)
    for each in drawn:
        source = (ROOT / each.path).read_bytes()
        assert source[each.start : each.end].decode() == each.before
        assert ast.dump(ast.parse(changed(each, source))) != ast.dump(ast.parse(source)), each


def test_a_change_that_breaks_a_rule_is_noticed(tmp_path: Path) -> None:
    path = "cordwood/protocol/seal.py"
    mutants = list(mutate.mutants_of(path, (ROOT / path).read_text()))
    turned = next(each for each in mutants if "<" in each.before or ">" in each.before)
    tree = mutate.Tree(tmp_path)
    assert tree.judge(turned, sim_seed=1) == "unit"
    assert (tmp_path / path).read_bytes() == (ROOT / path).read_bytes()


def test_a_step_that_comes_to_no_end_is_told_apart(tmp_path: Path) -> None:
    """On a busy machine it says nothing of the change."""
    tree = mutate.Tree(tmp_path)
    assert tree._fails([sys.executable, "-c", "while True: pass"], 0.2) == mutate.NO_END
    assert tree._fails([sys.executable, "-c", "exit(1)"], 60) == ""
    assert tree._fails([sys.executable, "-c", ""], 60) is None


def test_the_copy_holds_every_file_that_a_test_may_read(tmp_path: Path) -> None:
    mutate.Tree(tmp_path)
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    tracked = [name for name in listed.stdout.splitlines() if not name.startswith(".")]
    assert len(tracked) > 1000
    assert [name for name in tracked if not (tmp_path / name).exists()] == []


def test_a_step_that_fails_without_a_change_shows_why(tmp_path: Path) -> None:
    tree = mutate.Tree(tmp_path)
    (tmp_path / "tests/protocol/test_seal.py").write_text("def test_a():\n    assert 1 == 2\n")
    assert tree.check("cordwood/protocol/seal.py", sim_seed=1) == "unit"
    assert "assert 1 == 2" in tree.last_lines
