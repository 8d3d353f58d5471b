"""The library `obstore` alone, as the reference for main storage: puts and gets of the same bytes.

The library's own store of a directory syncs nothing: what it puts is in the page cache only. So a
synced put syncs the file and the directory that names it, as `tier.local_store` does. A put without
that shows what the durability costs. In all other stores an answered put is durable by itself.

Source: docs/objects.md, "Reading".
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter
from typing import Any

from cordwood import durable
from cordwood.errors import BadSetting
from cordwood.host.seams import Host
from cordwood.tier.obstore_store import open_obstore
from cordwood.tier.uploader import PUT_S


class ObstoreAlone:
    """See the module.

    Args:
        store: a store of the library's.
        root: of a directory; None for another store.
    Attributes:
        is_directory: whether its puts have to be synced.
    """

    def __init__(self, store: Any, host: Host, root: Path | None) -> None:
        self.is_directory = root is not None
        self._store = store
        self._host = host
        self._root = root

    async def puts(self, sizes: list[int], *, is_synced: bool) -> float:
        """Seconds of puts, one after another, of random bytes of these sizes."""
        import obstore

        contents = [os.urandom(size) for size in sizes]
        below = "alone-synced" if is_synced else "alone"
        began = perf_counter()
        for number, content in enumerate(contents):
            name = f"{below}/{number}"
            await obstore.put_async(self._store, name, content)
            if is_synced and self._root is not None:
                await self._sync(self._root / name)
        return perf_counter() - began

    async def gets(self, names: list[tuple[str, int]]) -> float:
        """Seconds of gets, one after another, of whole objects."""
        import obstore

        began = perf_counter()
        for name, size in names:
            await obstore.get_range_async(self._store, name, start=0, end=size)
        return perf_counter() - began

    async def _sync(self, path: Path) -> None:
        def act() -> None:
            durable.sync_file(path)
            durable.sync_directory(path.parent)

        await self._host.run_blocking(act, timeout_s=PUT_S)


def open_alone(host: Host, address: str) -> ObstoreAlone:
    """Open a store with the library alone.

    Args:
        address: as for `tier.addresses.open_object_store`.
    Raises:
        BadSetting: the library is not installed, or the address is none.
    """
    scheme, separator, rest = address.partition("://")
    if separator and scheme != "file":
        return ObstoreAlone(open_obstore(address).library_store, host, None)
    try:
        from obstore.store import LocalStore
    except ImportError:
        raise BadSetting(
            "the reference is the library obstore alone: pip install 'cordwood[s3]'"
        ) from None
    root = Path(os.path.abspath(rest if separator else address))
    return ObstoreAlone(LocalStore(prefix=root, mkdir=True), host, root)
