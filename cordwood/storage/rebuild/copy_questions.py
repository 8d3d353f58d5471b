"""A donor's questions to other nodes about their copies of some blocks, and to main storage.

Source: docs/protocol/rebuilding.md, rule 9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import compress

from cordwood.errors import CordwoodError
from cordwood.layout.log_questions import AskCopies, CopiesReply
from cordwood.layout.waves import StoredBlock
from cordwood.nodes import NodeId
from cordwood.protocol.rebuild_compare import Has, Word, rank_of
from cordwood.protocol.rebuild_plan import Held, Losses
from cordwood.storage.rebuild.copies import told_rank
from cordwood.storage.rebuild.main_copies import FindMain
from cordwood.wire.peers import Peers

ASK_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Report:
    """The results of moves.

    Attributes:
        blocks, bytes: new copies that are durable, and the bytes of their bodies.
        again: blocks that must be looked at once more.
        elsewhere: blocks with too few copies that another node is to give.
        stuck: blocks for which too few nodes are left.
        only_here: of these, blocks that main storage lost and of which other nodes let go.
        kept, kept_bytes: blocks that a rebalance chose and that must stay.
        waits: nodes that have data and do not answer.
        trouble: the last error; "" for none.
    """

    blocks: int = 0
    bytes: int = 0
    again: int = 0
    elsewhere: int = 0
    stuck: int = 0
    only_here: int = 0
    kept: int = 0
    kept_bytes: int = 0
    waits: set[int] = field(default_factory=set)
    trouble: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether all moves have ended, with no block left over."""
        return not (self.again or self.elsewhere or self.stuck or self.waits or self.trouble)


class CopyQuestions:
    """See the module."""

    def __init__(
        self,
        me: NodeId,
        peers: Peers,
        available: Callable[[], Set[NodeId]],
        main: FindMain,
    ) -> None:
        self._me = me
        self._peers = peers
        self._available = available
        self._main = main

    async def ask(
        self, log: int, blocks: Sequence[Held], nodes: Iterable[int], losses: Losses
    ) -> dict[int, Sequence[Word]]:
        """The nodes' answers about blocks; nodes that do not answer are left out."""
        gone = losses.gone | {self._me}
        asked = [NodeId(n) for n in sorted(set(nodes) - gone) if n in self._available()]
        question = copies_of(blocks)
        answers = await asyncio.gather(*(self.ask_one(node, question) for node in asked))
        return {n: words for n, words in zip(asked, answers, strict=True) if words is not None}

    async def ask_if_there(self, node: int, blocks: Sequence[Held]) -> list[Word] | None:
        """A node's answers about blocks of one log; None if it does not answer."""
        if node not in self._available():
            return None
        return await self.ask_one(NodeId(node), copies_of(blocks))

    async def ask_one(self, node: NodeId, question: AskCopies) -> list[Word] | None:
        try:
            reply = await self._peers.call(node, question, timeout_s=ASK_TIMEOUT_S)
        except CordwoodError:
            return None  # the report names it, and it is asked again
        if not isinstance(reply, CopiesReply) or len(reply.words) != len(question.blocks):
            return None
        return [
            Word(
                Has.LET_GO if w.is_let_go else Has(w.has),
                rank_of(w.by_recovery, w.seal_epoch, w.wave),
                tuple(w.copyset),
                w.is_letting_go,
            )
            for w in reply.words
        ]

    async def are_safe(self, log: int, blocks: Sequence[Held], report: Report) -> list[bool] | None:
        """Whether main storage has each of the blocks; None if it does not say."""
        if not blocks:
            return []
        first, last = min(each.first for each in blocks), max(each.last for each in blocks)
        try:
            lacks = await self._main().lacks(log, first, last)
        except CordwoodError as error:
            report.trouble = f"log {log}: main storage does not say what it has: {error}"
            return None
        return [not any(a <= each.last and each.first <= b for a, b in lacks) for each in blocks]

    async def told_losses(
        self, log: int, blocks: Sequence[Held], losses: Losses, report: Report
    ) -> list[Losses | None]:
        """The lost members of each block of a log, including members that lack it as they say
        themselves; None if a member that matters, or main storage, does not say."""
        is_past = log in losses.past
        doubts: dict[int, frozenset[int]] = {}
        for at, held in enumerate(blocks):
            if found_doubts := losses.doubting(held, is_past).doubts(held, self._me):
                doubts[at] = found_doubts
        found: list[Losses | None] = [losses] * len(blocks)
        if not doubts:
            return found
        some = [blocks[at] for at in doubts]
        asked = frozenset[int]().union(*doubts.values())
        words = await self.ask(log, some, asked, losses)
        told = [
            {node: word for node, word in each.items() if node in nodes}
            for each, nodes in zip(by_block(words, len(some)), doubts.values(), strict=True)
        ]
        # Trap: a member that began anew after main storage had the block says NO.
        in_doubt = [
            has_let_go(each) or (is_past and bool(_without(each, Has.NO) - losses.unsure))
            for each in told
        ]
        is_safe = await self.are_safe(log, list(compress(some, in_doubt)), report)
        judged = iter(is_safe or ())
        for at, each, is_doubted in zip(doubts, told, in_doubt, strict=True):
            is_lost = is_doubted and is_safe is not None and not next(judged)
            silent = doubts[at] - each.keys()
            if is_lost:
                # It is no donor before its copy is repaired.
                silent |= _without(each, Has.UNSURE) - losses.unsure
            report.waits |= silent
            if silent or (is_doubted and is_safe is None):
                found[at] = None
                continue
            lacking = _without(each, Has.NO, Has.UNSURE) & losses.unsure
            absent = frozenset[int]()
            if is_lost:
                absent = _without(each, Has.NO) - losses.unsure
                lacking |= absent | _without(each, Has.LET_GO)
            found[at] = replace(losses, lacking=lacking, absent=absent)
        return found


def _without(told: Mapping[int, Word], *which: Has) -> frozenset[int]:
    return frozenset(node for node, word in told.items() if word.has in which)


def copies_of(blocks: Iterable[Held]) -> AskCopies:
    """A node's copies of some blocks of one log."""
    some = list(blocks)
    return AskCopies(some[0].log, tuple((held.first, held.last) for held in some))


def by_block(words: Mapping[int, Sequence[Word]], count: int) -> list[Mapping[int, Word]]:
    """The answers about each of some blocks, by node."""
    return [{node: each[at] for node, each in words.items()} for at in range(count)]


def has_let_go(told: Mapping[int, Word]) -> bool:
    return any(word.has is Has.LET_GO for word in told.values())


def is_letting_go(told: Mapping[int, Word]) -> bool:
    """Whether a node may be about to let go of its copy.

    Race: main storage may lose the block after the node has looked for it. A donor that sets its
    own copy aside without a new copy elsewhere asks again, until the node has let go or stays.
    """
    return any(word.is_letting_go for word in told.values())


def held_of(block: StoredBlock) -> Held:
    """A block for the rules, with the rank of its envelope for a wave."""
    header, envelope = block.header, block.envelope
    return Held(
        header.log, header.first, header.last, header.append_time_us, header.stored_bytes,
        0, tuple(envelope.copyset), told_rank(envelope),
    )  # fmt: skip
