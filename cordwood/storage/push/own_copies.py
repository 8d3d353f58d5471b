"""This node's share of the blocks for one reader of single copies.

Source: docs/sources/logdevice.md 2.10 ("SCD filter"); `protocol.single_copy` has the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from cordwood.block import BlockKind, EnvelopeFlag
from cordwood.layout.reading import OneCopy
from cordwood.layout.waves import StoredBlock
from cordwood.nodes import NodeId
from cordwood.protocol.single_copy import CopyFilter, Shuffle, ships
from cordwood.storage.logs_db.partition import Part

CHOICES_MAX = 4096
"""Copysets whose sender a stream remembers; five nodes with three copies make 60."""

NodesIn = Callable[[str], AbstractSet[int]]
"""The nodes in a region."""


class OwnCopies:
    """The blocks that this node has to send to one reader."""

    __slots__ = ("_me", "_mine", "_rule", "kind")

    def __init__(
        self, me: NodeId, asked: OneCopy, nodes_in: NodesIn, kinds: Callable[[CopyFilter], int]
    ) -> None:
        self._me = me
        self._rule = CopyFilter(
            Shuffle(asked.shuffle),
            asked.seed,
            frozenset(asked.known_down),
            asked.copies,
            frozenset(nodes_in(asked.region)) if asked.region else frozenset(),
            asked.quiet,
        )
        # A number that is equal for equal rules. For each block, the streams at the tail are found
        # by it.
        self.kind = kinds(self._rule)
        self._mine: dict[tuple[int, ...], Part] = {}

    @property
    def known_down(self) -> list[int]:
        """The nodes that the reader does not count on."""
        return sorted(self._rule.known_down)

    def part(self, block: StoredBlock) -> Part:
        """Whether this node sends a block. All holders send plugs and bridges: these are small,
        and their information must not depend on one node."""
        if block.header.kind != BlockKind.DATA:
            return Part.WHOLE
        envelope = block.envelope
        if envelope.flags & EnvelopeFlag.DRAINED:
            return Part.NOTHING  # another node holds a copy that counts
        mine = self._mine.get(envelope.copyset)
        if mine is None:
            if len(self._mine) >= CHOICES_MAX:
                self._mine.clear()
            is_mine = ships(self._me, envelope.copyset, self._rule)
            mine = self._mine[envelope.copyset] = Part.WHOLE if is_mine else Part.NOTHING
        return mine
