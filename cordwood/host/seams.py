"""The machine, as three seams: clock, network and disk (and chance).

Shells reach the machine only through a `Host`; sleeping, timeouts, queues and
task groups stay plain asyncio. `host.real` implements these on the machine,
`sim` on a seeded virtual-time loop, and one contract suite holds both to the
words below.

Errors: each implementation turns the machine's errors into ours once, here at
the edge. Other disk errors pass as `OSError`, with errno.

Source: CONTRIBUTING.md, "The idea"; docs/design.md §10.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from cordwood.block import Buffer

Result = TypeVar("Result")

DISK_BLOCK_BYTES = 4096
"""Unit of offset and length of every direct write: covers 512 B and 4 KiB sectors."""

DIRECT_WRITE_BYTES_MAX = 16 << 20
"""One direct write, padded: each writer thread keeps a buffer of up to this size."""

DIRECT_OPS_IN_FLIGHT_MAX = 1024
"""Direct reads and writes in flight on one file; a caller's own window is far smaller."""


class Clock(Protocol):
    """Wall time. For durations use `asyncio.get_running_loop().time()`."""

    def now_us(self) -> int:
        """Microseconds since 1970 UTC; may jump either way: safety never rests on it."""


class Transport(Protocol):
    """The sending half of one connection; asyncio's transports fit it."""

    def writelines(self, parts: Sequence[Buffer]) -> None:
        """Queue `parts` to be sent in order; after a close or an abort does nothing."""

    def get_write_buffer_size(self) -> int:
        """Bytes queued and not yet handed to the machine."""

    def pause_reading(self) -> None:
        """Stop `data_received` until `resume_reading`."""

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""

    def close(self) -> None:
        """Send queued bytes, then close; `connection_lost(None)` follows."""

    def abort(self) -> None:
        """Close at once, dropping queued bytes; `connection_lost` follows."""

    def is_closing(self) -> bool:
        """Whether `close` or `abort` was called or the peer is gone."""


class StreamHandler(Protocol):
    """The receiving half, called on the loop; `asyncio.Protocol` fits it.

    `pause_writing` and `resume_writing` are called as in asyncio when the
    transport's write buffer crosses its marks (64 KiB and 16 KiB by default).
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool | None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


@runtime_checkable
class DirectReceiver(StreamHandler, Protocol):
    """A handler that may know where the next bytes belong, which saves a copy."""

    def receive_into(self) -> memoryview | None:
        """Where what arrives next should be put, not empty; None to get it by `data_received`.

        A network may still use `data_received`; then they are copied to that place.
        """

    def placed(self, count: int) -> None:
        """`count` bytes, at least one, stand at the start of what `receive_into` gave last."""


class Listener(Protocol):
    """A listening socket."""

    @property
    def address(self) -> str:
        """`host:port` with the port really bound."""

    async def close(self) -> None:
        """Stop accepting; connections made already live on."""


class Network(Protocol):
    """Stream connections by `host:port`."""

    async def listen(self, address: str, accept: Callable[[], StreamHandler]) -> Listener:
        """Accept connections, one new handler each. Port 0 takes a free port.

        Raises:
            BadSetting: the address is not `host:port`, or is taken; the text names it.
        """

    async def connect(
        self, address: str, make: Callable[[], StreamHandler], *, timeout_s: float
    ) -> StreamHandler:
        """Connect and return the handler, its `connection_made` called.

        Raises:
            Unreachable: refused, no route, or no answer within `timeout_s`.
            BadSetting: the address is not `host:port`.
        """


class DirectFile(Protocol):
    """A preallocated file (or device) for durable, aligned, direct writes.

    Offsets and lengths are multiples of DISK_BLOCK_BYTES. Several writes may be
    in flight; they may become durable in any order. A crash leaves each block of
    an unfinished write old, new or torn at 512 B.
    """

    @property
    def size(self) -> int:
        """Bytes; fixed while it is open."""

    def write(self, offset: int, parts: Sequence[Buffer]) -> asyncio.Future[None]:
        """Write `parts` back to back, zero-padded to DISK_BLOCK_BYTES.

        The future is done once the bytes are on stable storage (and not before).
        `parts` must not change until then. It fails with OSError (EIO, ENOSPC, …): the blocks'
        contents are unknown then. The future is never cancelled by the file.

        Raises:
            BadSetting: not aligned, empty, over DIRECT_WRITE_BYTES_MAX or past `size`.
            Overloaded: DIRECT_OPS_IN_FLIGHT_MAX are in flight.
            Closed: the file was closed.
        """

    async def read(self, offset: int, length: int) -> bytes:
        """Read `length` bytes; short only where the file ends.

        Raises:
            BadSetting, Overloaded, Closed: as for `write`, but DIRECT_WRITE_BYTES_MAX and
                `size` do not bound it.
            OSError: the machine could not read them.
        """

    async def close(self) -> None:
        """Wait for the writes in flight, then close. Safe to call twice."""


class DirLock(Protocol):
    """A held lock on a data directory; it dies with its process."""

    def check(self) -> None:
        """See that the directory is at its path still, before files are opened by path.

        Raises:
            StoreInUse: it was moved or removed, and another directory may be at the path.
        """

    def release(self) -> None:
        """Give it up. Safe to call twice."""


class Disk(Protocol):
    """Files by path. Text of an error always names the path."""

    async def open_direct(self, path: str, *, create_bytes: int | None = None) -> DirectFile:
        """Open a file for direct writes.

        Args:
            path: the file; its directory must exist.
            create_bytes: make a new zero-filled file of this size (a multiple of
                DISK_BLOCK_BYTES), allocated and written, file and directory entry
                synced; None opens an existing file.
        Raises:
            FileNotFoundError: it is not there and `create_bytes` is None.
            FileExistsError: it is there and `create_bytes` is given.
            OSError: no space, no permission.
        """

    async def read_file(self, path: str) -> bytes | None:
        """All of a small file, None if it is not there."""

    async def write_file(self, path: str, data: bytes) -> None:
        """Replace a small file atomically and durably (write, sync, rename, sync)."""

    async def make_dir(self, path: str) -> None:
        """Make a directory and its parents, mode 0700, entries synced; there already is fine."""

    async def list_dir(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if it is not there."""

    async def space(self, path: str) -> tuple[int, int]:
        """Bytes that are free for this process, and bytes in all, on the file system of `path`."""

    async def takes_direct(self, path: str) -> bool:
        """Whether files in a directory can be written past the page cache. False also if nothing
        can be written, as on a full disk: the answer only decides about speed."""

    def lock_dir(self, path: str, owner: str) -> DirLock:
        """Take a directory for this process, leaving `owner` in its `lock` file.

        Raises:
            StoreInUse: another process, or another opener in this process, holds it; the text
                quotes the holder's note.
        """


@dataclass(frozen=True, slots=True)
class Host:
    """The machine as one role sees it.

    Attributes:
        clock, network, disk: the seams.
        random: this host's stream of chance; seeded in simulation.
        run_blocking: run a short blocking function (a database call) off the
            loop, in a bounded pool; TimeoutError after `timeout_s`. In
            simulation it runs inline as one step.
        run_calculation: the same for work that takes a core for milliseconds and that nobody waits
            for at once, such as decoding ahead of a reader. It takes half of the cores at most, and
            less where other threads of the session want them.
    """

    clock: Clock
    network: Network
    disk: Disk
    random: random.Random
    run_blocking: RunBlocking
    run_calculation: RunBlocking


class RunBlocking(Protocol):
    """See `Host.run_blocking` and `Host.run_calculation`."""

    def __call__(
        self, function: Callable[[], Result], *, timeout_s: float
    ) -> Awaitable[Result]: ...
