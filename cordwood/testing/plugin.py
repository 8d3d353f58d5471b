"""The pytest plugin: the fixture `cordwood_sim`, its seeds, and how to replay a failure.

pytest imports this wherever Cordwood is installed, so it imports nothing of ours until
a test asks for the fixture.

Source: docs/simulator.md, "Testing your application".
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cordwood.testing.scenario import Scenario, ScenarioRun

FIRST_SEED = 1
"""The same on every run: a green test stays green until the code changes."""

_USED = pytest.StashKey["CordwoodSim"]()


class CordwoodSim:
    """The value of the fixture `cordwood_sim`.

    Attributes:
        seed: of this test; `run` takes it unless it is told another.
        last: the run that was started last, with its history and story; None before.
    """

    def __init__(self, seed: int, directory: Path) -> None:
        self.seed = seed
        self.last: ScenarioRun | None = None
        self._directory = directory

    def run(self, scenario: Scenario, *, seed: int | None = None, **options: Any) -> Any:
        """Run `await scenario(cluster)` in virtual time; returns its result.

        Then everything is healed, every log is read to its tail, and all that the
        clients saw is checked against Cordwood's promises.

        Args:
            options: `nodes`, `faults`, …: see `cordwood.testing.ScenarioRun`.
        Raises:
            BrokenPromise, EndlessScenario, BaseException: see `ScenarioRun.run`.
        """
        __tracebackhide__ = True
        from cordwood.testing.scenario import ScenarioRun

        self.last = ScenarioRun(scenario, seed=self.seed if seed is None else seed, **options)
        return self.last.run()

    def save_history(self) -> Path | None:
        """Write the last run's history for `cordwood verify`; None if no marker is set."""
        if self.last is None or not self.last.history:
            return None
        from cordwood.sim.history import to_jsonl

        path = self._directory / f"history-seed{self.last.seed}.jsonl"
        path.write_bytes(to_jsonl(self.last.history))
        return path


def pytest_addoption(parser: pytest.Parser) -> None:
    """The seeds of a session."""
    group = parser.getgroup("cordwood", "simulated Cordwood clusters")
    group.addoption(
        "--cordwood-seed",
        type=int,
        metavar="SEED",
        help="the (first) seed of every test that uses cordwood_sim; 1 by default",
    )
    group.addoption(
        "--cordwood-seeds",
        type=int,
        metavar="N",
        help="run each such test with this many seeds; by default 1, or its marker's number",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "cordwood(seed=1, seeds=1): the first seed of a test that uses cordwood_sim, and how many",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each seed."""
    if "cordwood_sim" in metafunc.fixturenames:
        seeds = chosen_seeds(metafunc.config, metafunc.definition.get_closest_marker("cordwood"))
        ids = [f"seed{seed}" for seed in seeds]
        metafunc.parametrize("cordwood_sim", seeds, indirect=True, ids=ids)


def chosen_seeds(config: pytest.Config, marker: pytest.Mark | None) -> Sequence[int]:
    """The seeds of one test: a given seed alone, unless a count is given with it.

    Raises:
        UsageError: the marker has an argument that it does not know.
    """
    wanted = {"seed": FIRST_SEED, "seeds": 1}
    if marker is not None:
        if marker.args or not marker.kwargs.keys() <= wanted.keys():
            raise pytest.UsageError("the marker is cordwood(seed=…, seeds=…)")
        wanted |= marker.kwargs
    seed = config.getoption("cordwood_seed", None)
    count = config.getoption("cordwood_seeds", None)
    if seed is not None:
        wanted = {"seed": seed, "seeds": 1}
    if count is not None:
        wanted["seeds"] = count
    return range(wanted["seed"], wanted["seed"] + wanted["seeds"])


@pytest.fixture
def cordwood_sim(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> CordwoodSim:
    """A Cordwood cluster in memory, in virtual time, with faults: `cordwood_sim.run(…)`."""
    seed = getattr(request, "param", FIRST_SEED)
    used = CordwoodSim(seed, tmp_path_factory.getbasetemp())
    request.node.stash[_USED] = used
    return used


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Below a failure: its seed, its history, and the command that replays it."""
    report = yield
    used = item.stash.get(_USED, None)
    if used is not None and report.when == "call" and report.failed and used.last is not None:
        report.sections.append(("Cordwood simulation", replay_words(item, used)))
    return report


def replay_words(item: pytest.Item, used: CordwoodSim) -> str:
    """How to see a failure again."""
    run = used.last
    assert run is not None, "there is nothing to replay before a run"
    command = ["pytest", item.nodeid]
    if f"seed{used.seed}" in item.name:
        command += ["--cordwood-seed", str(used.seed)]
    lines = [f"seed {run.seed}; replay it with: {shlex.join(command)}"]
    path = used.save_history()
    if path is not None:
        lines.append(f"its history: cordwood verify {shlex.quote(os.fspath(path))}")
    return "\n".join(lines)
