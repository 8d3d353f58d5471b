"""Small worlds in which older fragments are repaired beside a writer and two recoverers.

A repair announces its node, copies, and later names the node in the metadata that it finds, by the
rules of `protocol.ledger_repair`. The replaced node loses its copies at that moment: nothing may
ever ask it again.
"""

from __future__ import annotations

from collections import Counter

import pytest
from ledger_world import World
from test_ledger_world import run

from cordwood.ledger import LedgerMetadata, LedgerState, Versioned
from cordwood.protocol import ledger_writer as writing
from cordwood.protocol.ledger_recovery import Effect as RecoveryEffect
from cordwood.protocol.ledger_recovery import LedgerRecovery
from cordwood.protocol.ledger_repair import (
    LostPlace,
    ended,
    entries_of,
    lost_places,
    may_go_on,
)
from cordwood.protocol.ledger_writer import LedgerWriter, Phase

SEEDS = 1000
HUNTED_SEEDS = 3000
REPAIRS = 0.06
"""Share of the steps in which the repair does something."""


def never(node: int) -> bool:
    return False


class Repaired(World):
    """A world with a repair; members are replaced for no reason."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.under_way: tuple[LostPlace, int, LedgerMetadata] | None = None

    def step(self) -> None:
        if self.random.random() < REPAIRS:
            self.repair()
        super().step()

    def repair(self) -> None:
        """Announce and copy, or name the node of the repair that is under way."""
        metadata = self.store.metadata
        if metadata.state is LedgerState.CLOSED:
            self.under_way = None
        elif self.under_way is None:
            self.announce(metadata)
        else:
            self.name(metadata, *self.under_way)
            self.under_way = None

    def announce(self, metadata: LedgerMetadata) -> None:
        places = lost_places(metadata, lambda node: True)
        if not places:
            return
        place = self.random.choice(places)
        spares = self.spares(metadata.nodes_at(place.first))
        copies = {}
        for entry in entries_of(place, self.striping):
            members = [self.nodes[n] for n in metadata.nodes_at(entry)]
            found = [m.copies[entry] for m in members if entry in m.copies]
            whole = [copy for copy in found if not copy.rotten]
            if whole:
                copies[entry] = whole[0]
        if not spares or len(copies) < len(entries_of(place, self.striping)):
            return
        joining = metadata.with_joining(spares[0])
        self.store = Versioned(joining, self.store.version + 1)
        for entry, copy in copies.items():
            self.keep(self.nodes[spares[0]], entry, copy)
        self.under_way = place, spares[0], joining

    def name(
        self, metadata: LedgerMetadata, place: LostPlace, node: int, known: LedgerMetadata
    ) -> None:
        if not may_go_on(metadata, place, node):
            self.meet("a repair was overtaken")
            return
        if metadata != known:
            self.meet("a repair went on after another change")
        named = metadata.with_node(place.first, place.place, node)
        after = ended(named, {node}, never, was_closed=False)
        self.store = Versioned(after, self.store.version + 1)
        self.meet(f"a repair while the ledger was {metadata.state.value}")
        lost = self.nodes[place.lost]
        lost.lac = lost.told()
        for entry in entries_of(place, self.striping):
            lost.copies.pop(entry, None)


class WideRepaired(Repaired):
    """More nodes, and a writer that changes its ensemble often."""

    count = 9

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.is_deaf = self.lags_by_kind = False
        self.unrest, self.impatience, self.weariness, self.zeal = 3, 6, 0.02, 0.1


@pytest.mark.slow
def test_nothing_is_lost_while_older_fragments_are_repaired() -> None:
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        met.update(run(seed, WideRepaired).met.keys())
    assert met.keys() >= {
        "a repair while the ledger was open", "a repair while the ledger was in_recovery",
        "a repair went on after another change", "a node lost its disk", "recovered",
        "an ensemble changed", "writer closed", "writer fenced",
    }  # fmt: skip
    assert met["a repair while the ledger was open"] > SEEDS / 10


class ForgetsTheRepair(LedgerWriter):
    """A change names the nodes again that a repair replaced."""

    def _propose(self, held: Versioned, ensemble: tuple[int, ...]) -> list[writing.Effect]:
        self.phase = Phase.CHANGING
        self._proposed = self._held.metadata.with_ensemble(self.lac + 1, ensemble)
        return [writing.WriteMetadata(held.version, self._proposed)]


class ClosesOverTheRepair(LedgerRecovery):
    """A recovery closes the ledger as it was when the recovery began."""

    def _close(self, held: Versioned) -> list[RecoveryEffect]:
        return super()._close(Versioned(self._held.metadata, held.version))


class RepairsTheNewest(WideRepaired):
    """A repair takes the newest fragment for settled: its writer goes on there."""

    def announce(self, metadata: LedgerMetadata) -> None:
        newest = metadata.newest
        spares = self.spares(newest.nodes)
        if spares:
            place = LostPlace(newest.first, len(self.acked) - 1, 0, newest.nodes[0])
            for entry in entries_of(place, self.striping):
                found = [self.nodes[n].copies.get(entry) for n in newest.nodes]
                whole = [copy for copy in found if copy and not copy.rotten]
                if whole:
                    self.keep(self.nodes[spares[0]], entry, whole[0])
            self.under_way = place, spares[0], metadata

    def name(
        self, metadata: LedgerMetadata, place: LostPlace, node: int, known: LedgerMetadata
    ) -> None:
        if metadata.newest == known.newest:
            named = metadata.with_node(place.first, place.place, node)
            self.store = Versioned(named, self.store.version + 1)


class OfForgetfulWriters(WideRepaired):
    writer_kind = ForgetsTheRepair


class OfForgetfulRecoveries(WideRepaired):
    recovery_kind = ClosesOverTheRepair


@pytest.mark.slow
@pytest.mark.parametrize("kind", [OfForgetfulWriters, OfForgetfulRecoveries, RepairsTheNewest])
def test_a_wrong_rule_is_found(kind: type[World]) -> None:
    for seed in range(HUNTED_SEEDS):
        try:
            run(seed, kind)
        except (AssertionError, ValueError):
            return
    pytest.fail(f"{kind.__name__} got away")
