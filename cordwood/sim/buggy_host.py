"""A host that keeps its contract and uses all the freedom that the contract leaves.

Wraps the three seams of a simulated process: dials are refused or take long, files are slow, a
direct write reports its end late, a listener starts late.

Source: `host.seams` (the contract); `sim.buggify`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence

from cordwood.block import Buffer
from cordwood.errors import Unreachable
from cordwood.host.seams import (
    DirectFile,
    DirLock,
    Disk,
    Host,
    Listener,
    Network,
    StreamHandler,
)
from cordwood.sim.buggify import Buggify

DIAL_LATE_S = 1.5
"""Under every dial's own deadline, so that late connections still count."""

FILE_LATE_S = 0.5
WRITE_LATE_S = 0.3
"""Longer than the pauses of callers that wait, shorter than their patience."""


def buggy_host(host: Host, buggify: Buggify) -> Host:
    """`host` with rare behaviour made common."""
    return dataclasses.replace(
        host, network=_Network(host.network, buggify), disk=_Disk(host.disk, buggify)
    )


class _Network:
    """A `Network`."""

    def __init__(self, network: Network, buggify: Buggify) -> None:
        self._network = network
        self._buggify = buggify

    async def listen(self, address: str, accept: Callable[[], StreamHandler]) -> Listener:
        await _late("listen-late", DIAL_LATE_S, self._buggify)
        return await self._network.listen(address, accept)

    async def connect(
        self, address: str, make: Callable[[], StreamHandler], *, timeout_s: float
    ) -> StreamHandler:
        if self._buggify("dial-refused"):
            raise Unreachable(f"cannot reach {address}: Connection refused")
        if self._buggify("dial-late"):
            late_s = min(DIAL_LATE_S, timeout_s * 0.9)
            await asyncio.sleep(late_s * self._buggify.chance("dial-late").random())
        return await self._network.connect(address, make, timeout_s=timeout_s)


class _Disk:
    """A `Disk`."""

    def __init__(self, disk: Disk, buggify: Buggify) -> None:
        self._disk = disk
        self._buggify = buggify

    async def open_direct(self, path: str, *, create_bytes: int | None = None) -> DirectFile:
        file = await self._disk.open_direct(path, create_bytes=create_bytes)
        return _DirectFile(file, self._buggify)

    async def read_file(self, path: str) -> bytes | None:
        await _late("file-late", FILE_LATE_S, self._buggify)
        return await self._disk.read_file(path)

    async def write_file(self, path: str, data: bytes) -> None:
        await _late("file-late", FILE_LATE_S, self._buggify)
        await self._disk.write_file(path, data)

    async def make_dir(self, path: str) -> None:
        await self._disk.make_dir(path)

    async def list_dir(self, path: str) -> list[str]:
        return await self._disk.list_dir(path)

    async def space(self, path: str) -> tuple[int, int]:
        return await self._disk.space(path)

    async def takes_direct(self, path: str) -> bool:
        return await self._disk.takes_direct(path)

    def lock_dir(self, path: str, owner: str) -> DirLock:
        return self._disk.lock_dir(path, owner)


class _DirectFile:
    """A `DirectFile` that now and then reports a finished write late."""

    def __init__(self, file: DirectFile, buggify: Buggify) -> None:
        self._file = file
        self._buggify = buggify

    @property
    def size(self) -> int:
        return self._file.size

    def write(self, offset: int, parts: Sequence[Buffer]) -> asyncio.Future[None]:
        written = self._file.write(offset, parts)
        if not self._buggify("write-told-late"):
            return written
        loop = asyncio.get_running_loop()
        told: asyncio.Future[None] = loop.create_future()
        late_s = WRITE_LATE_S * self._buggify.chance("write-told-late").random()
        written.add_done_callback(lambda done: loop.call_later(late_s, _pass_on, done, told))
        return told

    async def read(self, offset: int, length: int) -> bytes:
        await _late("read-late", WRITE_LATE_S, self._buggify)
        return await self._file.read(offset, length)

    async def close(self) -> None:
        await self._file.close()


def _pass_on(done: asyncio.Future[None], told: asyncio.Future[None]) -> None:
    error = done.exception()
    if told.done():
        return
    if error is not None:
        told.set_exception(error)
    else:
        told.set_result(None)


async def _late(name: str, most_s: float, buggify: Buggify) -> None:
    if buggify(name):
        await asyncio.sleep(most_s * buggify.chance(name).random())
