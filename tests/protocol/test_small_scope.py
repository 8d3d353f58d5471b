"""Every world of seal and recovery that is small enough, walked from end to end."""

from __future__ import annotations

import pytest
import small_scope
from small_scope import Broken, start, walk

from cordwood.protocol.digest import Digest
from cordwood.protocol.seal import SealTable, SealTally
from cordwood.sim.zoo import find_bug, planted


@pytest.fixture(autouse=True)
def rules_are_asked_anew():
    small_scope.forget()
    yield
    small_scope.forget()


def test_a_recovery_loses_nothing_that_two_blocks_can_show():
    worlds, ended = walk(start(blocks=2, recoveries=1))
    assert (worlds, ended) == (10_864, 873)


def test_a_recovery_loses_nothing_that_three_blocks_can_show():
    worlds, ended = walk(start(blocks=3, recoveries=1))
    assert (worlds, ended) == (126_000, 10_125)


def test_a_block_that_was_sent_to_all_copysets_in_turn_is_found():
    worlds, ended = walk(start(blocks=1, recoveries=1, waves=3))
    assert (worlds, ended) == (11_424, 918)


@pytest.mark.slow
def test_blocks_that_were_sent_to_two_copysets_each_are_found():
    worlds, ended = walk(start(blocks=2, recoveries=1, waves=2))
    assert (worlds, ended) == (179_200, 14_400)


@pytest.mark.slow
def test_two_recoveries_at_once_end_the_epoch_in_one_way():
    worlds, ended = walk(start(blocks=1, recoveries=2))
    assert (worlds, ended) == (219_147, 28_767)


def seals_are_not_obeyed(monkeypatch):
    monkeypatch.setattr(SealTable, "admits", lambda self, *_: True)


def lng_too_high(monkeypatch):
    right = SealTally.lng
    monkeypatch.setattr(
        SealTally, "lng", lambda self, epoch: min(right(self, epoch) + 1, (1 << 32) + 2)
    )


def last_copy_unseen(monkeypatch):
    right = Digest.add
    monkeypatch.setattr(
        Digest,
        "add",
        lambda self, copies: right(self, sorted(copies, key=lambda c: c.header.first)[:-1]),
    )


@pytest.mark.parametrize(
    "plant",
    [seals_are_not_obeyed, lng_too_high, last_copy_unseen],
    ids=lambda plant: plant.__name__,
)
def test_a_rule_that_is_wrong_is_found_out(plant, monkeypatch):
    plant(monkeypatch)
    with pytest.raises(Broken):
        walk(start(blocks=2, recoveries=1))


def test_a_seal_that_recoveries_do_not_name_is_found_out():
    """One that was overtaken stores on, and a node shows another end than the one that counts."""
    with planted(find_bug("seal-unnamed")), pytest.raises(Broken, match="shows"):
        walk(start(blocks=1, recoveries=2))
