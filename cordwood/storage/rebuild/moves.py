"""Carries out a donor's moves of some neighbouring blocks of a log, many blocks in one frame.

For each block the donor first asks the nodes for their copies. `rebuild_compare` judges their
answers, `rebuild_plan` chooses nodes for new copies, and `rebuild_flow` gives the next step. Copies
and envelopes are sent as STORE frames, to this node itself as well, so that the same WAL rules
apply.

Source: docs/protocol/rebuilding.md; docs/sources/logdevice.md 2.9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from crc32c import crc32c

from cordwood.block import Buffer, Envelope, EnvelopeFlag
from cordwood.errors import CordwoodError, Unreachable
from cordwood.layout.block_header import HEADER_BYTES, pack_envelope
from cordwood.layout.frame import Kind, checksum
from cordwood.layout.log_questions import AskCopies, CopiesReply
from cordwood.layout.waves import (
    Refusal,
    StoredBlock,
    StoreRefusal,
    pack_pairs,
    store_head,
)
from cordwood.lsn import format_lsn
from cordwood.nodes import NodeId
from cordwood.protocol.rebalance_plan import gives, plan_given
from cordwood.protocol.rebuild_compare import (
    Finding,
    Has,
    Word,
    compare,
    held_in_common,
    is_overtaken,
    precedence_of,
    rank_of,
    whole_without,
)
from cordwood.protocol.rebuild_flow import RebuildFlow, Step
from cordwood.protocol.rebuild_plan import Held, Known, Losses, Move, Stuck, after_asking, plan_move
from cordwood.quorum.copyset import Chance
from cordwood.storage.rebuild.copies import told_rank
from cordwood.storage.rebuild.epoch_nodesets import EpochNodesets
from cordwood.wire.peers import Peers
from cordwood.wire.store_channel import StoreChannel

ASK_TIMEOUT_S = 10.0
STORE_TIMEOUT_S = 10.0
FULL_PAUSE_S = 0.2
LEFT_TRIES = 5
"""Number of passes, a second apart, after which a leftover copy without a whole copyset is given
all the same: a move of another donor looks like that for a moment."""

LEFT_MAX = 100_000
"""Most blocks for which these passes are counted; other blocks are found later."""

FULL_TRIES = 25
"""Pause for a full node, which has free space again after a flush; new copies wait behind
appends."""


@dataclass(slots=True)
class Report:
    """The results of moves.

    Attributes:
        blocks, bytes: new copies that are durable, and the bytes of their bodies.
        again: blocks that must be looked at once more.
        stuck: blocks for which too few nodes are left.
        kept, kept_bytes: blocks that a rebalance chose and that must stay.
        waits: nodes that have data and do not answer.
        trouble: the last error; "" for none.
    """

    blocks: int = 0
    bytes: int = 0
    again: int = 0
    stuck: int = 0
    kept: int = 0
    kept_bytes: int = 0
    waits: set[int] = field(default_factory=set)
    trouble: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether all came to its end."""
        return not (self.again or self.stuck or self.waits or self.trouble)


@dataclass(slots=True)
class _Work:
    """One move under way: `step` is None once it failed or ended."""

    block: StoredBlock
    move: Move
    rank: int
    step: Step | None = None

    def envelope(self, step: Step, me: NodeId) -> Envelope:
        """The envelope to write in a step."""
        noted = step is Step.NOTE
        flags = EnvelopeFlag.MOVING if noted else 0
        if step is Step.OWN and me not in self.move.copyset:
            flags = EnvelopeFlag.DRAINED
        return envelope_of(self.block, self.move.copyset, self.rank - noted, flags)


def held_of(block: StoredBlock) -> Held:
    """A block for the rules, with the rank of its envelope for a wave."""
    header, envelope = block.header, block.envelope
    return Held(
        header.log, header.first, header.last, header.append_time_us, header.stored_bytes,
        0, tuple(envelope.copyset), told_rank(envelope),
    )  # fmt: skip


def envelope_of(block: StoredBlock, copyset: Sequence[int], rank: int, flags: int = 0) -> Envelope:
    """A donor's envelope for a block."""
    by_recovery, seal_epoch, wave = precedence_of(rank)
    flags |= EnvelopeFlag.REBUILT | (EnvelopeFlag.BY_RECOVERY if by_recovery else 0)
    return Envelope(tuple(copyset), wave, seal_epoch, block.envelope.lng, flags)


class Moves:
    """See the module; `flow` bounds the moves in flight."""

    def __init__(
        self,
        me: NodeId,
        peers: Peers,
        channel: StoreChannel,
        random: Chance,
        available: Callable[[], Set[NodeId]],
        frame_bytes: Callable[[], int],
    ) -> None:
        self._me = me
        self._peers = peers
        self._channel = channel
        self._random = random
        self._available = available
        self._frame_bytes = frame_bytes
        # By log and first LSN: the number of passes in which a copy was left over, and no copyset
        # whole.
        self._left: dict[tuple[int, int], int] = {}

    async def carry_out(
        self,
        blocks: Sequence[StoredBlock],
        losses: Losses,
        epochs: EpochNodesets,
        released: int,
        flow: RebuildFlow,
        report: Report,
    ) -> None:
        """Move blocks of one log that are this node's to move, or were noted by it."""
        log = blocks[0].header.log
        plans: list[tuple[StoredBlock, Held, Move | None, Losses]] = []
        told_losses = await self._told_losses(log, blocks, losses, report)
        for block, here in zip(blocks, told_losses, strict=True):
            held = held_of(block)
            if here is None:
                continue
            if crc32c(block.body) != block.header.stored_crc:
                report.trouble = f"log {log}: the copy at {format_lsn(held.first)} has rotted here"
                continue
            found = self._plan(block, held, here, epochs) or self._plan_given(
                held, here, epochs, report
            )
            if isinstance(found, Stuck):
                report.stuck += 1
            elif found is _UNKNOWN:
                report.trouble = f"log {log}: the nodeset of epoch {held.epoch} is not known"
            elif isinstance(found, Move) or _is_noted(block):
                plans.append((block, held, found if isinstance(found, Move) else None, here))
        if not plans:
            return
        asked = {n for _, held, move, _ in plans for n in (*held.copyset, *(move or _NONE).stores)}
        words = await self._ask(log, [held for _, held, _, _ in plans], asked, losses)
        works: list[_Work] = []
        taken: list[tuple[StoredBlock, Known, int]] = []
        left_over: list[tuple[StoredBlock, Held, Losses]] = []
        for index, (block, held, move, here) in enumerate(plans):
            told = {node: each[index] for node, each in words.items()}
            if _is_noted(block) and not is_overtaken(held, told):
                works.append(self._noted(block, held, move, told))
                continue
            result = compare(held, self._me, here, told)
            match result.finding:
                case Finding.ASK_AGAIN:
                    report.waits.update(result.silent)
                case Finding.TAKE:
                    assert result.known is not None, "an envelope to take"
                    taken.append((block, result.known, 0))
                    report.again += 1
                case Finding.LEFT_OVER if not (here.missing(held) or _is_noted(block)):
                    pass  # a rebalance leaves it to the donors of the next loss
                case Finding.LEFT_OVER:
                    left_over.append((block, held, here))
                case Finding.MOVE if move is not None:
                    works.append(_work(block, move, told))
                case _:
                    pass  # trimmed, or the noted move is over
        set_aside, given = await self._settle(log, left_over, epochs, report)
        taken += set_aside
        works += given
        await self._put_own(taken, report)
        await self._go_through(works, released, flow, report)

    async def _told_losses(
        self, log: int, blocks: Sequence[StoredBlock], losses: Losses, report: Report
    ) -> list[Losses | None]:
        """The lost members of each block, including nodes that lost records and report that they
        lack it; None if one of these does not answer."""
        doubts = {
            at: d for at, b in enumerate(blocks) if (d := losses.doubts(held_of(b), self._me))
        }
        found: list[Losses | None] = [losses] * len(blocks)
        if not doubts:
            return found
        asked = frozenset[int]().union(*doubts.values())
        words = await self._ask(log, [held_of(blocks[at]) for at in doubts], asked, losses)
        for index, (at, nodes) in enumerate(doubts.items()):
            if silent := nodes - words.keys():
                report.waits.update(silent)
                found[at] = None
                continue
            told = {node: words[node][index].has for node in nodes}
            lacking = frozenset(n for n, has in told.items() if has in (Has.NO, Has.UNSURE))
            found[at] = replace(losses, lacking=lacking)
        return found

    def _plan(
        self, block: StoredBlock, held: Held, losses: Losses, epochs: EpochNodesets
    ) -> Move | Stuck | str | None:
        found = epochs.of(held.epoch)
        if found is None:
            return _UNKNOWN
        nodeset, replication = found
        return plan_move(
            held, self._me, losses, nodeset, replication, self._available(), self._random,
            noted=_is_noted(block),
        )  # fmt: skip

    def _plan_given(
        self, held: Held, losses: Losses, epochs: EpochNodesets, report: Report
    ) -> Move | None:
        """The move by which this node gives a block to an emptier node, for a rebalance."""
        share, found = gives(losses, held, self._me), epochs.of(held.epoch)
        if share is None or found is None:
            return None
        move = plan_given(held, share, *found)
        if move is not None and share.target not in self._available():
            report.waits.add(share.target)
            return None
        return move

    def _noted(
        self, block: StoredBlock, held: Held, move: Move | None, told: Mapping[int, Word]
    ) -> _Work:
        """Go on with a noted move; begin again if a node of it was lost since."""
        if move is not None:
            return _work(block, move, told)
        others = tuple(NodeId(node) for node in held.copyset if node != self._me)
        known = Move(held, tuple(map(NodeId, held.copyset)), (), others, changes=True)
        return _Work(block, known, held.wave, Step.AMEND)

    async def _ask(
        self, log: int, blocks: Sequence[Held], nodes: Iterable[int], losses: Losses
    ) -> dict[int, Sequence[Word]]:
        """The nodes' answers about blocks; nodes that do not answer are left out."""
        gone = losses.gone | {self._me}
        asked = [NodeId(n) for n in sorted(set(nodes) - gone) if n in self._available()]
        question = _question(blocks)
        answers = await asyncio.gather(*(self._ask_one(node, question) for node in asked))
        return {n: words for n, words in zip(asked, answers, strict=True) if words is not None}

    async def _ask_one(self, node: NodeId, question: AskCopies) -> list[Word] | None:
        try:
            reply = await self._peers.call(node, question, timeout_s=ASK_TIMEOUT_S)
        except CordwoodError:
            return None  # the report names it, and it is asked again
        if not isinstance(reply, CopiesReply) or len(reply.words) != len(question.blocks):
            return None
        return [
            Word(Has(w.has), rank_of(w.by_recovery, w.seal_epoch, w.wave), tuple(w.copyset))
            for w in reply.words
        ]

    async def _settle(
        self,
        log: int,
        blocks: Sequence[tuple[StoredBlock, Held, Losses]],
        epochs: EpochNodesets,
        report: Report,
    ) -> tuple[list[tuple[StoredBlock, Known, int]], list[_Work]]:
        """For leftover copies: the envelopes that set them aside, if a copyset without this node is
        whole; and moves of copies for which no copyset will be whole."""
        if not blocks:
            return [], []
        everybody = self._available() - {self._me}
        question = _question(held for _, held, _ in blocks)
        nodes = sorted(everybody)
        answers = await asyncio.gather(*(self._ask_one(node, question) for node in nodes))
        found: list[tuple[StoredBlock, Known, int]] = []
        works: list[_Work] = []
        for index, (block, held, losses) in enumerate(blocks):
            told: dict[int, Word] = {
                n: a[index] for n, a in zip(nodes, answers, strict=True) if a is not None
            }
            if any(word.has is Has.TRIMMED for word in told.values()):
                continue  # it goes here too
            whole = whole_without(self._me, told)
            if whole is not None:
                self._left.pop((log, held.first), None)
                # Ranks above its own envelope, so that it replaces it.
                rank = max(whole.wave, held.wave + 1)
                found.append((block, Known(rank, whole.copyset), int(EnvelopeFlag.DRAINED)))
                continue
            report.again += 1
            move = self._move_of_none(block, held, losses, epochs, told)
            if move is not None:
                works.append(_work(block, move, told))
        return found, works

    def _move_of_none(
        self,
        block: StoredBlock,
        held: Held,
        losses: Losses,
        epochs: EpochNodesets,
        told: Mapping[int, Word],
    ) -> Move | None:
        """The move of a block without a whole copyset, after this has lasted long enough."""
        place = held.log, held.first
        if place not in self._left and len(self._left) >= LEFT_MAX:
            return None
        self._left[place] = self._left.get(place, 0) + 1
        known = epochs.of(held.epoch)
        if self._left[place] < LEFT_TRIES or known is None:
            return None
        if set(known[0].nodes) - losses.gone - {self._me} - told.keys():
            return None  # a node that does not answer may hold it in a whole copyset
        common = held_in_common(held, self._me, losses, told)
        found = None if common is None else self._plan(block, common, losses, epochs)
        if not isinstance(found, Move):
            return None
        del self._left[place]
        return found

    async def _put_own(
        self, taken: Sequence[tuple[StoredBlock, Known, int]], report: Report
    ) -> None:
        """Write envelopes of this node's own copies."""
        wires = [
            (block, envelope_of(block, known.copyset, known.wave, flags))
            for block, known, flags in taken
        ]
        if wires:
            trouble = await self._send(self._me, wires, amends=True)
            report.trouble = trouble or report.trouble

    async def _go_through(
        self, works: Sequence[_Work], released: int, flow: RebuildFlow, report: Report
    ) -> None:
        """All steps of the moves: each step begins when the step before is durable on all its
        nodes."""
        if not works:
            return
        loop = asyncio.get_running_loop()
        # Trap: moves end only when all moves of their run have begun, so a run waits for a place
        # before its first move, and not between two.
        while (wait_s := flow.wait_s(loop.time())) is None or wait_s > 0:  # noqa: ASYNC110
            await asyncio.sleep(FULL_PAUSE_S if wait_s is None else min(wait_s, FULL_PAUSE_S))
        for work in works:
            work.step = flow.begin(work.move, loop.time(), noted=work.step is Step.AMEND)
        for step in (Step.STORE, Step.NOTE, Step.AMEND, Step.OWN):
            now = [work for work in works if work.step is step]
            if not now:
                continue
            to: dict[NodeId, list[_Work]] = {}
            for work in now:
                is_own = step in (Step.NOTE, Step.OWN)
                nodes = (self._me,) if is_own else flow.nodes_of(work.move.block)
                for node in nodes:
                    to.setdefault(node, []).append(work)
            if step is Step.STORE:
                self._release(to, now[0].block.header.log, released)
            answers = await asyncio.gather(
                *(
                    self._send(
                        node,
                        [(work.block, work.envelope(step, self._me)) for work in some],
                        amends=step is not Step.STORE,
                    )
                    for node, some in to.items()
                )
            )
            for (node, some), trouble in zip(to.items(), answers, strict=True):
                report.trouble = trouble or report.trouble
                for work in some:
                    if work.step is step:
                        _step_on(work, node, bool(trouble), flow)
            if step is Step.NOTE:
                await self._confirm([work for work in now if work.step is not None], flow, report)
        for work in works:
            if work.step is Step.DONE:
                report.blocks += 1
                report.bytes += work.move.block.stored_bytes * len(work.move.stores)

    async def _confirm(self, works: Sequence[_Work], flow: RebuildFlow, report: Report) -> None:
        """Check that nodes with new copies still have them, now that a note names them.

        Race: a node may lose its new copy again with a part of its WAL. It heals by the existing
        envelopes, and none names it before the note. If this check fails, the move stays noted: the
        next pass tells all nodes of it, and sends the body to a node that lacks the block.
        """
        to: dict[NodeId, list[_Work]] = {}
        for work in works:
            for node in work.move.stores:
                to.setdefault(node, []).append(work)
        answers = await asyncio.gather(
            *(
                self._ask_one(node, _question(work.move.block for work in some))
                for node, some in to.items()
            )
        )
        lacking: set[int] = set()
        for some, words in zip(to.values(), answers, strict=True):
            for at, work in enumerate(some):
                if words is None or words[at].has not in (Has.YES, Has.TRIMMED):
                    lacking.add(id(work))
        for work in works:
            if id(work) in lacking:
                flow.on_failed(work.move.block)
                work.step = None
                report.again += 1

    def _release(self, nodes: Iterable[NodeId], log: int, released: int) -> None:
        """Tell a node the release of a log before its first block, on the same connection: the node
        may hold no blocks of the log so far."""
        for node in nodes:
            connection = self._peers.get(node)
            if connection is not None and released:
                connection.send(Kind.RELEASE, 0, (pack_pairs((log, released)),))

    async def _send(
        self, node: NodeId, wires: Sequence[tuple[StoredBlock, Envelope]], *, amends: bool
    ) -> str:
        """Store blocks on a node. Returns the error, "" for none."""
        at = 0
        while at < len(wires):
            some, size = [wires[at]], len(wires[at][0].body)
            for each in wires[at + 1 :]:
                size += len(each[0].body) + HEADER_BYTES
                if size > self._frame_bytes():
                    break
                some.append(each)
            at += len(some)
            try:
                trouble = await self._send_frame(node, some, amends=amends)
            except Unreachable as error:
                trouble = str(error)
            if trouble:
                return trouble
        return ""

    async def _send_frame(
        self, node: NodeId, wires: Sequence[tuple[StoredBlock, Envelope]], *, amends: bool
    ) -> str:
        for _ in range(FULL_TRIES):
            reasons = await self._store(node, wires, amends=amends)
            if not reasons:
                return ""
            if reasons == {Refusal.NOT_HELD}:
                amends = False
            elif reasons <= {Refusal.FULL, Refusal.NO_SPACE}:
                await asyncio.sleep(FULL_PAUSE_S)
            else:
                return f"node {node} refuses: {min(reasons).name.lower()}"
        return f"node {node} has no free space"

    async def _store(
        self, node: NodeId, wires: Sequence[tuple[StoredBlock, Envelope]], *, amends: bool
    ) -> set[Refusal]:
        """Send one STORE frame. Returns the reason of a refusal.

        Raises:
            Unreachable: the node went away, or did not answer in time.
        """
        parts: list[Buffer] = [store_head(len(wires), amends=amends)]
        for block, envelope in wires:
            parts.append(bytes(block.wire[:HEADER_BYTES]) + pack_envelope(envelope))
            if not amends:
                parts.append(block.body)
        answer: asyncio.Future[Sequence[StoreRefusal] | None] = (
            asyncio.get_running_loop().create_future()
        )

        def settled(_: NodeId, refusals: Sequence[StoreRefusal] | None) -> None:
            if not answer.done():
                answer.set_result(refusals)

        if not self._channel.send(node, parts, checksum(parts), settled):
            raise Unreachable(f"node {node} is away")
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                refusals = await answer
        except TimeoutError:
            refusals = None
        if refusals is None:
            raise Unreachable(f"node {node} went away, or stored nothing for {STORE_TIMEOUT_S:g} s")
        return {refusal.reason for refusal in refusals}


_UNKNOWN = "unknown"
_NONE = Move(Held(1, 1, 1, 0, 0, 0, ()), (), (), (), changes=False)


def _question(blocks: Iterable[Held]) -> AskCopies:
    """A node's copies of some blocks of one log."""
    some = list(blocks)
    return AskCopies(some[0].log, tuple((held.first, held.last) for held in some))


def _is_noted(block: StoredBlock) -> bool:
    return bool(block.envelope.flags & EnvelopeFlag.MOVING)


def _work(block: StoredBlock, move: Move, told: Mapping[int, Word]) -> _Work:
    """A move from its beginning; its note has a separate rank, below the last."""
    known = {node: Known(word.rank, word.copyset) for node, word in told.items() if word.copyset}
    move, rank = after_asking(move, known)
    return _Work(block, move, rank + 1 if move.changes else rank)


def _step_on(work: _Work, node: NodeId, failed: bool, flow: RebuildFlow) -> None:
    if failed:
        flow.on_failed(work.move.block)
        work.step = None
    elif work.step in (Step.NOTE, Step.OWN):
        work.step = flow.on_own(work.move.block)
    else:
        work.step = flow.on_durable(work.move.block, node) or work.step
