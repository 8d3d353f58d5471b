"""What every room's tests share: skips that CI turns into failures, Hypothesis, real logs.

`CORDWOOD_REQUIRE=jre,loghub` names what must be there: a test that would skip for want
of it fails instead, so that CI cannot go green by testing less.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from cordwood.testing import plugin

SPARK, REAL = "spark", "real"

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


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Load the fixture's plugin from this checkout: its entry point is `proof/pyproject.toml`'s."""
    if not pluginmanager.is_registered(plugin):
        pluginmanager.register(plugin, "cordwood")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's tests first, then those of real clusters: with `-n 2` both are long chains."""
    order = (SPARK, REAL)
    items.sort(key=lambda item: order.index(g) if (g := group_of(item.nodeid)) in order else 2)


class Groups(LoadScopeScheduling):
    """With `-n 2`, a file's tests stay together, and those of real clusters, and Spark's.

    So a fixture of a file is made once, no Spark has to share the machine with another, and no
    real cluster with another. (`--dist loadgroup` does not group any more where pytest is 9.2 or
    newer and pytest-xdist 3.8, see its issue 1386.)
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    """In the order of collection, see above."""
    config.option.loadscopereorder = False
    return Groups(config, log)


def group_of(nodeid: str) -> str:
    """The group of a test, by its file."""
    return _group_of_file(nodeid.partition("::")[0])


@functools.cache
def _group_of_file(path: str) -> str:
    text = (ROOT / path).read_text()
    return next((group for group in (SPARK, REAL) if f"mark.{group}" in text), path)


@pytest.fixture(scope="session")
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
