"""Recovers a ledger that its writer did not close: the shell of `protocol.ledger_recovery`.

Reads go ahead of the rule, in batches that fence as single reads do: what a node answered under its
fence stays true. The rule still takes one entry after the other.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from cordwood.client.cluster import Cluster
from cordwood.client.ledgers.ledger_metadata_calls import LedgerMetadataCalls
from cordwood.client.ledgers.ledger_nodes import ask_node
from cordwood.errors import (
    AccessDenied,
    ChecksumMismatch,
    CordwoodError,
    TooFewNodes,
    Undecided,
    Unreachable,
)
from cordwood.layout.ledger_entry import EntrySeal, ledger_key_of
from cordwood.layout.message_ledgers import (
    AddEntries,
    AddRefusal,
    AddReply,
    AskLac,
    EntriesReply,
    EntryAnswer,
    EntryItem,
    Found,
    LacReply,
    ReadEntries,
)
from cordwood.ledger import ENTRY_MAX, LedgerMetadata, Versioned
from cordwood.protocol import ledger_recovery as rule
from cordwood.protocol.ledger_recovery import Failure, LedgerRecovery
from cordwood.quorum.ensemble import Answer, is_written_to

logger = logging.getLogger(__name__)

ASK_S = 5.0
"""How long a node may take for one question of a recovery."""

AHEAD = 64
"""Entries that are read ahead from a node."""

AGAIN_S = 0.5
"""Pause between two attempts."""

_ANSWERS = {
    Found.YES: Answer.FOUND,
    Found.NO_ENTRY: Answer.NO_ENTRY,
    Found.NO_LEDGER: Answer.NO_LEDGER,
    Found.UNKNOWN: Answer.LOST_DATA,
    Found.DAMAGED: Answer.DAMAGED,
}


async def recover(
    ledger: int,
    password: bytes,
    calls: LedgerMetadataCalls,
    cluster: Cluster,
    *,
    timeout_s: float,
) -> Versioned:
    """Close a ledger, whoever writes it; its metadata then. Attempts are made until one succeeds.

    Raises:
        UnknownLedger: there is none of this id.
        AccessDenied: it has another password.
        Undecided: too few nodes answered in time; it may be tried again.
        Unreachable, Overloaded: the metadata store did not answer.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        held = await calls.get(ledger)
        if held.metadata.password != password:
            raise AccessDenied(f"ledger {ledger} has another password")
        attempt = _Attempt(held, calls, cluster)
        try:
            async with asyncio.timeout_at(deadline):
                failure = await attempt.run()
        except TimeoutError:
            failure = (Failure.NOT_COVERED, attempt.last)
        if failure is None:
            return await calls.get(ledger)
        why, entry = failure
        if why is Failure.DENIED:
            raise AccessDenied(f"a node knows ledger {ledger} by another password")
        if loop.time() + AGAIN_S >= deadline:
            raise Undecided(
                f"ledger {ledger} cannot be recovered yet: {why.value} (entry {entry}); its nodes "
                f"are {', '.join(map(str, held.metadata.newest.nodes))}: start those that are down"
            )
        await asyncio.sleep(AGAIN_S)


class _Attempt:
    """One attempt: events of nodes and of the metadata store into the rule, effects out of it."""

    def __init__(self, held: Versioned, calls: LedgerMetadataCalls, cluster: Cluster) -> None:
        metadata = held.metadata
        self._ledger = metadata.ledger
        self._striping = metadata.striping
        self._rule = LedgerRecovery(held)
        self._calls = calls
        self._cluster = cluster
        self._key = ledger_key_of(metadata.password)
        self._seal = EntrySeal(metadata.ledger, metadata.digest, metadata.password)
        self._read: dict[tuple[int, int], EntryAnswer] = {}
        self._copies: dict[int, EntryItem] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._done: asyncio.Future[tuple[Failure, int] | None] | None = None

    @property
    def last(self) -> int:
        """The last entry that is certain."""
        return self._rule.last

    async def run(self) -> tuple[Failure, int] | None:
        """None once the ledger is closed; else why this attempt is over."""
        self._done = asyncio.get_running_loop().create_future()
        try:
            self._act(self._rule.start())
            return await self._done
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _act(self, effects: Sequence[rule.Effect]) -> None:
        assert self._done is not None
        for effect in effects:
            match effect:
                case rule.AskFence(node):
                    self._start(self._fence(node))
                case rule.ReadEntry(entry, node):
                    self._start(self._read_entry(entry, node))
                case rule.ReAdd(entry, node):
                    self._start(self._re_add(entry, node))
                case rule.PickSpare(entry, place, taken):
                    self._start(self._pick(entry, place, taken))
                case rule.ClaimOrClose(version, metadata):
                    self._start(self._write(version, metadata))
                case rule.Recovered():
                    self._end(None)
                case rule.RecoveryFailed(failure, entry):
                    self._end((failure, entry))

    def _end(self, outcome: tuple[Failure, int] | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(outcome)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)

    async def _fence(self, node: int) -> None:
        answer, lac = Answer.SILENT, -1
        try:
            call = AskLac(self._ledger, self._key, fence=True)
            reply = await ask_node(self._cluster, node, call, timeout_s=ASK_S)
        except AccessDenied:
            answer = Answer.REFUSED
        except Unreachable:
            pass
        except CordwoodError as error:
            logger.info("node %d did not fence ledger %d: %s", node, self._ledger, error)
            answer = Answer.FAILED
        else:
            assert isinstance(reply, LacReply), "AskLac is answered so"
            answer, lac = _ANSWERS[reply.found], reply.lac
        self._act(self._rule.on_fenced(node, answer, lac))

    async def _read_entry(self, entry: int, node: int) -> None:
        told = self._read.pop((entry, node), None)
        answer = Answer.SILENT
        if told is None:
            try:
                told = await self._ask_to_read(entry, node)
            except AccessDenied:
                answer = Answer.REFUSED
            except Unreachable:
                pass
            except CordwoodError as error:
                logger.info("node %d did not read ledger %d: %s", node, self._ledger, error)
                answer = Answer.FAILED
        size = length = 0
        if told is not None:
            answer = _ANSWERS[told.found]
            if answer is Answer.FOUND:
                try:
                    payload = self._seal.read(entry, told.lac, told.length, told.body)
                except ChecksumMismatch:
                    answer = Answer.DAMAGED
                else:
                    size, length = len(payload), told.length
                    self._copies[entry] = EntryItem(entry, told.lac, told.length, told.body)
        self._act(self._rule.on_read(entry, node, answer, size, length))

    async def _ask_to_read(self, entry: int, node: int) -> EntryAnswer:
        """Read an entry from a node, and the next ones that the node should have."""
        nodes = self._rule.source_nodes
        wanted = [entry]
        if node in nodes:
            place = nodes.index(node)
            ahead = range(entry + 1, min(entry + AHEAD, ENTRY_MAX))
            wanted += [each for each in ahead if is_written_to(place, each, self._striping)]
        call = ReadEntries(self._ledger, self._key, wanted, fence=True)
        reply = await ask_node(self._cluster, node, call, timeout_s=ASK_S)
        assert isinstance(reply, EntriesReply), "ReadEntries is answered so"
        first, *rest = reply.entries
        for each in rest:
            self._read[each.entry, node] = each
        return first

    async def _re_add(self, entry: int, node: int) -> None:
        item = self._copies[entry]
        is_stored = False
        try:
            call = AddEntries(self._ledger, self._key, [item], recovery=True)
            reply = await ask_node(self._cluster, node, call, timeout_s=ASK_S)
            assert isinstance(reply, AddReply), "AddEntries is answered so"
            is_stored = reply.refusal is AddRefusal.NONE
        except CordwoodError as error:
            logger.info("node %d did not take entry %d again: %s", node, entry, error)
        self._copies.pop(entry - 1, None)
        self._act(self._rule.on_readded(entry, node, is_stored))

    async def _pick(self, entry: int, place: int, taken: tuple[int, ...]) -> None:
        node: int | None = None
        try:
            stay = [each for at, each in enumerate(taken) if at != place]
            (node,) = await self._calls.choose(1, taken, stay)
        except TooFewNodes:
            pass
        self._act(self._rule.on_spare_picked(entry, place, node))

    async def _write(self, version: int, metadata: LedgerMetadata) -> None:
        held, is_written = await self._calls.set(version, metadata)
        if is_written:
            self._act(self._rule.on_metadata_written(held.version))
        else:
            self._act(self._rule.on_metadata_found(held))
