"""Planted bugs: each changes one rule of the code under test, and must be caught.

A checker that has never caught anything proves nothing. Every bug here is a bug of a real log
store, or a small mistake that could happen in our own code. To add a bug, write the wrong function,
and give it a row in its module's `BUGS` that refers to the right function. `cordwood sim bugs` then
checks that a seed catches the bug.

Source: docs/sources/reliability.md §1 (etcd re-finds its old bugs), §6 (mutant list).
"""

from __future__ import annotations

from cordwood.errors import BadSetting
from cordwood.sim.planted import (
    activation,
    client,
    epochs,
    event_log,
    ledger_repairs,
    ledger_tiers,
    ledgers,
    merges,
    names,
    operators,
    publishing,
    read_manners,
    read_path,
    rebuilding,
    recovery,
    repair,
    storage_node,
    tier,
    wal,
    wal_healing,
    write_path,
)
from cordwood.sim.planted.bug import PlantedBug, planted

__all__ = ["PLANTED_BUGS", "PlantedBug", "find_bug", "planted"]

PLANTED_BUGS: tuple[PlantedBug, ...] = (
    *write_path.BUGS,
    *storage_node.BUGS,
    *wal.BUGS,
    *recovery.BUGS,
    *read_path.BUGS,
    *read_manners.BUGS,
    *client.BUGS,
    *operators.BUGS,
    *rebuilding.BUGS,
    *event_log.BUGS,
    *repair.BUGS,
    *wal_healing.BUGS,
    *publishing.BUGS,
    *epochs.BUGS,
    *activation.BUGS,
    *names.BUGS,
    *tier.BUGS,
    *merges.BUGS,
    *ledgers.BUGS,
    *ledger_repairs.BUGS,
    *ledger_tiers.BUGS,
)
"""Every bug that can be planted."""


def find_bug(name: str) -> PlantedBug:
    """The bug of this name.

    Raises:
        BadSetting: no bug has this name; the text lists all bugs.
    """
    for bug in PLANTED_BUGS:
        if bug.name == name:
            return bug
    names = ", ".join(bug.name for bug in PLANTED_BUGS)
    raise BadSetting(f"no bug is called {name!r}; there are {names}")
