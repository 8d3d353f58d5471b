"""The count of changes to logs that were there already, and to directories.

It is written after each such change: nodes watch it, and nothing else of the log tree.

Source: docs/design.md §6.
"""

from __future__ import annotations

import msgspec

from cordwood.metadata.change import change_repeatably
from cordwood.metadata.log_entries import decode
from cordwood.metadata.store import MetadataStore

CHANGES_PREFIX = "log_changes/"
"""The key to watch for changes of existing logs."""

CHANGES_KEY = "log_changes/latest"


class _Changes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`log_changes/latest`."""

    count: int = 0


def changes_in(found: bytes | None) -> int:
    """The count in the entry as it was read."""
    return decode(found, _Changes, CHANGES_KEY).count if found else 0


def one_more(found: bytes | None) -> bytes:
    """The entry after one more change."""
    return msgspec.json.encode(_Changes(changes_in(found) + 1))


async def note_change(store: MetadataStore) -> None:
    """Tell watchers that a log or a directory changed."""
    await change_repeatably(store, CHANGES_KEY, one_more)


async def count_changes(store: MetadataStore) -> int:
    """The number of changes so far. One round trip."""
    found = await store.get(CHANGES_KEY)
    return changes_in(found.value if found else None)
