"""Decisions in words, whom they concern, and the story that they make of a record."""

from __future__ import annotations

import pytest
from cluster_at_hand import ClusterAtHand, simulate

from cordwood.cli.app import run
from cordwood.decisions import (
    LISTENERS,
    Decision,
    GapConcluded,
    LogTrimmed,
    RunAcknowledged,
    SealRaised,
    Story,
    TailSought,
    WaveRetried,
    listening,
    parse_story,
    story_told,
    tell,
)
from cordwood.errors import BadSetting
from cordwood.lsn import format_lsn, make_lsn

FIRST, LAST = make_lsn(7, 3), make_lsn(7, 5)


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (WaveRetried(4, FIRST, LAST, 2), "wave retried: log 4, first e7n3, last e7n5, wave 2"),
        (SealRaised(4, 7), "seal raised: log 4, epoch 7"),
        (TailSought(4), "tail sought: log 4"),
        (
            GapConcluded(4, FIRST, LAST, "HOLE"),
            "gap concluded: log 4, first e7n3, last e7n5, kind HOLE",
        ),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Decision) else "",
)  # fmt: skip
def test_a_decision_has_words(decision: Decision, words: str) -> None:
    assert decision.words == words


@pytest.mark.parametrize(
    ("decision", "lsn", "is_meant"),
    [
        (WaveRetried(4, FIRST, LAST, 2), FIRST, True),
        (WaveRetried(4, FIRST, LAST, 2), LAST, True),
        (WaveRetried(4, FIRST, LAST, 2), LAST + 1, False),
        (WaveRetried(4, FIRST, LAST, 2), FIRST - 1, False),
        (SealRaised(4, 7), FIRST, True),
        (SealRaised(4, 8), FIRST, False),
        (LogTrimmed(4, FIRST), FIRST, True),
        (LogTrimmed(4, FIRST), FIRST + 1, False),
        (TailSought(4), FIRST, False),
    ],
)
def test_a_decision_concerns_some_records(decision: Decision, lsn: int, is_meant: bool) -> None:
    assert decision.concerns(4, lsn, lsn) is is_meant
    assert decision.concerns(4)
    assert not decision.concerns(5, lsn, lsn)
    assert not decision.concerns(5)


@pytest.mark.parametrize(
    ("text", "story"),
    [("all", (0, 0)), ("17", (17, 0)), ("17:e7n3", (17, FIRST)), (f"17:{FIRST}", (17, FIRST))],
)
def test_a_story_is_asked_for_in_one_of_three_ways(text: str, story: tuple[int, int]) -> None:
    assert parse_story(text) == story


@pytest.mark.parametrize("text", ["every", "0", "-1", "x:e7n3", "17:e7", "17:3:4", " "])
def test_another_word_for_a_story_is_refused(text: str) -> None:
    with pytest.raises(BadSetting, match="`17:e7n123`"):
        parse_story(text)


def test_a_story_is_said_while_it_is_asked_for() -> None:
    said: list[str] = []
    with story_told("4:e7n4", said.append):
        tell(SealRaised(4, 7))
        tell(SealRaised(5, 7))
        tell(RunAcknowledged(4, LAST, LAST))
    tell(SealRaised(4, 7))
    assert said == ["seal raised: log 4, epoch 7"]
    assert LISTENERS == []


def test_nobody_listens_where_no_story_is_asked_for() -> None:
    with story_told("", print):
        assert LISTENERS == []


def test_a_story_forgets_what_is_old() -> None:
    story = Story(lambda: 1, most=2)
    for epoch in (1, 2, 3):
        story.on_decision(SealRaised(4, epoch))
    assert story.of(4) == [(1, "seal raised: log 4, epoch 2"), (1, "seal raised: log 4, epoch 3")]


def test_the_command_refuses_a_story_of_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORDWOOD_STORY", "nothing")
    assert run(["version"]) == 2
    assert "CORDWOOD_STORY: a story is told of `all`" in capsys.readouterr().err


def test_a_record_that_was_appended_has_a_story() -> None:
    """Nodes and a client of a simulated cluster tell it: none of them knows who listens."""
    story = Story(lambda: 0)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            lsn = await store.append("log", b"one")
        told = [words for _, words in story.of(1, lsn, lsn)]
        at = format_lsn(lsn)
        assert "epoch started: log 1, epoch 1" in told
        assert f"run acknowledged: log 1, first {at}, last {at}" in told

    with listening(story.on_decision):
        simulate(scenario)
