"""Opens a log's manifest for readers, and checks once that the log in the store is the same log.

The address of a store may lead to objects of another cluster, where logs have the same numbers. So
the origin is compared before the head is believed. A reader asks for both at the same time: they
are two objects, and neither answer decides whether the other is asked for.

Source: docs/objects.md, "Names" and "Reading".
"""

from __future__ import annotations

import asyncio

from cordwood.host.seams import Host
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.origin import check_origin


class KnownLogs:
    """See the module; of one store, as long as its reader has it open.

    Args:
        store: patient.
    """

    def __init__(self, store: ObjectStore, host: Host) -> None:
        self._store = store
        self._host = host
        self._known: set[tuple[int, int]] = set()  # number and creation time of logs that are here

    async def manifest(self, log: int, made_us: int) -> LogManifest:
        """A log's manifest, read anew, of a store that is known to hold this very log.

        Args:
            made_us: when the log was made; 0 if that is not known.
        Raises:
            BadSetting: the store holds another cluster's log of this number.
            Corrupt: the stored objects are no origin, or no head, of this log.
            Retryable: the store does not answer.
        """
        manifest = LogManifest(self._store, log, self._host, "reader")
        # A log that was uploaded before there were origins has none, and is believed.
        if not made_us or (log, made_us) in self._known:
            await manifest.load()
            return manifest
        loading = asyncio.get_running_loop().create_task(manifest.load())
        try:
            # Trap: the origin decides first. An unreadable head of another cluster's log is no
            # damage of ours.
            if await check_origin(self._store, log, made_us):
                self._known.add((log, made_us))
            await loading
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
        return manifest
