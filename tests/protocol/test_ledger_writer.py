"""The writer of a ledger: what it sends, when it acknowledges, and what ends it."""

from __future__ import annotations

import pytest

from cordwood.ledger import NO_ENTRY, Fragment, LedgerMetadata, LedgerState, Striping, Versioned
from cordwood.protocol.ledger_writer import (
    Acked,
    End,
    Ended,
    Failed,
    Forced,
    LedgerWriter,
    Outcome,
    Phase,
    PickNodes,
    Refusal,
    SendEntries,
    SendEntry,
    SendForce,
    SendLac,
    WriteMetadata,
    WriterLimits,
)

THREE = Striping(3, 3, 2)
NEW = LedgerMetadata(1, THREE, (Fragment(0, (1, 2, 3)),))


def writer(metadata: LedgerMetadata = NEW, added: int = 0, **limits) -> LedgerWriter:
    """A writer that has added entries of ten bytes, of which nobody has answered."""
    made = LedgerWriter(Versioned(metadata, 1), WriterLimits(**limits))
    for _ in range(added):
        made.on_add([10], 0.0)
    return made


def sends(effects):
    return [(each.entry, each.node) for each in effects if isinstance(each, SendEntry)]


def acks(effects):
    acked = [each for each in effects if isinstance(each, Acked)]
    return [entry for each in acked for entry in range(each.first, each.last + 1)]


def store(made: LedgerWriter, entry: int, *nodes: int):
    return [effect for node in nodes for effect in made.on_stored(node, entry)]


def changed(made: LedgerWriter, nodes: dict[int, int], version: int = 2):
    """A change of the ensemble comes to its end."""
    made.on_nodes_picked(nodes)
    return made.on_metadata_written(version)


class TestAcks:
    def test_an_entry_goes_to_its_write_set_with_the_lac(self):
        made = writer(LedgerMetadata(1, Striping(3, 2, 2), (Fragment(0, (1, 2, 3)),)))
        assert made.on_add([5], 0.0) == [SendEntries([0], 1, -1), SendEntries([0], 2, -1)]
        assert made.on_add([5], 0.0) == [SendEntries([1], 2, -1), SendEntries([1], 3, -1)]
        store(made, 0, 1, 2)
        assert made.on_add([5], 0.0) == [SendEntries([2], 3, 0), SendEntries([2], 1, 0)]
        assert (made.lac, made.pushed, made.length) == (0, 2, 5)

    def test_entries_that_are_added_at_once_go_to_each_node_together(self):
        made = writer(LedgerMetadata(1, Striping(3, 2, 2), (Fragment(0, (1, 2, 3)),)), 1)
        store(made, 0, 1, 2)
        sent = made.on_add([5, 6, 7, 8], 0.0)
        assert sent == [
            SendEntries([1, 3, 4], 2, 0), SendEntries([1, 2, 4], 3, 0), SendEntries([2, 3], 1, 0),
        ]  # fmt: skip
        assert made.on_stored(2, 1, 3, 4) == []
        assert made.on_stored(3, 1, 2, 4) == [Acked(1, 1)]
        assert made.on_stored(1, 2, 3) == [Acked(2, 4)]
        assert (made.pushed, made.lac, made.length) == (4, 4, 36)

    def test_where_every_node_has_each_entry_all_get_the_same(self):
        sent = writer().on_add([5, 6], 0.0)
        assert [(list(each.entries), each.node) for each in sent] == [
            ([0, 1], n) for n in (1, 2, 3)
        ]

    def test_entries_that_are_added_at_once_have_room_for_the_last_of_them(self):
        made = writer(entries_max=3, bytes_max=100)
        assert made.has_room_behind(2, 99)
        assert not made.has_room_behind(3, 0)
        assert not made.has_room_behind(1, 100)
        with pytest.raises(AssertionError, match="too many"):
            made.on_add([1, 1, 1, 1], 0.0)
        made.on_add([40, 50, 60], 0.0)

    def test_acks_come_in_the_order_of_entries(self):
        made = writer(added=3)
        assert acks(store(made, 2, 1, 2)) == []
        assert acks(store(made, 1, 1, 3)) == []
        assert acks(store(made, 0, 2)) == []
        assert acks(store(made, 0, 3)) == [0, 1, 2]
        assert (made.lac, made.length) == (2, 30)

    def test_members_are_counted_once_and_others_not_at_all(self):
        made = writer(added=1)
        assert acks(store(made, 0, 1, 1, 9, 1)) == []
        striped = writer(LedgerMetadata(1, Striping(4, 2, 2), (Fragment(0, (1, 2, 3, 4)),)), 1)
        assert acks(store(striped, 0, 1, 3, 4)) == []
        assert acks(store(striped, 0, 2)) == [0]

    def test_slow_nodes_hold_the_writer_back(self):
        made = writer(added=2, entries_max=2)
        store(made, 0, 1, 2)
        store(made, 1, 1, 2)
        assert made.lac == 1
        assert not made.has_room, "node 3 has answered for neither"
        with pytest.raises(AssertionError, match="too many"):
            made.on_add([1], 0.0)
        store(made, 0, 3)
        assert made.has_room

    def test_bytes_hold_it_back_too_and_one_entry_may_always_go(self):
        made = writer(bytes_max=5)
        assert made.has_room
        made.on_add([10], 0.0)
        assert not made.has_room
        store(made, 0, 1, 2)
        assert not made.has_room
        made.on_failed(0, 3, Refusal.FAILED)
        assert made.has_room


class TestEnsembles:
    def test_a_failed_member_is_replaced_behind_the_lac(self):
        made = writer(added=3)
        store(made, 0, 1, 2)
        assert made.on_failed(1, 3, Refusal.FAILED) == [PickNodes((2,), (1, 2, 3))]
        assert made.on_nodes_picked({2: 4}) == [
            WriteMetadata(1, NEW.with_ensemble(1, (1, 2, 4))),
        ]  # fmt: skip
        # Only the new node is sent what is not acknowledged, with the LAC as it was.
        assert made.on_metadata_written(2) == [SendEntry(1, 4, -1), SendEntry(2, 4, -1)]

    def test_nothing_is_acknowledged_before_the_metadata_is_written(self):
        made = writer(added=1)
        made.on_failed(0, 3, Refusal.FAILED)
        assert store(made, 0, 1, 2) == []
        made.on_nodes_picked({2: 4})
        assert store(made, 0, 1, 2) == []
        assert acks(made.on_metadata_written(2)) == [0]

    def test_a_copy_on_a_replaced_node_no_longer_counts(self):
        """Entry 1 was stored, and waited for entry 0; then one of its two copies went."""
        made = writer(added=2)
        store(made, 1, 1, 3)
        made.on_failed(0, 3, Refusal.FAILED)
        assert sends(changed(made, {2: 4})) == [(0, 4), (1, 4)]
        assert acks(store(made, 0, 1, 2)) == [0]
        assert store(made, 1, 3) == [], "an answer of a node that is no member any more"
        assert acks(store(made, 1, 4)) == [1]

    def test_a_second_change_at_the_same_entry_replaces_the_fragment(self):
        made = writer(added=1)
        made.on_failed(0, 3, Refusal.FAILED)
        changed(made, {2: 4})
        assert made.metadata.fragments == (Fragment(0, (1, 2, 4)),)
        made.on_failed(0, 4, Refusal.FAILED)
        changed(made, {2: 5}, 3)
        assert made.metadata.fragments == (Fragment(0, (1, 2, 5)),)
        store(made, 0, 1, 2)
        made.on_add([1], 0.0)
        made.on_failed(1, 1, Refusal.FAILED)
        changed(made, {0: 6}, 4)
        assert made.metadata.fragments == (Fragment(0, (1, 2, 5)), Fragment(1, (6, 2, 5)))

    def test_failures_meanwhile_make_another_change(self):
        made = writer(added=1)
        made.on_failed(0, 3, Refusal.FAILED)
        made.on_nodes_picked({2: 4})
        assert made.on_failed(0, 2, Refusal.FAILED) == []
        assert made.on_metadata_written(2) == [SendEntry(0, 4, -1), PickNodes((1,), (1, 2, 4))]

    def test_so_does_a_failure_while_nodes_are_picked(self):
        made = writer(added=1)
        made.on_failed(0, 3, Refusal.FAILED)
        assert made.on_failed(0, 1, Refusal.FAILED) == []
        assert changed(made, {2: 4}) == [SendEntry(0, 4, -1), PickNodes((0,), (1, 2, 4))]

    def test_a_member_without_another_node_is_tried_again(self):
        made = writer(added=1)
        made.on_failed(0, 3, Refusal.FAILED)
        made.on_nodes_picked({2: 4})
        made.on_failed(0, 1, Refusal.FAILED)
        made.on_failed(0, 2, Refusal.FAILED)
        assert made.on_metadata_written(2)[-1] == PickNodes((0, 1), (1, 2, 4))
        assert sends(changed(made, {0: 5}, 3)) == [(0, 5), (0, 2)]

    def test_a_failure_after_the_ack_waits_for_the_next_entry(self):
        made = writer(added=1)
        store(made, 0, 1, 2)
        assert made.on_failed(0, 3, Refusal.FAILED) == []
        assert made.on_add([1], 0.0)[-1] == PickNodes((2,), (1, 2, 3))

    def test_a_delayed_change_waits_until_the_quorum_is_at_stake(self):
        made = writer(added=2, delays_change=True)
        assert made.on_failed(0, 3, Refusal.FAILED) == []
        assert acks(store(made, 0, 1, 2)) == [0]
        assert made.on_failed(1, 3, Refusal.FAILED) == []
        assert made.on_failed(1, 1, Refusal.FAILED) == [PickNodes((0, 2), (1, 2, 3))]

    def test_a_read_only_member_is_replaced_at_once(self):
        made = writer(added=1, delays_change=True)
        assert made.on_failed(0, 3, Refusal.READ_ONLY) == [PickNodes((2,), (1, 2, 3))]

    def test_a_read_only_member_whose_answer_is_late_is_replaced_with_the_next_entry(self):
        """A slow member that was drained was never replaced, and a recovery shut the writer out."""
        made = writer(added=1, delays_change=True)
        assert acks(store(made, 0, 1, 2)) == [0]
        assert made.on_failed(0, 3, Refusal.READ_ONLY) == []
        assert made.on_add([1], 0.0)[-1] == PickNodes((2,), (1, 2, 3))

    def test_a_late_failure_of_another_kind_changes_nothing_with_a_delayed_change(self):
        made = writer(added=1, delays_change=True)
        assert acks(store(made, 0, 1, 2)) == [0]
        assert made.on_failed(0, 3, Refusal.FAILED) == []
        assert not any(isinstance(each, PickNodes) for each in made.on_add([1], 0.0))

    def test_a_read_only_member_stays_if_the_only_other_node_has_another_place_by_then(self):
        """The ledger was closed for want of nodes, although the others had a quorum."""
        made = writer(added=1, delays_change=True)
        assert made.on_failed(0, 1, Refusal.READ_ONLY) == [PickNodes((0,), (1, 2, 3))]
        assert made.on_failed(0, 3, Refusal.READ_ONLY) == []
        made.on_nodes_picked({0: 4})
        again = [SendEntry(0, 4, -1), PickNodes((2,), (4, 2, 3))]
        assert made.on_metadata_written(2) == again
        assert store(made, 0, 4, 2) == []
        assert made.on_nodes_picked({}) == [Acked(0, 0)]
        assert made.is_open

    def test_a_ledger_is_closed_if_no_node_is_left_for_a_quorum(self):
        made = writer(added=1, delays_change=True)
        made.on_failed(0, 1, Refusal.READ_ONLY)
        made.on_failed(0, 3, Refusal.FAILED)
        (write,) = made.on_nodes_picked({})
        assert write.metadata == NEW.closed(-1, 0)

    def test_a_read_only_member_stays_after_the_last_change_that_is_allowed(self):
        made = writer(added=1, delays_change=True, changes_max=0)
        assert made.on_failed(0, 3, Refusal.READ_ONLY) == []
        assert acks(store(made, 0, 1, 2)) == [0]
        assert made.on_failed(0, 1, Refusal.FAILED) == []
        assert made.is_open

    def test_a_repair_of_older_fragments_is_kept(self):
        before = NEW.with_ensemble(5, (1, 2, 4))
        made = writer(before, 1)
        # In the life of a writer the LAC is at least 4 there; here only the metadata matters.
        made.lac = 4
        made.on_failed(0, 4, Refusal.FAILED)
        made.on_nodes_picked({2: 5})
        mended = LedgerMetadata(1, THREE, (Fragment(0, (1, 2, 9)), Fragment(5, (1, 2, 4))))
        (again,) = made.on_metadata_found(Versioned(mended, 7))
        expected = (Fragment(0, (1, 2, 9)), Fragment(5, (1, 2, 5)))
        assert (again.version, again.metadata.fragments) == (7, expected)

    def test_a_change_that_is_no_repair_shuts_it_out(self):
        """Only this writer begins fragments: another client did what none may do."""
        made = writer(added=1)
        made.on_failed(0, 3, Refusal.FAILED)
        made.on_nodes_picked({2: 5})
        other = NEW.with_ensemble(0, (1, 2, 9))
        assert made.on_metadata_found(Versioned(other, 7))[-1] == Ended(End.FENCED, -1, 0)

    def test_its_own_write_is_known_again(self):
        """The answer to the compare-and-set was lost."""
        made = writer(added=1)
        made.on_failed(0, 3, Refusal.FAILED)
        (write,) = made.on_nodes_picked({2: 4})
        assert made.on_metadata_found(Versioned(write.metadata, 2)) == [SendEntry(0, 4, -1)]


class TestEnds:
    @pytest.mark.parametrize("node", [3, 9], ids=["a member", "a node that was one"])
    def test_a_fence_leaves_what_is_in_flight_unknown(self, node: int):
        made = writer(added=3)
        store(made, 0, 1, 2)
        unknown = [Failed(1, Outcome.UNKNOWN), Failed(2, Outcome.UNKNOWN)]
        assert made.on_failed(1, node, Refusal.FENCED) == [*unknown, Ended(End.FENCED, 0, 10)]
        assert not made.is_open
        assert store(made, 1, 1, 2) == []
        assert made.on_close() == []

    @pytest.mark.parametrize(
        ("found", "end"),
        [
            (NEW.recovering(), End.FENCED),
            (NEW.closed(0, 10), End.CLOSED_BY_OTHER),
            (NEW.with_ensemble(0, (7, 8, 9)), End.FENCED),
        ],
    )
    def test_metadata_that_somebody_changed_ends_a_change(self, found, end):
        made = writer(added=1)
        made.on_failed(0, 3, Refusal.FAILED)
        made.on_nodes_picked({2: 4})
        effects = made.on_metadata_found(Versioned(found, 2))
        assert effects == [Failed(0, Outcome.UNKNOWN), Ended(end, -1, 0)]

    def test_news_of_the_metadata_ends_it_too(self):
        made = writer(added=1)
        assert made.on_metadata_changed(Versioned(NEW.recovering(), 1)) == [], "no news"
        effects = made.on_metadata_changed(Versioned(NEW.recovering(), 2))
        assert effects == [Failed(0, Outcome.UNKNOWN), Ended(End.FENCED, -1, 0)]

    def test_a_close_leaves_out_what_is_not_acknowledged(self):
        made = writer(added=2)
        store(made, 0, 1, 2)
        assert made.on_close() == [WriteMetadata(1, NEW.closed(0, 10))]
        assert store(made, 1, 1, 2) == [], "nothing is acknowledged after the close was decided"
        assert made.on_failed(1, 3, Refusal.FENCED) == [], "the metadata decides"
        assert made.on_metadata_written(2) == [
            Failed(1, Outcome.NOT_STORED), Ended(End.CLOSED, 0, 10),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("found", "end", "outcome"),
        [
            (NEW.closed(0, 10), End.CLOSED, Outcome.NOT_STORED),
            (NEW.closed(1, 20), End.CLOSED_BY_OTHER, Outcome.UNKNOWN),
            (NEW.closed(0, 11), End.CLOSED_BY_OTHER, Outcome.UNKNOWN),
        ],
    )
    def test_a_close_that_finds_it_closed(self, found, end, outcome):
        made = writer(added=2)
        store(made, 0, 1, 2)
        made.on_close()
        effects = made.on_metadata_found(Versioned(found, 3))
        assert effects == [Failed(1, outcome), Ended(end, 0, 10)]

    def test_a_close_overrides_a_recovery(self):
        made = writer(added=1)
        made.on_close()
        effects = made.on_metadata_found(Versioned(NEW.recovering(), 2))
        assert effects == [WriteMetadata(2, NEW.closed(-1, 0))]
        assert made.on_metadata_written(3)[-1] == Ended(End.CLOSED, -1, 0)

    @pytest.mark.parametrize(
        ("found", "is_mine"),
        [
            # A recovery that cannot end settled the entries up to a LAC.
            (NEW.recovering().with_ensemble(2, (1, 2, 3)), True),
            (NEW.recovering().with_ensemble(1, (1, 2, 3)), True),
            (NEW.recovering().with_ensemble(1, (1, 2, 3)).with_node(0, 0, 9), True),
            # These are no writes of such a recovery.
            (NEW.recovering().with_ensemble(3, (1, 2, 3)), False),
            (NEW.recovering().with_ensemble(2, (1, 2, 9)), False),
            (NEW.with_ensemble(2, (1, 2, 3)), False),
        ],
    )
    def test_a_close_overrides_a_recovery_that_settled_entries(self, found, is_mine):
        made = writer(added=2)
        store(made, 0, 1, 2)
        store(made, 1, 1, 2)
        made.on_close()
        effects = made.on_metadata_found(Versioned(found, 3))
        if is_mine:
            assert effects == [WriteMetadata(3, found.closed(1, 20))]
        else:
            assert effects[-1] == Ended(End.FENCED, 1, 20)

    def test_a_close_waits_for_a_change_under_way(self):
        made = writer(added=1)
        made.on_failed(0, 3, Refusal.FAILED)
        made.on_nodes_picked({2: 4})
        store(made, 0, 1, 2)
        assert made.on_close() == []
        assert not made.is_open
        sent, acked, write = made.on_metadata_written(2)
        assert (sent, acked) == (SendEntry(0, 4, -1), Acked(0, 0))
        assert write == WriteMetadata(2, NEW.with_ensemble(0, (1, 2, 4)).closed(0, 10))

    def test_too_few_nodes_close_it(self):
        made = writer(added=1)
        made.on_failed(0, 3, Refusal.FAILED)
        assert made.on_nodes_picked({}) == [WriteMetadata(1, NEW.closed(-1, 0))]
        assert made.on_metadata_written(2) == [
            Failed(0, Outcome.NOT_STORED), Ended(End.TOO_FEW_NODES, -1, 0),
        ]  # fmt: skip

    def test_an_entry_that_a_node_never_takes_closes_it(self):
        made = writer(added=1)
        assert made.on_failed(0, 9, Refusal.TOO_LARGE) == []  # of a node that is no member
        assert made.on_failed(0, 3, Refusal.TOO_LARGE) == [WriteMetadata(1, NEW.closed(-1, 0))]
        assert made.on_metadata_written(2) == [
            Failed(0, Outcome.NOT_STORED), Ended(End.TOO_LARGE, -1, 0),
        ]  # fmt: skip

    def test_too_many_changes_close_it(self):
        made = writer(added=1, changes_max=1)
        made.on_failed(0, 3, Refusal.FAILED)
        changed(made, {2: 4})
        (write,) = made.on_failed(0, 4, Refusal.FAILED)
        assert write.metadata.state is LedgerState.CLOSED
        assert made.on_metadata_written(3)[-1] == Ended(End.TOO_MANY_CHANGES, -1, 0)

    def test_a_quorum_that_does_not_answer_closes_it(self):
        made = writer(quorum_timeout_s=5.0)
        made.on_add([10], 100.0)
        assert made.on_time(104.9) == []
        assert made.on_time(105.0) == [WriteMetadata(1, NEW.closed(-1, 0))]
        assert made.on_time(106.0) == []
        assert made.on_metadata_written(2)[-1] == Ended(End.TIMED_OUT, -1, 0)

    def test_an_entry_that_is_acknowledged_has_its_quorum(self):
        made = writer(quorum_timeout_s=5.0)
        made.on_add([10], 100.0)
        store(made, 0, 1, 2)
        assert made.on_time(200.0) == []


class TestLac:
    def test_it_is_told_where_no_entry_told_it_for_a_tick(self):
        made = writer(added=1)
        store(made, 0, 1, 2)
        assert made.on_lac_tick() == []
        assert made.on_lac_tick() == [SendLac(node, 0) for node in (1, 2, 3)]
        assert made.on_lac_tick() == [], "once"

    def test_it_is_told_again_to_those_that_did_not_take_it(self):
        made = writer(added=1)
        store(made, 0, 1, 2)
        made.on_lac_tick()
        made.on_lac_tick()
        made.on_lac_failed(2, 0)
        made.on_lac_failed(9, 0)
        assert made.on_lac_tick() == [SendLac(2, 0)], "node 9 is no member"
        assert made.on_lac_tick() == []
        made.on_add([1], 0.0)
        store(made, 1, 1, 2, 3)
        made.on_lac_failed(2, 0)
        assert made.on_lac_tick() == []
        assert made.on_lac_tick() == [SendLac(node, 1) for node in (1, 2, 3)]
        made.on_lac_failed(3, 0)
        assert made.on_lac_tick() == [], "a higher one was sent since"

    def test_it_is_not_told_where_an_entry_told_it(self):
        made = writer(added=1)
        store(made, 0, 1, 2)
        made.on_add([1], 0.0)
        assert made.on_lac_tick() + made.on_lac_tick() + made.on_lac_tick() == []


class TestDeferredSync:
    def test_the_lac_moves_with_a_force_that_all_answer(self):
        made = writer(added=2, defers_sync=True)
        assert acks(store(made, 0, 1, 2)) == [0]
        assert (made.lac, made.head, made.length) == (NO_ENTRY, 0, 0)
        assert made.on_force() == [SendForce(1, node) for node in (1, 2, 3)]
        # What is acknowledged after the force was asked for is not of it.
        assert acks(store(made, 1, 1, 2)) == [1]
        assert made.on_forced(1, 1) + made.on_forced(1, 1) + made.on_forced(1, 2) == []
        assert made.on_forced(1, 3) == [Forced(1, 0)]
        assert (made.lac, made.head, made.length) == (0, 1, 10)

    def test_a_force_never_takes_the_lac_back(self):
        made = writer(added=2, defers_sync=True)
        store(made, 0, 1, 2)
        made.on_force()
        store(made, 1, 1, 2)
        made.on_force()
        for node in (1, 2, 3):
            made.on_forced(2, node)
        for node in (1, 2, 3):
            made.on_forced(1, node)
        assert (made.lac, made.length) == (1, 20)

    def test_a_force_that_a_later_one_overtook_is_done_with_it(self):
        """A close came before the first one's answers, and its caller was told that it failed."""
        made = writer(added=2, defers_sync=True)
        store(made, 0, 1, 2)
        made.on_force()
        store(made, 1, 1, 2)
        made.on_force()
        assert made.on_forced(1, 1) + made.on_forced(2, 1) + made.on_forced(2, 2) == []
        assert made.on_forced(2, 3) == [Forced(1, 0), Forced(2, 1)]
        assert made.on_close() == [WriteMetadata(1, NEW.closed(1, 20))]
        assert made.on_forced(1, 2) + made.on_force_failed(1, Refusal.FAILED) == []

    def test_an_earlier_force_does_not_end_a_later_one(self):
        made = writer(added=2, defers_sync=True)
        store(made, 0, 1, 2)
        made.on_force()
        store(made, 1, 1, 2)
        made.on_force()
        assert [each for n in (1, 2, 3) for each in made.on_forced(1, n)] == [Forced(1, 0)]
        assert (made.lac, made.head) == (0, 1)
        assert [each for n in (1, 2, 3) for each in made.on_forced(2, n)] == [Forced(2, 1)]

    def test_without_it_what_is_acknowledged_is_on_the_disks(self):
        made = writer(added=1)
        store(made, 0, 1, 2)
        assert made.on_force() == [Forced(1, 0)]

    def test_a_failure_closes_the_ledger_at_the_lac(self):
        for fail in (
            lambda made: made.on_failed(1, 3, Refusal.FAILED),
            lambda made: made.on_force_failed(made.on_force()[0].force, Refusal.FAILED),
        ):
            made = writer(added=2, defers_sync=True)
            store(made, 0, 1, 2)
            assert fail(made) == [WriteMetadata(1, NEW.closed(-1, 0))]
            assert made.phase is Phase.CLOSING
            assert made.on_metadata_written(2)[-1] == Ended(End.WRITE_FAILED, -1, 0)

    @pytest.mark.parametrize(
        ("stored", "forced", "lac"),
        [
            ((5, 6, 7), (5, 6, 7), 0),
            ((5, 6, 7), (5, 6, 8), None),  # node 3 starts anew before the force
            ((5, 6, None), (5, 6, 8), 0),  # node 3 never had the entry
            ((5, 0, 7), (5, 0, 7), 0),  # node 2 tells no run: it always syncs
        ],
    )
    def test_a_force_counts_only_in_the_run_that_acknowledged(
        self, stored, forced, lac: int | None
    ):
        made = writer(added=1, defers_sync=True)
        for node, run in enumerate(stored, 1):
            if run is not None:
                made.on_stored(node, 0, run=run)
        made.on_force()
        effects = [each for n, run in enumerate(forced, 1) for each in made.on_forced(1, n, run)]
        if lac is None:
            assert effects == [WriteMetadata(1, NEW.closed(-1, 0))]
            assert made.on_metadata_written(2) == [Ended(End.WRITE_FAILED, -1, 0)]
        else:
            assert effects == [Forced(1, lac)]

    def test_an_entry_that_a_node_takes_in_another_run_ends_the_writer(self):
        made = writer(added=2, defers_sync=True)
        made.on_stored(1, 0, run=5)
        assert made.on_stored(1, 1, run=6) == [WriteMetadata(1, NEW.closed(-1, 0))]

    def test_runs_do_not_count_where_sync_is_not_deferred(self):
        made = writer(added=1)
        assert acks(made.on_stored(1, 0, run=5) + made.on_stored(2, 0, run=6)) == [0]
        made.on_add([1], 0.0)
        assert acks(made.on_stored(1, 1, run=9) + made.on_stored(2, 1, run=9)) == [1]

    def test_a_fence_that_a_force_meets_ends_the_writer(self):
        made = writer(added=1, defers_sync=True)
        store(made, 0, 1, 2)
        made.on_force()
        assert made.on_force_failed(1, Refusal.FENCED) == [Ended(End.FENCED, -1, 0)]
