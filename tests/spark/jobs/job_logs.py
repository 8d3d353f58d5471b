"""Logs as the tests of jobs look at them."""

from __future__ import annotations

from cordwood.block import Record
from cordwood.client.blocking.blocking_store import BlockingStore


def appended(store: BlockingStore, log: str) -> dict[int, bytes]:
    """What a log holds: values by LSN."""
    with store.read(log) as reader:
        return {int(item.lsn): item.value for item in reader if isinstance(item, Record)}
