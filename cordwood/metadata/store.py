"""The metadata store's interface: versioned values and compare-and-set.

Everything that must be decided once is decided here: epochs, names, members. It is
off the append path, so it may be slow, but it must never be wrong.

Versions come from one counter of the whole store, so none ever returns, not even
after a delete: a compare-and-set can never succeed on a value that was replaced
and put back, or deleted and made again.

Watches and leases come with the failure detector and are hints; nothing here
needs them.

Source: design.md §6.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from cordwood.errors import BadSetting

KEY_BYTES_MAX = 512
"""A log's name (255 bytes) under a prefix, with room."""

VALUE_BYTES_MAX = 1 << 20
"""ZooKeeper's default limit, so that every backend can hold what any can."""

LIST_KEYS_MAX = 100_000
"""An answer that one process can hold; a store with more needs paging, not a longer list."""

DEADLINE_S = 5.0
"""Of one call: far above a synced write, far below what a person takes for an answer."""

# No part is "." or "..", which ZooKeeper refuses, and none looks like an option.
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_KEY = re.compile(rf"(?:{_PART}/)*{_PART}")
_PREFIX = re.compile(rf"(?:{_PART}/)*(?:{_PART})?")


@dataclass(frozen=True, slots=True)
class Versioned:
    """A value, and the version (at least 1) that it was written with."""

    value: bytes
    version: int


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

    async def close(self) -> None:
        """Let the store go; later calls raise Closed. Safe to call twice."""


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


def check_listed(prefix: str, count: int) -> None:
    """Refuse a listing of `count` keys if that is over LIST_KEYS_MAX.

    Raises:
        BadSetting: it is.
    """
    if count > LIST_KEYS_MAX:
        raise BadSetting(f"more than {LIST_KEYS_MAX} metadata keys begin with {prefix!r}")
