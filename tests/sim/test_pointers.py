"""What the simulator points at in the product is there and is used: decisions that probes count,
functions that probes watch and bugs replace, constants that knobs turn, settings that seeds draw.

Three knobs once turned copies of constants that nothing read any more, and no seed had a small
read window for weeks."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood import decisions
from cordwood.decisions import Decision, EpochDecision, RunDecision
from cordwood.settings import ClientSettings, SequencerSettings, StorageSettings
from cordwood.sim.crash_states.planted import CRASH_BUGS
from cordwood.sim.planted import PLANTED_BUGS
from cordwood.sim.planted.bug import PlantedBug
from cordwood.sim.planted.read_path import SCENES
from cordwood.sim.planted.write_path import NEWEST_NODESET
from cordwood.sim.probes import _COUNTS, _WATCHES, PROBES
from cordwood.sim.replay import quiet_run
from cordwood.sim.run import run_seed
from cordwood.sim.swarm import swarm_options

PACKAGE = Path(cordwood.__file__).parent
PROOF = {"sim", "testing", "bench", "chaos", "demo"}
BUGS = (*PLANTED_BUGS, *SCENES, NEWEST_NODESET, *(each.bug for each in CRASH_BUGS))

KINDS = [
    kind
    for kind in vars(decisions).values()
    if isinstance(kind, type)
    and issubclass(kind, Decision)
    and kind not in (Decision, RunDecision, EpochDecision)
]


@functools.cache
def trees(proof: bool) -> dict[Path, ast.Module]:
    """The product's modules, and with `proof` those that prove it."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        if proof or path.relative_to(PACKAGE).parts[0] not in PROOF:
            found[path] = ast.parse(path.read_text())
    return found


@functools.cache
def used(proof: bool) -> Counter[str]:
    """How often each name is read in them, as a name or as an attribute."""
    counts: Counter[str] = Counter()
    for tree in trees(proof).values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                counts[node.attr] += 1
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                counts[node.id] += 1
    return counts


@functools.cache
def told() -> set[str]:
    """The decisions that the product tells."""
    return {
        node.args[0].func.id
        for tree in trees(False).values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "tell"
        and isinstance(node.args[0], ast.Call)
        and isinstance(node.args[0].func, ast.Name)
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_decision_is_told_somewhere(kind: type[Decision]) -> None:
    assert kind.__name__ in told()


@pytest.mark.parametrize("count", _COUNTS, ids=lambda count: count.probe)
def test_a_probe_counts_a_decision_that_is_told(count: Any) -> None:
    assert count.probe in PROBES
    assert count.kind in KINDS


@pytest.mark.parametrize("watch", _WATCHES, ids=lambda watch: f"{watch.probe} {watch.place[1]}")
def test_a_watched_function_is_used(watch: Any) -> None:
    assert used(False)[watch.place[1]] or _is_of_proof(watch.place[0])


def places() -> Iterator[tuple[PlantedBug, Any, str]]:
    for bug in BUGS:
        for owner, name, _ in bug.plant():
            yield bug, owner, name


@pytest.mark.parametrize(
    ("bug", "owner", "name"), [*places()], ids=lambda each: getattr(each, "name", None) or str(each)
)
def test_what_a_bug_replaces_is_used(bug: PlantedBug, owner: Any, name: str) -> None:
    known = used(_is_of_proof(owner))
    assert known[owner.__name__ if name == "__init__" else name], f"nobody uses {owner}.{name}"


def _is_of_proof(owner: Any) -> bool:
    module = owner.__module__ if isinstance(owner, type) else owner.__name__
    return module.split(".")[1] in PROOF


def test_nothing_names_a_function_of_the_product_by_a_string() -> None:
    """Such as a module, a colon and a class with its method: it breaks only when it is used."""
    form = re.compile(r"""["'][a-z_.]+:_?[A-Za-z_]*\.?_?[a-z_]+["']""")
    roots = (PACKAGE / "sim", Path(__file__).parents[1] / "sim")
    found = [
        f"{path.name}: {hit}"
        for root in roots
        for path in root.rglob("*.py")
        for hit in form.findall(path.read_text())
    ]
    assert found == []


SETTINGS = (StorageSettings, SequencerSettings, ClientSettings)


@functools.cache
def drawn() -> set[tuple[type, str]]:
    """The settings that seeds draw: those with more than one value in a hundred seeds."""
    values: dict[tuple[type, str], set[str]] = {}
    for seed in range(100):
        options = swarm_options(seed)
        for each in (
            options.cluster.storage, options.cluster.sequencer, options.workload.client,
        ):  # fmt: skip
            for field in dataclasses.fields(each):
                values.setdefault((type(each), field.name), set()).add(
                    repr(getattr(each, field.name))
                )
    return {place for place, seen in values.items() if len(seen) > 1}


def test_the_product_reads_each_setting_that_seeds_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: set[tuple[type, str]] = set()

    def recording(self: Any, name: str) -> Any:
        asker = sys._getframe(1).f_globals.get("__name__", "").split(".")
        if asker[0] == "cordwood" and asker[1] not in (*PROOF, "settings"):
            read.add((type(self), name))
        return object.__getattribute__(self, name)

    for kind in SETTINGS:
        monkeypatch.setattr(kind, "__getattribute__", recording, raising=False)
    options = dataclasses.replace(swarm_options(1), length_s=2.0, plan=(), must_count=False)
    near = dataclasses.replace(options.workload.client, scd_enabled=True, local_scd_enabled=True)
    workload = dataclasses.replace(options.workload, client=near)
    with quiet_run():
        run_seed(1, dataclasses.replace(options, workload=workload))
    unread = {f"{kind.__name__}.{name}" for kind, name in drawn() - read}
    assert unread == set()
