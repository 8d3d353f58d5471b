"""`cordwood.connect(url)`: as `cordwood.aio.connect`, for callers without a loop."""

from __future__ import annotations

import os

from cordwood import embedded
from cordwood.client import blocking
from cordwood.client.address import SCHEME
from cordwood.client.blocking import BlockingStore
from cordwood.settings import ClientSettings

__all__ = ["BlockingStore", "connect"]


def connect(url: str | os.PathLike[str], settings: ClientSettings | None = None) -> BlockingStore:
    """Connect to a cluster, or open a directory in this process; see `cordwood.aio.connect`."""
    text = os.fspath(url)
    if text.startswith(SCHEME):
        return blocking.connect(text, settings)
    return embedded.connect_blocking(text, settings)
