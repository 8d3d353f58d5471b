"""Small worlds in which a ledger is written and recovered, and wrong rules that these catch."""

from __future__ import annotations

from collections import Counter

import pytest
from ledger_world import ENTRIES, World

from cordwood.ledger import NO_ENTRY, Striping, Versioned
from cordwood.protocol import ledger_recovery as recovering
from cordwood.protocol import ledger_writer as writing
from cordwood.protocol.ledger_recovery import LedgerRecovery
from cordwood.protocol.ledger_writer import LedgerWriter, Phase, WriterLimits
from cordwood.quorum.ensemble import Answer

STEPS = 250
SEEDS = 1000
HUNTED_SEEDS = 3000
WIDE_SEEDS = 200


def run(seed: int, kind: type[World] = World) -> World:
    """One world, to its rest.

    Raises:
        AssertionError: something did not hold.
    """
    world = kind(seed)
    for _ in range(STEPS):
        world.step()
        world.check()
    world.finish()
    world.check()
    return world


def test_nothing_acknowledged_is_lost_and_a_ledger_has_one_end() -> None:
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        met.update(run(seed).met.keys())
    assert met.keys() >= {
        "metadata open", "metadata in_recovery", "metadata closed", "an ensemble changed",
        "no node was left", "a node lost its disk", "a spare", "no spare", "recovered",
        "outcome not stored", "outcome unknown", "writer closed", "writer fenced",
        "writer closed by a recovery", "writer too few nodes", "writer no quorum in time",
        "writer too many changes of the ensemble", "recovery: too few members were fenced",
        "recovery: an entry has neither a copy nor enough denials",
        "recovery: too few members took an entry",
    }  # fmt: skip


class Wide(World):
    """Six members and two copies, so that each change touches few entries (BookKeeper #4097)."""

    count = 9
    shapes = (Striping(6, 2, 2), Striping(6, 3, 2), Striping(5, 4, 3))

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.is_deaf = self.lags_by_kind = False
        self.unrest, self.impatience, self.entries = 3, 6, ENTRIES
        self.weariness, self.zeal = 0.02, 0.1


def test_4097_after_many_changes_the_metadata_names_the_nodes_that_have_an_entry() -> None:
    changes = [run(seed, Wide).met.get("an ensemble changed", 0) for seed in range(WIDE_SEEDS)]
    assert sum(count >= 3 for count in changes) > WIDE_SEEDS / 3


class Quiet(Wide):
    """No client recovers the ledger, and no disk is lost: the writer stays, and its entries end."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.weariness = self.zeal = 0.0
        self.losses, self.entries = 1, self.random.randint(1, 3)
        self.writer = self.writer_kind(self.store, WriterLimits())

    def die(self) -> None:
        pass

    def recover(self) -> None:
        pass


def run_quiet(seed: int, writer: type[LedgerWriter] = LedgerWriter) -> bool:
    """One world whose writer has nothing more to add; whether it is still open.

    Raises:
        AssertionError: a member does not know the LAC.
    """
    kind = type("QuietOf", (Quiet,), {"writer_kind": writer})
    world = kind(seed)
    for _ in range(STEPS):
        world.step()
    world.tell_quietly()
    if world.writer is None or world.writer.phase is not Phase.WRITING:
        return False
    world.check_told()
    return "a LAC was not taken" in world.met


def test_each_member_of_a_quiet_ledger_learns_its_lac_in_the_end() -> None:
    assert sum(map(run_quiet, range(WIDE_SEEDS))) > WIDE_SEEDS / 10


class TellsItsLacOnce(LedgerWriter):
    """A LAC that a node did not take is not sent again."""

    def on_lac_failed(self, node: int, lac: int) -> None:
        pass


def test_a_writer_that_tells_its_lac_once_is_found() -> None:
    def hunt() -> None:
        for seed in range(WIDE_SEEDS):
            run_quiet(seed, TellsItsLacOnce)

    with pytest.raises(AssertionError, match="knows"):
        hunt()


def world_of(
    writer: type[LedgerWriter] = LedgerWriter, recovery: type[LedgerRecovery] = LedgerRecovery
) -> type[World]:
    """Worlds with a wrong rule."""

    class Wrong(World):
        writer_kind = writer
        recovery_kind = recovery

    return Wrong


# Wrong rules of the writer.


class AcksAtOneLess(LedgerWriter):
    """An entry is acknowledged when Qa-1 members have it."""

    def _is_stored(self, entry: int, add: writing._Add) -> bool:
        return add.stored.bit_count() >= self._striping.ack - 1


class GoesOverFirst(LedgerWriter):
    """The new ensemble is in use before the metadata names it."""

    def _propose(self, held: Versioned, ensemble: tuple[int, ...]) -> list[writing.Effect]:
        effects = super()._propose(held, ensemble)
        return effects + self._switch(Versioned(self._proposed, held.version))

    def on_metadata_written(self, version: int) -> list[writing.Effect]:
        self._held = Versioned(self._held.metadata, version)
        return super().on_metadata_written(version)


class AcksWhileChanging(LedgerWriter):
    """Entries are acknowledged by the old ensemble while the new one is being written."""

    def _may_ack(self) -> bool:
        return self.phase in (Phase.WRITING, Phase.CHANGING)


class AcksWhileClosing(LedgerWriter):
    """Entries are acknowledged while the close is being written."""

    def _may_ack(self) -> bool:
        return self.phase in (Phase.WRITING, Phase.CLOSING)


class KeepsOldAcks(LedgerWriter):
    """What a member stored counts on after it was replaced."""

    def _switch(self, held: Versioned) -> list[writing.Effect]:
        stored = {entry: add.stored for entry, add in self._adds.items()}
        effects = super()._switch(held)
        for entry, add in self._adds.items():
            add.stored |= stored[entry]
        return effects + self._complete()


class KeepsTheFragment(LedgerWriter):
    """A fragment that begins where the newest begins is put behind it."""

    def _propose(self, held: Versioned, ensemble: tuple[int, ...]) -> list[writing.Effect]:
        self.phase = Phase.CHANGING
        first = max(self.lac, held.metadata.newest.first) + 1
        self._proposed = held.metadata.with_ensemble(first, ensemble)
        return [writing.WriteMetadata(held.version, self._proposed)]


class SaysNotStored(LedgerWriter):
    """What was on its way when the writer was fenced is said not to be stored."""

    def _end(self, end: writing.End) -> list[writing.Effect]:
        return self._stop(end, writing.Outcome.NOT_STORED)


# Wrong rules of the recovery.


class SilenceDenies(LedgerRecovery):
    """A member that does not answer does not have the entry."""

    def _denials(self) -> set[int]:
        return {n for n, a in self._poll.answers.items() if a.is_negative or a is Answer.SILENT}


class DamageDenies(LedgerRecovery):
    """A copy that rotted was never there."""

    def _denials(self) -> set[int]:
        return {n for n, a in self._poll.answers.items() if a.is_negative or a is Answer.DAMAGED}


class LossDenies(LedgerRecovery):
    """A node that lost its data never had the entry."""

    def _denials(self) -> set[int]:
        return {n for n, a in self._poll.answers.items() if a.is_negative or a is Answer.LOST_DATA}


class NoReAdd(LedgerRecovery):
    """An entry that was found is left as it is."""

    def _re_add(self) -> list[recovering.Effect]:
        self.last, self.length = self.last + 1, self._length_read
        return self._read()


class NoClamp(LedgerRecovery):
    """A recovery begins at the LAC that the members told, wherever the last fragment begins."""

    def _fence(self) -> list[recovering.Effect]:
        effects = super()._fence()
        self.last = NO_ENTRY
        return effects


class DoesNotAdopt(LedgerRecovery):
    """A recovery that finds the ledger closed goes by what it found itself."""

    def _adopt(self, found: object) -> list[recovering.Effect]:
        self.stage = recovering.Stage.DONE
        return [recovering.Recovered(self.last, self.length or 0)]


# Wrong nodes.


class ReadsDoNotFence(World):
    """Only the question for the LAC fences a node (BookKeeper #2614)."""

    reads_fence = False


class FencesAreForgotten(World):
    """A node that starts again takes entries of the writer."""

    def crash(self) -> None:
        node = self.random.choice([*self.nodes.values()])
        node.fenced = False


WRITERS = (
    AcksAtOneLess, GoesOverFirst, AcksWhileChanging, AcksWhileClosing, KeepsOldAcks,
    KeepsTheFragment, SaysNotStored,
)  # fmt: skip
RECOVERIES = (SilenceDenies, DamageDenies, LossDenies, NoReAdd, NoClamp, DoesNotAdopt)
NODES = (ReadsDoNotFence, FencesAreForgotten)

WRONG: dict[str, type[World]] = {
    **{kind.__name__: world_of(writer=kind) for kind in WRITERS},
    **{kind.__name__: world_of(recovery=kind) for kind in RECOVERIES},
    **{kind.__name__: kind for kind in NODES},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_found(name: str) -> None:
    for seed in range(HUNTED_SEEDS):
        try:
            run(seed, WRONG[name])
        except (AssertionError, ValueError):
            # A ValueError is the metadata's own: it refuses what no ledger can be.
            return
    pytest.fail(f"{name} got away")
