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
from dataclasses import dataclass, replace
from itertools import compress

from crc32c import crc32c

from cordwood.block import Buffer, Envelope, EnvelopeFlag
from cordwood.errors import Unreachable
from cordwood.layout.block_header import HEADER_BYTES, pack_envelope
from cordwood.layout.frame import Kind, checksum
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
    LetGo,
    Word,
    compare,
    held_in_common,
    is_overtaken,
    let_go,
    precedence_of,
    taken_for_trimmed,
    whole_without,
)
from cordwood.protocol.rebuild_flow import RebuildFlow, Step
from cordwood.protocol.rebuild_plan import (
    Held,
    Known,
    Losses,
    Move,
    Stuck,
    after_asking,
    plan_move,
    with_awaited,
)
from cordwood.quorum.copyset import Chance
from cordwood.storage.rebuild.copy_questions import (
    CopyQuestions,
    Report,
    by_block,
    copies_of,
    has_let_go,
    held_of,
    is_letting_go,
)
from cordwood.storage.rebuild.epoch_nodesets import EpochNodesets
from cordwood.storage.rebuild.main_copies import FindMain
from cordwood.wire.peers import Peers
from cordwood.wire.store_channel import StoreChannel

STORE_TIMEOUT_S = 10.0
FULL_PAUSE_S = 0.2
LEFT_TRIES = 5
"""Number of passes, a second apart, after which a leftover copy without a whole copyset is given
all the same: a move of another donor looks like that for a moment."""

LEFT_MAX = 100_000
"""Most blocks for which these passes are counted; other blocks are found later."""

FULL_TRIES = 25
"""The most tries to store a copy on a full node. The node has free space again after a flush, and
new copies wait behind appends."""


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


def _named(block: StoredBlock, losses: Losses, epochs: EpochNodesets) -> Held:
    """A block for the rules; one with too few copies names the lost nodes of its nodeset."""
    held = held_of(block)
    known = None if _is_noted(block) else epochs.of(held.epoch)
    return held if known is None else with_awaited(held, losses, *known)


def _is_short(block: StoredBlock, held: Held) -> bool:
    """Whether `_named` has named lost nodes."""
    copyset = tuple(block.envelope.copyset)
    return len(held.copyset) > len(copyset) and held.copyset[: len(copyset)] == copyset


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
        main: FindMain,
    ) -> None:
        self._me = me
        self._peers = peers
        self._channel = channel
        self._random = random
        self._available = available
        self._frame_bytes = frame_bytes
        self._main = main
        self._questions = CopyQuestions(me, peers, available, main)
        self.ask = self._questions.ask_if_there
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
        plans: list[_Plan] = []
        waiting: list[tuple[Held, bool]] = []
        told_losses = await self._questions.told_losses(
            log, [held_of(block) for block in blocks], losses, report
        )
        for block, here in zip(blocks, told_losses, strict=True):
            if here is None:
                continue
            held = _named(block, here, epochs)
            if crc32c(block.body) != block.header.stored_crc:
                report.trouble = f"log {log}: the copy at {format_lsn(held.first)} has rotted here"
                continue
            if _is_short(block, held) and not here.gives_awaited(held, self._me):
                waiting.append((held, False))
                continue
            found = self._plan(block, held, here, epochs)
            found = found or self._plan_given(held, here, epochs, report)
            if isinstance(found, Stuck):
                waiting.append((held, True))  # a noted move too
            elif found is _UNKNOWN:
                report.trouble = f"log {log}: the nodeset of epoch {held.epoch} is not known"
            elif isinstance(found, Move) or _is_noted(block):
                plans.append((block, held, found if isinstance(found, Move) else None, here))
        await self._wait_with(log, waiting, losses, report)
        if not plans:
            return
        works: list[_Work] = []
        taken: list[tuple[StoredBlock, Known, int]] = []
        left_over: list[tuple[StoredBlock, Held, Losses]] = []
        for block, held, move, here, told in await self._ask_holders(
            log, plans, losses, epochs, report
        ):
            if not (move and move.stores) and is_letting_go(told):
                report.again += 1  # no new copy is made: see `is_letting_go`
                continue
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
                    pass  # it is trimmed, or the noted move is over
        set_aside, given = await self._settle(log, left_over, epochs, report)
        taken += set_aside
        works += given
        await self._put_own(taken, report)
        await self._go_through(works, released, flow, report)

    async def _wait_with(
        self, log: int, waiting: Sequence[tuple[Held, bool]], losses: Losses, report: Report
    ) -> None:
        """Count blocks that this node cannot give now, and that have no place (True) or are to be
        given by another node. It is done with those that main storage has, if a member let go.

        Trap: the node that is to give a block may be the member that let go of it. It never gives
        it, and if it is drained it waits for this node.
        """
        if not waiting:
            return
        some = [held for held, _ in waiting]
        asked = {node for held in some for node in held.copyset}
        told = by_block(await self._questions.ask(log, some, asked, losses), len(some))
        past = [has_let_go(each) for each in told]
        is_safe = await self._questions.are_safe(log, [*compress(some, past)], report)
        judged = iter(is_safe or ())
        for (_, is_stuck), is_past in zip(waiting, past, strict=True):
            if is_past and is_safe is not None and next(judged):
                continue
            if is_stuck:
                report.stuck += 1
            else:
                report.elsewhere += 1

    async def _ask_holders(
        self,
        log: int,
        plans: Sequence[_Plan],
        losses: Losses,
        epochs: EpochNodesets,
        report: Report,
    ) -> list[tuple[StoredBlock, Held, Move | None, Losses, Mapping[int, Word]]]:
        """The planned moves, with the answers of their nodes. A block that main storage has, and of
        which a node let go, is left out. A block that main storage lost is planned anew, without
        the nodes that let go of it."""
        asked = {n for _, held, move, _ in plans for n in (*held.copyset, *(move or _NONE).stores)}
        words = await self._questions.ask(log, [held for _, held, _, _ in plans], asked, losses)
        told = by_block(words, len(plans))
        doubtful = [at for at, each in enumerate(told) if has_let_go(each)]
        is_safe = await self._questions.are_safe(log, [plans[at][1] for at in doubtful], report)
        unknown = set(doubtful) if is_safe is None else set[int]()
        doubtful = [] if is_safe is None else doubtful
        lost = [at for at, safe in zip(doubtful, is_safe or (), strict=True) if not safe]
        if lost:
            # Any node of the nodesets may be past them.
            everyone = self._available() - {self._me}
            more = await self._questions.ask(log, [plans[at][1] for at in lost], everyone, losses)
            for at, each in zip(lost, by_block(more, len(lost)), strict=True):
                told[at] = {**told[at], **each}
        found: list[tuple[StoredBlock, Held, Move | None, Losses, Mapping[int, Word]]] = []
        for at, (block, held, move, here) in enumerate(plans):
            if at in unknown:
                continue  # the report says that main storage does not answer
            known = let_go(told[at], at not in lost)
            if known is None:
                # A noted move ends all the same: nodes that let go of a block take its envelope.
                if _is_noted(block) and move is None:
                    found.append((block, held, move, here, taken_for_trimmed(told[at])))
                continue
            if not known.past:
                found.append((block, held, move, here, told[at]))
                continue
            if not (here.missing(held) or _is_noted(block)):
                report.kept += 1  # a rebalance leaves it
                report.kept_bytes += held.stored_bytes
                continue
            here = replace(here, lacking=here.lacking | known.past & {*held.copyset})
            again = self._plan(block, held, here, epochs, known.past)
            if isinstance(again, Stuck):
                report.stuck += 1
                report.only_here += 1
            elif isinstance(again, Move):
                found.append((block, held, again, here, known.words))
        return found

    def _plan(
        self,
        block: StoredBlock,
        held: Held,
        losses: Losses,
        epochs: EpochNodesets,
        past: frozenset[int] = frozenset(),
    ) -> Move | Stuck | str | None:
        """See `plan_move`; nodes of `past` can take no copy."""
        found = epochs.of(held.epoch)
        if found is None:
            return _UNKNOWN
        nodeset, replication = found
        return plan_move(
            held, self._me, losses, nodeset, replication, self._available() - past, self._random,
            noted=_is_noted(block) or _is_short(block, held),
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
        question = copies_of(held for _, held, _ in blocks)
        nodes = sorted(everybody)
        answers = await asyncio.gather(*(self._questions.ask_one(node, question) for node in nodes))
        found: list[tuple[StoredBlock, Known, int]] = []
        works: list[_Work] = []
        words = {int(n): a for n, a in zip(nodes, answers, strict=True) if a is not None}
        told = by_block(words, len(blocks))
        past = [has_let_go(each) for each in told]
        is_safe = await self._questions.are_safe(
            log, [b[1] for b, is_past in zip(blocks, past, strict=True) if is_past], report
        )
        judged = iter(is_safe or ())
        for index, (block, held, losses) in enumerate(blocks):
            if past[index] and is_safe is None:
                continue  # the report says that main storage does not answer
            known = let_go(told[index], not past[index] or next(judged))
            if known is None or any(word.has is Has.TRIMMED for word in known.words.values()):
                continue  # it goes here too
            if is_letting_go(known.words):
                report.again += 1
                continue
            whole = whole_without(self._me, known.words)
            if whole is not None:
                self._left.pop((log, held.first), None)
                # The new envelope ranks above the block's own envelope, and so replaces it.
                rank = max(whole.wave, held.wave + 1)
                found.append((block, Known(rank, whole.copyset), int(EnvelopeFlag.DRAINED)))
                continue
            report.again += 1
            move = self._move_of_none(block, held, losses, epochs, known)
            if move is not None:
                works.append(_work(block, move, known.words))
        return found, works

    def _move_of_none(
        self,
        block: StoredBlock,
        held: Held,
        losses: Losses,
        epochs: EpochNodesets,
        known: LetGo,
    ) -> Move | None:
        """The move of a block without a whole copyset, after this has lasted long enough."""
        place = held.log, held.first
        if place not in self._left and len(self._left) >= LEFT_MAX:
            return None
        self._left[place] = self._left.get(place, 0) + 1
        of_epoch = epochs.of(held.epoch)
        if self._left[place] < LEFT_TRIES or of_epoch is None:
            return None
        if {*of_epoch[0].nodes} - losses.gone - {self._me} - known.words.keys() - known.past:
            return None  # a node that does not answer may hold it in a whole copyset
        common = held_in_common(held, self._me, losses, known.words)
        found = None if common is None else self._plan(block, common, losses, epochs, known.past)
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
                self._questions.ask_one(node, copies_of(work.move.block for work in some))
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
_Plan = tuple[StoredBlock, Held, Move | None, Losses]
_NONE = Move(Held(1, 1, 1, 0, 0, 0, ()), (), (), (), changes=False)


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
