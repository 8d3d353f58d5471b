"""The requests for maintenance in the metadata store: one value, changed by its version.

Source: docs/protocol/maintenance.md; `cordwood.impact.maintenance`.
"""

from __future__ import annotations

import msgspec

from cordwood.impact.maintenance import MaintenanceSet
from cordwood.layout.json_text import read_json
from cordwood.metadata.change import change_repeatably
from cordwood.metadata.store import MetadataStore

_KEY = "maintenance"


def read_requests(value: bytes) -> MaintenanceSet:
    """The stored value.

    Raises:
        Malformed: it is none that this version writes.
    """
    return read_json(value, MaintenanceSet, "the requests for maintenance")


class MaintenanceStore:
    """See the module. Every call may raise Unreachable or Overloaded (ask again), and Malformed (a
    newer version wrote it)."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self) -> tuple[MaintenanceSet, int]:
        """The set, and the version to write over."""
        found = await self._store.get(_KEY)
        if found is None:
            return MaintenanceSet(), 0
        return read_requests(found.value), found.version

    async def write(self, after: MaintenanceSet, version: int) -> None:
        """Write the set over the version that was read.

        Raises:
            Fenced: the set was changed since, or a first try of this write had no answer and
                was done. Read it again.
        """
        wire = msgspec.json.encode(after)
        await change_repeatably(self._store, _KEY, lambda found: wire, version=version)
