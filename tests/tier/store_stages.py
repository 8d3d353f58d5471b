"""The object stores that the contract is held against, and how a test plays on each."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvloop

from cordwood.host.real import real_host
from cordwood.host.seams import Host
from cordwood.sim.host import Simulation
from cordwood.sim.object_store import Bucket
from cordwood.tier.local_store import open_local_store
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.obstore_store import ObstoreStore, open_obstore

Act = Callable[[ObjectStore, ObjectStore], Awaitable[None]]
"""What a test does, given two ways to one store: two nodes, or a node and a client."""

Play = Callable[[Act], None]

BUCKET = "history"
KEYS = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": "not-so-secret"}
STARTS_WITHIN_S = 60


def on_real_host(act: Callable[[Host], Awaitable[None]]) -> None:
    async def main() -> None:
        async with real_host(seed=1) as host, asyncio.timeout(60):
            await act(host)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def play_local(act: Act, path: Path) -> None:
    async def main(host: Host) -> None:
        one = await open_local_store(host, str(path / "objects"))
        await act(one, await open_local_store(host, str(path / "objects")))

    on_real_host(main)


def play_simulated(act: Act, seed: int) -> None:
    async def scenario(simulation: Simulation) -> None:
        bucket = Bucket(random.Random(seed))

        async def main(host: Host) -> None:
            await act(bucket.store(), bucket.store())

        await simulation.machine("node").start(main)

    simulation = Simulation(seed)
    simulation.run(scenario)
    assert simulation.loop.unhandled == []


def play_memory(act: Act) -> None:
    """The library's own store in memory: its errors are those of the others."""
    from obstore.store import MemoryStore

    store = MemoryStore()

    async def main(host: Host) -> None:
        await act(ObstoreStore(store, "memory://"), ObstoreStore(store, "memory://"))

    on_real_host(main)


def play_s3(act: Act, endpoint: str, prefix: str) -> None:
    options = {"endpoint": endpoint, "region": "us-east-1", **KEYS}
    url = f"s3://{BUCKET}/{prefix}"

    async def main(host: Host) -> None:
        await act(open_obstore(url, options), open_obstore(url, options))

    on_real_host(main)


OBSTORE = ("obstore", "pip install 'cordwood[s3]'")
MOTO = ("moto", "pip install 'moto[s3]' flask flask-cors")


def need(module: tuple[str, str], require: Callable[[str, str], object]) -> None:
    """Skip, or fail where it is required, for want of a module."""
    if importlib.util.find_spec(module[0]) is None:
        require(module[0], f"is not installed: {module[1]}")


def weed() -> str | None:
    """SeaweedFS's program, if it is installed."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


GRPC = 10_000
"""SeaweedFS listens on a second port, so much above each that it is given."""


def free_port() -> int:
    """A port that is free, and so is the one at GRPC above it."""
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(20_000, 32_000)
        with socket.socket() as low, socket.socket() as high, contextlib.suppress(OSError):
            low.bind(("127.0.0.1", port))
            high.bind(("127.0.0.1", port + GRPC))
            return port


@dataclass(frozen=True)
class S3Server:
    """A server with a bucket, that keeps its objects while it is down.

    Attributes:
        endpoint: its address. down, up: have it answer no more, and again.
    """

    endpoint: str
    down: Callable[[], None]
    up: Callable[[], None]


@contextlib.contextmanager
def moto_server() -> Iterator[S3Server]:
    """moto's S3, in this process. While it is down it takes no connections."""
    import boto3
    from moto.backends import get_backend
    from moto.server import ThreadedMotoServer

    # Its objects are the process's, and those of another test's server are there still.
    get_backend("s3").reset()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()

    def up() -> None:
        nonlocal server
        # Its objects are in this process and stay.
        server = ThreadedMotoServer(ip_address=host, port=port, verbose=False)
        server.start()

    try:
        client = boto3.client(
            "s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", **KEYS
        )
        client.create_bucket(Bucket=BUCKET)
        yield S3Server(f"http://{host}:{port}", lambda: server.stop(), up)
    finally:
        server.stop()


@contextlib.contextmanager
def seaweedfs_server(program: str, path: Path) -> Iterator[S3Server]:
    """SeaweedFS, as a process on loopback. While it is down it takes connections and is silent."""
    port = free_port()
    path.mkdir()
    ports = [f"-{role}.port={free_port()}" for role in ("master", "volume", "filer")]
    with (path / "log").open("wb") as log:
        process = subprocess.Popen(
            # Trap: its catalogs listen on fixed ports, and a second server would not start.
            [program, "server", "-s3", f"-s3.port={port}", "-ip=127.0.0.1", f"-dir={path}",
             "-s3.port.iceberg=0", "-s3.port.lance=0",
             "-volume.max=20", "-master.volumeSizeLimitMB=64", *ports],
            stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        endpoint = _with_bucket(f"http://127.0.0.1:{port}", process)
        yield S3Server(
            endpoint,
            lambda: process.send_signal(signal.SIGSTOP),
            lambda: process.send_signal(signal.SIGCONT),
        )
    finally:
        # Nobody needs its data any more, and an orderly end takes it 25 s.
        process.kill()
        process.wait(30)


def _with_bucket(endpoint: str, process: subprocess.Popen[bytes]) -> str:
    """Make the bucket, once the server takes calls."""
    import time

    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    config = Config(connect_timeout=2, read_timeout=5, retries={"max_attempts": 1})
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", config=config, **KEYS
    )
    end = time.monotonic() + STARTS_WITHIN_S
    while True:
        try:
            client.create_bucket(Bucket=BUCKET)
            return endpoint
        except (BotoCoreError, ClientError):
            assert process.poll() is None, "SeaweedFS did not start"
            assert time.monotonic() < end, f"SeaweedFS takes no calls within {STARTS_WITHIN_S} s"
            time.sleep(0.2)
