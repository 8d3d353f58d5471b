"""What every room's tests share: skips that CI turns into failures, Hypothesis, real logs.

`CORDWOOD_REQUIRE=jre,loghub` names what must be there: a test that would skip for want
of it fails instead, so that CI cannot go green by testing less.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent

# No deadline: a shared machine stalls for longer than any that would find a slow test.
hypothesis.settings.register_profile("developer", deadline=None, print_blob=True)
# In CI a red run must mean the change, not the draw of the day.
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "developer")

Require = Callable[[str, str], NoReturn]


def end_for_want_of(name: str, reason: str) -> NoReturn:
    """Skip this test, or fail it where CORDWOOD_REQUIRE lists `name`."""
    required = os.environ.get("CORDWOOD_REQUIRE", "").replace(",", " ").split()
    if name in required:
        pytest.fail(f"CORDWOOD_REQUIRE asks for {name}: {reason}")
    pytest.skip(f"{name}: {reason}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `-n 2`, keep a file's tests together, and all that start processes in one worker.

    So a fixture of a file is made once, and no real cluster or Spark has to share the
    machine with another of its kind.
    """
    for item in items:
        is_real = any(item.get_closest_marker(name) for name in ("real", "spark"))
        group = "real" if is_real else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture
def require() -> Require:
    """`require("zookeeper", "no zkServer.sh on PATH")` skips, or fails where it is required."""
    return end_for_want_of


@pytest.fixture(scope="session")
def loghub() -> Path:
    """A directory of real logs (`*_2k.log`, from the loghub collection), or a skip.

    CORDWOOD_LOGHUB names it; else it is sought beside the clone. It is not in the
    repository because its licence asks that users get it from its authors.
    """
    told = os.environ.get("CORDWOOD_LOGHUB")
    directory = Path(told) if told else ROOT.parent / "shared" / "data" / "loghub"
    if not any(directory.glob("*_2k.log")):
        end_for_want_of("loghub", f"no *_2k.log in {directory}; set CORDWOOD_LOGHUB")
    return directory
