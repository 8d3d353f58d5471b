"""The checkers on hand-made histories: what keeps each promise, and what breaks it.

A good row must break nothing at all. A bad row must break exactly the promises it
names, most often one: where a defect breaks several, the row says so.
"""

from __future__ import annotations

import pathlib
import re
from collections import Counter

import pytest
from history_script import Row, play, read_table

from cordwood.errors import Malformed
from cordwood.sim.checkers import CHECKERS, NOT_YET, check, check_all, run_is_valid
from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.liveness import check_appends_succeed, check_readers_reach_the_tail

HERE = pathlib.Path(__file__).parent
GOOD = read_table(HERE / "good_histories.txt")
BAD = read_table(HERE / "bad_histories.txt")


def rows(table: list[Row]) -> list[object]:
    return [pytest.param(row, id=f"{row.promises}: {row.name}") for row in table]


@pytest.mark.parametrize("row", rows(GOOD))
def test_good(row: Row) -> None:
    assert list(map(str, check_all(play(row.script)))) == []


@pytest.mark.parametrize("row", rows(BAD))
def test_bad(row: Row) -> None:
    found = check_all(play(row.script))
    broken = {violation.invariant for violation in found}
    assert broken == set(row.promises.split()), list(map(str, found))
    assert all(violation.evidence and violation.text for violation in found)


def test_every_promise_is_checked_or_waits_for_its_feature() -> None:
    contract = (
        {f"S{n}" for n in range(1, 37)}
        | {f"L{n}" for n in range(1, 9)}
        | {"E1", "O1", "O2", "O3", "O4", "O5"}
    )
    assert len(contract) == 50
    assert set(CHECKERS) | set(NOT_YET) == contract
    assert not set(CHECKERS) & set(NOT_YET)
    assert all(NOT_YET.values())


def test_every_checker_has_a_good_and_two_bad_histories() -> None:
    assert {row.promises for row in GOOD} == set(CHECKERS)
    exact = Counter(row.promises for row in BAD)
    assert all(exact[invariant] >= 2 for invariant in CHECKERS), exact


def test_one_promise_can_be_checked_alone() -> None:
    history = play("w1 put a @ e1n1\nr1 from e1n1\nr1 e1n1=hole")
    assert [violation.invariant for violation in check("S2", history)] == ["S2"]
    assert check("S6", history) == []
    with pytest.raises(KeyError):
        check("S23", history)


def test_a_violation_tells_its_story() -> None:
    history = play("w1 put a b c @ e1n1 e1n2 e1n3\nr1 from e1n1\nr1 e1n1=a\nr1 end tail")
    (violation,) = check_all(history)
    assert str(violation) == (
        "S2 log 1 e1n2: reader r1 never saw w/b and 1 more up to e1n3, acknowledged"
    )
    assert violation.evidence == (history[1], history[2])


@pytest.mark.parametrize(
    ("script", "event"),
    [
        ("w1 send a\nw1 ack a e1n1\nw1 ack a e1n1", 3),
        ("w1 send a\nw1 send a", 2),
        ("w1 put a @ e1n1 e1n2", 2),
        ("w1 send ?", 1),
        ("r1 e1n1=a", 1),
        ("r1 end stopped", 1),
        ("r1 from e1n1\nr1 end stopped\nr1 e1n1=hole", 3),
    ],
)
def test_a_history_that_contradicts_itself_is_refused(script: str, event: int) -> None:
    with pytest.raises(Malformed, match=f"^event {event}: "):
        check_all(play(script))


def test_time_does_not_fall() -> None:
    history = play("heal\nheal")
    with pytest.raises(Malformed, match=r"^event 2: "):
        check_all(history[::-1])


def test_bounds_of_liveness_are_arguments() -> None:
    evidence = Evidence(
        play("w1 put a @ e1n1\nr1 from e1n1\nwait 3\nr1 e1n1=a\nw1 send b\nwait 3\nstart n1")
    )
    assert check_appends_succeed(evidence) == check_readers_reach_the_tail(evidence) == []
    assert [v.invariant for v in check_appends_succeed(evidence, bound_s=2)] == ["L1"]
    assert [v.invariant for v in check_readers_reach_the_tail(evidence, bound_s=2)] == ["L2"]


def test_a_run_counts_only_if_it_did_something() -> None:
    history = play(
        """
        take e1
        w1 put a b @ e1n1 e1n2
        fault crash
        take e2
        fault partition
        w1 put c @ e2n1
        fault delay
        take e3
        w1 put d @ e3n1
        r1 from e1n1
        heal
        r1 e1n1=a e1n2=b e1n3-e2n0=bridge e2n1=c e2n2-e3n0=bridge e3n1=d
        """
    )
    assert run_is_valid(history, acked_min=4)
    assert run_is_valid(history).reasons == ("4 records were acknowledged, 1000 are wanted",)


@pytest.mark.parametrize(
    ("script", "reasons"),
    [
        ("w1 put a @ e1n1\nheal", "crossed no-kinds no-reader"),
        ("fault crash\nfault crash\nw1 put a @ e1n1", "crossed 1-kind never-healed"),
        (
            "take e1\ntake e2\ntake e3\nw1 put a @ e2n1\nr1 from e1n1\nr1 e1n1-e2n0=bridge",
            "crossed no-kinds no-reader",
        ),
        (
            "r1 from e1n1\nr1 e1n1=hole\nr1 end tail\nfault crash\nheal\nw1 put a @ e1n1",
            "crossed 1-kind no-reader",
        ),
    ],
)
def test_what_a_run_lacks_is_said(script: str, reasons: str) -> None:
    words = {
        "crossed": r"\d epochs were crossed, 2 are wanted",
        "no-kinds": r"0 kinds of fault struck \(none\), not 3",
        "1-kind": r"1 kinds of fault struck \(crash\), not 3",
        "never-healed": "the faults were never healed",
        "no-reader": "log 1: no reader reached the tail after the healing",
    }
    validity = run_is_valid(play(script), acked_min=1)
    assert not validity
    for reason, word in zip(validity.reasons, reasons.split(), strict=True):
        assert re.fullmatch(words[word], reason)
