"""A few rounds of kill -9 on a real store, and the judge of what each start finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordwood.chaos.kill_rounds import WRITERS, _judge, kill_rounds

WHOLE = [(writer, number) for number in range(3) for writer in range(WRITERS)]


@pytest.mark.slow
@pytest.mark.real
def test_what_was_acknowledged_is_there_after_each_kill(tmp_path: Path) -> None:
    killed = kill_rounds(str(tmp_path / "store"), rounds=3, seed=5)
    assert killed.problem == ""
    assert killed.rounds == 3
    assert killed.found >= len(killed.acked) > 0


def test_what_is_lost_doubled_or_out_of_order_is_told() -> None:
    assert _judge(WHOLE, set(WHOLE[:5])) == ""
    assert _judge(WHOLE[:-1], {*WHOLE[:-1]}) == "", "not acknowledged, and not there"
    assert "1 acknowledged records are gone" in _judge(WHOLE[:-1], {*WHOLE})
    assert "each once" in _judge([*WHOLE, WHOLE[-1]], set())
    assert "each once" in _judge([*WHOLE, (0, 4)], set())
    swapped = [(0, 1), (0, 0), *((each, 0) for each in range(1, WRITERS))]
    assert "each once" in _judge(swapped, set())
