"""A cluster of real processes on this machine.

One directory holds everything: `cluster.json` (the cluster's shape), `metadata.sqlite` (unless
the metadata store is elsewhere), `address` (where it listens, while it runs), and
`node-N/` for each node. Started again on the same directory it is the same cluster.

Source: docs/design.md §11.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from cordwood.client.address import SCHEME
from cordwood.durable import make_directories, open_private, write_whole
from cordwood.errors import BadSetting, Malformed, StoreInUse, Unreachable
from cordwood.host.process_log import turn_over
from cordwood.host.real_disk import RealDisk
from cordwood.host.seams import DirLock
from cordwood.layout.json_text import read_json
from cordwood.metadata.where import parse_zookeeper
from cordwood.node_process import encode_settings
from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.protocol.event_log import has_place
from cordwood.settings import MIB, NodeSettings, StorageSettings, TierSettings

logger = logging.getLogger(__name__)

CLUSTER_FILE = "cluster.json"
ADDRESS_FILE = "address"
USUAL_DIRECTORY = "./.cordwood"
"""Where `cordwood up` keeps a cluster unless it is told."""

PORT = 4440
NODE_MODULE = "cordwood.node_process"
READY_TIMEOUT_S = 30.0
"""A node is ready in a second; a large WAL to replay, or a busy machine, takes longer."""

STOP_TIMEOUT_S = 10.0
"""After SIGTERM; then it is killed, which loses nothing that was acknowledged."""


class ClusterShape(msgspec.Struct, frozen=True):
    """What a local cluster is made of; kept in `cluster.json`.

    Attributes:
        nodes, racks: nodes are spread over racks in turn.
        copies, copy_racks: default replication of new logs.
        wal_bytes: each node's ring.
        ports: one for each node, so that a restarted node is found where it was.
        metadata: `zookeeper://host:port,…/path`; "" is an SQLite file in the directory.
        tier_store: the address of main storage; "" is `history` in the directory.
        replicated_events: see `NodeSettings`. None lets `local_cluster` choose: on for a new
            cluster whose nodes can keep the event log, off for a directory whose file does not say
            it, because the events do not move back.
    """

    nodes: int = 5
    racks: int = 3
    copies: int = 3
    copy_racks: int = 2
    wal_bytes: int = 128 * MIB
    ports: tuple[int, ...] = ()
    metadata: str = ""
    tier_store: str = ""
    replicated_events: bool | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= 64:
            raise BadSetting(f"{self.nodes} nodes; a local cluster has 1 to 64")
        if not 1 <= self.racks <= self.nodes:
            raise BadSetting(f"{self.racks} racks; there are 1 to {self.nodes} for this many nodes")
        if self.copies > self.nodes or self.copy_racks > self.racks:
            raise BadSetting(
                f"{self.copies} copies over {self.copy_racks} racks do not fit on "
                f"{self.nodes} nodes in {self.racks} racks"
            )
        Replication(self.copies, self.copy_racks)
        if self.metadata:
            parse_zookeeper(self.metadata)

    @property
    def replication(self) -> Replication:
        """The default of new logs."""
        return Replication(self.copies, self.copy_racks)

    def rack(self, node: NodeId) -> str:
        """Where a node stands."""
        return f"rack{(node - 1) % self.racks + 1}"

    def keeps_event_log(self) -> bool:
        """Whether its nodes can keep the replicated event log (docs/protocol/event-log.md)."""
        numbers = map(NodeId, range(1, self.nodes + 1))
        members = tuple(Member(node, "", self.rack(node)) for node in numbers)
        return has_place(Nodeset(members), self.replication)


@dataclass(slots=True)
class LocalNode:
    """One node process.

    Attributes:
        process: None while it is not running.
        was_killed: it was sent SIGKILL, and may be on its way out.
    """

    node: NodeId
    address: str
    location: str
    directory: str
    process: asyncio.subprocess.Process | None = None
    was_killed: bool = False

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return self.process is not None and self.process.returncode is None


class Housing(Protocol):
    """Where nodes run if not beside one another on loopback."""

    def host(self, node: NodeId) -> str:
        """The address that a node listens on."""

    def command(self, node: NodeId) -> list[str]:
        """What goes before its command; it becomes the command, so that signals reach that."""


class LocalCluster:
    """See the module. Made by `local_cluster`.

    Attributes:
        failed: the errors of nodes that `start` left out.
    """

    def __init__(
        self,
        directory: str,
        shape: ClusterShape,
        housing: Housing | None = None,
        storage: StorageSettings | None = None,
        module: str = NODE_MODULE,
        logs: str = "",
        tier: TierSettings | None = None,
    ) -> None:
        self.directory = directory
        self.shape = shape
        self._housing = housing
        self._storage = replace(storage or StorageSettings(), wal_bytes=shape.wal_bytes)
        self._tier = replace(tier or TierSettings(), store=self.tier_store)
        self._module = module
        self._logs = logs
        self.failed: dict[NodeId, Unreachable] = {}
        self.nodes = {
            NodeId(number): LocalNode(
                NodeId(number),
                f"{self._host(NodeId(number))}:{shape.ports[number - 1]}",
                shape.rack(NodeId(number)),
                os.path.join(directory, f"node-{number}"),
            )
            for number in range(1, shape.nodes + 1)
        }

    def _host(self, node: NodeId) -> str:
        return "127.0.0.1" if self._housing is None else self._housing.host(node)

    @property
    def metadata(self) -> str:
        """Its metadata store: the path of an SQLite file, or where else it is."""
        return self.shape.metadata or os.path.join(self.directory, "metadata.sqlite")

    @property
    def tier_store(self) -> str:
        """Its main storage: a directory beside the nodes', or where else it is."""
        return self.shape.tier_store or os.path.abspath(os.path.join(self.directory, "history"))

    @property
    def url(self) -> str:
        """What to connect to."""
        return SCHEME + ",".join(node.address for node in self.nodes.values())

    async def start(self, *, without_failed: bool = False) -> None:
        """Start every node and wait until all are ready.

        Args:
            without_failed: whether nodes that do not start are left out, as long as one starts.
                `failed` has their errors.
        Raises:
            Unreachable: a node did not start; the text quotes its output.
        """
        async with asyncio.TaskGroup() as tasks:
            for node in self.nodes:
                tasks.create_task(self._start_one(node, without_failed=without_failed))
        if len(self.failed) == len(self.nodes):
            raise next(iter(self.failed.values()))
        self._write_address()

    async def _start_one(self, number: NodeId, *, without_failed: bool) -> None:
        try:
            await self.start_node(number)
        except Unreachable as error:
            if not without_failed:
                raise
            self.failed[number] = error

    async def start_node(self, number: NodeId) -> None:
        """Start one node and wait until it is ready.

        Raises:
            Unreachable: it did not start; the text quotes its output.
        """
        node = self.nodes[number]
        if node.is_running and node.was_killed:
            assert node.process is not None, "it runs"
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await node.process.wait()  # a kill is done a little later than sent
            except TimeoutError:
                raise Unreachable(f"node {number} was killed and does not end") from None
        assert not node.is_running, f"node {number} runs already"
        node.was_killed = False
        try:
            path, log = self._prepare_node(node)
        except OSError as error:
            # `cordwood nodes replace` puts another directory there just now, or the node's disk is
            # full or broken: the other nodes go on.
            raise Unreachable(f"node {number} cannot use its directory: {error}") from None
        before = [] if self._housing is None else self._housing.command(number)
        try:
            node.process = await asyncio.create_subprocess_exec(
                *before, sys.executable, "-m", self._module, path,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            # No process, memory or file is left, as when a node died for want of these: the others
            # go on, and it is tried again.
            raise Unreachable(f"node {number} has no process: {error}") from None
        finally:
            os.close(log)
        assert node.process.stdout is not None, "its standard output is a pipe"
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                line = await node.process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line.startswith(b"ready "):
            await self._stop(node, signal.SIGKILL)
            raise Unreachable(f"node {number} did not start: {self._last_words(node)}")

    def kill(self, number: NodeId) -> None:
        """SIGKILL a node, as a crash would."""
        self.send_signal(number, signal.SIGKILL)

    def send_signal(self, number: NodeId, what: signal.Signals) -> None:
        """Send a signal to a node that runs."""
        node = self.nodes[number]
        if node.process is not None and node.process.returncode is None:
            node.was_killed |= what is signal.SIGKILL
            node.process.send_signal(what)

    async def stop_node(self, number: NodeId) -> None:
        """Stop one node as an operator does; it says goodbye, and `start_node` starts it again."""
        await self._stop(self.nodes[number], signal.SIGTERM)

    async def stop(self) -> None:
        """Stop every node; nothing is left running."""
        self._remove_address()
        async with asyncio.TaskGroup() as tasks:
            for node in self.nodes.values():
                tasks.create_task(self._stop(node, signal.SIGTERM))

    async def _stop(self, node: LocalNode, what: signal.Signals) -> None:
        process = node.process
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(what)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            logger.warning("node %d did not stop and is killed", node.node)
            process.kill()
            await process.wait()
        if process.stdin is not None:
            process.stdin.close()
        node.process = None

    def _write_address(self) -> None:
        write_whole(os.path.join(self.directory, ADDRESS_FILE), f"{self.url}\n".encode("ascii"))

    def _remove_address(self) -> None:
        address = os.path.join(self.directory, ADDRESS_FILE)
        if os.path.exists(address):
            os.remove(address)

    def _prepare_node(self, node: LocalNode) -> tuple[str, int]:
        """Leave a node its settings; their path, and a descriptor of its log file."""
        path = os.path.join(node.directory, "settings.json")
        write_whole(path, encode_settings(self._settings(node)))
        log = open_private(self._log_path(node), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        turn_over(log)
        return path, log

    def _settings(self, node: LocalNode) -> NodeSettings:
        return NodeSettings(
            node=node.node,
            directory=node.directory,
            metadata=self.metadata,
            listen=node.address,
            location=node.location,
            default_replication=self.shape.replication,
            create_logs=True,
            replicated_events=bool(self.shape.replicated_events),
            storage=self._storage,
            tier=self._tier,
        )

    def _log_path(self, node: LocalNode) -> str:
        if self._logs:
            return os.path.join(self._logs, f"node-{node.node}.log")
        return os.path.join(node.directory, "log")

    def _last_words(self, node: LocalNode) -> str:
        path = self._log_path(node)
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError as error:
            # Race: another directory was put there since its settings were written.
            return f"its log cannot be read: {error}"
        return lines[-1] if lines else f"it said nothing (see {path})"


@asynccontextmanager
async def local_cluster(
    directory: str,
    shape: ClusterShape | None = None,
    *,
    port: int = 0,
    housing: Housing | None = None,
    storage: StorageSettings | None = None,
    module: str = NODE_MODULE,
    logs: str = "",
    tier: TierSettings | None = None,
    without_failed: bool = False,
) -> AsyncIterator[LocalCluster]:
    """A running cluster for the length of the block.

    Args:
        directory: made if it does not exist; a cluster in it is started again.
        shape: of a new cluster; None takes the existing shape, or the defaults.
        port: where the ports of a new cluster begin, if they are free; 0 takes any.
        housing: where its nodes run; None has them all on loopback.
        storage: of every node, but for `wal_bytes`, which the shape says.
        module: what a node's process runs.
        logs: a directory for what the nodes say; "" leaves it with each node's data.
        tier: of every node, but for `store`, which the shape says.
        without_failed: whether a cluster that is started again goes on without nodes that do not
            start, as long as one starts.
    Raises:
        StoreInUse: it is running already; the text says where.
        BadSetting: the directory holds another shape, or something else.
        Unreachable: a node did not start.
    """
    is_new = not _is_made(directory)
    path, lock, shape = _prepare(directory, shape, port)
    cluster = LocalCluster(path, shape, housing, storage, module, logs, tier)
    try:
        try:
            await cluster.start(without_failed=without_failed and not is_new)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        yield cluster
    finally:
        try:
            await cluster.stop()
        finally:
            lock.release()


def _is_made(directory: str) -> bool:
    """Whether a directory holds a cluster."""
    return os.path.exists(os.path.join(directory, CLUSTER_FILE))


def find_address(directory: str) -> str:
    """The URL of the cluster that runs on a directory.

    Raises:
        Unreachable: none does; the text says how to start one.
    """
    path = os.path.join(directory, ADDRESS_FILE)
    if not os.path.exists(path):
        is_usual = os.path.abspath(directory) == os.path.abspath(USUAL_DIRECTORY)
        option = "" if is_usual else f" --dir {directory}"
        raise Unreachable(
            f"no cluster runs on {directory}: start one with `cordwood up{option}`, or name one "
            "with --cluster cordwood://host:port"
        )
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def _prepare(
    directory: str, shape: ClusterShape | None, port: int
) -> tuple[str, DirLock, ClusterShape]:
    """Lock the directory; read the shape that is there, or leave one."""
    path = os.path.abspath(directory)
    make_directories(path)
    try:
        lock = RealDisk().lock_dir(path, f"process {os.getpid()}")
    except StoreInUse as error:
        raise StoreInUse(f"{error}. A cluster runs on it already; use `cordwood status`.") from None
    try:
        return path, lock, _read_or_make_shape(path, shape, port)
    except BaseException:
        lock.release()
        raise


def _read_or_make_shape(path: str, shape: ClusterShape | None, port: int) -> ClusterShape:
    file_path = os.path.join(path, CLUSTER_FILE)
    if os.path.exists(file_path):
        with open(file_path, "rb") as file:
            try:
                found = read_json(file.read(), ClusterShape, file_path)
            except Malformed as error:
                raise BadSetting(str(error)) from None
        if len(found.ports) != found.nodes:
            raise BadSetting(
                f"{file_path} names {len(found.ports)} ports for {found.nodes} nodes: bring back "
                "the file that `cordwood up` wrote, or give another --dir"
            )
        # A version before the field, or an operator, made it: no start moves its events unasked.
        found = _with_events(found, replicated=False)
        if shape is not None and not _is_asked_for(shape, found):
            events = "replicated" if found.replicated_events else "in the metadata store"
            raise BadSetting(
                f"{path} holds a cluster of another shape ({found.nodes} nodes, "
                f"{found.racks} racks, WAL {found.wal_bytes // MIB} MiB, metadata in "
                f"{found.metadata or 'SQLite'}, events {events}): leave the options out, or give "
                "another --dir"
            )
        return found
    if os.path.exists(os.path.join(path, "node-1", "identity")):
        raise BadSetting(f"{path} is an embedded store, not a cluster: give another --dir")
    chosen = shape or ClusterShape()
    chosen = msgspec.structs.replace(chosen, ports=_free_ports(chosen.nodes, port))
    chosen = _with_events(chosen, replicated=chosen.keeps_event_log())
    _check_space(path, chosen)
    write_whole(file_path, msgspec.json.encode(chosen))
    return chosen


def _is_asked_for(asked: ClusterShape, found: ClusterShape) -> bool:
    """Whether a cluster has the shape that is asked for, in all that the shape says."""
    asked = msgspec.structs.replace(asked, ports=found.ports)
    return _with_events(asked, replicated=bool(found.replicated_events)) == found


def _with_events(shape: ClusterShape, *, replicated: bool) -> ClusterShape:
    """A shape that says where its events are: as told, if it leaves this open."""
    if shape.replicated_events is not None:
        return shape
    return msgspec.structs.replace(shape, replicated_events=replicated)


def _check_space(path: str, shape: ClusterShape) -> None:
    needed = shape.nodes * shape.wal_bytes
    free = shutil.disk_usage(path).free
    if needed > free:
        raise BadSetting(
            f"{shape.nodes} WALs of {shape.wal_bytes // MIB} MiB do not fit: {path} has "
            f"{free // MIB} MiB free. Give a smaller --wal-mib or another --dir."
        )


def _free_ports(wanted: int, first: int) -> tuple[int, ...]:
    """Free loopback ports, from `first` on where they are free."""
    ports: list[int] = []
    held: list[socket.socket] = []
    candidate = first
    try:
        while len(ports) < wanted:
            probe = socket.socket()
            held.append(probe)
            try:
                probe.bind(("127.0.0.1", candidate if first else 0))
            except OSError:
                candidate += 1
                if candidate >= first + 200:
                    first = 0
                continue
            ports.append(probe.getsockname()[1])
            candidate += 1
    finally:
        for probe in held:
            probe.close()
    return tuple(ports)
