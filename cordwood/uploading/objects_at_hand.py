"""A node's way to main storage: opened when it is first needed, once for all roles."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cordwood.errors import BadSetting
from cordwood.host.seams import Host
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.patient_store import PatientStore

OpenObjects = Callable[[Host, str], Awaitable[PatientStore]]

KeepOwner = Callable[[PatientStore, bool], Awaitable[bool]]
"""Has a store say that it is this cluster's, or did so before; see `tier.owner.OwnerMark.keep`."""


class ObjectsAtHand:
    """See the module.

    Args:
        address: of the store; "" for none.
        name: the uploader's name, for people reading heads.
        keep_owner: called when the store is opened, and before each look for objects to delete.
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
        self._has_named_us = False

    async def store(self) -> PatientStore:
        """The store.

        Raises:
            BadSetting: it cannot be opened, or is another cluster's, or names this cluster no more.
            CordwoodError: it does not answer, or the metadata store does not.
        """
        async with self._opening:
            if self._store is None:
                self._store = await self._open_objects(self.host, self.address)
            if self._is_ours is None:
                self._is_ours = await self._asked(self._store)
            return self._store

    async def is_ours(self) -> bool:
        """Whether the store names this cluster as its owner; an old store may not name an owner.

        Each call asks the store anew.

        Raises:
            BadSetting: it is another cluster's by now, or names nobody any more; `store` raises
                this too until it names this cluster again.
            CordwoodError: as `store`.
        """
        store = await self.store()
        try:
            # Race: the store was emptied while this node ran, and another cluster was set up over
            # it. By the first answer this node would delete that cluster's logs.
            self._is_ours = await self._asked(store)
        except BadSetting:
            self._is_ours = None
            raise
        return self._is_ours

    async def _asked(self, store: PatientStore) -> bool:
        # Trap: the mount point of a store that is unmounted looks like a new, empty store. Nodes
        # that marked it would move their records there, and let go of them. The note in the
        # metadata may be missing: they may have been put back from an older copy.
        is_ours = await self._keep_owner(store, self._has_named_us)
        self._has_named_us |= is_ours
        return is_ours

    async def check(self) -> None:
        """Ask a store anew that named this cluster before, or that was refused.

        A store without an owner is not asked: that takes a look at each log in it.

        Raises:
            BadSetting, CordwoodError: as `is_ours`.
        """
        if self._is_ours is not False:
            await self.is_ours()

    async def manifest(self, log: int) -> LogManifest:
        """A log's manifest, not read yet."""
        return LogManifest(await self.store(), log, self.host, self.name)

    async def close(self) -> None:
        """Let the store go."""
        store, self._store = self._store, None
        if store is not None:
            await store.close()
