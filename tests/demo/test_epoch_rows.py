"""What the demo says of epochs, and which ends of them it lets pass."""

from __future__ import annotations

from cordwood.block import Gap, GapKind, Record
from cordwood.demo.epoch_rows import each_was_bridged, epoch_rows, only_harmless
from cordwood.demo.tail_check import EpochRead, TailCheck
from cordwood.lsn import OLDEST, Lsn, make_lsn


def record(lsn: int) -> Record:
    return Record(Lsn(lsn), b"v", b"k", 0, ())


def read(*items: Record | Gap) -> TailCheck:
    check = TailCheck()
    check.on_read(items)
    return check


BRIDGE = Gap(Lsn(OLDEST + 2), make_lsn(2, 0), GapKind.BRIDGE)
BRIDGED = (record(OLDEST), record(OLDEST + 1), BRIDGE, record(make_lsn(2, 1)))


def test_an_epoch_is_its_sequencer_its_records_and_its_bridge():
    first, second = epoch_rows(read(*BRIDGED), {1: 4, 2: 5}, 2)
    assert (first.epoch, first.sequencer, first.bridge) == (1, 4, BRIDGE)
    assert first.read == EpochRead(OLDEST, Lsn(OLDEST + 1), 2)
    assert (second.sequencer, second.bridge) == (5, None)
    assert second.read == EpochRead(make_lsn(2, 1), make_lsn(2, 1), 1)
    assert each_was_bridged([first, second])


def test_an_epoch_that_ends_in_no_bridge_is_noticed():
    hole = Gap(BRIDGE.first, BRIDGE.last, GapKind.HOLE)
    check = read(record(OLDEST), record(OLDEST + 1), hole, record(make_lsn(2, 1)))
    assert not each_was_bridged(epoch_rows(check, {}, 2))


def test_an_epoch_without_records_needs_no_bridge_of_its_own():
    first, second, third = epoch_rows(read(*BRIDGED), {1: 4}, 3)
    assert third.read is None
    assert third.sequencer is None
    assert not each_was_bridged([first, second, third]), "the second has records"
    assert each_was_bridged([first, third])


def test_gaps_that_hide_nothing():
    assert only_harmless({})
    assert only_harmless({GapKind.BRIDGE: 2, GapKind.HOLE: 1})
    assert not only_harmless({GapKind.BRIDGE: 1, GapKind.DATA_LOSS: 1})
    assert not only_harmless({GapKind.TRIM: 1})
