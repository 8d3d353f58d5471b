"""A storage node's part in ledgers: it keeps and reads entries, fences, and reports the LAC.

An answer waits until its content is durable: an added entry, a LAC, or a fence, also of a ledger
that the node never saw. A fence takes effect when it is asked for. So entries before it in the WAL
are visible before its answer, and the writer's entries after it are refused.

A node that lost records does not know which. At the start that finds the loss, it fences every
ledger whose newest fragment names it. For missing entries of unclosed ledgers it answers *unknown*
(`note_loss`). If it forgot a fence, a writer could add entries after the end of the ledger. If it
forgot an entry and reported it as absent, a recovery would end the ledger too early.

Source: docs/protocol/ledgers.md; docs/sources/bookkeeper.md (b).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from cordwood.block import Buffer
from cordwood.errors import (
    AccessDenied,
    Corrupt,
    Overloaded,
    RecordTooLarge,
    Retryable,
)
from cordwood.layout.engine_record import RecordKind
from cordwood.layout.entry_run import pack_heads
from cordwood.layout.ledger_entry import BODY_BYTES_MAX
from cordwood.layout.ledger_records import (
    STATES_MAX,
    KeptEntry,
    LedgerChange,
    LedgerChanges,
    LedgerEntries,
    LedgerFlag,
    pack_changes,
    pack_entries,
    unpack_entries,
)
from cordwood.layout.message import DoneReply
from cordwood.layout.message_ledgers import (
    READ_BYTES_MAX,
    AddEntries,
    AddRefusal,
    AddReply,
    AskLac,
    EntriesReply,
    EntryAnswer,
    ForceEntries,
    Found,
    LacReply,
    LedgerEntryCall,
    ReadEntries,
    ReadRun,
    RunReply,
    SentRun,
    TellLac,
)
from cordwood.ledger import NO_ENTRY
from cordwood.storage.engine import StorageEngine
from cordwood.storage.ledgers.held_runs import Cut
from cordwood.storage.ledgers.ledger_index import HeldLedger, LedgerIndex
from cordwood.storage.recent_room import own_bytes

Answer = AddReply | EntriesReply | RunReply | LacReply | DoneReply

POLLS_MAX = 512
"""The most calls that wait for a LAC to rise: half of the calls that a node takes from clients at
the same time."""

PART_BYTES = 8192
"""The kernel takes the parts of an answer one by one. If the parts are smaller than this on
average, one copy of all of them costs less."""

READ_AT_ONCE = 64
"""Entries read from LogsDB in one call."""


class _News:
    """The calls that wait for news of one ledger."""

    __slots__ = ("event", "waiters")

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.waiters = 0


class LedgerStore:
    """See the module."""

    def __init__(self, engine: StorageEngine, run: Callable[[], int] = lambda: 0) -> None:
        """
        Args:
            run: the node's incarnation, which each start of it has anew.
        """
        self._engine = engine
        self._run = run
        # Asked for, and perhaps not durable yet.
        self._fencing: set[int] = set()
        # By ledger, its newest record that was answered and is not durable yet.
        self._deferred: dict[int, asyncio.Future[None]] = {}
        self._polls: dict[int, _News] = {}
        self._polling = 0

    @property
    def index(self) -> LedgerIndex:
        """The durable state."""
        return self._engine.ledgers

    async def answer(self, call: LedgerEntryCall) -> Answer:
        """Do a client's call.

        Raises:
            AccessDenied: the ledger has another password.
            CordwoodError: see the four below.
        """
        match call:
            case AddEntries():
                return await self.add(call)
            case ForceEntries():
                return await self.force(call)
            case ReadEntries():
                return await self.read(call)
            case ReadRun():
                return await self.read_run(call)
            case AskLac():
                return await self.lac(call)
            case TellLac():
                await self.tell_lac(call)
                return DoneReply()

    # Adding.

    async def add(self, call: AddEntries) -> AddReply:
        """Store entries. Returns when they are durable, or with the reason why none of them is
        stored.

        Deferred entries are answered once they have their place in the WAL. They count against the
        node's free space until they are durable. Only then do readers see them.

        Raises:
            Malformed: they are no entries.
            Retryable: the write failed; some of them may be kept.
            RecordTooLarge: the entries exceed the largest record of this node's WAL.
        """
        packed = own_bytes(call.packed)
        entries = unpack_entries(packed, call.count)
        if not (call.recovery and call.mends) and await self._has_others(call, entries):
            return AddReply(AddRefusal.OTHER)
        refusal = self._refusal(call)
        if refusal is not AddRefusal.NONE:
            return AddReply(refusal)
        record = LedgerEntries(call.ledger, call.key, entries, packed)
        kind = RecordKind.LEDGER_ENTRIES
        parts = pack_entries(kind, call.ledger, call.key, call.count, packed)
        try:
            durable = self._engine.begin_beside(parts, record, reserve_ok=call.recovery)
            if call.deferred:
                self._defer(call.ledger, durable)
                return AddReply(run=self._run())
            await self._engine.settle(durable)
        except RecordTooLarge:
            raise
        except Overloaded:
            return AddReply(self._is_full())
        self._wake(call.ledger)
        # A repair learns from the run whether this node may have lost its disk meanwhile.
        return AddReply(run=self._run() if call.recovery else 0)

    def _defer(self, ledger: int, durable: asyncio.Future[None]) -> None:
        self._deferred[ledger] = durable

        def on_settled(done: asyncio.Future[None]) -> None:
            if self._deferred.get(ledger) is done:
                del self._deferred[ledger]
            self._wake(ledger)

        durable.add_done_callback(on_settled)

    async def force(self, call: ForceEntries) -> AddReply:
        """Returns when all entries of a ledger that were taken since the start are durable, or with
        the reason why they are not.

        Raises:
            Retryable, Overloaded: it may not be.
        """
        # The WAL is durable in its order: the newest one stands for all.
        newest = self._deferred.get(call.ledger)
        if newest is not None:
            await self._engine.settle(asyncio.shield(newest))
        held = self._known(call.ledger, call.key)
        if held is not None and held.flags.is_empty:
            return AddReply(AddRefusal.GONE)
        if self._is_fenced(call.ledger, held):
            return AddReply(AddRefusal.FENCED)
        if self._engine.failed:
            raise Retryable(f"this node stores nothing: {self._engine.failed}")
        return AddReply(run=self._run())

    def _refusal(self, call: AddEntries) -> AddRefusal:
        """The reason why entries are not taken. The caller must not wait for anything between this
        check and the write.

        Raises:
            RecordTooLarge, Retryable: see `add`.
        """
        held = self._known(call.ledger, call.key)
        if held is not None and held.flags.is_empty:
            return AddRefusal.GONE
        if self._is_fenced(call.ledger, held) and not call.recovery:
            return AddRefusal.FENCED
        engine, size = self._engine, len(call.packed)
        if self._takes_no_writers() and not call.recovery:
            return AddRefusal.READ_ONLY
        if held is None and self._takes_no_strangers():
            return AddRefusal.READ_ONLY
        if engine.failed:
            raise Retryable(f"this node stores nothing: {engine.failed}")
        if size > engine.wal.record_bytes_max:
            # Check this before the free space: for an entry of this size there will never be space.
            raise RecordTooLarge(
                f"entries of {size} bytes at once; this node's WAL takes "
                f"{engine.wal.record_bytes_max}"
            )
        is_full = size > engine.free_bytes and not call.recovery
        # Unsure: no copy may count on it, as on a full node, before it knows whether it goes on.
        if engine.unsure:
            return AddRefusal.FULL
        if is_full or not engine.cache_takes(size, by_recovery=True):
            return self._is_full()
        return AddRefusal.NONE

    def _is_full(self) -> AddRefusal:
        """Ask for a flush, and return the refusal for lack of space. A large entry may find no
        space while less than half of the WAL is in use. Without this request no flush would begin,
        and its writer would wait until the oldest block is old enough."""
        self._engine.ask_for_flush()
        return AddRefusal.FULL

    def _takes_no_writers(self) -> bool:
        """Whether writers must use other nodes. A drained node is up, but its ledgers are marked
        like those of a lost node. A writer that stayed would be shut out when the grace period is
        over."""
        return bool(self._engine.read_only) or self._engine.is_given_away

    def _takes_no_strangers(self) -> bool:
        """Whether re-adds of ledgers that are unknown here must go to other nodes. A recovery or a
        repair may have chosen this node before it was drained, and an operator may take it away. An
        ensemble's own member knows the ledger, by its entries or its fence: it takes re-adds, as
        there may be no other node for them."""
        return self._engine.is_given_away

    async def _has_others(self, call: AddEntries, entries: Sequence[KeptEntry]) -> bool:
        """Whether the ledger has another entry of one of these numbers. A repeated entry is equal
        to the first: its LAC is the one of the time when the entry was added."""
        held = self._known(call.ledger, call.key)
        if held is None or held.last == NO_ENTRY:
            return False
        below = [each.entry for each in entries if each.entry <= held.last]
        if not below:
            return False
        try:
            found = await self._find(call.ledger, held, below)
        except Corrupt:
            # Which of them are damaged is not known: look at each alone.
            found = [await self._find_whole(call.ledger, held, entry) for entry in below]
        known = {each.entry: each for each in found if each is not None}
        return any(
            (each.lac, each.length) != (kept.lac, kept.length) or each.body != kept.body
            for each in entries
            if (kept := known.get(each.entry)) is not None
        )

    async def _find_whole(self, ledger: int, held: HeldLedger, entry: int) -> KeptEntry | None:
        """An entry, or None if it is damaged: a new copy may then replace it."""
        try:
            (kept,) = await self._find(ledger, held, [entry])
        except Corrupt:
            return None
        return kept

    # Reading.

    async def read(self, call: ReadEntries) -> EntriesReply:
        """Entries, as many as one reply holds.

        Raises:
            Retryable, Overloaded: the ledger was to be fenced, and is not.
        """
        if call.fence:
            await self.fence(call.ledger, call.key)
        held = self._known(call.ledger, call.key)
        answers: list[EntryAnswer] = []
        size = 0
        async for answer in self._answers(call.ledger, held, call.entries):
            size += len(answer.body)
            if answers and size > READ_BYTES_MAX:
                break
            answers.append(answer)
        return EntriesReply(answers, NO_ENTRY if held is None else held.lac)

    async def _answers(
        self, ledger: int, held: HeldLedger | None, entries: Sequence[int]
    ) -> AsyncIterator[EntryAnswer]:
        for at in range(0, len(entries), READ_AT_ONCE):
            some = entries[at : at + READ_AT_ONCE]
            try:
                found = await self._find(ledger, held, some)
            except Corrupt:
                # Which of them are damaged is not known: look at each alone.
                found = []
            if found:
                for entry, kept in zip(some, found, strict=True):
                    yield self._answer(held, entry, kept)
                continue
            for entry in some:
                yield await self._answer_alone(ledger, held, entry)

    async def _answer_alone(self, ledger: int, held: HeldLedger | None, entry: int) -> EntryAnswer:
        try:
            (kept,) = await self._find(ledger, held, [entry])
        except Corrupt:
            return EntryAnswer(entry, Found.DAMAGED)
        return self._answer(held, entry, kept)

    def _answer(self, held: HeldLedger | None, entry: int, kept: KeptEntry | None) -> EntryAnswer:
        if kept is not None:
            return EntryAnswer(entry, Found.YES, kept.lac, kept.length, bytes(kept.body))
        return EntryAnswer(entry, self._absent(held))

    def _absent(self, held: HeldLedger | None) -> Found:
        if held is None:
            return Found.NO_LEDGER
        if held.flags & LedgerFlag.TIERED:
            return Found.TIERED
        return Found.UNKNOWN if held.flags & LedgerFlag.LIMBO else Found.NO_ENTRY

    async def _find(
        self, ledger: int, held: HeldLedger | None, entries: Sequence[int]
    ) -> list[KeptEntry | None]:
        if held is None or held.flags.is_empty:
            return [None] * len(entries)
        found = [held.entries.get(entry) for entry in entries]
        missing = [
            entry
            for entry, kept in zip(entries, found, strict=True)
            if kept is None and entry <= held.last
        ]
        if not missing:
            return found
        stored = await self._engine.logs.ledgers.entries(ledger, missing)
        below = {each.entry: each for each in stored if each is not None}
        return [kept or below.get(entry) for entry, kept in zip(entries, found, strict=True)]

    async def read_run(self, call: ReadRun) -> SentRun:
        """Entries one after another, up to the first that this node does not have whole.

        Raises:
            AccessDenied: the ledger has another password.
        """
        held = self._known(call.ledger, call.key)
        heads: list[Buffer] = []
        bodies: list[Buffer] = []
        count = size = 0
        stop = call.first + call.count * call.step
        while held is not None and not held.flags.is_empty and size < call.bytes_max:
            entry, left = call.first + count * call.step, call.bytes_max - size
            if entry >= stop:
                break
            some = _in_memory(held, entry, stop, call.step, left, is_first=count == 0)
            if some is None:
                if entry > held.last:
                    break
                some = await self._stored_run(call, entry, call.count - count, left)
            if not some.taken:
                break
            count += some.taken
            size += some.size
            heads += some.heads
            bodies += some.bodies
        lac = NO_ENTRY if held is None else held.lac
        return SentRun(count, lac, memoryview(b""), (*_joined(heads), *_joined(bodies)))

    async def _stored_run(self, call: ReadRun, entry: int, count: int, bytes_max: int) -> Cut:
        ledgers = self._engine.logs.ledgers
        try:
            found = await ledgers.run(call.ledger, entry, count, bytes_max, call.step)
        except Corrupt:
            found = []  # Its reader asks for each of them.
        return _cut_of(found, bytes_max, is_first=entry == call.first)

    # The LAC.

    async def lac(self, call: AskLac) -> LacReply:
        """The highest LAC received here, after a wait for a higher LAC if requested.

        Raises:
            Overloaded: too many wait.
            Retryable: the ledger was to be fenced, and is not.
        """
        if call.fence:
            await self.fence(call.ledger, call.key)
        elif call.wait_ms:
            await self._wait_above(call)
        held = self._known(call.ledger, call.key)
        if held is None:
            return LacReply(Found.NO_LEDGER, NO_ENTRY, NO_ENTRY, is_fenced=False)
        found = Found.UNKNOWN if held.flags & LedgerFlag.LIMBO else Found.YES
        is_fenced = bool(held.flags & (LedgerFlag.FENCED | LedgerFlag.GONE))
        return LacReply(found, held.lac, held.last, is_fenced)

    async def _wait_above(self, call: AskLac) -> None:
        if self._polling >= POLLS_MAX:
            raise Overloaded(f"{POLLS_MAX} readers wait for ledgers on this node")
        self._polling += 1
        try:
            async with asyncio.timeout(call.wait_ms / 1000):
                while not self._is_above(call):
                    await self._news_of(call.ledger)
        except TimeoutError:
            return
        finally:
            self._polling -= 1

    async def _news_of(self, ledger: int) -> None:
        news = self._polls.setdefault(ledger, _News())
        news.waiters += 1
        try:
            await news.event.wait()
        finally:
            news.waiters -= 1
            # Most ledgers get no more news once they are closed.
            if not news.waiters and self._polls.get(ledger) is news:
                del self._polls[ledger]

    def _is_above(self, call: AskLac) -> bool:
        held = self._known(call.ledger, call.key)
        return held is not None and (held.lac > call.above or bool(held.flags))

    def _wake(self, ledger: int) -> None:
        news = self._polls.pop(ledger, None)
        if news is not None:
            news.event.set()

    async def tell_lac(self, call: TellLac) -> None:
        """Store a LAC that came without an entry. Returns when it is durable.

        Raises:
            Retryable, Overloaded: it is not.
        """
        held = self._known(call.ledger, call.key)
        if held is None or held.lac < call.lac:
            await self._write([LedgerChange(call.ledger, call.key, lac=call.lac)])

    # Fences.

    async def fence(self, ledger: int, key: bytes) -> None:
        """Refuse the writer's entries from now on; returns once the fence is durable.

        Raises:
            Retryable, Overloaded: it may not be; ask again.
        """
        held = self._known(ledger, key)
        if held is not None and held.flags & (LedgerFlag.FENCED | LedgerFlag.GONE):
            return
        self._fencing.add(ledger)
        await self._write([LedgerChange(ledger, key, LedgerFlag.FENCED)])
        self._fencing.discard(ledger)

    async def note_loss(self, changes: Sequence[LedgerChange]) -> None:
        """Fence ledgers of which this node may have lost something; durable when it returns."""
        for at in range(0, len(changes), STATES_MAX):
            await self._write(changes[at : at + STATES_MAX])

    async def forget(self, ledgers: Sequence[int]) -> None:
        """Ledgers were deleted: keep a tombstone of each and nothing else.

        Raises:
            Retryable, Overloaded: it may not be durable; ask again.
        """
        await self._empty(ledgers, LedgerFlag.GONE)

    async def let_go(self, ledgers: Sequence[int]) -> None:
        """Main storage has these ledgers, for good: keep their states, and none of their entries.

        Raises:
            Retryable, Overloaded: it may not be durable; ask again.
        """
        await self._empty(ledgers, LedgerFlag.TIERED)

    async def _empty(self, ledgers: Sequence[int], why: LedgerFlag) -> None:
        gone = [
            LedgerChange(ledger, held.key, why | LedgerFlag.FENCED)
            for ledger in ledgers
            if (held := self.index.get(ledger)) is not None
        ]
        await self.note_loss(gone)
        await self.drop([each.ledger for each in gone])

    async def drop(self, ledgers: Sequence[int]) -> None:
        """Free the space of ledgers that were deleted or that main storage has. Their flags are
        durable, so no entry of them is read or taken.

        Raises:
            TablesFailed, TablesNoSpace: any of them may be left; see `not_dropped`.
        """
        async with self._engine.logs.at_rest():
            await self._engine.logs.ledgers.drop(ledgers)
            self.index.note_dropped(ledgers)

    def not_dropped(self) -> list[int]:
        """Ledgers that keep no entries but may still have some in LogsDB, because the node stopped
        before it dropped them."""
        held = self.index.held.items()
        return [n for n, each in held if each.flags.is_empty and each.last != NO_ENTRY]

    async def _write(self, changes: Sequence[LedgerChange]) -> None:
        if not changes:
            return
        record = LedgerChanges(tuple(changes))
        packed = pack_changes(RecordKind.LEDGER_STATE, record)
        await self._engine.write_beside([packed], record, reserve_ok=True)
        for each in changes:
            self._wake(each.ledger)

    def _is_fenced(self, ledger: int, held: HeldLedger | None) -> bool:
        if ledger in self._fencing:
            return True
        return held is not None and bool(held.flags & LedgerFlag.FENCED)

    def _known(self, ledger: int, key: bytes) -> HeldLedger | None:
        held = self.index.get(ledger)
        if held is not None and held.key != key:
            raise AccessDenied(f"ledger {ledger} has another password")
        return held


def _in_memory(
    held: HeldLedger, first: int, stop: int, step: int, bytes_max: int, *, is_first: bool
) -> Cut | None:
    """Entries from `first` on that are in memory; None if the first is not."""
    run = held.runs.at(first)
    cut = None if run is None else run.cut(first, stop, step, bytes_max)
    if run is not None and cut is not None and is_first and not cut.taken:
        return run.cut(first, first + 1, step, BODY_BYTES_MAX)
    if cut is not None or first not in held.entries:
        return cut
    found: list[KeptEntry] = []
    for entry in range(first, stop, step):
        kept = held.entries.get(entry)
        if kept is None or (found and held.runs.at(entry) is not None):
            break
        found.append(kept)
    return _cut_of(found, bytes_max, is_first=is_first)


def _cut_of(entries: Sequence[KeptEntry], bytes_max: int, *, is_first: bool) -> Cut:
    """The first entries that fit; one that does not fit is the only one of an answer."""
    size, taken = 0, 0
    for kept in entries:
        if size + len(kept.body) > bytes_max and (taken or not is_first):
            break
        size += len(kept.body)
        taken += 1
    some = entries[:taken]
    heads = pack_heads([(each.entry, each.lac, each.length, len(each.body)) for each in some])
    return Cut(taken, [heads], [each.body for each in some], size)


def _joined(parts: list[Buffer]) -> list[Buffer]:
    """The parts, without a copy of them if they are large. Small parts are copied into one, which
    costs less."""
    if len(parts) > 1 and sum(map(len, parts)) < PART_BYTES * len(parts):
        return [b"".join(parts)]
    return parts
