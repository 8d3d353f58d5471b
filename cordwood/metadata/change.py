"""Changes one entry of the metadata store: read, decide, compare-and-set, and again if another
write came first.

A change must be safe to decide and to write twice: after a write of unknown outcome, the entry is
read again and the change decided again from its present value. If the lost write arrives in
between, it takes the expected version. Then this write is refused, and the next try reads the lost
write's value.

Source: docs/sources/logdevice.md 2.1 (read-modify-write with an updater); docs/design.md §6.
"""

from __future__ import annotations

from collections.abc import Callable

from cordwood.errors import Fenced, OutcomeUnknown, Overloaded, Unreachable
from cordwood.metadata.store import MetadataStore, Versioned

RACES_MAX = 64
"""Lost races in a row. Each failed try is another caller's success. This many lost races at one
entry mean that a caller repeats a change endlessly."""

UNKNOWN_MAX = 3
"""Writes of unknown outcome in one change; each took a whole deadline of the store's."""

Decide = Callable[[bytes | None], bytes | None]
"""Takes the value found (None: not there), and returns the value to write (None: leave it)."""


Known = tuple[Versioned | None]
"""The entry as read, in a tuple, so that "nothing" differs from "not read"."""


async def change(
    store: MetadataStore,
    key: str,
    decide: Decide,
    known: Known | None = None,
    version: int | None = None,
) -> bytes | None:
    """Change the value of `key` to the result of `decide`.

    Args:
        decide: called once for each try; its error ends the change.
        known: the entry as the caller has just read it. This saves the first read.
        version: the only version to change, 0 for a missing entry; None for any.
    Returns:
        The value now stored, as written or as left; None if the entry is not there.
    Raises:
        Fenced: it has another version; a write of unknown outcome may have made it.
        Unreachable: the store did not answer; nothing was written.
        Overloaded: RACES_MAX others came first, or the store is full; nothing was written.
        OutcomeUnknown: the store does not say whether it wrote.
    """
    unknown: OutcomeUnknown | None = None
    races = unknowns = 0
    while races < RACES_MAX and unknowns < UNKNOWN_MAX:
        try:
            found, known = known[0] if known else await store.get(key), None
            if version is not None and version != (found.version if found else 0):
                raise Fenced(f"{key} was changed since it was looked at")
            wanted = decide(found.value if found else None)
            if wanted is None:
                return found.value if found else None
            if await store.compare_and_set(key, wanted, found.version if found else 0):
                return wanted
            races += 1
        except OutcomeUnknown as error:
            unknown, unknowns = error, unknowns + 1
        except (Unreachable, Overloaded) as error:
            # This try wrote nothing; an earlier try may have.
            if unknown is None:
                raise
            raise unknown from error
    raise unknown or Overloaded(f"{key}: {RACES_MAX} other writers in a row came first")


async def change_repeatably(
    store: MetadataStore,
    key: str,
    decide: Decide,
    known: Known | None = None,
    version: int | None = None,
) -> bytes | None:
    """As `change`, for a caller that may ask again after any outcome.

    Raises:
        Unreachable: the store did not answer; if it wrote all the same, no harm is done.
        Overloaded, Fenced: as `change`.
    """
    try:
        return await change(store, key, decide, known, version)
    except OutcomeUnknown as error:
        raise Unreachable(f"{error}; it may be asked again") from error
