"""Servers as child processes: started with a log file, awaited at a port, stopped in time."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from cordwood.errors import Unreachable

START_TIMEOUT_S = 90.0
"""The deadline of a start. Three JVMs that start on two cores take a quarter of it."""

STOP_TIMEOUT_S = 15.0
POLL_S = 0.1
VERSION_TIMEOUT_S = 30.0
LAST_BYTES = 2000


class Server:
    """One child, in a session of its own, so that its own children end with it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: str) -> None:
        self.name = name
        self.process = process
        self._log = log

    def check(self) -> None:
        """Raises: Unreachable: it has ended; the text quotes its output."""
        if self.process.returncode is not None:
            raise Unreachable(
                f"{self.name} ended with {self.process.returncode}: {self.last_words()}"
            )

    def last_words(self) -> str:
        """The end of its log."""
        return last_words(self._log)

    async def wait_port(self, port: int) -> None:
        """Wait until it listens.

        Raises:
            Unreachable: it ended, or START_TIMEOUT_S passed.
        """
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not await _listens(port):
                    self.check()
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise Unreachable(
                f"{self.name} does not listen on {port}: {self.last_words()}"
            ) from None

    async def stop(self) -> None:
        """Send SIGTERM, then SIGKILL, to it and to all its children."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self.process.wait()
        except TimeoutError:
            pass  # killed just below, with its children
        self._signal(signal.SIGKILL)
        await self.process.wait()

    def _signal(self, what: signal.Signals) -> None:
        try:
            os.killpg(self.process.pid, what)
        except ProcessLookupError:
            return  # all of them have ended


@asynccontextmanager
async def servers() -> AsyncIterator[list[Server]]:
    """A list for servers. All of them are stopped together at the end of the block."""
    running: list[Server] = []
    try:
        yield running
    finally:
        async with asyncio.TaskGroup() as tasks:
            for server in running:
                tasks.create_task(server.stop())


async def start(
    running: list[Server],
    name: str,
    command: Sequence[str],
    directory: str,
    environment: Mapping[str, str] | None = None,
) -> Server:
    """Start a child with its output in a file of the directory."""
    os.makedirs(directory, exist_ok=True)
    log = os.path.join(directory, f"{name}.log")
    output = open_log(log)
    try:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=directory, env={**os.environ, **(environment or {})},
            stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(output)
    server = Server(name, process, log)
    running.append(server)
    return server


def open_log(path: str) -> int:
    """A descriptor of a new file that a child writes to; the caller closes it."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)


def last_words(path: str) -> str:
    """The end of a log."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - LAST_BYTES))
        return file.read().decode(errors="replace").strip() or "it said nothing"


async def run_tool(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> str:
    """Run a command to its end. Returns its output.

    Raises:
        Unreachable: it failed, or took too long.
    """
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **(environment or {})}, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout_s):
            printed, _ = await process.communicate()
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise Unreachable(f"{command[0]} took over {timeout_s:g} s") from None
    text = printed.decode(errors="replace")
    if process.returncode != 0:
        raise Unreachable(f"{command[0]} failed: {text[-LAST_BYTES:]}")
    return text


def first_line(*command: str) -> str:
    """The version that a program prints, "?" if it prints none."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
    )
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else "?"


def free_ports(count: int) -> list[int]:
    """Free ports of loopback."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
