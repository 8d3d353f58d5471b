"""The contract as code: each promise of the store is a pure function of a history.

`check_all(history)` returns the broken promises, empty if there are none. A run should also pass
`run_is_valid`, because a run that did nothing breaks no promise. `NOT_YET` lists promises of
features that are not built yet, each with its feature.

Source: docs/sources/reliability.md §3; docs/design.md §10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from cordwood.sim.checkers.configuration import check_configuration
from cordwood.sim.checkers.consumers import check_consumers
from cordwood.sim.checkers.content import (
    check_no_aborted_read,
    check_no_phantom,
    check_unique_slot,
)
from cordwood.sim.checkers.copies import check_copies
from cordwood.sim.checkers.epochs import (
    check_no_ack_after_seal,
    check_one_sequencer,
    check_recovery_keeps_acks,
)
from cordwood.sim.checkers.evidence import Evidence, evidence_of
from cordwood.sim.checkers.gaps import check_gaps_are_true
from cordwood.sim.checkers.groups import check_groups
from cordwood.sim.checkers.identity import check_own_disk
from cordwood.sim.checkers.ledgers import (
    check_ledger_ends,
    check_ledger_entries,
    check_ledger_order,
    check_tiered_ledgers,
)
from cordwood.sim.checkers.limits import check_limits
from cordwood.sim.checkers.liveness import (
    check_appends_succeed,
    check_deadlines,
    check_nothing_spins,
    check_pace,
    check_readers_reach_the_tail,
    check_recovery_finishes,
)
from cordwood.sim.checkers.names import check_names
from cordwood.sim.checkers.operators import (
    check_copysets_named,
    check_orders_hold,
    check_storing_nodes,
)
from cordwood.sim.checkers.promised_appends import check_conditions, check_producers
from cordwood.sim.checkers.published import check_published
from cordwood.sim.checkers.reading import (
    check_acked_is_read,
    check_readers_agree,
    check_repeatable_read,
    check_tiling,
)
from cordwood.sim.checkers.rebuilt import check_rebuilt
from cordwood.sim.checkers.releases import check_release_is_replicated
from cordwood.sim.checkers.rights import check_read_rights
from cordwood.sim.checkers.scanned import check_accepted, check_scanned
from cordwood.sim.checkers.scrubbed import check_scrubbed
from cordwood.sim.checkers.sessions import (
    check_pipelined_order,
    check_session_order,
    check_tail,
)
from cordwood.sim.checkers.tiers import check_tiers
from cordwood.sim.checkers.times import check_append_times, check_positions
from cordwood.sim.checkers.told_errors import check_told_errors
from cordwood.sim.checkers.trims import check_trims
from cordwood.sim.checkers.validity import Validity, run_is_valid
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import Event

__all__ = [
    "CHECKERS",
    "NOT_YET",
    "Evidence",
    "Validity",
    "Violation",
    "check",
    "check_all",
    "run_is_valid",
]

CHECKERS: Mapping[str, Callable[[Evidence], list[Violation]]] = MappingProxyType(
    {
        "S1": check_unique_slot,
        "S2": check_acked_is_read,
        "S3": check_no_phantom,
        "S4": check_no_aborted_read,
        "S5": check_readers_agree,
        "S6": check_tiling,
        "S7": check_gaps_are_true,
        "S8": check_repeatable_read,
        "S9": check_session_order,
        "S10": check_pipelined_order,
        "S11": check_one_sequencer,
        "S12": check_no_ack_after_seal,
        "S13": check_recovery_keeps_acks,
        "S14": check_release_is_replicated,
        "S15": check_copies,
        "S16": check_scrubbed,
        "S17": check_own_disk,
        "S18": check_trims,
        "S19": check_tiers,
        "S20": check_positions,
        "S21": check_producers,
        "S22": check_groups,
        "S24": check_consumers,
        "S25": check_conditions,
        "S26": check_tail,
        "S27": check_configuration,
        "S28": check_read_rights,
        "S29": check_published,
        "S31": check_append_times,
        "S32": check_names,
        "S33": check_ledger_entries,
        "S34": check_ledger_ends,
        "S35": check_ledger_order,
        "S36": check_tiered_ledgers,
        "L1": check_appends_succeed,
        "L2": check_readers_reach_the_tail,
        "L3": check_recovery_finishes,
        "L4": check_rebuilt,
        "L5": check_deadlines,
        "L6": check_limits,
        "L7": check_pace,
        "L8": check_nothing_spins,
        "E1": check_told_errors,
        "O1": check_storing_nodes,
        "O2": check_scanned,
        "O3": check_accepted,
        "O4": check_copysets_named,
        "O5": check_orders_hold,
    }
)
"""Every promise that can be checked today, by its id."""

NOT_YET: Mapping[str, str] = MappingProxyType(
    {
        "S23": "transactions, if they are ever shipped",
        "S30": "a second version of the wire or the disk format",
    }
)
"""Every other promise, and the feature that it waits for."""


def check_all(history: Sequence[Event] | Evidence) -> list[Violation]:
    """Check every promise that can be checked, in the order of `CHECKERS`.

    Raises:
        Malformed: the history contradicts itself, so that it says nothing about the store.
    """
    evidence = evidence_of(history)
    return [violation for checker in CHECKERS.values() for violation in checker(evidence)]


def check(invariant: str, history: Sequence[Event]) -> list[Violation]:
    """Check one promise, by its id in `CHECKERS`.

    Raises:
        KeyError: no such id, or one of `NOT_YET`.
        Malformed: as `check_all`.
    """
    return CHECKERS[invariant](Evidence(history))
