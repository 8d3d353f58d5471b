"""Consumer groups: who reads what, whose saves count, and positions that do not go back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.errors import Fenced, Rejected
from cordwood.protocol.consumer_group import (
    LEASE_US_MAX,
    MARKS_MAX,
    Group,
    Owner,
    beat,
    give_up_absent,
    join,
    leave,
    let_go,
    save,
    without_logs,
)

S = 1_000_000
TTL = 10 * S


def joined(group: Group, *members: str, logs: str = "abcd", now: int = 0) -> Group:
    """Members that come one by one, and those that are there let go of what they are to."""
    for member in members:
        group = all_let_go(join(group, member, logs, now, TTL))
    return group


def all_let_go(group: Group) -> Group:
    for member in group.members:
        leaving = [
            log for log, own in group.owners.items() if own.successor and own.member == member
        ]
        group = let_go(group, member, leaving, group.generation)
    return group


def shares(group: Group) -> dict[str, str]:
    return {member: "".join(group.logs_of(member)) for member in sorted(group.members)}


class TestSharing:
    def test_logs_are_shared_evenly_and_few_move(self) -> None:
        one = joined(Group(), "m1")
        assert shares(one) == {"m1": "abcd"}
        two = joined(one, "m2")
        assert sorted(map(len, shares(two).values())) == [2, 2]
        assert set(shares(two)["m1"]) < set("abcd")
        three = joined(two, "m3")
        assert sorted(map(len, shares(three).values())) == [1, 1, 2]
        kept = [log for log in "abcd" if three.owners[log].member == two.owners[log].member]
        assert len(kept) == 3
        assert (one.generation, two.generation, three.generation) == (1, 3, 5)

    def test_a_member_reads_only_what_it_is_willing_to(self) -> None:
        group = joined(joined(Group(), "m1", logs="ab"), "m2", logs="bcd")
        assert shares(group)["m1"] in ("a", "ab")
        assert set(shares(group)["m1"] + shares(group)["m2"]) == set("abcd")
        assert "a" not in shares(group)["m2"]
        assert shares(leave(group, "m1", group.generation, 0)) == {"m2": "bcd"}

    def test_who_is_not_heard_of_loses_its_logs(self) -> None:
        group = joined(Group(), "m1", "m2")
        quiet = beat(group, "m2", group.generation, 9 * S, TTL)
        assert quiet.generation == group.generation, "nobody is late yet"
        alone = beat(quiet, "m2", group.generation, 11 * S, TTL)
        assert shares(alone) == {"m2": "abcd"}
        assert alone.generation == group.generation + 1
        with pytest.raises(Fenced, match="join again"):
            beat(alone, "m1", group.generation, 11 * S, TTL)

    def test_leaving_is_at_once_and_twice_is_fine(self) -> None:
        group = joined(Group(), "m1", "m2")
        now = group.generation
        left = leave(group, "m1", now, 0)
        assert shares(left) == {"m2": "abcd"}
        assert leave(left, "m1", now, 0) == left
        nobody = leave(left, "m2", now, 0)
        assert {own.member for own in nobody.owners.values()} == {""}

    def test_an_earlier_life_that_leaves_late_ends_no_later_one(self) -> None:
        first = joined(Group(), "c")
        second = joined(first, "c")
        assert leave(second, "c", first.generation, 0) == second
        assert leave(second, "c", second.generation, 0).members == {}


class TestHandingOver:
    def test_the_successor_waits_until_the_owner_lets_go(self) -> None:
        one = joined(Group(), "m1")
        two = join(one, "m2", "abcd", S, TTL)
        leaving = [log for log, own in two.owners.items() if own.successor == "m2"]
        assert len(leaving) == 2
        assert shares(two) == {"m1": "abcd", "m2": ""}
        saved = save(two, {leaving[0]: 7}, member="m1", generation=one.generation)
        gone = let_go(saved, "m1", leaving[:1], saved.generation)
        assert gone.owners[leaving[0]] == Owner("m2", gone.generation)
        assert gone.generation == saved.generation + 1
        with pytest.raises(Fenced, match="is read by m2"):
            save(gone, {leaving[0]: 9}, member="m1", generation=gone.generation)
        assert save(gone, {leaving[1]: 9}, member="m1", generation=1).positions[leaving[1]] == 9
        assert let_go(gone, "m1", leaving[:1], gone.generation) == gone, "once"

    def test_an_owner_that_does_not_let_go_loses_it_in_the_end(self) -> None:
        group = join(joined(Group(), "m1"), "m2", "abcd", S, TTL)
        for now in range(2, 10):
            for member in ("m1", "m2"):
                group = beat(group, member, group.generation, now * S, TTL)
        assert shares(group)["m2"] == ""
        group = beat(group, "m1", group.generation, 10 * S, TTL)
        assert sorted(map(len, shares(group).values())) == [2, 2]
        assert not any(own.successor for own in group.owners.values())

    def test_a_successor_that_goes_gets_nothing(self) -> None:
        one = joined(Group(), "m1")
        two = join(one, "m2", "abcd", S, TTL)
        left = leave(two, "m2", two.generation, S)
        assert shares(left) == {"m1": "abcd"}
        assert all(own == one.owners[log] for log, own in left.owners.items()), "as it was"

    def test_an_owner_that_dies_leaves_it_to_its_successor(self) -> None:
        two = join(joined(Group(), "m1"), "m2", "abcd", 5 * S, TTL)
        alone = beat(two, "m2", two.generation, 11 * S, TTL)
        assert shares(alone) == {"m2": "abcd"}


class TestSaving:
    def test_a_member_that_was_replaced_is_fenced_where_it_was(self) -> None:
        group = joined(Group(), "m1")
        group = save(group, {"a": 5, "d": 5}, member="m1", generation=1)
        later = joined(group, "m2")
        assert later.generation == 3
        (moved, *_), kept = shares(later)["m2"], shares(later)["m1"][0]
        with pytest.raises(Fenced, match=f"{moved} is read by m2"):
            save(later, {moved: 9}, member="m1", generation=1)
        assert save(later, {kept: 9}, member="m1", generation=1).positions[kept] == 9, (
            "what it kept it may save, though it has not heard of the new generation"
        )
        both = {moved: 9, kept: 9}
        with pytest.raises(Fenced):
            save(later, both, member="m1", generation=1)

    def test_an_earlier_life_of_a_member_is_fenced(self) -> None:
        group = joined(joined(Group(), "m1"), "m1", now=S)
        with pytest.raises(Fenced):
            save(group, {"a": 1}, member="m1", generation=1)
        with pytest.raises(Fenced):
            beat(group, "m1", 1, 2 * S, TTL)
        assert save(group, {"a": 1}, member="m1", generation=2).positions == {"a": 1}

    def test_a_call_to_join_that_comes_late_replaces_nobody(self) -> None:
        group = join(Group(), "m1", ["a"], 0, TTL, known=0)
        with pytest.raises(Fenced, match="look again"):
            join(group, "m1", ["a"], 1, TTL, known=0)
        other = join(group, "m2", ["a"], 1, TTL, known=0)
        assert other.members.keys() == {"m1", "m2"}
        again = join(other, "m1", ["a"], 2, TTL, known=other.generation)
        assert again.members["m1"].joined == again.generation

    def test_strangers_save_only_where_nobody_reads(self) -> None:
        group = joined(Group(), "m1", logs="ab")
        with pytest.raises(Fenced):
            save(group, {"a": 1})
        assert save(group, {"z": 1}).positions == {"z": 1}
        assert save(Group(), {"a": 1}).positions == {"a": 1}

    def test_the_last_member_that_is_gone_keeps_no_stranger_out(self) -> None:
        """Nobody was left whose beat would have given its logs up."""
        group = joined(Group(), "m1", logs="ab")
        assert give_up_absent(group, 0) is group
        later = give_up_absent(group, TTL + 1)
        assert later.members == {}
        assert save(later, {"a": 1}).positions == {"a": 1}
        with pytest.raises(Fenced):
            save(later, {"b": 1}, member="m1", generation=group.generation)
        with pytest.raises(Fenced, match="join again"):
            beat(later, "m1", group.generation, TTL + 2, TTL)

    def test_a_lease_of_a_clock_that_was_ahead_is_shortened(self) -> None:
        """It held the logs of a dead member for as long as the clock had been ahead."""
        hour = 3600 * S
        group = join(Group(), "dead", "ab", hour, TTL)
        group = join(group, "m1", "ab", 0, TTL)
        assert group.members["dead"].expires_us == LEASE_US_MAX
        (waits,) = [own for own in group.owners.values() if own.successor]
        assert waits.due_us == LEASE_US_MAX
        group = beat(group, "m1", group.generation, LEASE_US_MAX, TTL)
        assert group.logs_of("m1") == ("a", "b")
        assert join(Group(), "m1", "a", 0, 10 * hour).members["m1"].expires_us == LEASE_US_MAX

    def test_a_zombie_does_not_save_where_nobody_reads_any_more(self) -> None:
        """Its successor has saved and left; who joins next would skip what lies between."""
        group = joined(Group(), "a", logs="l")
        group = joined(beat(group, "a", 1, 0, TTL), "b", logs="l", now=11 * S)
        assert group.owners["l"].member == "b"
        group = save(group, {"l": 100}, member="b", generation=group.generation)
        group = leave(group, "b", group.generation, 12 * S)
        for member, generation in (("a", 1), ("b", group.generation), ("b", 1)):
            with pytest.raises(Fenced, match="is read by no member"):
                save(group, {"l": 1_000_000}, member=member, generation=generation)
        assert save(group, {"l": 101}).positions == {"l": 101}, "a consumer without members may"

    def test_of_two_that_compare_and_set_the_same_one_succeeds(self) -> None:
        """Both did, and both took the records in between for their own."""
        group = save(Group(), {"a": 1, "b": 1})
        mine = save(group, {"a": 6}, expected={"a": 1}, mark="mine")
        assert save(mine, {"a": 6}, expected={"a": 1}, mark="mine") == mine, "its second try"
        with pytest.raises(Fenced, match="a stands at 6, not at 1"):
            save(mine, {"a": 6}, expected={"a": 1}, mark="other")
        later = save(save(mine, {"b": 2}), {"a": 6})
        with pytest.raises(Fenced, match="another save came in between"):
            save(later, {"a": 6}, expected={"a": 1}, mark="other")
        assert save(mine, {"a": 6}, expected={"a": 1}) == mine, "an older client"
        assert without_logs(mine, {"a"}).marks == {}

    def test_a_second_try_succeeds_though_others_went_on_from_there(self) -> None:
        """It was refused, and nobody had the records that its first try had claimed."""
        mine = save(save(Group(), {"a": 1}), {"a": 6}, expected={"a": 1}, mark="mine")
        on = save(mine, {"a": 8}, expected={"a": 6}, mark="next")
        for group in (on, save(mine, {"a": 9})):
            assert save(group, {"a": 6}, expected={"a": 1}, mark="mine") == group
        for at in range(8, 8 + MARKS_MAX):
            on = save(on, {"a": at + 1}, expected={"a": at}, mark=f"at {at}")
        assert len(on.marks["a"]) == MARKS_MAX
        with pytest.raises(Fenced, match="another save came in between"):
            save(on, {"a": 6}, expected={"a": 1}, mark="mine")

    def test_after_a_reset_a_compare_and_set_moves_again(self) -> None:
        mine = save(save(Group(), {"a": 1}), {"a": 6}, expected={"a": 1}, mark="mine")
        back = save(mine, {"a": 1}, reset=True)
        assert back.marks == {}
        assert save(back, {"a": 6}, expected={"a": 1}, mark="mine").positions == {"a": 6}
        back = save(mine, {"a": 1}, expected={"a": 6}, reset=True, mark="back")
        assert back.marks == {"a": ("back",)}
        assert save(back, {"a": 1}, expected={"a": 6}, reset=True, mark="back") == back

    def test_positions_go_back_only_on_a_reset(self) -> None:
        group = save(Group(), {"a": 5, "b": 5})
        with pytest.raises(Rejected, match="takes a reset"):
            save(group, {"b": 6, "a": 4})
        assert save(group, {"a": 5}) == group
        assert save(group, {"a": 1}, reset=True).positions == {"a": 1, "b": 5}
        assert save(joined(group, "m1"), {"a": 1}, reset=True).positions["a"] == 1

    def test_a_save_that_does_not_know_of_a_reset_is_refused(self) -> None:
        group = save(Group(), {"a": 5, "b": 5})
        back = save(save(group, {"a": 1}, reset=True), {"a": 5}, reset=True)
        assert back.positions == group.positions
        assert back.resets == {"a": 2}
        for known in (0, 1):
            with pytest.raises(Fenced, match="a was reset since, to 5"):
                save(back, {"a": 6, "b": 6}, resets={"a": known, "b": 0})
        assert save(back, {"a": 6}, resets={"a": 2}).positions["a"] == 6
        again = save(back, {"a": 5}, reset=True, resets={"a": 1})
        assert again == back, "the second try of the reset"
        assert without_logs(back, ["a"]).resets == {}

    def test_a_reset_is_not_undone_by_a_member_that_reads_on(self) -> None:
        group = joined(Group(), "m1", "m2")
        known = group.generation
        (log, *_), (other, *_) = group.logs_of("m1"), group.logs_of("m2")
        group = save(group, {log: 50}, member="m1", generation=known)
        back = save(group, {log: 1}, reset=True)
        with pytest.raises(Fenced, match="since generation"):
            save(back, {log: 60}, member="m1", generation=known)
        assert save(back, {log: 60}, member="m1", generation=back.generation).positions[log] == 60
        assert save(back, {other: 5}, member="m2", generation=known).positions[other] == 5
        assert save(back, {log: 1}, reset=True) == back, "the second try of a call"
        assert save(back, {log: 1}, expected={log: 50}, reset=True) == back, "likewise"
        again = save(back, {log: 1}, expected={log: 1}, reset=True)
        with pytest.raises(Fenced, match="since generation"):
            save(again, {log: 60}, member="m1", generation=back.generation)
        assert save(group, {"none": 1}, reset=True).generation == known

    @pytest.mark.parametrize(
        ("now", "expected", "wanted", "saved"),
        [(0, 0, 5, True), (5, 5, 9, True), (5, 0, 9, False), (7, 5, 9, False), (9, 5, 9, True)],
    )
    def test_compare_and_set(self, now: int, expected: int, wanted: int, saved: bool) -> None:
        """The last row: an earlier try was stored, and its answer was lost."""
        group = Group(positions={"a": now} if now else {})
        if saved:
            assert save(group, {"a": wanted}, expected={"a": expected}).positions == {"a": wanted}
        else:
            with pytest.raises(Fenced, match="another save came in between"):
                save(group, {"a": wanted}, expected={"a": expected})


@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "beat", "wait", "go"]),
                          st.sampled_from(["m1", "m2", "m3"]),
                          st.sampled_from(["ab", "bcd", "abcd", ""])), max_size=25))  # fmt: skip
def test_each_log_has_one_owner_who_wants_it_and_shares_are_even(events) -> None:
    group, now = Group(), 0
    for word, member, logs in events:
        before = group
        if word == "join":
            group = join(group, member, logs, now, TTL)
        elif word == "leave":
            group = leave(group, member, group.generation, now)
        elif word == "go":
            leaving = [log for log, own in group.owners.items() if own.member == member]
            group = let_go(group, member, leaving, group.generation)
        elif word == "wait":
            now += 6 * S
        elif member in group.members:
            group = beat(group, member, group.generation, now, TTL)
        assert group.generation >= before.generation
        wanted = {log for value in group.members.values() for log in value.logs}
        assert {log for log, own in group.owners.items() if own.member} == wanted
        for log, own in group.owners.items():
            was = before.owners.get(log)
            if own.member:
                assert log in group.members[own.member].logs
            assert own.since <= group.generation
            if was is None or was.member != own.member:
                assert own.since == group.generation > before.generation
            if own.successor:
                assert own.successor != own.member
                assert log in group.members[own.successor].logs
                assert own.due_us <= now + TTL
        if all(set(value.logs) == wanted for value in group.members.values()) and group.members:
            ends = [own.successor or own.member for own in group.owners.values() if own.member]
            sizes = [ends.count(each) for each in group.members]
            assert max(sizes) - min(sizes) <= 1
