"""The epochs of the log: their sequencers, and the bridge in which each ended.

A rule: joins the records of the tail and the observed sequencers into rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cordwood.block import Gap, GapKind
from cordwood.demo.tail_check import EpochRead, TailCheck

NOTHING_LOST = {GapKind.BRIDGE, GapKind.HOLE}
"""The kinds of gap at the end of an epoch, and where nothing was ever acknowledged."""


@dataclass(frozen=True, slots=True)
class EpochRow:
    """One epoch.

    Attributes:
        sequencer: the node that numbered it, None if it was not observed.
        read: the records read of it, None if it has no records.
        bridge: the gap in which it ended, None for the newest epoch.
    """

    epoch: int
    sequencer: int | None
    read: EpochRead | None
    bridge: Gap | None


def epoch_rows(check: TailCheck, sequencers: Mapping[int, int], last_epoch: int) -> list[EpochRow]:
    """The epochs up to the newest, oldest first.

    Args:
        sequencers: nodes by the epoch that they numbered in.
        last_epoch: the newest that the epoch store gave out.
    """
    bridges = {gap.first >> 32: gap for gap in check.bridges}
    return [
        EpochRow(epoch, sequencers.get(epoch), check.epochs.get(epoch), bridges.get(epoch))
        for epoch in range(1, last_epoch + 1)
    ]


def each_was_bridged(epochs: list[EpochRow]) -> bool:
    """Whether every epoch with records, except the newest, ended in a bridge after its last
    record."""
    return all(
        each.bridge is not None and each.bridge.first > each.read.last
        for each in epochs[:-1]
        if each.read is not None
    )


def only_harmless(gaps: Mapping[GapKind, int]) -> bool:
    """Whether no gap that was read hides a record."""
    return set(gaps) <= NOTHING_LOST
