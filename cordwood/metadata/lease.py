"""Leases on a store that cannot notice the death of its users: entries with an end time.

A holder writes the time at which its lease ends. Others take the lease over when that time has
passed by the clock. Clocks that disagree make a lease longer or shorter; this is safe, because
leases are hints. A time further ahead than the longest lease (a clock was set back) counts as past.
A holder that drops its lease removes the entry. If an earlier write of the entry had no answer and
comes only then, the lease is there again and ends after its time.

Source: docs/design.md §6 ("ephemerals are leases").
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cordwood.errors import OutcomeUnknown, Overloaded, Unreachable
from cordwood.layout.json_text import read_json
from cordwood.metadata.change import RACES_MAX, UNKNOWN_MAX, change_repeatably
from cordwood.metadata.pages import pages
from cordwood.metadata.store import LEASE_TTL_MAX_S, MetadataStore, check_lease, check_prefix

HOLDER_BYTES = 8

_PREFIX = "leases/"


class _Lease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`leases/<key>`; `until_us` of the clock that its holders share."""

    holder: str
    until_us: int
    value: bytes


class EntryLeases:
    """The leases of one user of a store; `MetadataStore` describes the methods.

    Args:
        now_us: the clock that all users of the store share, in µs.
        draw: gives that number of random bytes; called once, for the holder's name.
    """

    def __init__(
        self, store: MetadataStore, now_us: Callable[[], int], draw: Callable[[int], bytes]
    ) -> None:
        self._store = store
        self._now_us = now_us
        self._draw = draw
        self._drawn = ""

    async def take(self, key: str, value: bytes, ttl_s: float) -> bool:
        """See `MetadataStore.take_lease`."""
        check_lease(key, value, ttl_s)

        def decide(found: bytes | None) -> bytes | None:
            if found is not None:
                lease = _decode(key, found)
                if lease.holder != self._holder and self._is_in_force(lease):
                    return None
            until_us = self._now_us() + round(ttl_s * 1e6)
            return msgspec.json.encode(_Lease(self._holder, until_us, value))

        stored = await change_repeatably(self._store, _PREFIX + key, decide)
        assert stored is not None, "a free lease is taken"
        return _decode(key, stored).holder == self._holder

    async def drop(self, key: str) -> None:
        """See `MetadataStore.drop_lease`."""
        check_lease(key, b"", 1)
        unknowns = 0
        for _ in range(RACES_MAX):
            found = await self._store.get(_PREFIX + key)
            if found is None or _decode(key, found.value).holder != self._holder:
                return
            try:
                # Number: every log and ledger that ever had work had a lease, so an entry that
                # says that it has ended must not stay.
                if await self._store.compare_and_set(_PREFIX + key, None, found.version):
                    return
            except OutcomeUnknown as error:
                unknowns += 1
                if unknowns == UNKNOWN_MAX:
                    raise Unreachable(f"{error}; it may be asked again") from error
        raise Overloaded(f"lease {key}: {RACES_MAX} other writers in a row came first")

    async def all(self, prefix: str) -> list[tuple[str, bytes]]:
        """See `MetadataStore.leases`."""
        check_prefix(prefix)
        leases: list[tuple[str, bytes]] = []
        # In pages: leases whose holders died stay as entries, and so do those that earlier versions
        # ended.
        async for page in pages(self._store, _PREFIX + prefix):
            for key, found in page:
                lease = _decode(key, found.value)
                if self._is_in_force(lease):
                    leases.append((key.removeprefix(_PREFIX), lease.value))
        return leases

    @property
    def _holder(self) -> str:
        if not self._drawn:
            self._drawn = self._draw(HOLDER_BYTES).hex()
        return self._drawn

    def _is_in_force(self, lease: _Lease) -> bool:
        now_us = self._now_us()
        return now_us < lease.until_us <= now_us + LEASE_TTL_MAX_S * 1e6


def _decode(key: str, value: bytes) -> _Lease:
    return read_json(value, _Lease, f"the lease {key}")
