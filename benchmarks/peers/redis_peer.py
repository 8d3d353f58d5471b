"""Redis streams, one server, every write synced before its answer.

Source: Redis protocol (RESP2); Redis documentation on persistence (`appendfsync always`).
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from benchmarks.peers.light_client import CALL_TIMEOUT_S, LightClient, follow, read_seconds
from benchmarks.peers.peer import Peer, RunningPeer, Session, Variant
from benchmarks.peers.processes import first_line, free_ports, servers, start
from benchmarks.peers.workload import AppendLoad, AppendRun, Lag, TailLoad
from cordwood.errors import Unreachable

MEMORY_BYTES_MAX = 4 << 30

READ_BYTES = 1_000_000
READ_COUNT_MAX = 1_000
"""Entries of one XREAD; the server builds the whole answer in memory."""

BLOCK_MS = 20_000

VARIANT = Variant(
    "redis", "Redis stream", servers=1, copies=1, synced=True,
    durability="appended to the AOF and fsynced by 1 server (`appendfsync always`)",
    client="raw RESP on uvloop, XADD pipelined; reads by XREAD, at the tail with BLOCK",
    notes="one copy; the whole stream is in memory",
)  # fmt: skip


class RedisPeer(Peer):
    """See the module."""

    name = "redis"
    variants = (VARIANT,)

    def missing(self) -> str | None:
        found = shutil.which("redis-server")
        return None if found else "redis-server is not installed (apt-get install redis-server)"

    def version(self) -> str:
        found = re.search(r"v=([\w.]+)", first_line("redis-server", "--version"))
        return found[1] if found else "?"

    @asynccontextmanager
    async def running(self, directory: str) -> AsyncIterator[RunningPeer]:
        (port,) = free_ports(1)
        command = [
            "redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", directory,
            "--appendonly", "yes", "--appendfsync", "always", "--save", "",
            "--auto-aof-rewrite-percentage", "0", "--maxmemory", str(MEMORY_BYTES_MAX),
            "--maxmemory-policy", "noeviction",
        ]  # fmt: skip
        async with servers() as running:
            server = await start(running, "redis", command, directory)
            await server.wait_port(port)
            yield _Running(port)


class _Running(RunningPeer):
    def __init__(self, port: int) -> None:
        self._port = port

    @asynccontextmanager
    async def session(self, variant: Variant) -> AsyncIterator[Session]:
        loop = asyncio.get_running_loop()
        _, writer = await loop.create_connection(RedisConnection, "127.0.0.1", self._port)
        _, reader = await loop.create_connection(RedisReader, "127.0.0.1", self._port)
        try:
            session = RedisSession(writer, reader)
            await session.fresh()
            yield session
        finally:
            writer.close()
            reader.close()


class RedisSession(Session):
    """A connection that adds and one that reads."""

    def __init__(self, writer: RedisConnection, reader: RedisReader) -> None:
        self._writer = writer
        self._reader = reader
        self._numbers = count()

    async def fresh(self) -> None:
        await self._writer.ask(b"FLUSHALL", b"SYNC")
        self._writer.key = self._reader.key = f"s{next(self._numbers)}".encode()

    async def append(self, load: AppendLoad) -> AppendRun:
        return await self._writer.append(load)

    async def read(self, size: int, count: int) -> float:
        entries = max(1, min(READ_COUNT_MAX, READ_BYTES // size))
        return await read_seconds(
            self._reader, count, lambda: self._reader.begin(b"0-0", entries, count, block=False)
        )

    async def tail(self, load: TailLoad) -> Lag:
        # A missing stream has no last entry after which a reader could wait.
        self._reader.begin(b"0-0", READ_COUNT_MAX, load.ticks * load.batch, block=True)
        return await follow(self._reader, self._writer.send_records, load)


class RedisConnection(LightClient):
    """Writes XADDs and counts their answers, which are all bulk strings."""

    name = "Redis"

    def __init__(self) -> None:
        super().__init__()
        self.key = b""
        self._rest = b""
        self._answer: asyncio.Future[bytes] | None = None

    def data_received(self, data: bytes) -> None:
        data, at, answered = self._rest + data, 0, 0
        while (end := data.find(b"\r\n", at)) >= 0:
            if data[at] == ord("$"):
                stop = end + 2 + int(data[at + 1 : end])
                if len(data) < stop + 2:
                    break
                answered += 1
                at = stop + 2
                continue
            line = data[at:end]
            at = end + 2
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(line)
            else:
                self.fail(line.decode(errors="replace"))
        self._rest = data[at:]
        if answered:
            self.on_answered(answered)

    async def ask(self, *words: bytes) -> bytes:
        """A command whose answer is one line.

        Raises:
            Unreachable: no answer in time, or an error.
        """
        self._answer = self.loop.create_future()
        self.transport.write(resp(*words))
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                line = await self._answer
        except TimeoutError:
            raise Unreachable(f"Redis did not answer {words[0]!r}") from None
        finally:
            self._answer = None
        if line.startswith(b"-"):
            raise Unreachable(f"Redis: {line.decode(errors='replace')}")
        return line

    def send_records(self, values: list[bytes]) -> None:
        head = self._head(len(values[0]))
        parts = [part for value in values for part in (head, value, b"\r\n")]
        self.write_parts(parts, len(values[0]))

    def send_same(self, value: bytes, count: int) -> None:
        self.write_parts([self._head(len(value)) + value + b"\r\n"] * count, len(value))

    def _head(self, size: int) -> bytes:
        return resp(b"XADD", self.key, b"*", b"v", b"").removesuffix(b"$0\r\n\r\n") + (
            b"$%d\r\n" % size
        )


class RedisReader(LightClient):
    """Reads entries: one XREAD after another, each from the last id of the one before.

    An answer of an XREAD is complete when the number of entries in its array has come. The reader
    takes each entry's id and the last of its three strings, the value.
    """

    name = "Redis"

    def __init__(self) -> None:
        super().__init__()
        self.key = b""
        self._rest = b""
        self._from = b"0-0"
        self._entries = self._wanted = 0
        self._block = False
        self._strings: list[bytes] = []
        self._headers = 0
        self._due = -1

    def begin(self, from_id: bytes, entries: int, wanted: int, *, block: bool) -> None:
        """Ask for entries after an id."""
        self._from, self._entries, self._wanted, self._block = from_id, entries, wanted, block
        self._ask()

    def _ask(self) -> None:
        block = (b"BLOCK", b"%d" % BLOCK_MS) if self._block else ()
        self._due, self._headers, self._strings = -1, 0, []
        self.transport.write(
            resp(
                b"XREAD", b"COUNT", b"%d" % self._entries, *block, b"STREAMS", self.key, self._from
            )
        )

    def data_received(self, data: bytes) -> None:
        data, at = self._rest + data, 0
        while (end := data.find(b"\r\n", at)) >= 0:
            kind, length = data[at], int(data[at + 1 : end]) if data[at] in b"*$" else 0
            if kind == ord("$"):
                stop = end + 2 + length
                if len(data) < stop + 2:
                    break
                self._on_string(data[end + 2 : stop])
                at = stop + 2
                continue
            if kind != ord("*") or length < 0:
                self.fail(data[at:end].decode(errors="replace"))
                return
            # [[key, [[id, [field, value]], …]]]: the third array has the number of entries.
            self._headers += 1
            if self._headers == 3:
                self._due = length
            at = end + 2
        self._rest = data[at:]

    def _on_string(self, value: bytes) -> None:
        if self._headers < 3:
            return  # the key
        self._strings.append(value)
        if len(self._strings) < 3:
            return
        self._from, self._strings = self._strings[0], []
        self._due -= 1
        self._wanted -= 1
        if self._due == 0 and self._wanted > 0:
            self._ask()
        self.on_record(value)


def resp(*words: bytes) -> bytes:
    """A command as an array of bulk strings."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
