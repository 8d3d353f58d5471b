"""An embedded store for tests: with a WAL that is quickly made, and short deadlines."""

from __future__ import annotations

from pathlib import Path

from cordwood.client.aio import open_store
from cordwood.client.blocking.blocking_store import BlockingStore, open_blocking
from cordwood.embedded import embedded_store
from cordwood.settings import MIB, ClientSettings

SETTINGS = ClientSettings(timeout_s=10.0)


def open_at(directory: Path) -> BlockingStore:
    """Open the embedded store of a directory, as `cordwood.connect` does."""
    return open_blocking(
        lambda: open_store(embedded_store(str(directory), SETTINGS, 8 * MIB)), SETTINGS
    )
