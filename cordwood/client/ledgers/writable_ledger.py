"""A ledger that this client writes: entries in, ids out, in order.

The rule is `protocol.ledger_writer`; this is its shell. Entries added in one tick are handed to the
rule at the end of the tick, and go to each node together (`client.ledgers.entry_outbox`).

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from types import TracebackType

from cordwood.block import Buffer
from cordwood.client.append.line import LetIn
from cordwood.client.cluster import Cluster
from cordwood.client.ledgers.entry_calls import ask_to_keep, tell_lac
from cordwood.client.ledgers.entry_check import check_id, check_payload, payload_bytes
from cordwood.client.ledgers.entry_outbox import ADD_S, EntryOutbox
from cordwood.client.ledgers.ledger_metadata_calls import LedgerMetadataCalls
from cordwood.client.ledgers.spare_nodes import SpareNodes
from cordwood.client.ledgers.writer_end import (
    SHUT_OUT,
    close_error,
    entry_error,
    retrieved,
    settle,
)
from cordwood.client.ledgers.writer_ticks import WriterTicks
from cordwood.errors import (
    BadSetting,
    Closed,
    CordwoodError,
    LedgerFenced,
    OutcomeUnknown,
    Overloaded,
    UnknownLedger,
)
from cordwood.layout.ledger_entry import EntrySeal, ledger_key_of
from cordwood.layout.message_ledgers import EntryItem, ForceEntries, TellLac
from cordwood.ledger import LedgerMetadata, Versioned
from cordwood.protocol import ledger_writer as rule
from cordwood.protocol.ledger_writer import End, LedgerWriter, Outcome, Refusal, WriterLimits
from cordwood.quorum.ensemble_choice import ANYWHERE, Placement

logger = logging.getLogger(__name__)

AHEAD_MAX = 10_000
"""Most entries that wait for lower ids; see `WritableLedger.write`."""

AHEAD_BYTES = 64 << 20
"""Most bytes of these payloads. The next entry in order is always taken: the others wait for it."""


class WritableLedger:
    """See the module. Made by `Ledgers.create`; close it, or leave it to a recovery.

    Attributes:
        ledger_id: its number.
    """

    def __init__(
        self,
        held: Versioned,
        calls: LedgerMetadataCalls,
        cluster: Cluster,
        tasks: asyncio.TaskGroup,
        ticks: WriterTicks,
        limits: WriterLimits,
        timeout_s: float,
        placement: Placement = ANYWHERE,
    ) -> None:
        metadata = held.metadata
        self.ledger_id = metadata.ledger
        self._writer = LedgerWriter(held, limits)
        self._calls = calls
        self._cluster = cluster
        self._tasks = tasks
        self._ticks = ticks
        self._lac_at_tick = self._writer.lac
        self._loop = asyncio.get_running_loop()
        self._spares = SpareNodes(calls, cluster, metadata.striping.write, placement)
        self._timeout_s = timeout_s
        self._key = ledger_key_of(metadata.password)
        self._seal = EntrySeal(metadata.ledger, metadata.digest, metadata.password)
        # The rule's answer after the last event.
        self._room = self._writer.room
        # Entries of this tick, which the rule does not know yet.
        self._new: list[tuple[bytes, asyncio.Future[int]]] = []
        self._new_bytes = 0
        self._items: dict[int, EntryItem] = {}
        self._acks: dict[int, asyncio.Future[int]] = {}
        self._forces: dict[int, asyncio.Future[int]] = {}
        self._ahead: dict[int, tuple[bytes, asyncio.Future[int]]] = {}
        self._ahead_bytes = 0
        self._is_taking_ahead = False
        self._length = 0
        self._outbox = EntryOutbox(
            self.ledger_id, self._key, cluster, tasks, self._on_answer,
            defers_sync=limits.defers_sync,
        )  # fmt: skip
        self._progress = asyncio.Event()
        # Calls that wait for free space, in their order.
        self._waiting: deque[asyncio.Event] = deque()
        self._let_in = LetIn(asyncio.get_running_loop())
        self._ended = asyncio.Event()
        self._end: End | None = None
        self._why = "a recovery has shut this writer out"

    async def __aenter__(self) -> WritableLedger:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            self.abandon()  # the ledger is left to a recovery

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this writer last wrote or read it."""
        return self._writer.metadata

    @property
    def last_add_pushed(self) -> int:
        """The highest entry that was added, -1 for none."""
        return self._writer.pushed + len(self._new)

    @property
    def last_add_confirmed(self) -> int:
        """The LAC: the highest entry that is stored together with all lower ones, -1 for none."""
        return self._writer.lac

    @property
    def length(self) -> int:
        """Bytes of all payloads up to the LAC."""
        return self._writer.length

    @property
    def is_closed(self) -> bool:
        """Whether it takes no entries any more."""
        return not self._takes_entries()

    @property
    def is_ended(self) -> bool:
        """Whether all that was added is answered, and nothing is under way any more."""
        return self._end is not None

    # Adding.

    async def append(self, payload: Buffer) -> int:
        """Add an entry. Returns its id when Qa nodes have it and all earlier entries are
        acknowledged.

        Entries of waiting calls are added in the order of the calls. With deferred sync the entry
        is on the disks, and readers see it, after the next `force`.

        Raises:
            RecordTooLarge: the entry is over 3 MiB.
            LedgerFenced, Closed: the ledger takes no entries; this one is not stored.
            OutcomeUnknown: the entry may be in the ledger or not: recover the ledger and read.
            TooFewNodes, Unreachable: nodes failed and there are no others. The ledger was closed
                before this entry, which is not stored.
        """
        await self.wait_room()
        return await self._until_acked(self.append_nowait(payload))

    def append_nowait(self, payload: Buffer) -> asyncio.Future[int]:
        """As `append`, without waiting; entries have the order of these calls.

        Raises:
            Overloaded: too many entries are in flight, or other calls wait: wait for `wait_room`.
            RecordTooLarge, LedgerFenced, Closed: see `append`.
        """
        self._check(payload)
        if self._ahead:
            raise BadSetting("this ledger's entries are numbered by its caller: use `write`")
        if self._has_waiting() and not self._let_in.take():
            raise Overloaded(f"others wait to add to ledger {self.ledger_id}: wait for room")
        return self._add(bytes(payload))

    async def append_many(self, payloads: Sequence[Buffer]) -> list[int]:
        """Add entries in order. Returns their ids when all are acknowledged.

        Raises:
            CordwoodError: see `append`; the error of the first failed entry. Earlier entries may be
                stored.
        """
        futures: list[asyncio.Future[int]] = []
        try:
            for payload in payloads:
                await self.wait_room()
                futures.append(self.append_nowait(payload))
        except BaseException:
            for future in futures:
                future.add_done_callback(retrieved)
            raise
        told = await asyncio.gather(*map(self._until_acked, futures), return_exceptions=True)
        ids: list[int] = []
        for each in told:
            if isinstance(each, BaseException):
                raise each
            ids.append(each)
        return ids

    async def write(self, entry: int, payload: Buffer) -> int:
        """Add an entry under an id of the caller's choice, in any order.

        The entry is acknowledged when all lower ids were written and are acknowledged. An id that
        is never written holds all higher entries back; the ledger then ends below it.

        Raises:
            BadSetting: the id was written already, or no entry can have it.
            Overloaded: too many entries wait for lower ids; this one is not stored.
            CordwoodError: see `append`.
        """
        self._check(payload)
        check_id(entry)
        if entry <= self.last_add_pushed or entry in self._ahead:
            raise BadSetting(f"entry {entry} of ledger {self.ledger_id} was written already")
        size = self._ahead_bytes + payload_bytes(payload)
        is_full = len(self._ahead) >= AHEAD_MAX or (self._ahead and size > AHEAD_BYTES)
        if is_full and entry != self.last_add_pushed + 1:
            raise Overloaded(
                f"{len(self._ahead)} entries of ledger {self.ledger_id} wait for entry "
                f"{self.last_add_pushed + 1}; this one is not stored"
            )
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ahead[entry] = bytes(payload), future
        self._ahead_bytes = size
        self._take_ahead()
        return await self._until_acked(future)

    async def force(self) -> int:
        """Sync all acknowledged entries to the disks; without deferred sync they are there. Returns
        the last.

        Raises:
            Unreachable: a node failed, or restarted. The ledger was closed at its LAC; acknowledged
                entries above the LAC are not in it.
            LedgerFenced, Closed, OutcomeUnknown: see `append`.
        """
        self._check(b"")
        effects = self._writer.on_force()
        (number,) = {e.force for e in effects if isinstance(e, rule.Forced | rule.SendForce)}
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._forces[number] = future
        self._act(effects)
        return await self._until_acked(future)

    async def wait_room(self) -> None:
        """Wait until one entry may be added. Add it before the next `await`.

        Raises:
            Overloaded: no entry may be added within the client's timeout.
        """
        if self._is_full() or self._has_waiting():
            await self._wait_turn()
            self._let_in.note()

    async def close(self) -> None:
        """Close the ledger at its last acknowledged entry, once all added entries are answered.

        Calls that wait for room add theirs first. With deferred sync it is forced then. Closing
        twice is harmless.

        Raises:
            Unreachable: the ledger is closed, and acknowledged entries that no force had confirmed
                are not in it. So does a later call.
            LedgerFenced: a recovery has ended it, or is about to. Or a node refused the writer, and
                the ledger is left to a recovery.
            OutcomeUnknown: the metadata store does not tell whether it is closed.
        """
        self._cluster.check_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                self._hand_over()
                # Calls that wait for room came before this one: all may be acknowledged at once.
                while self._owes_answers() and self._takes_entries():
                    self._progress.clear()
                    await self._progress.wait()
                await self._force_all()
                self._act(self._writer.on_close())
                self._give_up_ahead()
                await self._ended.wait()
        except TimeoutError:
            raise OutcomeUnknown(
                f"it is not known whether ledger {self.ledger_id} is closed: open it with recovery"
            ) from None
        self._check_end()

    def _owes_answers(self) -> bool:
        waits = self._waiting or self.last_add_pushed + 1 in self._ahead
        return bool(self._acks or self._new or waits)

    def _check_end(self) -> None:
        """Return if the writer closed the ledger with all acknowledged entries in it."""
        if self._end in SHUT_OUT:
            raise self._refusal()
        error = close_error(self.ledger_id, self._end, self._writer.head, self._writer.lac)
        if error is not None:
            raise error

    async def _force_all(self) -> None:
        """Confirm the acknowledged entries, or raise the reason of the ledger's end."""
        while self._writer.is_open and self._writer.head > self._writer.lac:
            try:
                await self.force()
            except OutcomeUnknown:
                if self._end not in SHUT_OUT:
                    raise

    def abandon(self) -> None:
        """Stop without a close, like a writer that dies. A recovery then has to end the ledger.

        Unacknowledged entries end as OutcomeUnknown.
        """
        self._finish(End.FENCED, "this writer was given up")

    # Inside.

    def _check(self, payload: Buffer) -> None:
        check_payload(payload)
        self._cluster.check_open()
        if not self._takes_entries():
            raise self._refusal()

    def _takes_entries(self) -> bool:
        """Whether it is open; the rule is not told that a writer was given up."""
        return self._end is None and self._writer.is_open

    def _refusal(self) -> CordwoodError:
        if self._end in SHUT_OUT:
            return LedgerFenced(f"ledger {self.ledger_id}: {self._why}")
        why = "" if self._end in (None, End.CLOSED) else f" ({self._end.value})"
        return Closed(f"ledger {self.ledger_id} is closed{why}")

    def _add(
        self, payload: bytes, future: asyncio.Future[int] | None = None
    ) -> asyncio.Future[int]:
        if not self._has_room():
            raise Overloaded(f"too many entries of ledger {self.ledger_id} are on their way")
        if future is None:
            future = self._loop.create_future()
        if not self._new:
            self._loop.call_soon(self._hand_over)
        self._new.append((payload, future))
        self._new_bytes += len(payload)
        return future

    def _has_room(self) -> bool:
        entries, held = self._room
        return len(self._new) < entries and self._new_bytes < held

    def _hand_over(self) -> None:
        """Give the rule all entries of this tick at once."""
        writer, new = self._writer, self._new
        if not new:
            return
        self._new, self._new_bytes = [], 0
        if not self._takes_entries():
            # Race: the writer ended in this tick, after the calls that added these entries.
            for _, future in new:
                settle(future, self._refusal())
            return
        first, length = writer.pushed + 1, self._length
        effects = writer.on_add([len(payload) for payload, _ in new], self._loop.time())
        lac = next(each.lac for each in effects if isinstance(each, rule.SendEntries))
        bodies = self._seal.pack_all(first, lac, length, [payload for payload, _ in new])
        for entry, (body, (payload, future)) in enumerate(zip(bodies, new, strict=True), first):
            length += len(payload)
            self._items[entry] = EntryItem(entry, lac, length, body)
            self._acks[entry] = future
        self._length = length
        self._act(effects)

    def _take_ahead(self) -> None:
        """Add the entries whose turn has come, while there is free space.

        Trap: a caller must not do this for other callers. Each must be told about its own entry,
        and it may be cancelled.
        """
        if self._is_taking_ahead:
            return
        self._is_taking_ahead = True
        try:
            while self._takes_entries() and self._has_room():
                held = self._ahead.pop(self.last_add_pushed + 1, None)
                if held is None:
                    break
                self._ahead_bytes -= len(held[0])
                self._add(*held)
        finally:
            self._is_taking_ahead = False

    async def _wait_turn(self) -> None:
        mine = asyncio.Event()
        self._waiting.append(mine)
        try:
            async with asyncio.timeout(self._timeout_s):
                while self._waiting[0] is not mine or self._is_full():
                    mine.clear()
                    await mine.wait()
        except TimeoutError:
            raise Overloaded(
                f"ledger {self.ledger_id} takes no more entries until some are answered"
            ) from None
        finally:
            self._waiting.remove(mine)
            self._wake_next()
            self._progress.set()

    def _has_waiting(self) -> bool:
        """Race: there is free space, and an earlier call has not been told yet."""
        return bool(self._waiting)

    def _wake_next(self) -> None:
        if self._waiting:
            self._waiting[0].set()

    def _is_full(self) -> bool:
        return not self._has_room() and self._takes_entries()

    async def _until_acked(self, future: asyncio.Future[int]) -> int:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.shield(future)
        except TimeoutError:
            future.add_done_callback(retrieved)
            raise OutcomeUnknown(
                f"ledger {self.ledger_id} did not acknowledge the entry within "
                f"{self._timeout_s:g} s; it may yet"
            ) from None
        except asyncio.CancelledError:
            future.add_done_callback(retrieved)
            raise

    def _act(self, effects: Sequence[rule.Effect]) -> None:
        """Carry out the rule's effects, in their order."""
        if self._end is not None:
            return  # Race: the writer was abandoned while nodes or the metadata store answered.
        self._room = self._writer.room
        self._ticks.need(self._tick)
        ended = next((each for each in effects if isinstance(each, rule.Ended)), None)
        items: list[EntryItem] = []
        posted: Sequence[int] = ()
        for effect in effects:
            match effect:
                case rule.SendEntries(entries, node):
                    if entries is not posted:
                        posted, items = entries, [self._items[entry] for entry in entries]
                    self._outbox.post(node, items)
                case rule.SendEntry(entry, node):
                    self._outbox.post(node, [self._items[entry]])
                case rule.Acked(first, last):
                    self._acknowledge(first, last)
                case rule.Failed(entry, outcome):
                    assert ended is not None, "entries fail as the writer ends"
                    self._items.pop(entry, None)
                    settle(self._acks.pop(entry), entry_error(self.ledger_id, ended.end, outcome))
                case rule.PickNodes(places, taken):
                    self._tasks.create_task(self._pick(places, taken))
                case rule.WriteMetadata(version, metadata):
                    self._tasks.create_task(self._write_metadata(version, metadata))
                case rule.SendLac(node, lac):
                    self._tasks.create_task(self._tell_lac(node, lac))
                case rule.Ended(end):
                    self._finish(end)
                case rule.SendForce(force, node):
                    self._tasks.create_task(self._force_node(force, node))
                case rule.Forced(force, through):
                    settle(self._forces.pop(force), through)
        if self._ahead:
            self._take_ahead()
        self._progress.set()
        self._wake_next()

    def _acknowledge(self, first: int, last: int) -> None:
        acks, items = self._acks, self._items
        for entry in range(first, last + 1):
            items.pop(entry, None)
            future = acks.pop(entry)
            if not future.done():
                future.set_result(entry)

    def _finish(self, end: End, why: str = "") -> None:
        if self._end is not None:
            return
        self._end = end
        self._why = why or self._why
        self._ticks.forget(self._tick)
        self._outbox.clear()
        for future in self._acks.values():
            settle(future, OutcomeUnknown(f"ledger {self.ledger_id}: {why or end.value}"))
        self._acks.clear()
        self._hand_over()
        self._give_up_forces(end)
        self._give_up_ahead()
        self._progress.set()
        self._wake_next()
        self._ended.set()

    def _give_up_forces(self, end: End) -> None:
        """Entries that no force confirmed are not in a ledger that was closed at its LAC."""
        is_known = end not in (*SHUT_OUT, End.DENIED)
        outcome = Outcome.NOT_STORED if is_known else Outcome.UNKNOWN
        forces, self._forces = self._forces, {}
        for future in forces.values():
            settle(future, entry_error(self.ledger_id, end, outcome))

    def _give_up_ahead(self) -> None:
        ahead, self._ahead, self._ahead_bytes = self._ahead, {}, 0
        for _, future in ahead.values():
            settle(future, Closed(f"ledger {self.ledger_id} ended below this entry"))

    # To nodes.

    def _on_answer(
        self, node: int, items: list[EntryItem], refusal: Refusal | None, run: int
    ) -> None:
        """A node answered for entries; see `EntryOutbox`."""
        if refusal is None:
            self._calls.quarantine.on_stored(node)
        elif refusal is Refusal.FAILED:
            self._calls.quarantine.on_failed(node, self._loop.time())
        if self._end is not None:
            return
        effects: list[rule.Effect] = []
        if refusal is None:
            effects += self._writer.on_stored(node, *(item.entry for item in items), run=run)
        else:
            refusal = self._spares.weighed(refusal, node, self._writer.ensemble)
            # Entries that wait for this node would get the same answer.
            for item in items + self._outbox.drop(node):
                effects += self._writer.on_failed(item.entry, node, refusal)
        self._act(effects)

    async def _force_node(self, force: int, node: int) -> None:
        call = ForceEntries(self.ledger_id, self._key)
        refusal, run = await ask_to_keep(self._cluster, node, call, timeout_s=ADD_S)
        if self._end is not None:
            return
        if refusal is None:
            self._act(self._writer.on_forced(force, node, run))
        else:
            self._act(self._writer.on_force_failed(force, refusal))

    async def _tell_lac(self, node: int, lac: int) -> None:
        call = TellLac(self.ledger_id, self._key, lac)
        if not await tell_lac(self._cluster, node, call, timeout_s=ADD_S) and self._end is None:
            self._writer.on_lac_failed(node, lac)
            self._ticks.need(self._tick)

    def _tick(self) -> bool:
        """Tell the LAC if it is time to. Returns whether another tick is needed: the LAC moves, it
        was just told, or entries wait for their quorum."""
        effects = self._writer.on_lac_tick() + self._writer.on_time(self._loop.time())
        before, self._lac_at_tick = self._lac_at_tick, self._writer.lac
        self._act(effects)
        is_still = before == self._lac_at_tick and not effects and not self._acks
        return self._end is None and not is_still

    # Metadata.

    async def _pick(self, places: tuple[int, ...], taken: tuple[int, ...]) -> None:
        picked = await self._spares.pick(places, taken)
        if self._end is None:
            self._act(self._writer.on_nodes_picked(picked))

    async def _write_metadata(self, version: int, metadata: LedgerMetadata) -> None:
        try:
            held, is_written = await self._calls.set_again(
                version, metadata, lambda: self._end is None
            )
        except UnknownLedger:
            self._finish(End.FENCED, "it was deleted")
        except CordwoodError as error:
            self._finish(End.FENCED, f"its metadata cannot be changed: {error}")
        else:
            if is_written:
                self._act(self._writer.on_metadata_written(held.version))
            else:
                self._act(self._writer.on_metadata_found(held))
