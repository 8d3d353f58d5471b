"""The metadata store's interface: versioned values and compare-and-set.

Everything that must be decided once is decided here: epochs, names, members. It is
off the append path, so it may be slow, but it must never be wrong.

Versions come from one counter of the whole store, so none ever returns, not even
after a delete: a compare-and-set can never succeed on a value that was replaced
and put back, or deleted and made again.

Watches and leases are hints: a watcher reads the entries again, and two holders may have a lease
for a moment (a process that slept does not know that its lease ran out). Decisions that must be
right use compare-and-set.

Source: docs/design.md §6.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from cordwood.errors import BadSetting

KEY_BYTES_MAX = 512
"""The longest key: a log's name (255 bytes) under a prefix, with some space left."""

VALUE_BYTES_MAX = 1_000_000
"""The largest value. ZooKeeper takes requests under 1 MiB by default, with the path, and all
backends have the same bound."""

LIST_KEYS_MAX = 100_000
"""The most keys of one listing: an answer that fits into the memory of one process. A caller with
more keys must read pages."""

LEASE_BYTES_MAX = 1024
"""The holder, and its address."""

LEASE_TTL_MAX_S = 3600.0
"""The longest lease. A lease names the present holder of a task; lasting facts are entries."""

DEADLINE_S = 5.0
"""Deadline of one call: far above a synced write, far below a person's patience."""

# No part is "." or "..", which ZooKeeper refuses, and none looks like an option.
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_KEY = re.compile(rf"(?:{_PART}/)*{_PART}")
_PREFIX = re.compile(rf"(?:{_PART}/)*(?:{_PART})?")


Keys = list[str]

Leases = list[tuple[str, bytes]]
"""Keys and values; a class with a method `list` cannot write that itself."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """A value, and the version (at least 1) that it was written with."""

    value: bytes
    version: int


Page = list[tuple[str, Versioned]]
"""Keys, sorted, and their entries."""


class MetadataStore(Protocol):
    """A small, linearizable map. Every call has a deadline of its own."""

    async def get(self, key: str) -> Versioned | None:
        """The value of `key`, None if it is not there.

        Raises:
            Unreachable: the store did not answer.
            BadSetting: the key is wrong.
        """

    async def compare_and_set(self, key: str, value: bytes | None, expected: int) -> int | None:
        """Write `value` if the version of `key` is still `expected`.

        Args:
            value: None deletes.
            expected: a version that `get` or an earlier write told; 0 stands for "not there".
        Returns:
            A new version, never 0, or None if the version differed and nothing was written.
        Raises:
            Unreachable: nothing was written, and nothing will be.
            Overloaded: nothing was written: the disk or the store is full.
            OutcomeUnknown: it was written, or was not, or will be a little later.
            BadSetting: the key or value is wrong, or a delete expects nothing there.
        """

    async def list(self, prefix: str) -> list[tuple[str, Versioned]]:
        """Every key that begins with `prefix` (as text), sorted, as of one moment.

        Raises:
            Unreachable: the store did not answer.
            BadSetting: no key begins so, or more than LIST_KEYS_MAX do.
        """

    async def keys_after(self, prefix: str, after: str, limit: int) -> Keys:
        """The next keys that begin with `prefix`, without their values: sorted, at most `limit`.

        Keys that exist all the while are listed, however many pages a reader takes.

        Args:
            after: keys up to and including this key are skipped; "" skips none.
            limit: up to LIST_KEYS_MAX.
        Raises:
            Unreachable: the store did not answer.
            BadSetting: no key begins so, or the limit is out of range.
        """

    async def page(self, prefix: str, after: str, limit: int) -> Page:
        """As `keys_after`, with the entries. Each is of some moment during the call."""

    async def changed(self, prefix: str, seen: int | None, timeout_s: float) -> int:
        """Wait until something under `prefix` may have changed since `seen`.

        Ask for a mark first and read then: a change in between is reported the next time.

        Args:
            prefix: with at least one whole part: `nodes/`.
            seen: a mark that an earlier call returned; None returns one at once.
        Returns:
            A mark; it is `seen` if nothing changed in `timeout_s`.
        Raises:
            Unreachable: the store did not answer.
            BadSetting: no key begins so, or the prefix has no whole part.
        """

    async def take_lease(self, key: str, value: bytes, ttl_s: float) -> bool:
        """Take or renew a lease. Leases have keys of their own, apart from values'.

        Args:
            value: the information about the holder that `leases` returns, LEASE_BYTES_MAX at most.
            ttl_s: how long it lasts from now on, up to LEASE_TTL_MAX_S. On a backend that sees its
                holder live (ZooKeeper) it also ends soon after its holder.
        Returns:
            Whether this store holds it now; False if another store holds it.
        Raises:
            Unreachable: the store did not answer; it may be held.
            Overloaded: as for `compare_and_set`.
            BadSetting: a wrong key, value or time.
        """

    async def drop_lease(self, key: str) -> None:
        """End a lease, if this store holds it.

        Raises:
            Unreachable, Overloaded, BadSetting: as for `take_lease`. The lease ends after its time.
        """

    async def leases(self, prefix: str) -> Leases:
        """Leases in force whose keys begin with `prefix`, sorted, and their values.

        Raises:
            Unreachable, BadSetting: as for `list`.
        """

    async def close(self) -> None:
        """Close the store. Later calls raise Closed. Safe to call twice."""


def check_key(key: str) -> None:
    """Refuse a key that some backend could not hold.

    Raises:
        BadSetting: empty, over KEY_BYTES_MAX, or not made as keys are.
    """
    if len(key) > KEY_BYTES_MAX or not _KEY.fullmatch(key):
        raise BadSetting(
            f"{key[:64]!r} is no metadata key: parts of letters, digits, _ . - joined by single "
            f"slashes, {KEY_BYTES_MAX} bytes at most, no part beginning with . or -"
        )


def check_prefix(prefix: str) -> None:
    """Refuse a prefix that no key begins with; empty is every key.

    Raises:
        BadSetting: over KEY_BYTES_MAX, or not the beginning of a key.
    """
    if len(prefix) > KEY_BYTES_MAX or not _PREFIX.fullmatch(prefix):
        raise BadSetting(f"no metadata key begins with {prefix[:64]!r}")


def check_page(prefix: str, limit: int) -> None:
    """Refuse a page that no store should be asked for.

    Raises:
        BadSetting: no key begins so, or the limit is not 1 to LIST_KEYS_MAX.
    """
    check_prefix(prefix)
    if not 1 <= limit <= LIST_KEYS_MAX:
        raise BadSetting(f"a page of {limit} metadata keys; it has 1 to {LIST_KEYS_MAX}")


def check_write(key: str, value: bytes | None, expected: int) -> None:
    """Refuse a compare-and-set that no store should be asked.

    Raises:
        BadSetting: a wrong key, a value over VALUE_BYTES_MAX, an impossible version.
    """
    check_key(key)
    if value is not None and len(value) > VALUE_BYTES_MAX:
        raise BadSetting(
            f"the metadata value of {key} has {len(value)} bytes; the limit is {VALUE_BYTES_MAX}"
        )
    if expected < 0 or (value is None and expected == 0):
        raise BadSetting(f"{key} cannot be deleted or set expecting version {expected}")


def check_watched(prefix: str) -> str:
    """The first part of a prefix that may be watched.

    Raises:
        BadSetting: it has no whole part, or is not the beginning of a key.
    """
    check_prefix(prefix)
    first, slash, _ = prefix.partition("/")
    if not slash:
        raise BadSetting(f"{prefix!r} cannot be watched: name its first part whole, as in 'nodes/'")
    return first


def check_lease(key: str, value: bytes, ttl_s: float) -> None:
    """Refuse a lease that no store should be asked for.

    Raises:
        BadSetting: a wrong key, a value over LEASE_BYTES_MAX, a time out of its range.
    """
    check_key(key)
    if len(value) > LEASE_BYTES_MAX:
        raise BadSetting(f"lease {key} has {len(value)} bytes; the limit is {LEASE_BYTES_MAX}")
    if not 0 < ttl_s <= LEASE_TTL_MAX_S:
        raise BadSetting(f"lease {key} for {ttl_s} s; it goes up to {LEASE_TTL_MAX_S:g}")


def check_listed(prefix: str, count: int) -> None:
    """Refuse a listing of `count` keys if that is over LIST_KEYS_MAX.

    Raises:
        BadSetting: it is.
    """
    if count > LIST_KEYS_MAX:
        raise BadSetting(f"more than {LIST_KEYS_MAX} metadata keys begin with {prefix!r}")
