"""A node's way to main storage: opened when it is first needed, once for all roles."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cordwood.host.seams import Host
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.patient_store import PatientStore

OpenObjects = Callable[[Host, str], Awaitable[PatientStore]]

KeepOwner = Callable[[PatientStore], Awaitable[bool]]
"""Has a store say that it is this cluster's; see `tier.owner.keep_owner`."""


class ObjectsAtHand:
    """See the module.

    Args:
        address: of the store; "" for none.
        name: the uploader's name, for people reading heads.
        keep_owner: called when the store is opened, and until the store names its owner.
    """

    def __init__(
        self,
        host: Host,
        address: str,
        open_objects: OpenObjects,
        name: str,
        keep_owner: KeepOwner,
    ) -> None:
        self.address = address
        self.host = host
        self._open_objects = open_objects
        self.name = name
        self._opening = asyncio.Lock()
        self._store: PatientStore | None = None
        self._keep_owner = keep_owner
        self._is_ours: bool | None = None  # None before it was asked

    async def store(self) -> PatientStore:
        """The store.

        Raises:
            BadSetting: it cannot be opened, or is another cluster's.
            CordwoodError: it does not answer, or the metadata store does not.
        """
        async with self._opening:
            if self._store is None:
                self._store = await self._open_objects(self.host, self.address)
            if self._is_ours is None:
                self._is_ours = await self._keep_owner(self._store)
            return self._store

    async def is_ours(self) -> bool:
        """Whether the store names this cluster as its owner; an old store may not name an owner.

        Raises:
            CordwoodError: as `store`.
        """
        store = await self.store()
        if not self._is_ours:
            self._is_ours = await self._keep_owner(store)
        return self._is_ours

    async def manifest(self, log: int) -> LogManifest:
        """A log's manifest, not read yet."""
        return LogManifest(await self.store(), log, self.host, self.name)

    async def close(self) -> None:
        """Let the store go."""
        store, self._store = self._store, None
        if store is not None:
            await store.close()
