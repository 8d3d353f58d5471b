"""The plugin as pytest sees it: seeds, markers, and what a failure says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cordwood.testing import plugin

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def pytest_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Run pytest in this process on a test file with the plugin; its result."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(text: str, *arguments: str):
        pytester.makepyfile(test_it=text)
        options = ["-p", "cordwood.testing.plugin", "-p", "no:cacheprovider", "--strict-markers"]
        return pytester.runpytest_inprocess(*options, *arguments)

    return run


SEEDS = """
import pytest

def test_plain(cordwood_sim):
    assert cordwood_sim.seed == 1

@pytest.mark.cordwood(seeds=3)
def test_many(cordwood_sim):
    pass

@pytest.mark.cordwood(seed=40, seeds=2)
def test_later(cordwood_sim):
    assert cordwood_sim.seed >= 40

def test_without():
    pass
"""

RED = """
def test_red(cordwood_sim):
    async def scenario(cluster):
        store = await cluster.connect()
        await store.append("orders", b"1")
        cluster.crash(2)
        assert cluster.random.random() < 0, "mine"

    cordwood_sim.run(scenario)
"""


class TestSeeds:
    def chosen(self, result) -> list[str]:
        return re.findall(r"::(test_\w+(?:\[\w+\])?)", "\n".join(result.outlines))

    def test_each_test_has_one_unless_its_marker_says_more(self, pytest_run):
        result = pytest_run(SEEDS, "--collect-only", "-q")
        assert self.chosen(result) == [
            "test_plain[seed1]",
            "test_many[seed1]", "test_many[seed2]", "test_many[seed3]",
            "test_later[seed40]", "test_later[seed41]",
            "test_without",
        ]  # fmt: skip

    def test_the_command_line_goes_before_the_marker(self, pytest_run):
        result = pytest_run(SEEDS, "--collect-only", "-q", "--cordwood-seed", "7", "-k", "later")
        assert self.chosen(result) == ["test_later[seed7]"]
        result = pytest_run(SEEDS, "--collect-only", "-q", "--cordwood-seeds", "2", "-k", "later")
        assert self.chosen(result) == ["test_later[seed40]", "test_later[seed41]"]
        both = ("--cordwood-seed", "7", "--cordwood-seeds", "2")
        result = pytest_run(SEEDS, "--collect-only", "-q", *both, "-k", "plain")
        assert self.chosen(result) == ["test_plain[seed7]", "test_plain[seed8]"]

    def test_a_test_is_given_its_seed(self, pytest_run):
        pytest_run(SEEDS).assert_outcomes(passed=7)

    def test_a_marker_that_says_something_else_is_refused(self, pytest_run):
        text = "import pytest\n@pytest.mark.cordwood(sead=1)\ndef test_it(cordwood_sim): pass\n"
        result = pytest_run(text)
        assert result.ret != 0
        assert "the marker is cordwood(seed=…, seeds=…)" in result.stdout.str()

    def test_a_fixture_of_the_users_own_may_stand_before_it(self, pytest_run):
        result = pytest_run(
            """
            import pytest

            @pytest.fixture
            def shop(cordwood_sim):
                return lambda scenario: cordwood_sim.run(scenario, nodes=3)

            def test_it(shop, request):
                async def scenario(cluster):
                    return cluster.nodes
                assert shop(scenario) == (1, 2, 3)

            def test_late(request):
                assert request.getfixturevalue("cordwood_sim").seed == 1
            """
        )
        result.assert_outcomes(passed=2)


class TestFailures:
    def test_one_shows_how_to_replay_it_and_the_replay_fails_alike(self, pytest_run):
        result = pytest_run(RED, "--cordwood-seed", "17")
        result.assert_outcomes(failed=1)
        shown = result.stdout.str()
        assert "AssertionError: mine" in shown
        assert "simulated with seed 17" in shown
        assert "crash node 2" in shown
        assert "run_until_complete" not in shown
        command = re.search(r"seed 17; replay it with: (.*)", shown)
        assert command is not None
        assert shlex.split(command[1]) == [
            "pytest", "test_it.py::test_red[seed17]", "--cordwood-seed", "17",
        ]  # fmt: skip
        again = pytest_run(RED, *shlex.split(command[1])[1:])
        again.assert_outcomes(failed=1)
        random_value = re.compile(r"assert [\d.]+ < 0")
        assert random_value.findall(shown) == random_value.findall(again.stdout.str())

    def test_its_history_can_be_verified(self, pytest_run):
        result = pytest_run(RED)
        command = re.search(r"its history: cordwood (.*)", result.stdout.str())
        assert command is not None
        done = subprocess.run(
            [sys.executable, "-m", "cordwood", *shlex.split(command[1])],
            capture_output=True, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 records acknowledged" in done.stdout

    def test_one_outside_the_simulation_shows_nothing_of_it(self, pytest_run):
        result = pytest_run("def test_it(cordwood_sim):\n    assert 0\n")
        result.assert_outcomes(failed=1)
        assert "replay it with" not in result.stdout.str()

    def test_a_seed_of_the_tests_own_is_in_the_test(self, pytest_run):
        text = RED.replace("run(scenario)", "run(scenario, seed=99)")
        shown = pytest_run(text).stdout.str()
        assert "seed 99; replay it with: pytest 'test_it.py::test_red[seed1]'" in shown


class TestWeight:
    def test_it_loads_nothing_of_ours_until_it_is_used(self):
        code = (
            "import sys, cordwood.testing.plugin; "
            "print(*(name for name in sys.modules if name.startswith('cordwood')))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
        )
        assert set(done.stdout.split()) == {
            "cordwood", "cordwood.testing", "cordwood.testing.plugin",
        }  # fmt: skip

    def test_it_is_what_the_package_announces(self):
        text = (ROOT / "proof" / "pyproject.toml").read_text()
        assert '[project.entry-points.pytest11]\ncordwood = "cordwood.testing.plugin"\n' in text
        assert plugin.cordwood_sim is not None

    def test_every_public_name_is_there(self):
        import cordwood.testing

        for name in cordwood.testing.__all__:
            assert getattr(cordwood.testing, name) is not None
        with pytest.raises(AttributeError):
            _ = cordwood.testing.Nothing
