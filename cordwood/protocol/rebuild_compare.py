"""A donor's conclusion from other nodes' answers about a block: it moves the block, takes a later
envelope, or finds that its own copy is left over.

An envelope's *rank* is its precedence as one number: a recovery's copy first, then the seal epoch,
then the wave. So a move can use ranks above all ranks that its nodes know. It uses two. The donor
notes the new copyset under the first rank. In the end all nodes that hold the block, the donor
included, have the second rank. A node that is asked about a noted copy answers with the second
rank too.

Source: docs/sources/logdevice.md 2.9; docs/protocol/rebuilding.md, rules 8 to 12.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cordwood.protocol.rebuild_plan import Held, Known, Losses

_WAVE_BITS = 32
_SEAL_BITS = 32


def rank_of(by_recovery: bool, seal_epoch: int, wave: int) -> int:
    """The rank of an envelope."""
    return (int(by_recovery) << _SEAL_BITS | seal_epoch) << _WAVE_BITS | wave


def precedence_of(rank: int) -> tuple[bool, int, int]:
    """Whether a recovery wrote it, the seal epoch, and the wave."""
    wave = rank & (1 << _WAVE_BITS) - 1
    seal = rank >> _WAVE_BITS
    return bool(seal >> _SEAL_BITS), seal & (1 << _SEAL_BITS) - 1, wave


class Has(enum.IntEnum):
    """Whether a node has a block."""

    YES = 1
    NO = 2
    """The node has no block, or a block that does not count."""
    UNSURE = 3
    """The node lost records there."""
    TRIMMED = 4
    """The node deleted its copy: the block is trimmed, or main storage has it."""
    LET_GO = 5
    """The node let go of the block's place, because main storage held it. Main storage may have
    lost it since. On the wire this is TRIMMED with a mark."""


class Word(NamedTuple):
    """A node's answer about a block.

    Attributes:
        is_letting_go: with YES: the node looks whether main storage has the block, and may be about
            to let go of its copy.
    """

    has: Has
    rank: int = 0
    copyset: tuple[int, ...] = ()
    is_letting_go: bool = False

    @property
    def known(self) -> Known | None:
        """The block's envelope, None if there is none."""
        return Known(self.rank, self.copyset) if self.has is Has.YES else None


class Finding(enum.Enum):
    """The next step for a block."""

    MOVE = "it is this donor's to move"
    TAKE = "another node has a later envelope that names the donor"
    LEFT_OVER = "the donor's copy is of a move that came to no end, or was made anew meanwhile"
    ASK_AGAIN = "a node that has data does not say"
    TRIMMED = "it is trimmed elsewhere or in main storage, and will go here too"


class Compared(NamedTuple):
    """A finding; with TAKE the envelope to take, with ASK_AGAIN the nodes that do not know."""

    finding: Finding
    known: Known | None = None
    silent: tuple[int, ...] = ()


def compare(block: Held, me: int, losses: Losses, words: Mapping[int, Word]) -> Compared:
    """Compare the donor's copy with the copies of the other members that have data.

    Args:
        block: as the donor has it. Its `wave` is the rank of the donor's envelope.
        words: the answers, by node.
    """
    lost = losses.lacks(block) - losses.absent
    others = [node for node in block.copyset if node != me and node not in lost]
    silent = tuple(node for node in others if node not in words)
    if silent:
        return Compared(Finding.ASK_AGAIN, silent=silent)
    if any(words[node].has is Has.TRIMMED for node in others):
        return Compared(Finding.TRIMMED)
    mine = Known(block.wave, tuple(block.copyset))
    best = max([mine, *_known(words[node] for node in others)])
    if best != mine and me in best.copyset:
        return Compared(Finding.TAKE, best)
    # An answer UNSURE proves neither that the donor's copy counts, nor that it is left over.
    sure = [words[node] for node in others if words[node].has is not Has.UNSURE]
    is_full = all(each.has is Has.YES and me in each.copyset for each in sure)
    return Compared(Finding.MOVE if is_full else Finding.LEFT_OVER)


class LetGo(NamedTuple):
    """A block of which other nodes let go.

    Attributes:
        past: nodes that hold no copy, and can take none.
        words: the answers of the other nodes.
    """

    past: frozenset[int]
    words: Mapping[int, Word]


def let_go(words: Mapping[int, Word], is_in_main_storage: bool) -> LetGo | None:
    """The answers about a block of which some nodes let go; None if the donor is done with it,
    because main storage has it.

    Trap: main storage may have lost the block. The nodes that still hold it keep it, and readers
    get it from them alone.
    """
    past = frozenset(node for node, word in words.items() if word.has is Has.LET_GO)
    if past and is_in_main_storage:
        return None
    return LetGo(past, {node: word for node, word in words.items() if node not in past})


def taken_for_trimmed(words: Mapping[int, Word]) -> dict[int, Word]:
    """The answers about a block that main storage has: it is done with, as a trimmed one."""
    return {n: Word(Has.TRIMMED) if w.has is Has.LET_GO else w for n, w in words.items()}


def held_in_common(block: Held, me: int, losses: Losses, words: Mapping[int, Word]) -> Held | None:
    """A block without a whole copyset: all its holders count as its copyset. None if the holders
    are not known.

    A donor may be lost in a second move of a block, before its first move was done. Then each
    holder finds its own copy left over. A new move has a wave above all waves that its nodes know.
    So any holder may begin it, and two holders may begin it at once.

    Args:
        words: the answers of all nodes that may hold the block and have data.
    """
    if any(word.has is Has.UNSURE or word.has is Has.TRIMMED for word in words.values()):
        return None
    lost = [node for node in block.copyset if node in losses.lacks(block)]
    holders = [node for node, word in sorted(words.items()) if word.has is Has.YES]
    return block._replace(copyset=(*lost, me, *(node for node in holders if node != me)))


def is_overtaken(block: Held, words: Mapping[int, Word]) -> bool:
    """Whether a node of a copyset that was noted knows a later envelope."""
    mine = Known(block.wave, tuple(block.copyset))
    found = _known(words[node] for node in block.copyset if node in words)
    return any(each > mine for each in found)


def whole_without(me: int, words: Mapping[int, Word]) -> Known | None:
    """The latest envelope without `me` of which all nodes that it names have the block."""
    found = []
    for each in _known(words.values()):
        members = [words.get(node) for node in each.copyset]
        is_whole = all(word is not None and word.has is Has.YES for word in members)
        if me not in each.copyset and is_whole:
            found.append(each)
    return max(found, default=None)


def _known(words: Iterable[Word]) -> list[Known]:
    return [known for word in words if (known := word.known) is not None]
