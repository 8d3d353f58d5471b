"""Atomic groups: blocks that are kept together or dropped together.

Each block's header names its group, `[group first, group last]`; a lone block is a group of its
own. Recovery keeps a group only if it found every block of it. An acknowledged group is on full
copysets, and an f-majority meets them, so none of its blocks is missing. A group with a missing
block was never acknowledged, and no record of it may ever be read.

Source: docs/design.md §2 ("ack, LNG, release and recovery treat it as one block").
"""

from __future__ import annotations

from collections.abc import Iterable

from cordwood.block import BlockHeader


def whole_groups(headers: Iterable[BlockHeader]) -> frozenset[tuple[int, int]]:
    """The groups, as (first, last), that have every block in `headers`.

    Args:
        headers: of blocks that do not overlap, in LSN order.
    """
    whole: set[tuple[int, int]] = set()
    group, expected = (0, 0), 0
    for header in headers:
        if header.group != group:
            group, expected = header.group, header.group[0]
        if header.first == expected:
            expected = header.last + 1
            if header.last == group[1]:
                whole.add(group)
    return frozenset(whole)
