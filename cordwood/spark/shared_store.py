"""One client for each cluster in a Spark worker process, and one for each object store.

Spark forks its Python workers and uses them again for later tasks and batches, so a
connected client pays for many. Threads and event loops do not survive a fork: a client belongs to
the process that made it. A child leaves an inherited client alone, because even closing it would
disturb the parent's sockets.

Source: docs/sources/spark.md §2 ("module globals survive").
"""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cordwood.client.blocking.blocking_history import BlockingHistory
    from cordwood.client.blocking.blocking_store import BlockingStore
    from cordwood.settings import ClientSettings

STORES_MAX = 8
"""Clusters that one worker stays connected to; beyond it the oldest is closed."""

_Key = tuple[int, str, "ClientSettings"]
_stores: dict[_Key, BlockingStore] = {}
_histories: dict[tuple[int, str], BlockingHistory] = {}
"""By process and address."""


def shared_store(
    servers: str, timeout_s: float, settings: ClientSettings | None = None
) -> BlockingStore:
    """This process's client of a cluster, connected.

    Args:
        timeout_s: of its calls.
        settings: all of them, in place of the timeout alone.
    Raises:
        Unreachable: no node answered; the text says how to start one.
    """
    # Most of a query's Python processes check options and never connect: see `source`.
    from cordwood.client.blocking.blocking_store import connect
    from cordwood.settings import ClientSettings

    settings = settings or ClientSettings(timeout_s=timeout_s)
    key = (os.getpid(), servers, settings)
    store = _stores.pop(key, None)
    if store is None or store.is_closed:
        store = connect(servers, settings)
    _stores[key] = store
    ours = _ours()
    if len(ours) > STORES_MAX:
        _stores.pop(ours[0]).close()
    return store


def shared_history(address: str) -> BlockingHistory:
    """This process's way to an object store, opened.

    Raises:
        BadSetting: it is no store that opens here.
    """
    from cordwood.client.blocking.blocking_history import BlockingHistory

    key = (os.getpid(), address)
    found = _histories.pop(key, None) or BlockingHistory(address)
    _histories[key] = found
    ours = _our_histories()
    if len(ours) > STORES_MAX:
        _histories.pop(ours[0]).close()
    return found


def _our_histories() -> list[tuple[int, str]]:
    return [key for key in _histories if key[0] == os.getpid()]


def _ours() -> list[_Key]:
    """The stores of this process, the least recently used first."""
    return [key for key in _stores if key[0] == os.getpid()]


@atexit.register
def _close_ours() -> None:
    for key in _ours():
        _stores.pop(key).close()
    for each in _our_histories():
        _histories.pop(each).close()
