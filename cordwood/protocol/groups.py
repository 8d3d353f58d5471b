"""Atomic groups: blocks that stand or fall together.

Each block's header names its group, `[group first, group last]`; a lone block is a group of
its own. Recovery keeps a group only if it found every block of it: one that was
acknowledged is on full copysets, which an f-majority meets, so of such a one nothing is
missing. Of a group of which something is missing nothing was acknowledged, and none of it
may ever be read.

Source: docs/design.md §2 ("ack, LNG, release and recovery treat it as one block").
"""

from __future__ import annotations

from collections.abc import Iterable

from cordwood.block import BlockHeader


def whole_groups(headers: Iterable[BlockHeader]) -> frozenset[tuple[int, int]]:
    """The groups, as (first, last), of which every block is there.

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
