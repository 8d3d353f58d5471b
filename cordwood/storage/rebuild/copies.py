"""This node's answers to donors about its copies of some blocks.

A copy that was set aside (`EnvelopeFlag.DRAINED`) does not count. If a checksum fails, or records
were lost, the node answers that it does not know. A noted move is reported as if it were over,
because the node that noted it will finish it.

Source: docs/protocol/rebuilding.md, rules 9 and 10.
"""

from __future__ import annotations

import asyncio

from cordwood.block import Envelope, EnvelopeFlag
from cordwood.layout.log_questions import AskCopies, CopiesReply, CopyWord
from cordwood.layout.waves import StoredBlock
from cordwood.protocol.rebuild_compare import Has, precedence_of, rank_of
from cordwood.storage.engine import StorageEngine
from cordwood.storage.logs_db.partition import Part

STEP_BYTES = 1 << 20
STEP_BLOCKS = 256
"""The most bytes and blocks of one read. Between two reads other tasks get a turn."""


async def words_of(engine: StorageEngine, ask: AskCopies) -> CopiesReply:
    """An answer for each block.

    Raises:
        TablesFailed, Corrupt: LogsDB cannot be read.
    """
    found: dict[tuple[int, int], StoredBlock] = {}
    damaged: list[tuple[int, int]] = []
    wanted = set(ask.blocks)
    at = min((first for first, _ in ask.blocks), default=1)
    bound = max((last for _, last in ask.blocks), default=0)
    while at <= bound:
        run = await engine.reader.read(
            ask.log, at, bound, lambda block: Part.HEAD, bytes_max=STEP_BYTES,
            blocks_max=STEP_BLOCKS,
        )  # fmt: skip
        for block in run.blocks:
            place = (block.header.first, block.header.last)
            if place in wanted:
                found[place] = block
        damaged += run.damaged
        at = run.next
        await asyncio.sleep(0)
    held = engine.cache.get(ask.log)
    trim, gone = (held.trim, held.gone) if held is not None else (0, 0)
    letting_go = held.letting_go if held is not None else 0
    words = []
    for first, last in ask.blocks:
        block_here = found.get((first, last))
        if last <= trim:
            words.append(CopyWord(Has.TRIMMED))
        # Race: this node may have let go of a block since it was read.
        elif block_here is not None and last > gone:
            words.append(_word(block_here.envelope, first <= letting_go))
        elif last <= gone:
            # Main storage had the block. A node that let go of it does not contradict other copies.
            words.append(CopyWord(Has.TRIMMED, is_let_go=True))
        elif engine.damage or any(a <= last and first <= b for a, b in damaged):
            words.append(CopyWord(Has.UNSURE))
        else:
            words.append(CopyWord(Has.NO))
    return CopiesReply(tuple(words))


def told_rank(envelope: Envelope) -> int:
    """The rank of an envelope after the noted move is over."""
    flags = envelope.flags
    rank = rank_of(bool(flags & EnvelopeFlag.BY_RECOVERY), envelope.seal_epoch, envelope.wave)
    return rank + 1 if flags & EnvelopeFlag.MOVING else rank


def _word(envelope: Envelope, is_letting_go: bool) -> CopyWord:
    has = Has.NO if envelope.flags & EnvelopeFlag.DRAINED else Has.YES
    by_recovery, seal_epoch, wave = precedence_of(told_rank(envelope))
    is_letting_go = is_letting_go and has is Has.YES
    return CopyWord(
        has, wave, seal_epoch, by_recovery, tuple(envelope.copyset), is_letting_go=is_letting_go
    )
