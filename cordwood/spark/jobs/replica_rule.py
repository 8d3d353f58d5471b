"""Find the faults among the copies of a block: a rule.

The copy of highest precedence says which nodes should hold the block. A node of the copyset without
the block misses it, unless it dropped it for main storage. Another node with the block holds an
extra, which an earlier wave left and no reader reads. A copy with a wrong checksum is corrupt.
Intact copies with different contents are the worst finding. Nodes that could not be asked are
unknown, and do not count as missing a block.

Source: docs/design.md §2 (envelopes, precedence); docs/sources/spark.md §7.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cordwood.client.values import Copy, NodeCopies

FINDINGS = ("missing", "corrupt", "differs", "copyset", "extra", "unasked", "gone")
"""Worst first, except the last three: an extra copy is harmless, an unasked node may hold all, and
a deleted log has no copies."""

HARMLESS = frozenset({"extra", "unasked", "gone"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding about one block on one node.

    Attributes:
        kind: one of FINDINGS.
        text: in words.
    """

    first: int
    last: int
    node: int
    kind: str
    text: str


def judge_range(told: Mapping[int, NodeCopies]) -> tuple[int, int, list[Finding]]:
    """Judge all blocks of a range: the number of blocks, of copies, and the findings.

    Nodes are asked one after another. Each trims, and drops blocks that main storage holds, at a
    time of its own. If one node has trimmed a block, no reader gets it, so no copy of it is
    missing. A node does not miss a block that it dropped for main storage.

    Args:
        told: by node, of those that told all that they hold there.
    """
    trim = max((each.trim for each in told.values()), default=0)
    blocks: dict[tuple[int, int, int], dict[int, Copy]] = {}
    for node, each in told.items():
        for copy in each.copies:
            if copy.last > trim:
                blocks.setdefault((copy.first, copy.last, copy.kind), {})[node] = copy
    findings: list[Finding] = []
    for (_, last, _), copies in sorted(blocks.items()):
        gone = [node for node, each in told.items() if _let_go(each, last)]
        findings += judge_block(copies, told, gone)
    return len(blocks), sum(map(len, blocks.values())), findings


def _let_go(told: NodeCopies, lsn: int) -> bool:
    return any(first <= lsn <= last for first, last in told.tiered)


def judge_block(
    copies: Mapping[int, Copy], asked: Collection[int], gone: Collection[int] = ()
) -> list[Finding]:
    """Judge the copies of one block, by node, one at least.

    Args:
        asked: nodes that told all that they hold there.
        gone: nodes that let go of it, because main storage holds it.
    """
    winner = max(copies.values(), key=_precedence)
    ours = {node: copy for node, copy in copies.items() if _precedence(copy) == _precedence(winner)}
    expected = set(winner.copyset)
    found: list[Finding] = []

    def add(node: int, kind: str, text: str) -> None:
        found.append(Finding(winner.first, winner.last, node, kind, text))

    for node in sorted(expected - copies.keys() - {*gone}):
        if node in asked:
            add(node, "missing", "it should hold this block, and does not")
        else:
            add(node, "unasked", "it should hold this block, and could not be asked")
    for node, copy in sorted(copies.items()):
        if not copy.is_intact:
            add(node, "corrupt", "its bytes are not what its checksum says")
        elif node not in expected:
            add(node, "extra", f"left by wave {copy.wave}; the block is on {sorted(expected)}")
    for node, copy in sorted(ours.items()):
        if set(copy.copyset) != expected:
            add(node, "copyset", f"says {sorted(copy.copyset)}, another {sorted(expected)}")
    contents = {copy.raw_crc for copy in copies.values() if copy.is_intact}
    if len(contents) > 1:
        for node, copy in sorted(copies.items()):
            if copy.is_intact:
                add(node, "differs", f"its content sums up to {copy.raw_crc:#010x}, others' not")
    return found


def _precedence(copy: Copy) -> tuple[bool, int, int]:
    return copy.by_recovery, copy.seal_epoch, copy.wave
