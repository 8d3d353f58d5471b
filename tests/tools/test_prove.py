"""What a proof runs, for how long, from which seed, and what a failure shows."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cordwood.sim.crash_states.prove import PROBES

PROVE = Path(__file__).resolve().parents[2] / "tools" / "prove.py"


@pytest.fixture
def simulator(tmp_path: Path):
    """A stand-in for `cordwood` that notes how it is called; the demo's seed 12 fails."""
    script = tmp_path / "sim.py"
    script.write_text(
        "import json, sys\n"
        "arguments = sys.argv[1:]\n"
        f"open({str(tmp_path / 'calls')!r}, 'a').write(json.dumps(arguments) + '\\n')\n"
        "if '--demo' in arguments and '12' in arguments:\n"
        "    sys.exit('S3 broken: lsn e1n5 was acknowledged twice')\n"
    )
    return script


def prove(simulator: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = f"'{sys.executable}' '{simulator}'"
    return subprocess.run(
        [sys.executable, str(PROVE), "--command", command, "--workers", "1", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def calls(simulator: Path) -> list[list[str]]:
    lines = (simulator.parent / "calls").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_budgets_of_the_parts_add_up_to_the_minutes() -> None:
    spec = importlib.util.spec_from_file_location("prove", PROVE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["prove"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    parts = list(module.PARTS.values())
    for some in (parts, parts[:1], parts[-1:], parts[2:5]):
        shares = module.budgets(some, 15.0)
        assert sum(shares) == pytest.approx(15.0 if any(part.weight for part in some) else 0.0)
        assert all(share >= 0 for share in shares)


def test_a_proof_of_fifteen_minutes_kills_landings_and_writes_twenty_times_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(PROVE.parent))
    import prove_spark

    said: list[str] = []
    ran: list[tuple[list[str], str]] = []

    def run(command, **options):
        ran.append((command, options["env"]["CORDWOOD_SCHEDULES"]))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(prove_spark.subprocess, "run", run)
    assert prove_spark.run_spark(14.9, said.append)
    assert ran == []
    assert prove_spark.run_spark(15.0, said.append)
    ((command, schedules),) = ran
    assert int(schedules) >= 20
    assert command[-3:-1] == ["tests/spark", "-o"]
    assert "slow" in command


def test_each_test_that_make_test_leaves_out_is_run_by_a_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scenes run every slow test outside tests/spark, a large room by itself, and of Spark those
    that they name."""
    monkeypatch.syspath_prepend(str(PROVE.parent))
    import prove_scenes

    ran: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(prove_scenes.subprocess, "run", run)
    assert prove_scenes.run_scenes(2, lambda text: None)
    *rooms, elsewhere, spark = ran
    root = PROVE.parents[1]
    alone = [command[-1] for command in rooms]
    assert alone == [*prove_scenes.ROOMS]
    ignored = [each.removeprefix("--ignore=") for each in elsewhere if "--ignore" in each]
    assert {*ignored} == {"tests/spark", "tests/protocol/test_small_scope.py", *alone}
    for scene in spark[spark.index("slow") + 1 :]:
        path, _, names = scene.partition("::")
        name = names.split("::")[-1]
        text = (root / path).read_text()
        # The mark of the whole test, or of some of its parameters.
        decorators = r"\bpytest\.mark\.slow\b.*\n(?:(?! *def ).*\n)*?"
        assert re.search(rf"{decorators} *def {name}\(", text, re.M), scene


ALL = ("--parts", "swarm,demo,tier,beyond,crash")


@pytest.mark.slow
def test_the_swarm_the_demo_the_tier_what_is_beyond_and_crash_states_are_swept(simulator):
    done = prove(simulator, *ALL, "--minutes", "0.01", "--first-seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    common = ["--seed", "7", "--seeds", "1", "--minutes"]
    shown = [call[: call.index("--jobs") - 1] for call in calls(simulator)]
    assert shown == [
        ["sim", "run", *common],
        ["sim", "run", "--demo", *common],
        ["sim", "run", "--tier", *common],
        ["sim", "run", "--beyond", *common],
    ]
    assert "crash states in" in done.stdout
    assert "prove: clean" in done.stdout


def test_most_of_the_time_is_the_swarm_s(simulator):
    prove(simulator, "--parts", "swarm,demo,beyond", "--minutes", "0.01", "--first-seed", "1")
    minutes = [float(call[call.index("--minutes") + 1]) for call in calls(simulator)]
    assert minutes[0] > sum(minutes[1:])
    assert sum(minutes) <= 0.01


def test_minutes_and_cores_say_how_many_seeds(simulator):
    prove(simulator, "--parts", "swarm,demo,beyond", "--minutes", "1", "--first-seed", "1")
    seeds = [int(call[call.index("--seeds") + 1]) for call in calls(simulator)]
    assert seeds == [5, 2, 1]


def test_a_sweep_that_fails_is_shown_with_the_command_that_ran(simulator):
    done = prove(simulator, "--parts", "demo", "--minutes", "0", "--first-seed", "12")
    assert done.returncode == 1
    # Once where it failed, and once at the end, which may be all that a reader is shown.
    assert done.stdout.count("S3 broken: lsn e1n5 was acknowledged twice") == 2
    _, _, end = done.stdout.partition("demo failed; its last lines again:")
    assert "S3 broken: lsn e1n5 was acknowledged twice" in end
    ran = next(call for call in calls(simulator) if "--demo" in call)
    assert f"again: cordwood {' '.join(ran)}\n" in done.stdout
    assert "prove: demo FAILED" in done.stdout


def test_a_real_cluster_is_struck_and_not_judged_by_a_busy_machine_s_time(simulator):
    done = prove(simulator, "--parts", "failover", "--minutes", "0.5", "--first-seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    [call] = calls(simulator)
    assert call == [
        "chaos", "--rounds", "50", "--minutes", "0.5", "--seed", "7", "--no-bounds",
    ]  # fmt: skip


def test_all_that_can_be_done_to_a_real_cluster_is_and_nothing_is_left_of_it(simulator):
    done = prove(simulator, "--parts", "chaos", "--minutes", "0.5", "--first-seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    [call] = calls(simulator)
    assert call[:-1] == [
        "chaos", "--minutes", "0.5", "--seed", "7", "--no-bounds", "--dir",
    ]  # fmt: skip
    assert not Path(call[-1]).exists()


@pytest.mark.parametrize(
    ("ratios", "code", "runs"), [([0.9], 0, 1), ([0.2, 0.6, 0.7], 0, 3), ([0.6, 0.1, 0.69], 1, 3)]
)
def test_a_reader_beside_a_slow_node_has_three_tries(tmp_path: Path, ratios, code: int, runs: int):
    script = tmp_path / "bench.py"
    script.write_text(
        "import json, sys\n"
        f"open({str(tmp_path / 'calls')!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
        f"tried = len(open({str(tmp_path / 'calls')!r}).readlines())\n"
        f"print(json.dumps([{{'ratio': {ratios}[tried - 1]}}]))\n"
    )
    done = prove(script, "--parts", "reads", "--minutes", "0", "--first-seed", "7")
    assert done.returncode == code, done.stdout + done.stderr
    made = calls(script)
    assert len(made) == runs
    assert made[0][:5] == ["bench", "read", "--slow-node", "--repeat", "5"]
    assert not Path(made[0][-1]).exists()


@pytest.mark.slow
def test_the_sweeps_after_one_that_failed_are_run_all_the_same(simulator):
    done = prove(simulator, *ALL, "--minutes", "0", "--first-seed", "12")
    assert any("--beyond" in call for call in calls(simulator))
    assert "crash states in" in done.stdout


def test_a_part_that_there_is_not_is_refused(simulator):
    done = prove(simulator, "--parts", "demo,swamp")
    assert done.returncode == 2
    assert "swarm,demo,tier,beyond,crash" in done.stderr


@pytest.mark.slow
def test_a_seed_of_the_crash_states_can_be_run_again(simulator):
    done = prove(simulator, "--crash-seed", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 5: " in done.stdout
    assert "nothing broken" in done.stdout


def test_the_first_seed_follows_from_the_commit(simulator):
    told = {
        prove(simulator, "--parts", "demo", "--minutes", "0").stdout.splitlines()[0]
        for _ in range(2)
    }
    assert len(told) == 1


def test_a_quick_proof_leaves_spark_out_and_says_so(simulator):
    done = prove(simulator, "--parts", "spark,spark42", "--minutes", "2")
    assert done.returncode == 0
    assert done.stdout.count("left out of a proof of less than 15 min") == 2


class TestFullCrashSweeps:
    """What a full sweep of crash states never met is a failure; a short one only tells it."""

    @pytest.fixture
    def tool(self):
        spec = importlib.util.spec_from_file_location("prove_tool", PROVE)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["prove_tool"] = module  # where its dataclasses look themselves up
        spec.loader.exec_module(module)
        yield module
        del sys.modules["prove_tool"]

    @pytest.mark.parametrize(
        ("states", "left_out", "missed"),
        [
            ((50_000, 50_000), "a partition was cut", ["a partition was cut"]),
            ((50_000, 49_999), "a partition was cut", []),
            ((90_000, 20_000), "", []),
        ],
    )
    def test_all_cores_together_count(self, tool, states, left_out: str, missed):
        half = len(PROBES) // 2
        met = [frozenset(PROBES[:half]), frozenset(PROBES[half:])]
        swept = [
            tool.CrashSweep("", count, hit - {left_out}, None)
            for count, hit in zip(states, met, strict=True)
        ]
        assert tool.missed_crash_probes(swept) == missed
