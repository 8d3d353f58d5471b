"""A ledger that this client reads: up to its end if it is closed, up to its LAC if it is open.

The reader asks one node of an entry's write set. It asks the next node if that node does not have
the entry, has a damaged copy, or is slow. Every copy is checked by its digest. An open ledger is
read up to its LAC, which entries and nodes tell. Entries that nodes let go of are read from main
storage, and checked in the same way.

Source: docs/protocol/ledgers.md; docs/sources/bookkeeper.md (a).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import count as count_from
from itertools import repeat
from types import TracebackType
from typing import NamedTuple

from cordwood.client.cluster import Cluster
from cordwood.client.ledgers.entry_reading import AGAIN_S, EntryReading
from cordwood.client.ledgers.lac_polls import is_known, wait_for_news
from cordwood.client.ledgers.ledger_following import LedgerBatches, LedgerEntries, LedgerTables
from cordwood.client.ledgers.ledger_metadata_calls import LedgerMetadataCalls
from cordwood.client.ledgers.ledger_nodes import ask_node, ask_together
from cordwood.client.ledgers.read_ahead import FEW, ReadAhead
from cordwood.client.ledgers.run_reading import READ_S, read_run
from cordwood.errors import (
    AccessDenied,
    BadSetting,
    CordwoodError,
    NoEntry,
    Retryable,
    Unreachable,
)
from cordwood.host.seams import Host
from cordwood.layout.ledger_entry import EntrySeal, ledger_key_of
from cordwood.layout.message_ledgers import (
    AskLac,
    EntriesReply,
    EntryItem,
    LacReply,
    ReadEntries,
)
from cordwood.ledger import ENTRY_MAX, NO_ENTRY, LedgerMetadata, LedgerState, Versioned
from cordwood.nodes import NodeId
from cordwood.quorum.ensemble import covers, write_set
from cordwood.quorum.entry_order import Rank, read_order
from cordwood.tier.ledger_history import LedgerHistory
from cordwood.tier.patient_store import PatientStore

logger = logging.getLogger(__name__)

ENTRIES_AT_ONCE = 256
"""Number of entries in one call."""

BATCH_BYTES = 4 << 20
"""Approximate bytes of payloads that are copied, or taken from main storage, at once."""

SAME_NODE = 64
"""Number of consecutive entries that are asked of the same node first, if every node has each
entry."""

POLL_S = 1.0
"""How long nodes wait for a LAC to rise. A reader hears of a close this late, because nodes do not
know of it."""


class LedgerEntry(NamedTuple):
    """An entry of a ledger.

    Attributes:
        payload: the added bytes.
        length: bytes of all payloads up to and including this one.
    """

    ledger: int
    entry: int
    payload: bytes
    length: int


class ReadableLedger:
    """See the module. Made by `Ledgers.open`.

    Attributes:
        ledger_id: its number.
        last_add_confirmed: the highest entry known to be confirmed, -1 for none; for a closed
            ledger, its last entry.
    """

    def __init__(
        self,
        held: Versioned,
        calls: LedgerMetadataCalls,
        cluster: Cluster,
        host: Host,
        timeout_s: float,
        objects: Callable[[], Awaitable[PatientStore]],
    ) -> None:
        """
        Args:
            objects: opens main storage.
        """
        metadata = held.metadata
        self.ledger_id = metadata.ledger
        self.last_add_confirmed = NO_ENTRY
        self._held = held
        self._calls = calls
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._key = ledger_key_of(metadata.password)
        self._seal = EntrySeal(metadata.ledger, metadata.digest, metadata.password)
        self._slow: dict[int, int] = {}
        self._host = host
        self._objects = objects
        self._history: LedgerHistory | None = None
        self._reads_objects = False
        # Counts runs: each run is asked of another node.
        self._turn = 0
        self._learn(held)

    async def __aenter__(self) -> ReadableLedger:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as last read; `refresh` reads it again."""
        return self._held.metadata

    @property
    def held(self) -> Versioned:
        """The metadata with its version, for a compare-and-set."""
        return self._held

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, as far as this reader knows."""
        return self.metadata.state is LedgerState.CLOSED

    @property
    def length(self) -> int:
        """Bytes of all payloads of a closed ledger, 0 of an open one."""
        return self.metadata.length

    async def refresh(self) -> LedgerMetadata:
        """Read the metadata again: whether the ledger is closed, and which nodes have its entries.

        Raises:
            UnknownLedger: it was deleted.
            Unreachable, Overloaded: the metadata store did not answer.
        """
        self._learn(await self._calls.get(self.ledger_id))
        return self.metadata

    def _learn(self, held: Versioned) -> None:
        if held.version < self._held.version:
            return
        self._held = held
        if held.metadata.state is LedgerState.CLOSED:
            self.last_add_confirmed = held.metadata.last
        else:
            # The nodes of the newest fragment may be down, or may have heard no LAC yet.
            self._raise_to_settled()

    # Reading.

    async def read(self, first: int, last: int) -> list[LedgerEntry]:
        """Entries `first` to `last`, both included, all of them confirmed.

        Raises:
            BadSetting: an impossible range.
            NoEntry: `last` is not confirmed, as far as this reader knows.
            Unreachable: an entry's nodes did not answer in time.
        """
        self._check_confirmed(first, last)
        return await self._read_range(first, last)

    async def read_unconfirmed(self, first: int, last: int) -> list[LedgerEntry]:
        """As `read`, for entries that may not be confirmed, and may never be.

        Raises:
            NoEntry: a node that should have one of them does not, and no other node has it. Or the
                ledger is closed, as far as this reader knows, and `last` is behind its end.
            UnknownLedger: the ledger was deleted.
            BadSetting, Unreachable: see `read`.
        """
        self._check_range(first, last)
        # Trap: nodes may keep a copy of an entry that was never acknowledged, and that the recovery
        # did not find.
        if self.is_closed and last > self.last_add_confirmed:
            raise NoEntry(
                f"ledger {self.ledger_id} has no entry {last}: it was closed with "
                f"{self.last_add_confirmed} as its last"
            )
        return await self._read_range(first, last)

    async def read_batch(
        self, first: int, *, entries_max: int = 1000, bytes_max: int = 4 << 20
    ) -> list[LedgerEntry]:
        """Confirmed entries from `first` on: at least one, with a limit of entries and of bytes.

        Raises:
            NoEntry, BadSetting, Unreachable: see `read`.
        """
        if entries_max < 1 or bytes_max < 1:
            raise BadSetting("a batch has one entry and one byte at least")
        self._check_confirmed(first, first)
        found: list[LedgerEntry] = []
        size, step = 0, FEW
        last = min(self.last_add_confirmed, first + entries_max - 1)
        while first + len(found) <= last and size < bytes_max:
            start = first + len(found)
            stop = min(last, start + step - 1)
            some = await self._read_some(start, stop, bytes_max - size)
            for each in some:
                size += len(each.payload)
                if found and size > bytes_max:
                    return found
                found.append(each)
            step = _next_step(step, len(some), stop - start + 1)
        return found

    async def last_entry(self) -> LedgerEntry:
        """The last confirmed entry.

        Raises:
            NoEntry: there is none.
            Unreachable: see `read`, `read_last_add_confirmed`.
        """
        last = await self.read_last_add_confirmed()
        if last == NO_ENTRY:
            raise NoEntry(f"ledger {self.ledger_id} has no entry")
        (found,) = await self.read(last, last)
        return found

    def follow(self, start: int = 0) -> LedgerEntries:
        """Iterate entries from `start` on, as they are confirmed, to the end of the ledger.

        Waits for new entries of an open ledger, and ends when the ledger is closed. A step may fail
        or be cancelled: the next one goes on there, and no entry is lost.

        Raises:
            BadSetting: `start` is below 0.
            UnknownLedger: it was deleted.
            Unreachable: an entry's nodes did not answer in time.
        """
        return LedgerEntries(self.batches(start))

    def batches(self, start: int = 0, until: int | None = None) -> LedgerBatches:
        """As `follow`, in batches of about two megabytes; the next entries are read meanwhile.

        Args:
            until: the last wanted entry, which the caller knows to be confirmed.
        Raises:
            CordwoodError: see `follow`.
        """
        if until is not None:
            self._raise_to(until)
        return LedgerBatches(self, start, until)

    def arrow(
        self, columns: Sequence[str] | None = None, *, start: int = 0, until: int | None = None
    ) -> LedgerTables:
        """As `batches`, in Arrow batches of thousands of small entries; a batch does not wait for
        more entries.

        Args:
            columns: the wanted columns of records, None for all; see `layout.entry_arrow`.

        Raises:
            BadSetting: an unknown column.
            CordwoodError: see `batches`.
        """
        return LedgerTables(self, columns, self.batches(start, until), until)

    def __aiter__(self) -> LedgerEntries:
        return self.follow()

    def _check_range(self, first: int, last: int) -> None:
        self._cluster.check_open()
        if not 0 <= first <= last <= ENTRY_MAX:
            raise BadSetting(f"entries {first} to {last} are no range of a ledger")

    def _check_confirmed(self, first: int, last: int) -> None:
        self._check_range(first, last)
        if last > self.last_add_confirmed:
            raise NoEntry(
                f"entry {last} of ledger {self.ledger_id} is not known to be confirmed: the last "
                f"one that is, is {self.last_add_confirmed}"
            )

    async def copies(
        self, entries: Sequence[int], *, timeout_s: float | None = None
    ) -> list[EntryItem]:
        """Entries as nodes keep them, each checked, for writing them elsewhere.

        Args:
            timeout_s: after this time no node is asked again; None for the client's timeout.
        Returns:
            The first entries, of about BATCH_BYTES, or all.

        Raises:
            Unreachable: an entry's nodes did not answer in time.
        """
        reading = EntryReading(self, entries, timeout_s)
        return [reading.items[each.entry] for each in await reading.run(BATCH_BYTES)]

    async def _stored_copies(self, entries: Sequence[int]) -> list[EntryItem]:
        """Entries from main storage, with their checksums compared: all, or the first ones.

        Raises:
            CordwoodError: see `LedgerHistory.entries`.
        """
        return await self._from_objects(entries, BATCH_BYTES, self._timeout_s)

    def _stored_together(self, entry: int) -> range:
        """The entries that main storage cannot give if it cannot give this entry."""
        return range(entry, entry + 1) if self._history is None else self._history.together(entry)

    async def _read_some(self, first: int, last: int, bytes_max: int) -> list[LedgerEntry]:
        """Entries from `first` on: all, or as many as fit into `bytes_max` and one reply."""
        return await EntryReading(self, range(first, last + 1)).run(bytes_max)

    async def _read_range(self, first: int, last: int) -> list[LedgerEntry]:
        found: list[LedgerEntry] = []
        async with ReadAhead(self._read_part, first) as ahead:
            while len(found) <= last - first:
                found += await ahead.take(last)
        return found

    async def _read_part(self, first: int, last: int, bytes_max: int) -> list[LedgerEntry]:
        """As `_read_some`, in runs from a few nodes, if these have all of them whole."""
        if not self._reads_objects:
            found = await read_run(self, first, last, bytes_max)
            if found.payloads:
                fields = zip(repeat(self.ledger_id), count_from(first), *found, strict=False)
                return list(map(tuple.__new__, repeat(LedgerEntry), fields))
        # Few at once: if nodes fail, all of them are asked of one node.
        return await self._read_some(first, min(last, first + ENTRIES_AT_ONCE - 1), bytes_max)

    # Confirmed entries only.

    async def read_last_add_confirmed(self) -> int:
        """Ask the nodes for the LAC; -1 for no entry.

        Raises:
            Unreachable: too few of them answered in time.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        while True:
            await self.refresh()
            if self.is_closed:
                return self.last_add_confirmed
            nodes, striping = self.metadata.newest.nodes, self.metadata.striping
            replies = await ask_together(self._ask_lac(node, 0.0) for node in nodes)
            heard = {place for place, reply in enumerate(replies) if is_known(reply)}
            self._take(replies)
            if covers(heard, striping):
                return self.last_add_confirmed
            if asyncio.get_running_loop().time() + AGAIN_S >= deadline:
                raise Unreachable(
                    f"only {len(heard)} of {len(nodes)} nodes said how far ledger "
                    f"{self.ledger_id} is confirmed"
                )
            await asyncio.sleep(AGAIN_S)

    async def try_read_last_add_confirmed(self) -> int:
        """As `read_last_add_confirmed`, from the answers that came: the result may be too low."""
        self._cluster.check_open()
        replies = await ask_together(
            self._ask_lac(node, 0.0) for node in self.metadata.newest.nodes
        )
        self._take(replies)
        return self.last_add_confirmed

    async def wait_confirmed(self, above: int, *, timeout_s: float) -> int:
        """Wait until an entry above `above` is confirmed or the ledger is closed, at most this
        long.

        Returns:
            The last confirmed entry, which is not above `above` if none came in time.
        Raises:
            UnknownLedger: it was deleted.
            Unreachable, Overloaded: the metadata store did not answer.
        """
        self._cluster.check_open()
        loop = asyncio.get_running_loop()
        left_s = timeout_s
        while self.last_add_confirmed <= above and not self.is_closed and left_s >= 0:
            began = loop.time()
            # Confirmed entries may be on other nodes by now; only the metadata names these nodes.
            await self._wait_awhile(above, min(POLL_S, left_s))
            left_s -= max(loop.time() - began, AGAIN_S)
        return self.last_add_confirmed

    async def _wait_more(self) -> None:
        """Wait for an entry that is not confirmed yet, or for the end, for a while."""
        await self.wait_confirmed(self.last_add_confirmed, timeout_s=POLL_S)

    async def _wait_awhile(self, above: int, timeout_s: float) -> None:
        """Wait for a higher LAC from the nodes of the newest known fragment, then read the metadata
        again."""
        loop = asyncio.get_running_loop()
        began = loop.time()

        def is_higher(reply: LacReply | None) -> bool:
            self._take([reply])
            return self.last_add_confirmed > above

        asked = (self._ask_lac(n, timeout_s, above) for n in self.metadata.newest.nodes)
        await wait_for_news(asked, is_higher, timeout_s=timeout_s + READ_S)
        if self.last_add_confirmed > above:
            return
        await self.refresh()
        if not self.is_closed:
            # Fenced nodes answer at once, and calls to nodes that are down fail at once.
            await asyncio.sleep(max(0.0, began + min(AGAIN_S, timeout_s) - loop.time()))

    async def _ask_lac(self, node: int, wait_s: float, above: int = NO_ENTRY) -> LacReply | None:
        call = AskLac(self.ledger_id, self._key, above=above, wait_ms=round(wait_s * 1000))
        try:
            reply = await ask_node(self._cluster, node, call, timeout_s=wait_s + READ_S)
        except AccessDenied:
            raise
        except CordwoodError as error:
            logger.debug("node %d does not say a LAC: %s", node, error)
            return None
        assert isinstance(reply, LacReply), "AskLac is answered so"
        return reply

    def _take(self, replies: Sequence[LacReply | None]) -> None:
        for reply in replies:
            if reply is not None:
                self._raise_to(reply.lac)

    def _raise_to(self, lac: int) -> None:
        if not self.is_closed:
            self.last_add_confirmed = max(self.last_add_confirmed, lac)

    def _raise_to_settled(self) -> None:
        """Count the entries of settled fragments as confirmed: they were acknowledged, whether or
        not a node has told a LAC."""
        self._raise_to(self.metadata.settled_last)

    # Nodes.

    def _orders(self, entries: Iterable[int]) -> dict[int, list[int]]:
        """For each entry, the nodes to ask, in this order: nodes that failed lately come last."""
        metadata = self.metadata
        striping = metadata.striping
        every = tuple(range(striping.ensemble))
        # Thousands of entries have few different orders: one for each write set.
        known: dict[tuple[int, ...], list[int]] = {}
        orders = {}
        for entry in entries:
            nodes = metadata.nodes_at(entry)
            if striping.write == striping.ensemble:
                turn = (entry // SAME_NODE) % striping.write
                places = every[turn:] + every[:turn]
            else:
                places = write_set(entry, striping)
            asked = tuple(nodes[place] for place in places)
            if asked not in known:
                known[asked] = read_order(asked, self._rank)
            orders[entry] = known[asked].copy()
        return orders

    def _rank(self, node: int) -> tuple[Rank, int]:
        cluster = self._cluster
        member = cluster.members.get(NodeId(node))
        failures = self._slow.get(node, 0)
        if member is None or node in cluster.dead:
            return Rank.GONE, failures
        if node not in cluster.peers.up:
            return Rank.AWAY, failures
        if member.read_only:
            return Rank.READ_ONLY, failures
        return Rank.SLOW if failures else Rank.HEALTHY, failures

    def _note_slow(self, node: int) -> None:
        self._slow[node] = self._slow.get(node, 0) + 1

    async def _ask_entries(self, node: int, entries: Sequence[int]) -> EntriesReply | None:
        """Ask a node for entries. Returns None if it does not answer."""
        call = ReadEntries(self.ledger_id, self._key, list(entries))
        try:
            reply = await ask_node(self._cluster, node, call, timeout_s=READ_S)
        except Retryable as error:
            logger.debug("node %d does not read ledger %d: %s", node, self.ledger_id, error)
            self._note_slow(node)
            return None
        assert isinstance(reply, EntriesReply), "ReadEntries is answered so"
        self._slow.pop(node, None)
        self._raise_to(reply.lac)
        return reply

    # Main storage.

    async def _from_objects(
        self, entries: Sequence[int], bytes_max: int, timeout_s: float
    ) -> list[EntryItem]:
        """Entries of a tiered ledger from main storage: all, or the first ones.

        Raises:
            CordwoodError: see `LedgerHistory.entries`.
        """
        if self._history is None:
            # Kept open: the manifest of a tiered ledger never changes.
            self._history = LedgerHistory(await self._objects(), self._host, self.metadata)
        return await self._history.entries(entries, bytes_max, timeout_s=timeout_s)

    def _open_entry(self, copy: EntryItem) -> LedgerEntry:
        """The entry of a copy. Raises ChecksumMismatch if it is damaged."""
        payload = self._seal.read(copy.entry, copy.lac, copy.length, copy.body)
        return LedgerEntry(self.ledger_id, copy.entry, payload, copy.length)


def _next_step(step: int, count: int, asked: int) -> int:
    """The number of entries to ask for next, after `count` of the requested entries came."""
    return min(ENTRIES_AT_ONCE, 2 * step) if count == asked else count
