"""A real ZooKeeper server on loopback, for tests: Debian's, without its service.

The server keeps its data in a directory of its own and dies with the block. Where there is
none on this machine, tests skip, or fail if CORDWOOD_REQUIRE lists `zookeeper`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

JAR = Path("/usr/share/java/zookeeper.jar")
"""Debian's; its manifest leads to what it needs."""

TICK_MS = 200
"""A tenth of the usual, so that sessions of half a second are granted and end as quickly."""

READY_S = 30.0

SETTINGS = """\
dataDir={directory}/data
clientPort={port}
clientPortAddress=127.0.0.1
tickTime={tick}
admin.enableServer=false
maxClientCnxns=0
"""

JAVA = (
    "java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
    # The tests' own disk may be slow, and no power is cut here.
    "-Dzookeeper.forceSync=no",
    "-cp", str(JAR), "org.apache.zookeeper.server.quorum.QuorumPeerMain",
)  # fmt: skip


def want_of_zookeeper() -> str:
    """Why no server can be started here, "" if one can."""
    if not JAR.exists():
        return f"{JAR} is not there (apt install zookeeper)"
    return "" if shutil.which("java") else "there is no java on PATH"


class ZooKeeperServer:
    """One server, which may be killed, stopped and started again on its data."""

    def __init__(self, directory: Path) -> None:
        self.port = _free_port()
        self._settings = directory / "zoo.cfg"
        self._settings.write_text(
            SETTINGS.format(directory=directory, port=self.port, tick=TICK_MS)
        )
        self._log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [*JAVA, str(self._settings)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + READY_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"ZooKeeper did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                probe.settimeout(1)
                probe.sendall(b"srvr")
                return b"Mode: standalone" in probe.recv(4096)
        except OSError:
            return False

    def stop(self) -> None:
        """SIGSTOP it, and wait until all its threads stand still: until then they answer."""
        assert self._process is not None, "it was started"
        self._process.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self._process.pid}/task")
        until = time.monotonic() + READY_S
        while {_state_of(each) for each in threads.iterdir()} - {"T", ""}:
            assert time.monotonic() < until, "it was sent SIGSTOP and does not stand still"
            time.sleep(0.005)

    def go_on(self) -> None:
        """SIGCONT it."""
        assert self._process is not None, "it was started"
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL it, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def zookeeper_server(directory: Path) -> Iterator[ZooKeeperServer]:
    """A server that runs for the length of the block."""
    os.makedirs(directory, exist_ok=True)
    server = ZooKeeperServer(directory)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _state_of(thread: Path) -> str:
    """The letter of proc(5), "" of a thread that is gone."""
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
