"""Three seeds of the swarm with every `make test`; `make prove` sweeps for as long as asked.

`test_fault_kinds` runs three dozen more, a kind of fault each.
"""

from __future__ import annotations

import json

import pytest

from cordwood.sim import command

SEEDS = 3


def test_seeds_break_no_promise(capsys: pytest.CaptureFixture[str]):
    command.run(SEEDS, 1, None, jobs=2, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["seeds"] == SEEDS
    assert told["failed"] == []
    assert told["run_twice"] >= 1
    assert told["diverged"] == 0
    assert told["records"] > 300 * SEEDS
    assert len(told["faults"]) > 8
