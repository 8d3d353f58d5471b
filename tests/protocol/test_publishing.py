"""A query's entry: batches in order, each committed once, whoever tries and dies when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cordwood.errors import CordwoodError, Fenced, Rejected, Retryable
from cordwood.protocol.publishing import (
    APPENDED,
    NAMED,
    LogShare,
    Publication,
    StagedBlock,
    begin,
    check_repeat,
    commit,
    fence,
    finish,
    is_over,
)

NEW = Publication()
SHARES = (LogShare(1, "/log", (StagedBlock(b"1" * 16, (1, 2), 3, 30),)),)
SPANS = {"/log": (5, 7)}


def at(**fields) -> Publication:
    return replace(Publication(producer=9, attempt=1), **fields)


OPEN = at(batch=4, commits=2, committed_by=1, is_done=False, shares=SHARES)
DONE = finish(OPEN, 2, SPANS)

BEGIN = [
    ("a query's first batch", NEW, 0, at()),
    ("a later batch, gaps in the numbers are fine", DONE, 9, replace(DONE, attempt=2)),
    ("once more: the attempt before is shut out", at(), 0, at(attempt=2)),
    ("one that is committed", OPEN, 4, OPEN),
    ("one before that", DONE, 3, DONE),
]


@pytest.mark.parametrize(("name", "known", "batch", "then"), BEGIN, ids=[r[0] for r in BEGIN])
def test_begin(name, known, batch, then) -> None:
    assert begin(known, batch, producer=9) == then


def test_a_batch_waits_for_the_one_before_it() -> None:
    with pytest.raises(Retryable, match="batch 4"):
        begin(OPEN, 5, producer=9)


COMMIT = [
    ("the attempt that was taken last", at(), 0, 1, True),
    ("the same again: its answer was lost", OPEN, 4, 1, True),
    ("and again, when it is done", DONE, 4, 1, True),
    ("one that a later attempt overtook", at(attempt=2), 0, 1, False),
    ("one that was fenced", fence(at(), 1), 0, 1, False),
    ("another attempt at a committed batch", replace(OPEN, attempt=2), 4, 2, False),
    ("a batch below the last", replace(DONE, attempt=2), 3, 2, False),
    ("a batch above one that is not done", replace(OPEN, attempt=2), 5, 2, False),
]


@pytest.mark.parametrize(
    ("name", "known", "batch", "by", "may"), COMMIT, ids=[r[0] for r in COMMIT]
)
def test_commit(name, known, batch, by, may) -> None:
    if not may:
        with pytest.raises(Fenced):
            commit(known, batch, by, SHARES)
        return
    then = commit(known, batch, by, SHARES)
    assert (then.batch, then.committed_by) == (batch, by)
    assert then.commits == (known.commits if known.batch == batch else known.commits + 1)


REPEATS = [
    ("the same", "a", "a", ""),
    ("neither has a plan", "", "", ""),
    ("published without a plan", "", "a", ""),
    ("run again without a plan", "a", "", ""),
    ("another plan", "a", "b", "other records"),
    ("the same note", NAMED + "a", NAMED + "a", ""),
    ("another name", NAMED + "a", NAMED + "b", "other records"),
    ("a note, and the batch", APPENDED + "a", "a", "other records"),
    ("a note of appends, and the batch without a plan", APPENDED + "a", "", "would lose them"),
    ("a note of a name, and the batch without a plan", NAMED + "a", "", "would lose them"),
    ("published without a plan, and a note of appends", "", APPENDED + "a", "written twice"),
    ("published without a plan, and a note of a name", "", NAMED + "a", "written twice"),
]


@pytest.mark.parametrize(
    ("name", "noted", "given", "refused"), REPEATS, ids=[r[0] for r in REPEATS]
)
def test_a_batch_is_repeated_by_what_it_was(name, noted, given, refused) -> None:
    check_repeat("query", (4, noted), (5, given))
    if not refused:
        check_repeat("query", (4, noted), (4, given))
        return
    with pytest.raises(Rejected, match=refused):
        check_repeat("query", (4, noted), (4, given))


def test_a_batch_of_nothing_is_done_at_once() -> None:
    assert commit(at(), 0, 1, ()).is_done


def test_finishing_an_earlier_commit_or_again_changes_nothing() -> None:
    assert finish(OPEN, 1, SPANS) == OPEN
    assert finish(DONE, 2, {"/log": (1, 1)}) == DONE
    assert DONE.shares == ()


OVER = [
    ("the last attempt may still commit", at(), 1, False),
    ("it was overtaken", at(attempt=2), 1, True),
    ("it was fenced", fence(at(), 1), 1, True),
    ("what it committed is not in the logs yet", OPEN, 1, False),
    ("and is not, though a later attempt came", replace(OPEN, attempt=2), 1, False),
    ("what it committed is in the logs", DONE, 1, True),
    ("an attempt that nobody took", at(), 2, False),
]


@pytest.mark.parametrize(("name", "known", "attempt", "over"), OVER, ids=[r[0] for r in OVER])
def test_when_a_pin_is_over(name, known, attempt, over) -> None:
    assert is_over(known, attempt) is over


def test_a_fence_spares_what_is_committed() -> None:
    assert fence(OPEN, 1) == OPEN
    assert fence(at(attempt=5), 3) == at(attempt=5)


class Publishers(RuleBasedStateMachine):
    """Publishers that begin, commit and finish in any order, answers lost, and one who fences.

    What is true: commits rise with batches, one to a batch; none while another is open; an
    attempt whose pins were let go never commits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.known = Publication()
        self.attempts: list[tuple[int, int]] = []
        self.committed: list[tuple[int, int]] = []
        self.let_go: set[int] = set()

    @rule(ahead=st.integers(-2, 3))
    def begins(self, ahead) -> None:
        batch = max(0, self.known.batch + ahead)
        before = self.known
        try:
            self.known = begin(self.known, batch, 9)
        except Retryable:
            assert not before.is_done
            return
        if batch > before.batch:
            self.attempts.append((self.known.attempt, batch))

    @precondition(lambda self: self.attempts)
    @rule(pick=st.integers(0, 50))
    def commits(self, pick) -> None:
        attempt, batch = self.attempts[pick % len(self.attempts)]
        before = self.known
        try:
            self.known = commit(self.known, batch, attempt, SHARES)
        except CordwoodError:
            return
        if self.known != before:
            assert before.is_done
            assert batch > before.batch
            assert attempt not in self.let_go
            self.committed.append((batch, self.known.commits))

    @rule(back=st.integers(0, 2))
    def finishes(self, back) -> None:
        self.known = finish(self.known, self.known.commits - back, SPANS)

    @precondition(lambda self: self.attempts)
    @rule(pick=st.integers(0, 50), is_late=st.booleans())
    def lets_go(self, pick, is_late) -> None:
        attempt, _ = self.attempts[pick % len(self.attempts)]
        if is_late:
            self.known = fence(self.known, attempt)
        if is_over(self.known, attempt):
            self.let_go.add(attempt)

    @invariant()
    def each_batch_was_committed_once_and_in_order(self) -> None:
        assert self.committed == sorted(set(self.committed))
        assert [number for _, number in self.committed] == list(range(1, len(self.committed) + 1))

    @invariant()
    def what_an_open_commit_needs_is_not_let_go(self) -> None:
        assert self.known.is_done or self.known.committed_by not in self.let_go


TestPublishers = Publishers.TestCase
TestPublishers.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
