"""Which reply each call is answered with: all others end the connection."""

from __future__ import annotations

import pytest

from cordwood.errors import Malformed
from cordwood.layout.answers import check_answer
from cordwood.layout.message import AskReleased, DoneReply, Ping, ReleasedReply, TailReply


def test_an_answer_of_its_kind_passes() -> None:
    check_answer(Ping(), DoneReply())
    check_answer(AskReleased([1, 2]), ReleasedReply([0, 0]))


def test_one_of_another_kind_is_refused_by_name() -> None:
    with pytest.raises(Malformed, match="Ping was answered with TailReply"):
        check_answer(Ping(), TailReply(1, 1, 1))


def test_another_number_of_answers_is_refused() -> None:
    with pytest.raises(Malformed, match="2 logs were answered with 1 numbers"):
        check_answer(AskReleased([1, 2]), ReleasedReply([0]))
