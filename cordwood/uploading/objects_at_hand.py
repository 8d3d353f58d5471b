"""A node's way to main storage: opened when it is first needed, once for all roles."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cordwood.host.seams import Host
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.patient_store import PatientStore

OpenObjects = Callable[[Host, str], Awaitable[PatientStore]]


class ObjectsAtHand:
    """See the module.

    Args:
        address: of the store; "" for none. name: the uploader's name, for people who read heads.
    """

    def __init__(self, host: Host, address: str, open_objects: OpenObjects, name: str) -> None:
        self.address = address
        self.host = host
        self._open_objects = open_objects
        self.name = name
        self._opening = asyncio.Lock()
        self._store: PatientStore | None = None

    async def store(self) -> PatientStore:
        """The store.

        Raises:
            BadSetting: it cannot be opened.
        """
        async with self._opening:
            if self._store is None:
                self._store = await self._open_objects(self.host, self.address)
            return self._store

    async def manifest(self, log: int) -> LogManifest:
        """A log's manifest, not read yet."""
        return LogManifest(await self.store(), log, self.host, self.name)

    async def close(self) -> None:
        """Let the store go."""
        store, self._store = self._store, None
        if store is not None:
            await store.close()
