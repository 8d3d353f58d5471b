"""Ledgers in the metadata store: one value each, changed by compare-and-set.

A value is `ledgers/<key>` or `long-ledgers/<key>`, see `layout.ledger_metadata` for the key. Small
and large ids lie apart, so that a listing comes in the order of ids.

A node takes ids by the hundred, so that most ledgers are made without a change of the counter. A
caller may have chosen one of these ids itself: the node then tries its next id.

An id is never used again. Nodes keep entries, fences and tombstones by it, so a ledger of the same
id would have entries that no writer added to it. `deleted-ledgers/<key of a page>` has a bit for
each id of the page that was deleted, which is set before the value goes.

Source: docs/protocol/ledgers.md; docs/sources/bookkeeper.md (a).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from msgspec.structs import replace

from cordwood.errors import (
    BadSetting,
    Corrupt,
    LedgerExists,
    Malformed,
    OutcomeUnknown,
    Overloaded,
    Rejected,
    Unreachable,
)
from cordwood.layout.ledger_metadata import (
    CREATED_BYTES_MAX,
    SHORT_IDS,
    ledger_key,
    pack_ledger,
    read_ledger,
    read_ledger_key,
)
from cordwood.layout.message import DoneReply
from cordwood.layout.message_ledgers import (
    LEDGERS_MAX,
    AllotLedgerId,
    AskLedger,
    CreateLedger,
    DeleteLedger,
    LedgerIdReply,
    LedgerMetadataCall,
    LedgerReply,
    LedgersReply,
    ListLedgers,
    SetLedger,
)
from cordwood.ledger import LEDGER_MAX, LedgerMetadata, LedgerState, Versioned, may_follow
from cordwood.metadata.change import change_repeatably
from cordwood.metadata.ledger_pages import ledger_page
from cordwood.metadata.store import MetadataStore

logger = logging.getLogger(__name__)

_SHORT = "ledgers/"
_LONG = "long-ledgers/"
_DELETED = "deleted-ledgers/"
_NEXT = "ledger-ids"
_TIERS = "ledgers-in-main-storage"
"""This key exists once a ledger asked for main storage. From then on nodes look after the objects
of ledgers, also when all ledgers that asked are deleted."""

IDS_AT_ONCE = 100
"""Ids that a node takes at a time. The rest of them when it ends is never used."""

IDS_OF_A_PAGE = 1024
"""The number of ids in one value of deletions, which has a bit for each id: 128 bytes."""

TRIES_MAX = 64
"""The most ids in a row that clients chose before."""


class LedgerMetadataStore:
    """See the module.

    Every call may also raise Unreachable or Overloaded (ask again), and Malformed or
    ChecksumMismatch (the stored value cannot be read, or a newer version wrote it).
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._ids = iter(range(0))
        self._taking_ids = asyncio.Lock()
        self._tiers = False
        self._unreadable: set[int] = set()

    async def answer(
        self, call: LedgerMetadataCall
    ) -> LedgerReply | LedgerIdReply | LedgersReply | DoneReply:
        """Execute a client's call.

        Raises:
            CordwoodError: see the calls below.
        """
        match call:
            case AskLedger():
                return _reply(await self.get(call.ledger))
            case AllotLedgerId():
                return LedgerIdReply(await self.allot())
            case CreateLedger():
                made = await self.create(call.ledger, read_ledger(call.value))
                return _reply(made, is_written=True)
            case SetLedger():
                return await self._set(call)
            case DeleteLedger():
                await self.delete(call.ledger)
                return DoneReply()
            case ListLedgers():
                return LedgersReply(await self.page(call.after, call.limit))

    async def get(self, ledger: int) -> Versioned | None:
        """A ledger, None if it is not there."""
        found = await self._store.get(_key(ledger))
        if found is None:
            return None
        try:
            return Versioned(read_ledger(found.value), found.version)
        except Corrupt as error:
            raise type(error)(f"ledger {ledger}: {error}") from error

    async def get_if_readable(self, ledger: int) -> Versioned | None:
        """As `get`, for work on many ledgers, which one ledger must not stop: None also for a
        ledger whose value cannot be read. Such a ledger is logged once."""
        try:
            found = await self.get(ledger)
        except Corrupt as error:
            if ledger not in self._unreadable:
                self._unreadable.add(ledger)
                logger.warning("it is left out of repairs, checks and uploads: %s", error)
            return None
        self._unreadable.discard(ledger)
        return found

    async def create(self, ledger: int, metadata: LedgerMetadata) -> Versioned:
        """Make a ledger; with -1 the next free id is its own.

        With an id, a repeat by the same creator gets the ledger of the first call.

        Raises:
            LedgerExists: another ledger has the id, or had it and was deleted. Or the ledger is the
                creator's, but another client has begun to end it.
            BadSetting: a new ledger is open, has one fragment, and leaves room for its end.
        """
        if metadata.state is not LedgerState.OPEN or len(metadata.fragments) != 1:
            raise BadSetting("a ledger is made open and with one fragment")
        try:
            pack_ledger(metadata, CREATED_BYTES_MAX)
        except Malformed as error:
            raise BadSetting(f"no ledger is made so: {error}") from None
        if metadata.wants_tier:
            await self._note_main_storage()
        for _ in range(TRIES_MAX):
            chosen = await self.allot() if ledger < 0 else ledger
            try:
                return await self._create(replace(metadata, ledger=chosen))
            except LedgerExists:
                if ledger >= 0:
                    raise
        raise Overloaded(f"{TRIES_MAX} ids in a row are taken; ask again")

    async def _create(self, metadata: LedgerMetadata) -> Versioned:
        key = _key(metadata.ledger)
        try:
            version = await self._store.compare_and_set(key, pack_ledger(metadata), 0)
        except OutcomeUnknown:
            version = None
        found = Versioned(metadata, version) if version else await self.get(metadata.ledger)
        if found is None:
            raise Unreachable(f"ledger {metadata.ledger} may be made a little later; ask again")
        is_ours = bool(metadata.creator) and found.metadata.creator == metadata.creator
        if not version and not is_ours:  # otherwise an earlier try of the same call made it
            raise LedgerExists(f"there is a ledger {metadata.ledger} already")
        if found.metadata.state is not LedgerState.OPEN:
            # Race: after the first call, whose answer was lost. Nobody may write it any more.
            raise LedgerExists(
                f"another client ended ledger {metadata.ledger} before its creator knew of it"
            )
        # Race: asked after the write. A deletion that comes before it has told by now.
        if await self.was_deleted(metadata.ledger):
            await _delete(self._store, key)
            raise LedgerExists(
                f"there was a ledger {metadata.ledger}, which was deleted: no other one gets its id"
            )
        return found

    async def allot(self) -> int:
        """An id that no other call on any node gets, and that was not deleted, perhaps in vain. A
        client may have chosen it itself.

        Raises:
            BadSetting: all ids are used up.
            Unreachable, Overloaded: the metadata store did not answer; ask again.
        """
        # Race: calls that find no id left at the same time would each take a hundred, and the
        # counter would refuse most of them.
        async with self._taking_ids:
            while (found := next(self._ids, None)) is None:
                self._ids = iter(await self._not_deleted(await self._take_ids()))
            return found

    async def _not_deleted(self, ids: range) -> list[int]:
        """The ids that no deletion has used up. Each would cost a creation a call."""
        pages: dict[str, bytes] = {}
        for key in {_deleted_key(each) for each in (ids[0], ids[-1])}:
            found = await self._store.get(key)
            pages[key] = bytes(IDS_OF_A_PAGE // 8) if found is None else found.value
        return [each for each in ids if not _is_marked(pages[_deleted_key(each)], each)]

    async def _take_ids(self) -> range:
        """The next ids of the counter, for this node alone."""
        taken = 0

        def take(value: bytes | None) -> bytes:
            nonlocal taken
            taken = int(value or b"0")
            if taken + IDS_AT_ONCE > LEDGER_MAX:
                raise BadSetting("all ids of ledgers are used up")
            return b"%d" % (taken + IDS_AT_ONCE)

        await change_repeatably(self._store, _NEXT, take)
        return range(taken, taken + IDS_AT_ONCE)

    async def _set(self, call: SetLedger) -> LedgerReply:
        """Replace a value, or return the present one.

        Raises:
            Rejected: the new value cannot follow the old one.
        """
        after = read_ledger(call.value)
        if after.ledger != call.ledger:
            raise BadSetting(f"the value is of ledger {after.ledger}, and not {call.ledger}")
        found = await self.get(call.ledger)
        if found is None or found.version != call.version:
            return _reply(found)
        if not may_follow(found.metadata, after):
            raise Rejected(
                f"ledger {call.ledger} is {found.metadata.state} and cannot take the state that "
                "the call asks for"
            )
        if after.tier is not None:
            await self._note_main_storage()  # before main storage can have any object of it
        try:
            written = await self._store.compare_and_set(_key(call.ledger), call.value, call.version)
        except OutcomeUnknown as error:
            raise Unreachable(f"{error}; it may be asked again") from error
        if written:
            return LedgerReply(written, call.value, is_written=True)
        return _reply(await self.get(call.ledger))

    async def _note_main_storage(self) -> None:
        if not self._tiers:
            await change_repeatably(self._store, _TIERS, lambda value: None if value else b"1")
            self._tiers = True

    async def uses_main_storage(self) -> bool:
        """Whether a ledger ever asked for main storage."""
        self._tiers = self._tiers or await self._store.get(_TIERS) is not None
        return self._tiers

    async def delete(self, ledger: int) -> None:
        """Delete a ledger in any state; nodes find out and drop its entries.

        Race: the id is marked also if no ledger has it. A node that was stopped does this call
        late, and a creation without an answer may be written later.
        """

        def mark(value: bytes | None) -> bytes | None:
            marked = _marked(value, ledger)
            return None if marked == value else marked

        await change_repeatably(self._store, _deleted_key(ledger), mark)
        await _delete(self._store, _key(ledger))

    async def delete_again(self, known: set[int]) -> list[int]:
        """Delete again ledgers that are there and were deleted. Returns their ids.

        A deletion may have been cut short. Or the creator's first write came after the deletion,
        and its answer was lost.
        """
        after, again = "", []
        while keys := await self._store.keys_after(_DELETED, after, LEDGERS_MAX):
            for key in keys:
                first = read_ledger_key(key.removeprefix(_DELETED)) * IDS_OF_A_PAGE
                found = await self._store.get(key)
                if found is not None:
                    page = known.intersection(range(first, first + IDS_OF_A_PAGE))
                    again += sorted(each for each in page if _is_marked(found.value, each))
            after = keys[-1]
        for ledger in again:
            await _delete(self._store, _key(ledger))
        return again

    async def was_deleted(self, ledger: int) -> bool:
        """Whether a ledger of this id was deleted: the id is never used again."""
        found = await self._store.get(_deleted_key(ledger))
        return found is not None and _is_marked(found.value, ledger)

    async def page(self, after: int, limit: int) -> list[int]:
        """Ids above `after`, at most `limit` of them."""
        return await ledger_page(self._store, _SHORT, _LONG, after, limit)

    async def all(self) -> AsyncIterator[Versioned]:
        """Every ledger, by id; those that come or go meanwhile may be among them or not."""
        async for ledger in self._ids_of_all():
            if (found := await self.get(ledger)) is not None:
                yield found

    async def all_readable(self) -> AsyncIterator[Versioned]:
        """As `all`, without ledgers whose values cannot be read."""
        async for ledger in self._ids_of_all():
            if (found := await self.get_if_readable(ledger)) is not None:
                yield found

    async def _ids_of_all(self) -> AsyncIterator[int]:
        after = -1
        while page := await self.page(after, LEDGERS_MAX):
            for ledger in page:
                yield ledger
            after = page[-1]


async def _delete(store: MetadataStore, key: str) -> None:
    """Delete a key, if it is there."""
    for _ in range(TRIES_MAX):
        found = await store.get(key)
        if found is None:
            return
        try:
            if await store.compare_and_set(key, None, found.version):
                return
        except OutcomeUnknown:
            continue
    raise Overloaded(f"{key} changes all the time; ask again")


def _deleted_key(ledger: int) -> str:
    return _DELETED + ledger_key(ledger // IDS_OF_A_PAGE)


def _marked(value: bytes | None, ledger: int) -> bytes:
    """A page of deletions, with this ledger's added."""
    bits = bytearray(value or bytes(IDS_OF_A_PAGE // 8))
    at = ledger % IDS_OF_A_PAGE
    bits[at // 8] |= 1 << at % 8
    return bytes(bits)


def _is_marked(value: bytes, ledger: int) -> bool:
    at = ledger % IDS_OF_A_PAGE
    return bool(value[at // 8] >> at % 8 & 1)


def _key(ledger: int) -> str:
    return (_SHORT if ledger < SHORT_IDS else _LONG) + ledger_key(ledger)


def _reply(found: Versioned | None, *, is_written: bool = False) -> LedgerReply:
    if found is None:
        return LedgerReply(0, b"")
    return LedgerReply(found.version, pack_ledger(found.metadata), is_written)
