"""The embedded store: one node in this process, one copy, on a directory.

It is the same node as in clusters. The client talks to it over a network in memory, so nothing
behaves differently. Durability is that of one copy, on this disk. `store.serve()` opens it to other
processes of this machine, as Spark's executors are.

Source: docs/design.md §7, §11.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from cordwood.client.aio import open_store
from cordwood.client.blocking.blocking_store import BlockingStore, open_blocking
from cordwood.client.store import Store, connected
from cordwood.errors import BadSetting
from cordwood.host.at_end import close_at_end
from cordwood.host.collector import rare_collections
from cordwood.host.forked_child import check_databases
from cordwood.host.memory_network import MemoryNetwork
from cordwood.host.real import real_host
from cordwood.metadata.sqlite import SqliteMetadata
from cordwood.node import running_node
from cordwood.nodes import NodeId, Replication
from cordwood.settings import MIB, ClientSettings, NodeSettings, StorageSettings, TierSettings

ADDRESS = "embedded:1"

LOOPBACK = "127.0.0.1"
"""Where `serve` listens. Any other address needs protection that an embedded store lacks."""

CLUSTER_FILE = "cluster.json"
"""The file that a local cluster leaves in its directory."""

WAL_BYTES = 128 * MIB
"""Written once when the store is made: a tenth of a second, and small beside most data."""

SPARE_BYTES = 8 * MIB
"""For metadata and the first flushes; with less the store would be full as it begins."""


@asynccontextmanager
async def embedded_store(
    directory: str,
    settings: ClientSettings,
    wal_bytes: int = WAL_BYTES,
    storage: StorageSettings | None = None,
) -> AsyncIterator[Store]:
    """A durable single-node store for the length of the block.

    Args:
        wal_bytes: of its WAL, where `storage` does not say.
        storage: how it keeps its data.
    Raises:
        StoreInUse: another process has it open; the text names it.
        BadSetting: the path is a file, or a cluster's directory.
        Rejected: this process was forked from a process that had an embedded store open.
    """
    check_databases()
    # Loaded when a store is opened, as it takes a tenth of a second: `connect` may be given
    # a cluster's address, and never need it.
    from cordwood.storage.logs_db.rocks_logs import rocks_tables

    path = _check_directory(directory)
    _check_space(path, storage.wal_bytes if storage is not None else wal_bytes)
    async with AsyncExitStack() as exit_stack:
        real = await exit_stack.enter_async_context(real_host())
        network = MemoryNetwork()
        host = dataclasses.replace(real, network=network)
        await host.disk.make_dir(path)
        # Taken before anything is opened, so that a second process changes nothing.
        exit_stack.callback(host.disk.lock_dir(path, f"process {os.getpid()}").release)
        metadata = SqliteMetadata(os.path.join(path, "metadata.sqlite"), host)
        exit_stack.push_async_callback(metadata.close)
        node = NodeSettings(
            node=NodeId(1),
            directory=os.path.join(path, "node-1"),
            metadata="",
            listen=ADDRESS,
            default_replication=Replication(1, 1),
            create_logs=True,
            replicated_events=False,
            storage=storage or StorageSettings(wal_bytes),
            tier=TierSettings(os.path.join(path, "history")),
        )
        make = running_node(node, host, metadata, rocks_tables)
        running = await exit_stack.enter_async_context(make)
        store = await exit_stack.enter_async_context(connected((ADDRESS,), host, settings))

        async def serve(port: int) -> str:
            listener = await real.network.listen(
                f"{LOOPBACK}:{port}", lambda: network.accept(ADDRESS)
            )
            exit_stack.push_async_callback(listener.close)
            network.add_alias(ADDRESS, listener.address)
            await running.move(listener.address)
            return listener.address

        store.serve_with(serve)
        exit_stack.enter_context(rare_collections(settings.rare_collections))
        # A node does not work on without the threads that the interpreter's end takes from it.
        exit_stack.callback(close_at_end(store.close))
        yield store


def _check_directory(directory: str) -> str:
    path = os.path.abspath(directory)
    if os.path.exists(path) and not os.path.isdir(path):
        raise BadSetting(f"{directory} is a file; an embedded store is a directory")
    if os.path.exists(os.path.join(path, CLUSTER_FILE)):
        raise BadSetting(
            f"{directory} holds a local cluster: start it with `cordwood up` and connect to "
            "its cordwood:// address"
        )
    return path


def _check_space(path: str, wal_bytes: int) -> None:
    """Check that the WAL of a new store fits, before anything is made.

    Raises:
        BadSetting: it does not; the text names the ways out.
    """
    if os.path.exists(os.path.join(path, "node-1", "identity")):
        return
    at = path
    while not os.path.exists(at):
        at = os.path.dirname(at)
    free = shutil.disk_usage(at).free
    if free < wal_bytes + SPARE_BYTES:
        raise BadSetting(
            f"a WAL of {wal_bytes // MIB} MiB does not fit: {path} has {free // MIB} MiB free, and "
            f"{SPARE_BYTES // MIB} are for the rest. Give a smaller one "
            "(`cordwood.connect(directory, wal_mib=16)`), or a directory with more space"
        )


async def connect(
    directory: str, settings: ClientSettings | None = None, *, wal_mib: int | None = None
) -> Store:
    """Open an embedded store; see `embedded_store` for errors.

    Args:
        wal_mib: size of a new store's WAL, MiB; None for 128.
    """
    wal_bytes = WAL_BYTES if wal_mib is None else wal_mib * MIB
    return await open_store(embedded_store(directory, settings or ClientSettings(), wal_bytes))


def connect_blocking(
    directory: str, settings: ClientSettings | None = None, *, wal_mib: int | None = None
) -> BlockingStore:
    """Open an embedded store for callers without a loop; see `connect`."""
    chosen = settings or ClientSettings()
    return open_blocking(lambda: connect(directory, chosen, wal_mib=wal_mib), chosen)
