"""Planted bugs, the knobs and the probes: what is put into production code finds its place
there."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from cordwood.decisions import WaveRetried, tell
from cordwood.errors import BadSetting
from cordwood.sim.crash_states.planted import CRASH_BUGS
from cordwood.sim.history import HistoryRecorder
from cordwood.sim.knobs import KNOBS, draw_turns, turned, value_text
from cordwood.sim.planted import PLANTED_BUGS, find_bug, planted
from cordwood.sim.probes import _COUNTS, _WATCHES, PROBES, never_hit, probes_of, watched
from cordwood.sim.streams import stream


def places(bug):
    return [(owner, name, owner.__dict__[name]) for owner, name, _ in bug.plant()]


@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_in_the_code_for_as_long_as_it_is_planted(bug):
    before = places(bug)
    with planted(bug):
        assert all(owner.__dict__[name] is not right for owner, name, right in before)
    assert all(owner.__dict__[name] is right for owner, name, right in before)


def plain_function(found):
    """The function in a property, a class method or itself; None for a value."""
    found = getattr(found, "fget", None) or getattr(found, "__func__", found)
    return found if inspect.isfunction(found) else None


@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=lambda bug: bug.name)
def test_a_bug_takes_what_the_right_function_takes(bug):
    """One that does not fails by its first call and proves nothing: `wal-resume-unwritten` did."""
    for owner, name, wrong in bug.plant():
        right, wrong = plain_function(owner.__dict__[name]), plain_function(wrong)
        if right is None or wrong is None:
            continue
        taken = inspect.signature(right).parameters.values()
        named = {each.name: None for each in taken if each.kind is each.KEYWORD_ONLY}
        given = [
            None
            for each in taken
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]
        inspect.signature(wrong).bind(*given, **named)


def test_bugs_have_names_of_their_own():
    assert len({bug.name for bug in PLANTED_BUGS}) == len(PLANTED_BUGS) >= 20


def test_a_bug_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(BadSetting, match="ack-at-one-less"):
        find_bug("no-such-bug")


@pytest.mark.parametrize("knob", KNOBS.values(), ids=lambda knob: knob.name)
def test_a_knob_is_a_constant_that_is_there(knob):
    before = knob.read()
    with turned(((knob.name, 0),)):
        assert knob.read() == knob.values[0]
    assert knob.read() == before
    assert value_text((knob.name, 0)).startswith(knob.name)


def reads_of(module: ModuleType) -> set[str]:
    """The names that functions of a module look up as they run."""
    tree = ast.parse(inspect.getsource(module))
    return {
        name.id
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for name in ast.walk(function)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)
    }


@pytest.mark.parametrize("knob", KNOBS.values(), ids=lambda knob: knob.name)
def test_a_knob_turns_a_constant_that_its_module_reads(knob):
    """Three knobs turned copies that nothing read any more, so no seed had a small window."""
    module, constant = knob.place
    assert constant in reads_of(module)


def test_a_quarter_of_the_knobs_is_turned():
    drawn = Counter(len(draw_turns(stream(seed, "knobs"))) for seed in range(200))
    mean = sum(count * times for count, times in drawn.items()) / 200
    assert 0.15 < mean / len(KNOBS) < 0.35


@pytest.mark.parametrize("watch", _WATCHES, ids=lambda watch: f"{watch.probe} at {watch.place[1]}")
def test_a_watch_has_a_function_to_watch(watch):
    assert watch.probe in PROBES
    owner, name = watch.place
    assert callable(owner.__dict__[name])


def test_watches_leave_the_code_as_it_was():
    before = [watch.place[0].__dict__[watch.place[1]] for watch in _WATCHES]
    with watched(Counter(), HistoryRecorder(lambda: 0)):
        pass
    after = [watch.place[0].__dict__[watch.place[1]] for watch in _WATCHES]
    assert before == after


def test_a_call_is_counted_where_its_probe_looks_for_it():
    from cordwood.protocol.node_states import NodeStates

    counts: Counter[str] = Counter()
    with watched(counts, HistoryRecorder(lambda: 0)):
        NodeStates().on_slow(1, 0.0)
    assert counts == {"node-slow": 1}
    assert "node-slow" not in never_hit(counts)
    assert "wave-retried" in never_hit(counts)


def test_a_decision_is_counted_by_its_probes():
    counts: Counter[str] = Counter()
    with watched(counts, HistoryRecorder(lambda: 0)):
        tell(WaveRetried(1, 2, 3, 2))
        tell(WaveRetried(1, 2, 3, 3))
    tell(WaveRetried(1, 2, 3, 4))
    assert counts == {"wave-retried": 2, "wave-third": 1}


def test_every_probe_is_watched_for():
    found = {each.probe for each in (*_WATCHES, *_COUNTS)}
    recorder = HistoryRecorder(lambda: 0)
    assert probes_of(recorder.events) == Counter()
    told_by_history = {
        "append-unknown", "append-failed", "reader-failed", "tail-answered", "epochs-many",
        "second-wave-held", "again-was-stored", "again-was-not-stored",
    }  # fmt: skip
    assert found | told_by_history == set(PROBES)


@pytest.mark.parametrize(
    "bug", [each for each in PLANTED_BUGS if each.scene], ids=lambda bug: bug.name
)
def test_a_scene_plants_the_bug_that_is_left_to_it(bug):
    root = Path(__file__).parents[2]
    planting = {root / bug.scene, root / "cordwood/sim/crash_states/planted.py"}
    assert any(f'"{bug.name}"' in path.read_text() for path in planting)


def test_the_page_s_table_has_a_row_for_each_planted_bug() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    table = page.partition("| bug | seed | by |\n")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", table, re.M))
    crash_bugs = {each.bug.name for each in CRASH_BUGS}
    assert {bug.name for bug in PLANTED_BUGS} - rows.keys() == set()
    assert rows.keys() - {bug.name for bug in PLANTED_BUGS} - crash_bugs == set()
    for bug in PLANTED_BUGS:
        by_scene = f"scene | `{bug.scene}`"
        assert (rows[bug.name] == by_scene) is bool(bug.scene), bug.name


def test_the_page_of_reliability_counts_the_planted_bugs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    assert re.findall(r"^\| planted bugs \| (\d+)", page, re.M) == [str(len(PLANTED_BUGS))]
