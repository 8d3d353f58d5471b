"""The append window: LSNs out in order, acks back in order, stale waves never count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cordwood.lsn import make_lsn
from cordwood.protocol.append_window import AppendWindow


def window() -> AppendWindow[str]:
    return AppendWindow(7)


def test_numbers_follow_one_another_from_esn_1() -> None:
    runs = window()
    assert [runs.number(3, "a").first, runs.number(2, "b").first] == [
        make_lsn(7, 1),
        make_lsn(7, 4),
    ]
    assert runs.lng == make_lsn(7, 0)


def test_a_run_stored_early_waits_for_those_before_it() -> None:
    runs = window()
    first, second = runs.number(1, "a"), runs.number(1, "b")
    for run in (first, second):
        run.send_to((1, 2), now=0.0)
    assert not second.on_stored(1, 1)
    assert second.on_stored(2, 1)
    assert runs.retire() == []
    first.on_stored(1, 1)
    assert first.on_stored(2, 1)
    assert [run.contents for run in runs.retire()] == ["a", "b"]
    assert runs.lng == make_lsn(7, 2)


def test_an_answer_to_an_older_wave_does_not_count() -> None:
    run = window().number(1, "a")
    run.send_to((1, 2, 3), now=0.0)
    assert not run.on_stored(1, 1)
    run.send_to((1, 2, 4), now=1.0)
    assert not run.on_stored(2, 1), "wave 1 named another copyset"
    assert [run.on_stored(node, 2) for node in (1, 2, 4)] == [False, False, True]


def test_a_node_outside_the_copyset_or_twice_does_not_count() -> None:
    run = window().number(1, "a")
    run.send_to((1, 2), now=0.0)
    assert [run.on_stored(node, 1) for node in (3, 1, 1)] == [False] * 3
    assert not run.stored


def test_an_epoch_ends_before_its_last_esn() -> None:
    runs: AppendWindow[str] = AppendWindow(1, esn_max=10)
    assert runs.fits(10)
    runs.number(8, "a")
    assert runs.fits(2)
    assert not runs.fits(3)


def test_a_group_of_several_runs_retires_as_one() -> None:
    runs = window()
    made = [runs.number(2, name, ends_group=name != "a") for name in "abc"]
    for run in made:
        run.send_to((1,), now=0.0)
    made[0].on_stored(1, 1)
    assert runs.retire() == []
    assert runs.lng == make_lsn(7, 0), "the LNG does not stand inside a group"
    made[2].on_stored(1, 1)
    assert runs.retire() == []
    made[1].on_stored(1, 1)
    assert [run.contents for run in runs.retire()] == ["a", "b", "c"]
    assert runs.lng == make_lsn(7, 6)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=20),
    st.randoms(use_true_random=False),
)
def test_the_lng_is_the_end_of_the_last_group_below_which_all_is_stored(shape, chance) -> None:
    runs: AppendWindow[int] = AppendWindow(1)
    made = [runs.number(count, at, ends_group=ends) for at, (count, ends) in enumerate(shape)]
    for run in made:
        run.send_to((1,), now=0.0)
    order = list(made)
    chance.shuffle(order)
    for run in order:
        run.on_stored(1, 1)
        runs.retire()
        below, lng = True, 1 << 32
        for each in made:
            below = below and each.stored
            if below and each.ends_group:
                lng = each.last
        assert runs.lng == lng


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_whatever_the_order_of_answers_runs_retire_in_lsn_order(counts, chance) -> None:
    runs: AppendWindow[int] = AppendWindow(1)
    made = [runs.number(count, index) for index, count in enumerate(counts)]
    answers = []
    for run in made:
        run.send_to((1, 2, 3), now=0.0)
        answers += [(run, node) for node in (1, 2, 3)]
    chance.shuffle(answers)
    heard: dict[int, set[int]] = {index: set() for index in range(len(made))}
    retired: list[int] = []
    for run, node in answers:
        run.on_stored(node, 1)
        heard[run.contents].add(node)
        retired += [done.contents for done in runs.retire()]
        stored = 0
        while stored < len(made) and len(heard[stored]) == 3:
            stored += 1
        assert retired == list(range(stored)), "exactly the stored prefix is retired"
        assert runs.lng == (made[stored - 1].last if stored else 1 << 32)


def test_who_confirmed_a_wave_that_was_given_up_holds_the_run() -> None:
    run = window().number(1, "a")
    run.send_to((1, 2, 3), now=0.0)
    run.on_stored(1, 1)
    run.on_stored(3, 1)
    run.note_holders()
    assert run.holders == {1, 3}
    run.lacking.add(3)
    run.send_to((1, 3, 4), now=1.0)
    run.on_stored(4, 2)
    run.note_holders()
    assert run.holders == {1, 4}, "3 said that it does not"
