"""`await cordwood.aio.connect(url)`: a cluster's URL, or a directory for the embedded store."""

from __future__ import annotations

import os

from cordwood import embedded
from cordwood.client import aio
from cordwood.client.address import SCHEME
from cordwood.client.store import Store
from cordwood.settings import ClientSettings

__all__ = ["ClientSettings", "Store", "connect"]


async def connect(url: str | os.PathLike[str], settings: ClientSettings | None = None) -> Store:
    """Connect to a cluster, or open a directory in this process.

    Args:
        url: `cordwood://host:port,…`, or the path of a directory, made if it is not there.
        settings: see `settings.ClientSettings`.
    Raises:
        Unreachable: no node answered; the text says how to start one.
        StoreInUse: another process has the directory open.
        BadSetting: the URL or the directory is not one.
    """
    text = os.fspath(url)
    if text.startswith(SCHEME):
        return await aio.connect(text, settings)
    return await embedded.connect(text, settings)
