"""Recovery of a ledger: whom it asks, what it believes, and where it ends.

The histories in which BookKeeper lost data are here by their numbers.
"""

from __future__ import annotations

import pytest
from ledger_world import RECOVERERS, WRITER, Copy, World

from cordwood.ledger import (
    ENTRY_MAX,
    NO_ENTRY,
    Fragment,
    LedgerMetadata,
    LedgerState,
    Striping,
    Versioned,
)
from cordwood.protocol import ledger_recovery as recovering
from cordwood.protocol.ledger_recovery import (
    AskFence,
    ClaimOrClose,
    Failure,
    LedgerRecovery,
    PickSpare,
    ReAdd,
    ReadEntry,
    ReadStrays,
    Recovered,
    RecoveryFailed,
    Stage,
)
from cordwood.protocol.ledger_writer import LedgerWriter, WriterLimits
from cordwood.quorum.ensemble import Answer

THREE = Striping(3, 3, 2)
NEW = LedgerMetadata(1, THREE, (Fragment(0, (1, 2, 3)),))
CLAIMED = NEW.recovering()
FOUND, NO_ENTRY_THERE = Answer.FOUND, Answer.NO_ENTRY


def claimed(metadata: LedgerMetadata = CLAIMED) -> LedgerRecovery:
    """A recovery that has claimed the ledger, and asks for fences."""
    made = LedgerRecovery(Versioned(metadata, 2))
    made.start()
    return made


def reading(lac: int, metadata: LedgerMetadata = CLAIMED) -> LedgerRecovery:
    """A recovery that reads the entry behind the LAC."""
    made = claimed(metadata)
    for node in metadata.newest.nodes:
        made.on_fenced(node, FOUND, lac)
    return made


def deny(made: LedgerRecovery, entry: int, *nodes: int):
    return [effect for n in nodes for effect in made.on_read(entry, n, NO_ENTRY_THERE)]


def re_add(made: LedgerRecovery, entry: int, *nodes: int):
    return [effect for n in nodes for effect in made.on_readded(entry, n, True)]


class TestClaim:
    def test_an_open_ledger_is_claimed_first(self):
        made = LedgerRecovery(Versioned(NEW, 1))
        assert made.start() == [ClaimOrClose(1, CLAIMED)]
        assert made.on_metadata_written(2) == [AskFence(node) for node in (1, 2, 3)]

    def test_a_ledger_in_recovery_is_not_claimed_again(self):
        assert LedgerRecovery(Versioned(CLAIMED, 2)).start() == [AskFence(n) for n in (1, 2, 3)]

    def test_a_closed_ledger_needs_no_node(self):
        made = LedgerRecovery(Versioned(NEW.closed(4, 50), 2))
        assert made.start() == [Recovered(4, 50)]

    def test_a_claim_that_finds_another_ensemble_goes_by_it(self):
        made = LedgerRecovery(Versioned(NEW, 1))
        made.start()
        found = NEW.with_ensemble(4, (1, 2, 9))
        assert made.on_metadata_found(Versioned(found, 2)) == [ClaimOrClose(2, found.recovering())]
        assert made.on_metadata_written(3) == [AskFence(node) for node in (1, 2, 9)]


class TestFence:
    def test_the_last_number_of_all_as_the_lac_ends_no_program(self):
        made = claimed()
        made.on_fenced(1, FOUND, ENTRY_MAX)
        effects = made.on_fenced(3, FOUND, 5)
        assert {effect.entry for effect in effects} == {ENTRY_MAX}
        assert isinstance(deny(made, ENTRY_MAX, 1, 2, 3)[0], ReadEntry), "it looks for a copy"

    def test_it_goes_on_once_covered_behind_the_highest_lac(self):
        made = claimed()
        assert made.on_fenced(1, FOUND, 3) == []
        assert made.on_fenced(3, FOUND, 5) == [ReadEntry(6, node) for node in (1, 2, 3)]
        assert made.on_fenced(2, FOUND, 9) == [], "it has gone on"

    def test_a_node_without_the_ledger_covers(self):
        made = claimed()
        made.on_fenced(1, Answer.NO_LEDGER)
        assert made.on_fenced(2, NO_ENTRY_THERE) == [ReadEntry(0, node) for node in (1, 2, 3)]

    @pytest.mark.parametrize(
        "answer", [Answer.SILENT, Answer.LOST_DATA, Answer.FAILED, Answer.DAMAGED]
    )
    def test_a_node_that_does_not_know_covers_nothing(self, answer):
        made = claimed()
        assert made.on_fenced(1, FOUND, 3) == made.on_fenced(2, answer) == []
        assert made.on_fenced(3, answer) == [RecoveryFailed(Failure.NOT_COVERED, 3)]

    def test_another_password_ends_it(self):
        assert claimed().on_fenced(1, Answer.REFUSED) == [RecoveryFailed(Failure.DENIED, -1)]

    def test_2615_it_begins_in_the_last_fragment(self):
        """Entry 1 is the first of the last fragment and tells LAC -1."""
        made = claimed(NEW.with_ensemble(1, (1, 2, 4)).recovering())
        made.on_fenced(1, FOUND, -1)
        # Entry i's write set begins at member i.
        assert made.on_fenced(4, FOUND, -1) == [ReadEntry(1, node) for node in (2, 4, 1)]


class TestRead:
    def test_one_copy_is_enough_and_is_re_added_everywhere(self):
        made = reading(-1)
        deny(made, 0, 1)
        assert made.on_read(0, 2, FOUND, 10, 10) == [ReAdd(0, node) for node in (1, 2, 3)]
        assert re_add(made, 0, 2) == []
        assert re_add(made, 0, 3) == [ReadEntry(1, node) for node in (2, 3, 1)]

    def test_1067_enough_denials_stop_it_whoever_is_silent(self):
        made = reading(-1)
        assert deny(made, 0, 1) == []
        assert deny(made, 0, 3) == [ClaimOrClose(2, CLAIMED.closed(-1, 0))]
        assert made.on_metadata_written(3) == [Recovered(-1, 0)]

    def test_a_node_counts_once(self):
        made = reading(-1)
        assert deny(made, 0, 1, 1, 1, 9) == []

    @pytest.mark.parametrize(
        "answer", [Answer.SILENT, Answer.LOST_DATA, Answer.FAILED, Answer.DAMAGED]
    )
    def test_2908_what_is_unknown_is_not_absent(self, answer):
        """A rotten copy, an error, silence, and a node without its disk."""
        made = reading(-1)
        deny(made, 0, 1)
        assert made.on_read(0, 2, answer) == []
        assert made.on_read(0, 3, answer) == [RecoveryFailed(Failure.UNDECIDED, 0)]
        assert made.stage is Stage.FAILED

    def test_a_copy_after_an_unknown_answer_counts(self):
        made = reading(-1)
        made.on_read(0, 1, Answer.DAMAGED)
        deny(made, 0, 2)
        assert made.on_read(0, 3, FOUND, 10, 10)[0] == ReAdd(0, 1)

    def test_an_answer_about_another_entry_is_left_out(self):
        made = reading(-1)
        made.on_read(0, 1, FOUND, 10, 10)
        re_add(made, 0, 1, 2)
        assert deny(made, 0, 2, 3) == []
        assert made.stage is Stage.READ


class TestReAdd:
    def found(self, entry: int = 0) -> LedgerRecovery:
        made = reading(entry - 1)
        made.on_read(entry, 2, FOUND, 10, 10 * (entry + 1))
        return made

    def test_a_node_that_fails_is_replaced_and_the_close_says_so(self):
        made = self.found(4)
        assert made.on_readded(4, 3, False) == [PickSpare(4, 2, (1, 2, 3))]
        assert made.on_spare_picked(4, 2, 9) == [ReAdd(4, 9)]
        re_add(made, 4, 1, 9)
        # What the writer wrote is read where the writer wrote it.
        assert {each.node for each in made._read()} == {1, 2, 3}
        (close,) = deny(made, 5, 1, 3)
        assert close.metadata.fragments == (Fragment(0, (1, 2, 3)), Fragment(4, (1, 2, 9)))
        assert (close.metadata.last, close.metadata.length) == (4, 50)

    def test_the_close_tells_every_fragment(self):
        """Entry 0 went to nodes 1, 2 and 8, entry 1 to nodes 1, 7 and 8."""
        made = self.found(0)
        made.on_readded(0, 3, False)
        made.on_spare_picked(0, 2, 8)
        re_add(made, 0, 1, 8)
        made.on_read(1, 2, FOUND, 10, 20)
        made.on_readded(1, 2, False)
        made.on_spare_picked(1, 1, 7)
        re_add(made, 1, 1, 7)
        (close,) = deny(made, 2, 1, 3)
        # The first begins where the writer's fragment begins, and replaces it.
        assert close.metadata.fragments == (Fragment(0, (1, 2, 8)), Fragment(1, (1, 7, 8)))

    def test_without_a_spare_the_others_may_be_enough(self):
        made = self.found()
        made.on_readded(0, 3, False)
        assert made.on_spare_picked(0, 2, None) == []
        assert re_add(made, 0, 1, 2)[0] == ReadEntry(1, 2)

    def test_too_few_that_take_it_end_it(self):
        made = self.found()
        made.on_readded(0, 3, False)
        made.on_readded(0, 2, False)
        assert made.on_spare_picked(0, 2, None) == []
        assert made.on_spare_picked(0, 1, None) == [RecoveryFailed(Failure.NOT_READDED, 0)]

    def test_two_places_never_get_one_node(self):
        made = self.found()
        made.on_readded(0, 3, False)
        made.on_readded(0, 2, False)
        assert made.on_spare_picked(0, 2, 9) == [ReAdd(0, 9)]
        assert made.on_spare_picked(0, 1, 9) == [PickSpare(0, 1, (1, 2, 9))]

    def test_an_answer_of_a_node_that_was_replaced_does_not_count(self):
        made = self.found()
        made.on_readded(0, 3, False)
        made.on_spare_picked(0, 2, 9)
        assert re_add(made, 0, 1, 3, 3) == []
        assert made.stage is Stage.RE_ADD


class TestLength:
    def test_the_last_entry_tells_it_where_nothing_lies_behind(self):
        made = reading(4)
        effects = deny(made, 5, 1, 2)
        assert effects == [ReadEntry(4, node) for node in (2, 3, 1)]
        assert made.on_read(4, 3, Answer.SILENT) == []
        assert made.on_read(4, 2, FOUND, 9, 99) == [ClaimOrClose(2, CLAIMED.closed(4, 99))]

    def test_it_may_lie_in_the_fragment_before(self):
        made = reading(-1, NEW.with_ensemble(4, (7, 8, 9)).recovering())
        assert deny(made, 4, 7, 8) == [ReadEntry(3, node) for node in (1, 2, 3)]

    def test_where_no_copy_tells_it_the_recovery_fails(self):
        made = reading(4)
        deny(made, 5, 1, 2)
        assert deny(made, 4, 1, 2) == []
        assert deny(made, 4, 3) == [RecoveryFailed(Failure.NO_LENGTH, 4)]

    def test_strays_are_asked_for_an_entry_of_a_fragment_before(self):
        for length in (99, None):
            moved = NEW.with_ensemble(4, (7, 8, 9)).recovering()
            made = reading(-1, moved)
            deny(made, 4, 7, 8)
            assert deny(made, 3, 1, 2) == []
            assert deny(made, 3, 3) == [ReadStrays(3)]
            assert made.on_strays(2, 9) == []
            failed = [RecoveryFailed(Failure.NO_LENGTH, 3)]
            closed = [ClaimOrClose(2, moved.closed(3, 99))]
            assert made.on_strays(3, length) == (failed if length is None else closed)
            assert made.on_strays(3, 99) == []


class TestSettle:
    """A damaged copy keeps the end from being found: what was confirmed can be repaired."""

    MOVED = NEW.with_ensemble(5, (1, 2, 3)).recovering()

    def settling(self) -> LedgerRecovery:
        made = reading(4)
        deny(made, 5, 1, 2)
        deny(made, 4, 1)
        assert made.on_read(4, 2, Answer.DAMAGED) == []
        assert made.on_read(4, 3, Answer.SILENT) == [ClaimOrClose(2, self.MOVED)]
        return made

    def test_a_fragment_of_the_same_nodes_begins_after_the_lac(self):
        made = self.settling()
        assert made.on_metadata_written(3) == [RecoveryFailed(Failure.NO_LENGTH, 4)]

    def test_another_change_comes_between(self):
        failed = [RecoveryFailed(Failure.NO_LENGTH, 4)]
        assert self.settling().on_metadata_found(Versioned(self.MOVED, 5)) == failed
        assert self.settling().on_metadata_found(Versioned(CLAIMED.with_joining(9), 5)) == failed
        closed = Versioned(CLAIMED.closed(5, 40), 5)
        assert self.settling().on_metadata_found(closed) == [Recovered(5, 40)]

    def test_it_is_done_once(self):
        made = reading(4, self.MOVED)
        deny(made, 5, 1, 2)
        deny(made, 4, 1, 2)
        assert made.on_read(4, 3, Answer.DAMAGED) == [ReadStrays(4)]

    def test_a_damaged_entry_after_the_lac_leaves_what_was_added_again(self):
        made = reading(4)
        made.on_read(5, 1, FOUND, 10, 60)
        re_add(made, 5, 1, 2)
        deny(made, 6, 1)
        made.on_read(6, 2, Answer.SILENT)
        assert made.on_read(6, 3, Answer.DAMAGED) == [ClaimOrClose(2, self.MOVED)]
        assert made.on_metadata_written(3) == [RecoveryFailed(Failure.UNDECIDED, 6)]

    def test_nothing_is_settled_by_the_word_of_a_client_alone(self):
        """It told a LAC that is too high: no node knows of the entry."""
        assert not recovering.may_settle(2**40, CLAIMED.newest, [NO_ENTRY_THERE] * 3)
        assert not recovering.may_settle(4, CLAIMED.newest, [Answer.SILENT, Answer.LOST_DATA])
        assert not recovering.may_settle(4, self.MOVED.newest, [Answer.DAMAGED])
        assert recovering.may_settle(5, self.MOVED.newest, [Answer.SILENT, Answer.DAMAGED])


class TestClose:
    def closing(self) -> LedgerRecovery:
        made = reading(-1)
        deny(made, 0, 1, 2)
        assert made.stage is Stage.CLOSE
        return made

    def test_the_end_that_it_finds_is_taken_over(self):
        found = CLAIMED.closed(3, 40)
        assert self.closing().on_metadata_found(Versioned(found, 5)) == [Recovered(3, 40)]

    def test_a_repair_of_older_fragments_is_kept(self):
        made = reading(3, NEW.with_ensemble(4, (1, 2, 4)).recovering())
        made.on_read(4, 1, FOUND, 10, 50)
        re_add(made, 4, 1, 2)
        deny(made, 5, 1, 2)
        mended = LedgerMetadata(
            1, THREE, (Fragment(0, (1, 2, 9)), Fragment(4, (1, 2, 4))), LedgerState.IN_RECOVERY
        )
        (again,) = made.on_metadata_found(Versioned(mended, 7))
        assert again == ClaimOrClose(7, mended.closed(4, 50))

    def test_a_fragment_that_it_does_not_know_ends_it(self):
        found = CLAIMED.with_ensemble(4, (1, 2, 9))
        effects = self.closing().on_metadata_found(Versioned(found, 5))
        assert effects == [RecoveryFailed(Failure.OVERTAKEN, -1)]


# Histories, over nodes that keep the rules. All have three nodes and Qa of two.


def history(entries: int) -> World:
    """Nodes 1 to 3, a writer that has sent entries, and nothing that has arrived."""
    world = World(0)
    world.striping = THREE
    world.store = Versioned(NEW, 1)
    world.writer = LedgerWriter(world.store, WriterLimits())
    world.calm = True
    world.entries = entries
    for _ in range(entries):
        world.add()
    return world


def pass_on(world: World, client: int, kind: str, *nodes: int, entry: int | None = None) -> None:
    """Messages of a client arrive, and so do their answers."""
    for node in nodes:
        (ask,) = (
            each
            for each in world.bag
            if each.attempt == world.attempts[client]
            and (each.client, type(each.what).__name__, each.node) == (client, kind, node)
            and (entry is None or each.what.entry == entry)
        )
        world.bag.remove(ask)
        store = world.write_metadata(ask.what) if node == 0 else None
        world.hand_over(ask, store or world.on_node(world.nodes[node], ask))
        world.check()


def begin(world: World, *fenced: int) -> LedgerRecovery:
    """A recovery claims the ledger and fences these nodes."""
    client = RECOVERERS[0]
    world.begin(client)
    pass_on(world, client, "ClaimOrClose", 0)
    pass_on(world, client, "AskFence", *fenced)
    return world.recoveries[client]


@pytest.mark.parametrize("reads_fence", [True, False])
def test_2614_a_read_that_does_not_fence_lets_the_writer_pass_the_end(reads_fence: bool):
    """Entry 0 is on node 3. Nodes 1 and 3 are fenced, nodes 1 and 2 deny the entry, the ledger is
    closed empty; then the writer's message comes to node 2."""
    world = history(1)
    world.reads_fence = reads_fence
    pass_on(world, WRITER, "SendEntry", 3)
    begin(world, 1, 3)
    pass_on(world, RECOVERERS[0], "ReadEntry", 1, 2)
    pass_on(world, RECOVERERS[0], "ClaimOrClose", 0)
    assert world.ends == [(NO_ENTRY, 0)]
    if reads_fence:
        pass_on(world, WRITER, "SendEntry", 2)
        assert world.met["writer fenced"] == 1
        return
    with pytest.raises(AssertionError, match="an ack past the end"):
        pass_on(world, WRITER, "SendEntry", 2)


@pytest.mark.parametrize("is_kept", [True, False])
def test_4812_a_fence_that_is_forgotten_lets_the_writer_pass_the_end(is_kept: bool):
    """Nodes 1 and 2 are fenced, the ledger is closed empty, node 2 is made anew under its name."""
    world = history(1)
    begin(world, 1, 2)
    pass_on(world, RECOVERERS[0], "ReadEntry", 1, 2)
    pass_on(world, RECOVERERS[0], "ClaimOrClose", 0)
    world.nodes[2].fenced = is_kept
    pass_on(world, WRITER, "SendEntry", 3)
    if is_kept:
        pass_on(world, WRITER, "SendEntry", 2)
        assert world.met["writer fenced"] == 1
        return
    with pytest.raises(AssertionError, match="an ack past the end"):
        pass_on(world, WRITER, "SendEntry", 2)


@pytest.mark.parametrize("is_known", [True, False])
def test_2612_a_node_that_lost_an_entry_must_not_deny_it(is_known: bool):
    """Nodes 1 and 3 acknowledged entry 0. Node 1 lost its disk; node 2 never had the entry."""
    world = history(1)
    pass_on(world, WRITER, "SendEntry", 1, 3)
    assert world.acked == [0]
    node = world.nodes[1]
    node.copies.clear()
    node.saw, node.lost, node.fenced = False, is_known, is_known
    world.hurt.add((1, 0))
    found = begin(world, 1, 2)
    if not is_known:
        pass_on(world, RECOVERERS[0], "ReadEntry", 1, 2)
        with pytest.raises(AssertionError, match="an ack past the end"):
            pass_on(world, RECOVERERS[0], "ClaimOrClose", 0)
        return
    assert found.stage is Stage.FENCE, "node 1 covers nothing"
    pass_on(world, RECOVERERS[0], "AskFence", 3)
    pass_on(world, RECOVERERS[0], "ReadEntry", 1, 2)
    assert found.stage is Stage.READ, "node 1 denies nothing"
    pass_on(world, RECOVERERS[0], "ReadEntry", 3)
    pass_on(world, RECOVERERS[0], "ReAdd", 1, 2)
    assert found.last == 0
    assert isinstance(world.nodes[1].copies[0], Copy)


def test_two_recoveries_that_saw_different_copies_end_alike():
    """One found entry 0 on node 3 and wrote it again; the other was told by nodes 1 and 2,
    before that, that they do not have it."""
    world = history(1)
    pass_on(world, WRITER, "SendEntry", 3)
    for client in RECOVERERS:
        world.begin(client)
    pass_on(world, RECOVERERS[0], "ClaimOrClose", 0)
    pass_on(world, RECOVERERS[1], "ClaimOrClose", 0)
    for client in RECOVERERS:
        pass_on(world, client, "AskFence", 1, 3)
    pass_on(world, RECOVERERS[1], "ReadEntry", 1, 2)
    pass_on(world, RECOVERERS[0], "ReadEntry", 3)
    pass_on(world, RECOVERERS[0], "ReAdd", 1, 2)
    pass_on(world, RECOVERERS[0], "ReadEntry", 1, 2, entry=1)
    pass_on(world, RECOVERERS[0], "ClaimOrClose", 0)
    pass_on(world, RECOVERERS[1], "ClaimOrClose", 0)
    size = world.sizes[0]
    assert world.ends == [(0, size), (0, size)]
    assert all(world.recoveries[n].stage is recovering.Stage.DONE for n in RECOVERERS)
