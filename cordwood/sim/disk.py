"""The simulated disk of one machine: it outlives its processes.

Each process sees it through a `HostDisk`. Operations take drawn times, several are in flight, and
they end in any order. At a process's death each of its operations in flight is done, done in part,
or not done. The bytes of these operations are volatile until a later sync, as after a real
`kill -9` between write and sync. A power cut (`cut_power`, after the deaths) then drops volatile
blocks or tears them.

Each fault is requested by name and happens once, so that a plan can say how much may be lost. A
read sees the bytes of a write only after the write is done.

Source: docs/sources/reliability.md §5.1; FoundationDB's AsyncFileNonDurable; TigerBeetle's
src/testing/storage.zig.
"""

from __future__ import annotations

import asyncio
import posixpath
import random
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from cordwood.block import Buffer
from cordwood.errors import StoreInUse
from cordwood.host.direct_bounds import check_create, check_run, check_write, padded_bytes
from cordwood.host.seams import DISK_BLOCK_BYTES
from cordwood.sim.loop import SimLoop
from cordwood.sim.process import Process
from cordwood.sim.stored_file import StoredFile
from cordwood.sim.stored_tree import StoredTree, plain_path, posix_error

Result = TypeVar("Result")
Kind = Literal["write", "read", "file"]
"""A direct write, a direct read, or an operation on a small file or directory."""

Mishap = Literal["error", "lost", "misdirected"]
"""An errno; a write that is reported done and never happened; a write on other blocks."""


@dataclass(frozen=True, slots=True)
class DiskSettings:
    """How long things take on a healthy disk.

    Attributes:
        latency_min_s, latency_jitter_s: a direct operation takes the first plus up to
            the second.
        slow_chance, slow_factor: some operations take that many times as long, as on real disks.
        file_latency_s: up to this for a small file: it syncs twice.
        bytes_per_s: adds the time for the bytes.
        capacity_bytes: of all files together; None for no limit.
    """

    latency_min_s: float = 0.000_08
    latency_jitter_s: float = 0.000_2
    slow_chance: float = 0.01
    slow_factor: float = 30.0
    file_latency_s: float = 0.002
    bytes_per_s: float = 2e9
    capacity_bytes: int | None = None


@dataclass(slots=True)
class _Operation:
    """One operation in flight: `act` does it, `interrupt` does the part that a death leaves of
    it."""

    number: int
    process: Process
    kind: Kind
    path: str
    act: Callable[[], Any]
    interrupt: Callable[[], None]
    future: asyncio.Future[Any]
    on_finished: Callable[[], None]
    write: tuple[StoredFile, int, bytes] | None = None


@dataclass(frozen=True, slots=True)
class _Fault:
    kind: Kind
    mishap: Mishap
    code: int
    path: str | None


DISK_BYTES = 1 << 40
"""The free bytes that a disk reports; the bytes stored on it are not counted."""


class SimDisk:
    """One machine's disk.

    Attributes:
        settings: how long things take.
        latency_factor: multiplies all times; above 1 for a slow disk.
        tree: the content of the disk. Copy it to go back to it later; a new tree is an empty disk.
            Swap it only while the machine is down.
        free_bytes: the free bytes that it reports, independent of its content.
    """

    def __init__(
        self, loop: SimLoop, chance: random.Random, settings: DiskSettings | None = None
    ) -> None:
        self.settings = settings or DiskSettings()
        self.latency_factor = 1.0
        self.free_bytes = DISK_BYTES // 2
        self._loop = loop
        self._chance = chance
        self._process = Process("disk")  # the disk's controller, which a kill does not stop
        self.tree = StoredTree(self.settings.capacity_bytes)
        self._locks: dict[str, SimDirLock] = {}
        self._in_flight: dict[int, _Operation] = {}
        self._operations = 0
        self._faults: deque[_Fault] = deque()
        self._stalled_until = 0.0

    def host(self, process: Process) -> HostDisk:
        """The disk as `process` sees it."""
        process.at_death(lambda: self._bury(process))
        return HostDisk(self, process)

    # ---- faults ----

    def fail(self, kind: Kind, code: int, *, times: int = 1, path: str | None = None) -> None:
        """Let the next `times` operations of a kind (on `path`) fail with errno `code`.

        A failed direct write leaves its blocks old, new or torn.
        """
        self._plan(_Fault(kind, "error", code, path and plain_path(path)), times)

    def lose_writes(self, *, times: int = 1, path: str | None = None) -> None:
        """Let the next direct writes report that they are done, and store nothing."""
        self._plan(_Fault("write", "lost", 0, path and plain_path(path)), times)

    def misdirect_writes(self, *, times: int = 1, path: str | None = None) -> None:
        """Let the next direct writes land on other blocks of their file."""
        self._plan(_Fault("write", "misdirected", 0, path and plain_path(path)), times)

    def stall(self, seconds: float) -> None:
        """Let no operation finish for this long, including those in flight."""
        self._stalled_until = max(self._stalled_until, self._loop.time() + seconds)

    def forgive(self, kind: Kind) -> None:
        """Take back the requested faults of one kind that have not struck yet."""
        self._faults = deque(fault for fault in self._faults if fault.kind != kind)

    def heal(self) -> None:
        """Take back all requested faults that have not struck yet. Stored bytes stay as they
        are."""
        self.latency_factor = 1.0
        self._faults.clear()
        if self._loop.time() < self._stalled_until:
            # Otherwise operations would go on waiting for the end of the stall.
            for operation in self._in_flight.values():
                self._end_after(self.draw_seconds(0), operation)
        self._stalled_until = 0.0

    def rot(self, path: str, start: int, stop: int, *, bits: int = 1) -> None:
        """Flip `bits` random bits of a file's bytes [start, stop)."""
        file = self.tree.file(plain_path(path))
        for _ in range(bits):
            file.flip_bit(self._chance.randrange(start, stop), self._chance.randrange(8))

    def cut_power(self) -> None:
        """Decide the fate of all volatile bytes and entries. Kill the machine's processes first."""
        held = [op.process.name for op in self._in_flight.values() if not op.process.dead]
        assert not held, f"power cut under living processes: {held}"
        self.tree.lose_power(self._chance)

    def _plan(self, fault: _Fault, times: int) -> None:
        self._faults.extend([fault] * times)

    # ---- operations ----

    def begin(
        self,
        process: Process,
        kind: Kind,
        path: str,
        act: Callable[[], Any],
        *,
        seconds: float,
        interrupt: Callable[[], None] = lambda: None,
        on_finished: Callable[[], None] = lambda: None,
        write: tuple[StoredFile, int, bytes] | None = None,
    ) -> asyncio.Future[Any]:
        """Start an operation that ends after about `seconds`. Its future gives what `act`
        returns."""
        self._operations += 1
        operation = _Operation(
            self._operations,
            process,
            kind,
            path,
            act,
            interrupt,
            self._loop.create_future(),
            on_finished,
            write,
        )
        self._in_flight[operation.number] = operation
        self._end_after(seconds, operation)
        return operation.future

    def draw_seconds(self, length: int) -> float:
        """Time of one direct operation on `length` bytes."""
        settings, draw = self.settings, self._chance.random
        seconds = settings.latency_min_s + settings.latency_jitter_s * draw()
        if draw() < settings.slow_chance:
            seconds *= settings.slow_factor
        return (seconds + length / settings.bytes_per_s) * self.latency_factor

    def draw_file_seconds(self, length: int) -> float:
        """Time of one operation on a small file."""
        own = self.settings.file_latency_s * self._chance.random()
        return (own + length / self.settings.bytes_per_s) * self.latency_factor

    def _end_after(self, seconds: float, operation: _Operation) -> None:
        self._loop.call_later(seconds, self._finish, operation, context=self._process.context)

    def _finish(self, operation: _Operation) -> None:
        if self._in_flight.get(operation.number) is not operation:
            return  # the process died, or the operation has ended
        now = self._loop.time()
        if now < self._stalled_until:
            self._end_after(self._stalled_until - now + self.draw_seconds(0), operation)
            return
        del self._in_flight[operation.number]
        try:
            result, error = self._carry_out(operation), None
        except (OSError, AssertionError) as failure:
            result, error = None, failure
        operation.on_finished()
        if operation.future.done():
            return  # the caller cancelled it, but the operation was done
        if error is not None:
            operation.future.set_exception(error)
        else:
            operation.future.set_result(result)

    def _carry_out(self, operation: _Operation) -> Any:
        fault = self._take_fault(operation)
        if fault is None:
            return operation.act()
        if fault.mishap == "error":
            operation.interrupt()
            raise posix_error(fault.code, operation.path)
        if fault.mishap == "misdirected" and operation.write is not None:
            file, offset, data = operation.write
            places = (file.size - len(data)) // DISK_BLOCK_BYTES
            other = self._chance.randrange(places + 1) * DISK_BLOCK_BYTES
            file.write(other if other != offset else 0, data)
        return None

    def _take_fault(self, operation: _Operation) -> _Fault | None:
        for fault in self._faults:
            if fault.kind == operation.kind and fault.path in (None, operation.path):
                self._faults.remove(fault)
                return fault
        return None

    def _bury(self, process: Process) -> None:
        """A process died: decide its operations in flight, and drop its locks."""
        for operation in [op for op in self._in_flight.values() if op.process is process]:
            del self._in_flight[operation.number]
            operation.interrupt()
        for path, lock in list(self._locks.items()):
            if lock.process is process:
                del self._locks[path]

    # ---- what an operation does to the content ----

    def write_part(self, file: StoredFile, offset: int, data: bytes) -> None:
        """A direct write cut short: all of it, none, or the first blocks; unsynced."""
        blocks = len(data) // DISK_BLOCK_BYTES
        kept = self._chance.choice((0, blocks, self._chance.randrange(blocks + 1)))
        file.write_unsynced(offset, data[: kept * DISK_BLOCK_BYTES])

    def change_part(self, path: str, change: Callable[[], None]) -> None:
        """An operation on a small file or directory cut short."""
        self.tree.perhaps(path, change, self._chance)

    def lock(self, process: Process, path: str, owner: str) -> SimDirLock:
        """See `Disk.lock_dir`."""
        name = posixpath.join(path, "lock")
        self.tree.check_parent(name)
        if path in self._locks:
            left = self.tree.content(name) or b"another process"
            raise StoreInUse(f"{path} is in use by {left.decode(errors='replace')}")
        self.tree.put(name, StoredFile.holding(owner.encode()))
        lock = self._locks[path] = SimDirLock(self, process, path)
        return lock

    def unlock(self, lock: SimDirLock) -> None:
        """Release `lock` if it is still held."""
        if self._locks.get(lock.path) is lock:
            del self._locks[lock.path]
            self.tree.put(posixpath.join(lock.path, "lock"), StoredFile(0))


class HostDisk:
    """A `Disk` for one process."""

    def __init__(self, disk: SimDisk, process: Process) -> None:
        self._disk = disk
        self._process = process

    async def open_direct(self, path: str, *, create_bytes: int | None = None) -> SimDirectFile:
        disk, place = self._disk, plain_path(path)
        if create_bytes is not None:
            size = create_bytes
            check_create(path, size)
            await self._change(place, lambda: disk.tree.create(place, size), size)
        found: StoredFile = await self._look(place, lambda: disk.tree.open(place))
        return SimDirectFile(disk, self._process, place, found)

    async def read_file(self, path: str) -> bytes | None:
        place = plain_path(path)
        data: bytes | None = await self._look(place, lambda: self._disk.tree.content(place))
        return data

    async def write_file(self, path: str, data: bytes) -> None:
        place, held = plain_path(path), bytes(data)
        await self._change(place, lambda: self._disk.tree.replace(place, held), len(held))

    async def make_dir(self, path: str) -> None:
        place = plain_path(path)
        await self._change(place, lambda: self._disk.tree.make_dirs(place), 0)

    async def list_dir(self, path: str) -> list[str]:
        place = plain_path(path)
        names: list[str] = await self._look(place, lambda: self._disk.tree.names(place))
        return names

    async def space(self, path: str) -> tuple[int, int]:
        return self._disk.free_bytes, DISK_BYTES

    async def takes_direct(self, path: str) -> bool:
        return True

    def lock_dir(self, path: str, owner: str) -> SimDirLock:
        return self._disk.lock(self._process, plain_path(path), owner)

    def _look(self, path: str, act: Callable[[], Any]) -> asyncio.Future[Any]:
        seconds = self._disk.draw_file_seconds(0)
        return self._disk.begin(self._process, "file", path, act, seconds=seconds)

    def _change(self, path: str, act: Callable[[], None], length: int) -> asyncio.Future[Any]:
        return self._disk.begin(
            self._process,
            "file",
            path,
            act,
            seconds=self._disk.draw_file_seconds(length),
            interrupt=lambda: self._disk.change_part(path, act),
        )


class SimDirectFile:
    """A `DirectFile` on a simulated disk."""

    def __init__(self, disk: SimDisk, process: Process, path: str, file: StoredFile) -> None:
        self._disk = disk
        self._process = process
        self._path = path
        self._file = file
        self._in_flight = 0
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def size(self) -> int:
        return self._file.size

    def write(self, offset: int, parts: Sequence[Buffer]) -> asyncio.Future[None]:
        length = padded_bytes(parts)
        self._check(offset, length)
        check_write(self._path, self.size, offset, length)
        held = b"".join(parts)
        checksum = zlib.crc32(held)
        data = held + bytes(length - len(held))
        file, disk = self._file, self._disk

        def act() -> None:
            # A real disk copies the parts in a thread, at any time before the write is done.
            assert zlib.crc32(b"".join(parts)) == checksum, f"{self._path}: parts changed in flight"
            file.write(offset, data)

        return self._begin(
            "write",
            act,
            length,
            interrupt=lambda: disk.write_part(file, offset, data),
            write=(file, offset, data),
        )

    async def read(self, offset: int, length: int) -> bytes:
        self._check(offset, length)
        data: bytes = await self._begin("read", lambda: self._file.read(offset, length), length)
        return data

    async def close(self) -> None:
        self._closing = True
        await self._idle.wait()

    def _check(self, offset: int, length: int) -> None:
        check_run(self._path, offset, length, closing=self._closing, in_flight=self._in_flight)

    def _begin(
        self, kind: Kind, act: Callable[[], Any], length: int, **how: Any
    ) -> asyncio.Future[Any]:
        self._in_flight += 1
        self._idle.clear()
        return self._disk.begin(
            self._process,
            kind,
            self._path,
            act,
            seconds=self._disk.draw_seconds(length),
            on_finished=self._on_finished,
            **how,
        )

    def _on_finished(self) -> None:
        self._in_flight -= 1
        if not self._in_flight:
            self._idle.set()


class SimDirLock:
    """A `DirLock`; the machine drops it when its process dies."""

    def __init__(self, disk: SimDisk, process: Process, path: str) -> None:
        self.process = process
        self.path = path
        self._disk = disk

    def check(self) -> None:
        """Nothing moves a directory here."""

    def release(self) -> None:
        self._disk.unlock(self)
