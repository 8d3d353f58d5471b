"""Every kind of fault, alone: it strikes, it is taken back, and every promise is kept."""

from __future__ import annotations

import pytest

from cordwood.sim import disk_faults, fault_kinds
from cordwood.sim.damage import damage_tables, damage_wal, lose_partition, zero_wal
from cordwood.sim.disk import SimDisk
from cordwood.sim.fault_kinds import FAULT_KINDS
from cordwood.sim.fault_plan import Damage, Fault, FaultOptions
from cordwood.sim.history import DiskGiven, NodeStarted
from cordwood.sim.options import RunOptions
from cordwood.sim.planted.bug import at
from cordwood.sim.replay import quiet_run
from cordwood.sim.run import Outcome, run_seed
from cordwood.sim.workload import WorkloadOptions

LIGHT = WorkloadOptions(producers=1, readers=1, lanes=2, pause_s=0.4, burst=8)


def strike(kind: str, *before: Fault) -> Outcome:
    hit = FAULT_KINDS[kind]
    faults = FaultOptions(damage=Damage.WITHIN if hit.damages else Damage.NONE)
    plan = (*before, Fault(kind, (2,) if hit.hits_nodes else (), 2.0, 2.5))
    with quiet_run():
        return run_seed(
            3,
            RunOptions(plan=plan, workload=LIGHT, faults=faults, length_s=6.0, must_count=False),
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_it_strikes_and_is_survived(kind: str) -> None:
    outcome = strike(kind)
    assert outcome.faults == {kind: 1}
    assert not outcome.violations, "\n".join(map(str, outcome.violations))
    assert outcome.acked > 50


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["amnesia", "swapped_disks", "truncated_wal"])
def test_a_node_on_a_disk_that_is_not_its_own_waits_for_it(kind: str) -> None:
    story = [
        event
        for event in strike(kind).history
        if isinstance(event, DiskGiven | NodeStarted) and event.node == 2
    ]
    assert [type(event) for event in story] == [NodeStarted, DiskGiven, DiskGiven, NodeStarted]
    assert [event.own for event in story if isinstance(event, DiskGiven)] == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("rot", at(damage_wal, within=fault_kinds)),
        ("rotten_tables", at(damage_tables, within=fault_kinds)),
        ("lost_partition", at(lose_partition, within=fault_kinds)),
        ("zeroed", at(zero_wal, within=disk_faults)),
    ],
)
def test_what_damages_a_node_damages_no_other_whose_disk_it_has(
    kind: str, damage: at[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 12621598. What was to damage one node hit another's disk, which it had: then two had
    lost records of two copies, and no epoch could be recovered but by an operator's word."""
    hit: list[SimDisk] = []
    for owner, name, noting in damage.instead(lambda disk, _: hit.append(disk))():
        monkeypatch.setattr(owner, name, noting)
    strike(kind)
    assert len(hit) == 1
    outcome = strike(kind, Fault("swapped_disks", (2,), 1.0, 4.0))
    assert outcome.faults == {"swapped_disks": 1, kind: 1}
    assert len(hit) == 1


def test_a_node_on_an_older_copy_of_its_disk_waits_for_its_own() -> None:
    story = [
        event
        for event in strike("older_disk").history
        if isinstance(event, DiskGiven | NodeStarted) and event.node == 2
    ]
    # The second start is the one that the copy knows nothing of.
    kinds = [NodeStarted, NodeStarted, DiskGiven, DiskGiven, NodeStarted]
    assert [type(event) for event in story] == kinds
    assert [event.own for event in story if isinstance(event, DiskGiven)] == [False, True]
