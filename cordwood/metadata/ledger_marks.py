"""Marks of ledgers that lack copies, and whether they are repaired, in the metadata store.

A mark is `ledger-marks/<key of the ledger>`. Marks merge: a new mark keeps the present mark's
nodes. A mark is removed only at the version at which its ledger was checked, so a mark that grew
meanwhile stays.

Source: docs/protocol/ledgers.md; docs/sources/bookkeeper.md (d).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from cordwood.errors import Fenced, OutcomeUnknown
from cordwood.layout.json_text import read_json
from cordwood.layout.ledger_metadata import SHORT_IDS, ledger_key
from cordwood.layout.message_ledgers import LEDGERS_MAX
from cordwood.metadata.change import change_repeatably
from cordwood.metadata.ledger_pages import ledger_page
from cordwood.metadata.store import MetadataStore
from cordwood.protocol.ledger_autorecovery import Mark, merged

_SHORT = "ledger-marks/"
_LONG = "long-ledger-marks/"
_SWITCH = "ledger-autorecovery"
_OFF = b"off"


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A mark's value; an unknown field is refused: a version without it would drop it."""

    nodes: tuple[int, ...]
    since_us: int
    short_from: int = -1
    gaps: tuple[int, ...] = ()
    strays: tuple[int, ...] = ()
    has_more: bool = False


class LedgerMarks:
    """See the module.

    Every call may raise Unreachable or Overloaded (ask again) and Malformed.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def add(self, mark: Mark, *, anew: bool = False) -> None:
        """Keep a mark, merged with the ledger's present mark.

        Args:
            anew: write the mark even if it is there already, so that a repair under way does not
                end it.
        """
        key = _key(mark.ledger)

        def merge(value: bytes | None) -> bytes | None:
            before = None if value is None else _read(key, value, mark.ledger)
            after = merged(before, mark)
            if anew:
                after = after._replace(since_us=mark.since_us)
            return None if after == before and not anew else _pack(after)

        await change_repeatably(self._store, key, merge)

    async def get(self, ledger: int) -> tuple[Mark, int] | None:
        """A ledger's mark and its version, None if it has none."""
        key = _key(ledger)
        found = await self._store.get(key)
        return None if found is None else (_read(key, found.value, ledger), found.version)

    async def finish(self, ledger: int, version: int) -> bool:
        """Remove a mark if it has this version. Returns whether it did."""
        try:
            return bool(await self._store.compare_and_set(_key(ledger), None, version))
        except OutcomeUnknown:
            return False  # the ledger is checked again

    async def forget_stray(self, ledger: int, node: int) -> None:
        """Note that a node has an empty disk: it cannot bring an entry back."""
        key = _key(ledger)

        def without(value: bytes | None) -> bytes | None:
            mark = None if value is None else _read(key, value, ledger)
            if mark is None or node not in mark.strays:
                return None
            left = tuple(each for each in mark.strays if each != node)
            return _pack(mark._replace(strays=left))

        await change_repeatably(self._store, key, without)

    async def replace(self, mark: Mark, version: int) -> int | None:
        """Write a mark if its ledger's mark has this version. Returns the new version; None if the
        mark changed meanwhile, or if the metadata store does not say whether it wrote."""
        try:
            return await self._store.compare_and_set(_key(mark.ledger), _pack(mark), version)
        except OutcomeUnknown:
            return None

    async def page(self, after: int, limit: int) -> list[int]:
        """Ledgers above `after` that have marks, rising, at most `limit` of them."""
        return await ledger_page(self._store, _SHORT, _LONG, after, limit)

    async def all(self) -> AsyncIterator[int]:
        """Every ledger that has a mark; those that come or go meanwhile may be among them."""
        after = -1
        while page := await self.page(after, LEDGERS_MAX):
            for ledger in page:
                yield ledger
            after = page[-1]

    async def is_on(self) -> bool:
        """Whether marked ledgers are repaired."""
        return (await self.switched())[0]

    async def switched(self) -> tuple[bool, int]:
        """Whether marked ledgers are repaired, and the version of the switch's entry: 0 if it was
        never switched. Each switch gives another version."""
        found = await self._store.get(_SWITCH)
        return (True, 0) if found is None else (found.value != _OFF, found.version)

    async def switch(self, *, on: bool, if_version: int | None = None) -> None:
        """Switch the repair of marked ledgers on or off.

        Args:
            if_version: the version of the entry when the order was given; None for any.
        Raises:
            Fenced: the entry has another version, and says the contrary.
        """
        wanted = b"on" if on else _OFF
        # Written also if it says so already: it must get another version. Otherwise a node that
        # carries out an earlier order to the contrary late would find the version that it names.
        try:
            await change_repeatably(self._store, _SWITCH, lambda _: wanted, version=if_version)
        except Fenced:
            # Another try of the order may have carried it out.
            await change_repeatably(self._store, _SWITCH, lambda found: _if_so(found, wanted))


def _if_so(found: bytes | None, wanted: bytes) -> bytes:
    if (found == _OFF) is not (wanted == _OFF):
        raise Fenced(
            "the auto-recovery of ledgers was switched by another order since this one was given: "
            "see how it is now (`cordwood ledgers autorecovery`) before you give the order again"
        )
    return wanted


def _key(ledger: int) -> str:
    return (_SHORT if ledger < SHORT_IDS else _LONG) + ledger_key(ledger)


def _pack(mark: Mark) -> bytes:
    return msgspec.json.encode(_Value(*mark[1:]))


def _read(key: str, value: bytes, ledger: int) -> Mark:
    found = read_json(value, _Value, key)
    return Mark(ledger, *msgspec.structs.astuple(found))
