"""docs/simulator.md says what is there, and its examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cordwood.sim.checkers import CHECKERS
from cordwood.sim.verdict import promise_words
from cordwood.testing.simulated_cluster import SimulatedCluster

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "simulator.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

CLUSTER_URL = "cordwood://127.0.0.1:4440"


def example(part: str) -> str:
    """The only example that has `part` in it."""
    (found,) = [text for text in EXAMPLES if part in text]
    return found


def test_the_promises_are_those_of_the_checkers():
    told = dict(re.findall(r"^\| ([SLEO]\d+) \| (.*) \|$", PAGE, re.MULTILINE))
    assert told == {name: promise_words(name).partition(": ")[2] for name in CHECKERS}


def test_what_it_says_of_the_cluster_is_there():
    table = PAGE.partition("**On `cluster`**")[2].partition("**Seeds.**")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    names = {name for cell in cells for name in re.findall(r"`(?:await )?(\w+)", cell)}
    assert names >= {"connect", "start", "crash", "heal", "strike", "partition", "random"}
    made = vars(SimulatedCluster).keys() | {"random"}
    assert names - made == set()


def test_files_that_it_names_are_there():
    names = set(re.findall(r"`((?:sim|cordwood|tests|tools)/[\w/.]+\.(?:py|txt))`", PAGE))
    assert len(names) > 10
    missing = [
        name
        for name in names
        if not any((base / name).exists() for base in (ROOT, ROOT / "cordwood"))
    ]
    assert missing == []


def test_the_example_of_the_fixture_passes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_it=example("def test_orders_survive"))
    result = pytester.runpytest_inprocess("-p", "cordwood.testing.plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)


@pytest.mark.real
def test_the_example_of_a_recording_verifies(tmp_path: Path):
    """On an embedded store in place of the cluster's address."""
    text = example("Recording(")
    assert text.count(CLUSTER_URL) == 1
    script = tmp_path / "record.py"
    script.write_text(text.replace(CLUSTER_URL, "./data"))
    place = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "timeout": 60}
    for command in ([str(script)], ["-m", "cordwood", "verify", "history.jsonl"]):
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False, **place
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "3 records acknowledged" in done.stdout
