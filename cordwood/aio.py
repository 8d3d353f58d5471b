"""`cordwood.aio.connect(url)`: a cluster's URL, or a directory for the embedded store."""

from __future__ import annotations

import os

from cordwood import embedded
from cordwood.client import aio
from cordwood.client.address import is_cluster
from cordwood.client.opening import Opening
from cordwood.client.store import Store
from cordwood.settings import ClientSettings

__all__ = ["ClientSettings", "Store", "connect"]


def connect(
    url: str | os.PathLike[str],
    settings: ClientSettings | None = None,
    *,
    wal_mib: int | None = None,
) -> Opening[Store]:
    """Connect to a cluster, or open a directory in this process.

    `async with connect(url) as store` closes the store at the end; `await connect(url)` leaves
    that to `Store.close`.

    Args:
        url: `cordwood://host:port,…`; or the directory of a local cluster that runs
            (`cordwood up`); or the directory of an embedded store, made if it is not there.
        settings: see `settings.ClientSettings`.
        wal_mib: how large the WAL of an embedded store is that this makes, MiB; None for 128. It
            never changes, and a cluster's nodes have their own (`cordwood up --wal-mib`).
    Raises:
        Unreachable: no node answered; the text says how to start one.
        StoreInUse: another process has the directory open.
        BadSetting: the URL has another scheme, or the directory is none.
    """

    async def opening() -> Store:
        text = resolve(url)
        if is_cluster(text):
            return await aio.connect(text, settings)
        return await embedded.connect(text, settings, wal_mib=wal_mib)

    return Opening(opening)


def resolve(url: str | os.PathLike[str]) -> str:
    """Turn a local cluster's directory into the cluster's address; return any other text unchanged.

    Raises:
        Unreachable: no cluster runs on that directory; the text says how to start it.
        BadSetting: `url` has another scheme than `cordwood://`.
    """
    text = os.fspath(url)
    if is_cluster(text) or not os.path.exists(os.path.join(text, embedded.CLUSTER_FILE)):
        return text
    # Loaded only here: a cluster of processes takes modules that a client never needs.
    from cordwood.local_cluster import find_address

    return find_address(text)
