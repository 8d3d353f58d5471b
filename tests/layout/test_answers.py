"""Which reply each call is answered with: all others end the connection."""

from __future__ import annotations

import pytest

from cordwood.errors import Malformed
from cordwood.layout.answers import check_answer
from cordwood.layout.message import (
    AskReleased,
    DoneReply,
    EpochNodes,
    FindLog,
    LogReply,
    Ping,
    ReleasedReply,
    TailReply,
)


def test_an_answer_of_its_kind_passes() -> None:
    check_answer(Ping(), DoneReply())
    check_answer(AskReleased([1, 2]), ReleasedReply([0, 0]))


def test_one_of_another_kind_is_refused_by_name() -> None:
    with pytest.raises(Malformed, match="Ping was answered with TailReply"):
        check_answer(Ping(), TailReply(1, 1, 1))


def test_another_number_of_answers_is_refused() -> None:
    with pytest.raises(Malformed, match="2 logs were answered with 1 numbers"):
        check_answer(AskReleased([1, 2]), ReleasedReply([0]))


def log_seven(name: str = "/orders") -> LogReply:
    return LogReply(7, name, 1, 1, 0, [EpochNodes(1, [1], 1, 1)], [])


def test_a_log_passes_that_has_the_name_or_the_number_that_was_asked_for() -> None:
    check_answer(FindLog("orders", False), log_seven())
    check_answer(FindLog("", False, 7), log_seven())
    check_answer(FindLog("", False, 7), log_seven("/renamed"))


def test_another_log_is_refused_by_name_and_by_number() -> None:
    with pytest.raises(Malformed, match="orders was asked for, and /others came"):
        check_answer(FindLog("orders", False), log_seven("/others"))
    with pytest.raises(Malformed, match="log 8 was asked for, and log 7 came"):
        check_answer(FindLog("", False, 8), log_seven())
