"""`cordwood.connect(url)`: as `cordwood.aio.connect`, for callers without a loop."""

from __future__ import annotations

import os

from cordwood import embedded
from cordwood.aio import resolve
from cordwood.client.address import is_cluster
from cordwood.client.blocking import blocking_store as blocking
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.settings import ClientSettings

__all__ = ["BlockingStore", "connect"]


def connect(
    url: str | os.PathLike[str],
    settings: ClientSettings | None = None,
    *,
    wal_mib: int | None = None,
) -> BlockingStore:
    """Connect to a cluster, or open a directory in this process; see `cordwood.aio.connect`."""
    text = resolve(url)
    if is_cluster(text):
        return blocking.connect(text, settings)
    return embedded.connect_blocking(text, settings, wal_mib=wal_mib)
