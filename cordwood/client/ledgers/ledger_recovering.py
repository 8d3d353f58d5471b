"""Recovers a ledger that its writer did not close: the shell of `protocol.ledger_recovery`.

Reads go ahead of the rule, in batches that fence as single reads do: the answer of a fenced node
stays true. Re-adds go ahead too, for entries with a found copy. If the rule stops below an entry
that was added ahead, no client ever reads it. The rule still takes one entry after another.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from cordwood.client.cluster import Cluster
from cordwood.client.ledgers.entry_calls import add_again
from cordwood.client.ledgers.ledger_metadata_calls import LedgerMetadataCalls
from cordwood.client.ledgers.ledger_nodes import ask_node
from cordwood.client.ledgers.stray_copies import stray_copies
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
    AddRefusal,
    AskLac,
    EntriesReply,
    EntryAnswer,
    EntryItem,
    Found,
    LacReply,
    ReadEntries,
)
from cordwood.ledger import ENTRY_MAX, LedgerMetadata, LedgerState, Versioned
from cordwood.protocol import ledger_recovery as rule
from cordwood.protocol.ledger_recovery import Failure, LedgerRecovery, Stage
from cordwood.quorum.ensemble import Answer, is_written_to
from cordwood.quorum.ensemble_choice import Placement

logger = logging.getLogger(__name__)

ASK_S = 5.0
"""How long a node may take for one call of a recovery."""

AHEAD = 256
"""Entries that are read from a node, and written to it again, ahead of the rule."""

ADD_BYTES = 1 << 20
"""Bodies of one call; a larger entry goes alone."""

AGAIN_S = 0.5
"""Pause between two attempts."""

_ANSWERS = {
    Found.YES: Answer.FOUND,
    Found.NO_ENTRY: Answer.NO_ENTRY,
    Found.NO_LEDGER: Answer.NO_LEDGER,
    Found.UNKNOWN: Answer.LOST_DATA,
    Found.DAMAGED: Answer.DAMAGED,
    # Another client closed the ledger long ago: this recovery's findings are not needed, and no
    # entry counts as absent.
    Found.TIERED: Answer.LOST_DATA,
}


_WAITED_FOR = {
    Stage.READ: Failure.UNDECIDED,
    Stage.RE_ADD: Failure.NOT_READDED,
    Stage.MEASURE: Failure.NO_LENGTH,
    Stage.SETTLE: Failure.UNDECIDED,
}

OnProgress = Callable[[int], object]
"""Called with the last entry that is certain."""


async def recover(
    ledger: int,
    password: bytes,
    calls: LedgerMetadataCalls,
    cluster: Cluster,
    *,
    timeout_s: float,
    on_progress: OnProgress | None = None,
) -> Versioned:
    """Close a ledger, even if it is being written. Returns its metadata. Tries until an attempt
    succeeds, or until none has come further for `timeout_s`.

    Args:
        on_progress: called with the last entry that is certain, as that rises.
    Raises:
        UnknownLedger: there is no ledger with this id.
        AccessDenied: it has another password.
        Undecided: too few nodes answered in time; the call may be repeated.
        Unreachable, Overloaded: the metadata store did not answer.
    """
    loop = asyncio.get_running_loop()
    patience = Patience(timeout_s, on_progress)
    while True:
        held = await calls.get(ledger)
        if held.metadata.password != password:
            raise AccessDenied(f"ledger {ledger} has another password")
        attempt = _Attempt(held, calls, cluster, patience)
        try:
            async with patience.limit():
                failure = await attempt.run()
        except TimeoutError:
            failure = (_WAITED_FOR.get(attempt.stage, Failure.NOT_COVERED), attempt.last)
        if failure is None:
            return await calls.get(ledger)
        why, entry = failure
        if why is Failure.DENIED:
            raise AccessDenied(f"a node knows ledger {ledger} by another password")
        if loop.time() + AGAIN_S >= patience.deadline:
            # Each entry needs Qa members that take it again: a spare takes the place of one that
            # is down.
            spare = ", or start a spare node, which takes the entries in their place"
            nodes, whose = held.metadata.newest.nodes, "its nodes are"
            if why is Failure.NO_LENGTH:
                nodes, whose = held.metadata.nodes_at(entry), "the nodes of this entry are"
                spare = (
                    ", and lost nodes that may have it (`cordwood ledgers under-replicated`), with "
                    "their directories (`cordwood nodes keep-ledgers`)"
                )
            more = why in (Failure.NOT_READDED, Failure.NO_LENGTH)
            raise Undecided(
                f"ledger {ledger} cannot be recovered yet: {why.value} (entry {entry}); {whose} "
                f"{', '.join(map(str, nodes))}: start those that are down{spare if more else ''}"
            )
        await asyncio.sleep(AGAIN_S)


class Patience:
    """How long a recovery is tried: a ledger with deferred sync may have millions of entries above
    its LAC. An attempt that was cut short begins again at the LAC, so a bound of the whole would
    leave that ledger without an end for ever.

    Attributes:
        deadline: when it is given up, unless an attempt comes further before.
    """

    def __init__(self, timeout_s: float, on_progress: OnProgress | None) -> None:
        self.deadline = asyncio.get_running_loop().time() + timeout_s
        self._timeout_s = timeout_s
        self._on_progress = on_progress
        self._furthest: int | None = None
        self._limit: asyncio.Timeout | None = None

    def limit(self) -> asyncio.Timeout:
        """The bound of an attempt."""
        self._limit = asyncio.timeout_at(self.deadline)
        return self._limit

    def note(self, last: int) -> None:
        """An attempt is certain of all entries up to `last`. It counts as progress only above the
        last entry of all earlier attempts: attempts that fail at one entry come to an end."""
        if self._furthest is not None and last <= self._furthest:
            return
        self._furthest = last
        self.deadline = asyncio.get_running_loop().time() + self._timeout_s
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(self.deadline)
        if self._on_progress is not None:
            self._on_progress(last)


class _Attempt:
    """One attempt: events of nodes and of the metadata store into the rule, effects out of it."""

    def __init__(
        self, held: Versioned, calls: LedgerMetadataCalls, cluster: Cluster, patience: Patience
    ) -> None:
        metadata = held.metadata
        self._patience = patience
        self._ledger = metadata.ledger
        self._metadata = metadata
        self._striping = metadata.striping
        # The placement is not enforced: a ledger that cannot be ended is worse than entries in one
        # domain.
        self._placement = Placement(metadata.scope)
        self._rule = LedgerRecovery(held)
        self._calls = calls
        self._cluster = cluster
        self._key = ledger_key_of(metadata.password)
        self._seal = EntrySeal(metadata.ledger, metadata.digest, metadata.password)
        self._copies: dict[int, EntryItem] = {}
        # By entry and node: a node's answer; None while a call ahead of the rule has no answer yet.
        # Likewise for finished re-adds.
        self._heard: dict[tuple[int, int], EntryAnswer | None] = {}
        self._re_added: dict[tuple[int, int], bool] = {}
        # The calls ahead of the rule for which the rule waits now.
        self._reads_awaited: set[tuple[int, int]] = set()
        self._adds_awaited: set[tuple[int, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._done: asyncio.Future[tuple[Failure, int] | None] | None = None

    @property
    def last(self) -> int:
        """The last entry that is certain."""
        return self._rule.last

    @property
    def stage(self) -> Stage:
        """The present stage of the recovery."""
        return self._rule.stage

    async def run(self) -> tuple[Failure, int] | None:
        """None when the ledger is closed; otherwise the reason why this attempt is over."""
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
        todo = deque(effects)
        while todo:
            match todo.popleft():
                case rule.AskFence(node):
                    self._start(self._fence(node))
                case rule.ReadEntry(entry, node):
                    todo += self._read_entry(entry, node)
                case rule.ReadStrays(entry):
                    self._start(self._read_strays(entry))
                case rule.ReAdd(entry, node):
                    todo += self._re_add(entry, node)
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
        answer, lac = Answer.FAILED, -1
        try:
            call = AskLac(self._ledger, self._key, fence=True)
            reply = await ask_node(self._cluster, node, call, timeout_s=ASK_S)
        except AccessDenied:
            answer = Answer.REFUSED
        except Unreachable:
            answer = Answer.SILENT
        except CordwoodError as error:
            logger.info("node %d did not fence ledger %d: %s", node, self._ledger, error)
            answer = Answer.FAILED
        else:
            assert isinstance(reply, LacReply), "AskLac is answered so"
            answer, lac = _ANSWERS[reply.found], reply.lac
        self._act(self._rule.on_fenced(node, answer, lac))

    # Reads.

    def _read_entry(self, entry: int, node: int) -> Sequence[rule.Effect]:
        """The answer that came ahead of the rule, or a call."""
        if (entry, node) not in self._heard:
            self._start(self._ask_to_read(entry, node))
            return ()
        told = self._heard.pop((entry, node))
        if told is None:
            self._reads_awaited.add((entry, node))
            return ()
        return self._on_read(entry, node, told)

    async def _ask_to_read(self, entry: int, node: int) -> None:
        """Read an entry from a node, and the next ones that the node should have."""
        some = self._ahead(entry, node, self._rule.source_nodes)
        ahead = [each for each in some if (each, node) not in self._heard]
        self._heard.update({(each, node): None for each in ahead})
        told: dict[int, EntryAnswer] = {}
        answer = Answer.SILENT
        try:
            call = ReadEntries(self._ledger, self._key, [entry, *ahead], fence=True)
            reply = await ask_node(self._cluster, node, call, timeout_s=ASK_S)
            assert isinstance(reply, EntriesReply), "ReadEntries is answered so"
            told = {each.entry: each for each in reply.entries}
        except AccessDenied:
            answer = Answer.REFUSED
        except Unreachable as error:
            logger.debug("node %d does not read ledger %d: %s", node, self._ledger, error)
        except CordwoodError as error:
            logger.info("node %d did not read ledger %d: %s", node, self._ledger, error)
            answer = Answer.FAILED
        for each in ahead:
            self._on_ahead(each, node, told.get(each))
        if entry in told:
            self._act(self._on_read(entry, node, told[entry]))
        else:
            self._act(self._rule.on_read(entry, node, answer))

    def _on_ahead(self, entry: int, node: int, told: EntryAnswer | None) -> None:
        """The entry of a call ahead of the rule; None if it must be asked for again."""
        if (entry, node) in self._reads_awaited:
            self._reads_awaited.discard((entry, node))
            if told is None:
                self._start(self._ask_to_read(entry, node))
            else:
                self._act(self._on_read(entry, node, told))
            return
        if told is None:
            self._heard.pop((entry, node), None)
            return
        self._heard[entry, node] = told
        if told.found is Found.YES:
            self._open(told)

    def _on_read(self, entry: int, node: int, told: EntryAnswer) -> Sequence[rule.Effect]:
        answer = _ANSWERS[told.found]
        size = 0
        if answer is Answer.FOUND:
            opened = self._open(told)
            if opened is None:
                answer = Answer.DAMAGED
            else:
                size = opened
        return self._rule.on_read(entry, node, answer, size, told.length)

    def _open(self, told: EntryAnswer) -> int | None:
        """The size of a copy's payload, None if the copy is damaged."""
        try:
            payload = self._seal.read(told.entry, told.lac, told.length, told.body)
        except ChecksumMismatch as error:
            logger.warning("%s", error)
            return None
        self._copies[told.entry] = EntryItem(told.entry, told.lac, told.length, told.body)
        return len(payload)

    async def _read_strays(self, entry: int) -> None:
        copies = await stray_copies(self._cluster, self._metadata, [entry])
        self._act(self._rule.on_strays(entry, copies[0].length if copies else None))

    def _ahead(self, entry: int, node: int, nodes: Sequence[int]) -> list[int]:
        """Entries after this one that the node should have."""
        if node not in nodes:
            return []
        place = nodes.index(node)
        behind = range(entry + 1, min(entry + AHEAD, ENTRY_MAX))
        return [each for each in behind if is_written_to(place, each, self._striping)]

    # Re-adds.

    def _re_add(self, entry: int, node: int) -> Sequence[rule.Effect]:
        """The result of a re-add ahead of the rule, or a write."""
        is_done = self._re_added.pop((entry, node), None)
        if is_done:
            return self._rule.on_readded(entry, node, stored=True)
        if is_done is None:
            # Chosen now, because the rule may have passed these entries when the call is sent.
            items = self._next_items(entry, node)
            self._re_added.update({(each.entry, node): False for each in items[1:]})
            self._start(self._ask_to_add(node, items))
        else:
            self._re_added[entry, node] = False
            self._adds_awaited.add((entry, node))
        return ()

    def _next_items(self, entry: int, node: int) -> list[EntryItem]:
        """An entry, and the next ones of this node of which copies were found."""
        items, size = [self._copies[entry]], len(self._copies[entry].body)
        for each in self._ahead(entry, node, self._rule.ensemble):
            copy = self._copies.get(each)
            if copy is None or (each, node) in self._re_added:
                break
            size += len(copy.body)
            if size > ADD_BYTES:
                break
            items.append(copy)
        return items

    async def _ask_to_add(self, node: int, items: list[EntryItem]) -> None:
        is_stored = False
        try:
            added = await add_again(
                self._cluster, node, self._ledger, self._key, self._seal, items, timeout_s=ASK_S
            )
            is_stored = added.refusal is AddRefusal.NONE
        except CordwoodError as error:
            logger.info("node %d did not take entries again: %s", node, error)
        first, *ahead = (item.entry for item in items)
        for each in ahead:
            self._re_added.pop((each, node), None)
            if (each, node) in self._adds_awaited:
                self._adds_awaited.discard((each, node))
                self._act(self._rule.on_readded(each, node, is_stored))
            elif is_stored and each > self._rule.last:
                self._re_added[each, node] = True
        self._act(self._rule.on_readded(first, node, is_stored))
        if is_stored:
            self._patience.note(self._rule.last)
        self._forget()

    def _forget(self) -> None:
        """Drop answers for entries that the rule has passed."""
        last = self._rule.last
        for entry in [entry for entry in self._copies if entry < last]:
            del self._copies[entry]
        # Calls in flight are dropped when their answers come.
        for key in [key for key, told in self._heard.items() if told and key[0] < last]:
            del self._heard[key]
        for key in [key for key, is_done in self._re_added.items() if is_done and key[0] < last]:
            del self._re_added[key]

    async def _pick(self, entry: int, place: int, taken: tuple[int, ...]) -> None:
        ring = [None if at == place else each for at, each in enumerate(taken)]
        node: int | None = None
        while node is None:
            try:
                chosen = await self._calls.choose(
                    ring, self._rule.write, taken=taken, placement=self._placement
                )
            except TooFewNodes:
                break
            await self._announce(chosen[place])
            if await self._calls.takes_copies(chosen[place]):
                node = chosen[place]
        self._act(self._rule.on_spare_picked(entry, place, node))

    async def _announce(self, node: int) -> None:
        """Write into the metadata that a node joins, before its first copy. The close names the
        node. If it loses its disk before that, it learns from the metadata that it lacks copies."""
        held = await self._calls.get(self._ledger)
        while held.metadata.state is LedgerState.IN_RECOVERY and node not in held.metadata.joining:
            held, _ = await self._calls.set(held.version, held.metadata.with_joining(node))

    async def _write(self, version: int, metadata: LedgerMetadata) -> None:
        held, is_written = await self._calls.set(version, metadata)
        if is_written:
            self._act(self._rule.on_metadata_written(held.version))
        else:
            self._act(self._rule.on_metadata_found(held))
