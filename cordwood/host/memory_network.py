"""A network inside one process, for the embedded store: no socket is opened.

Bytes go from one side's `writelines` to the other's `data_received` in the next
tick. Copied once, because the receiver may keep the bytes.

Source: docs/design.md §7 (embedded: the same node code in this process).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from cordwood.block import Buffer
from cordwood.errors import BadSetting, Unreachable
from cordwood.host.seams import Listener, StreamHandler

HIGH_BYTES = 1 << 20
"""Bytes that a writer may be ahead of the reader: a few frames, in shared memory."""


class MemoryNetwork:
    """Listens and connects by address, within this object only."""

    def __init__(self) -> None:
        self._accepting: dict[str, Callable[[], StreamHandler]] = {}

    async def listen(self, address: str, accept: Callable[[], StreamHandler]) -> Listener:
        if address in self._accepting:
            raise BadSetting(f"{address} is taken in this process")
        self._accepting[address] = accept
        return _MemoryListener(self, address)

    async def connect(
        self, address: str, make: Callable[[], StreamHandler], *, timeout_s: float
    ) -> StreamHandler:
        accept = self._accepting.get(address)
        if accept is None:
            raise Unreachable(f"nothing listens at {address} in this process")
        ours, theirs = make(), accept()
        near, far = _MemoryTransport(ours), _MemoryTransport(theirs)
        near.peer, far.peer = far, near
        theirs.connection_made(cast(asyncio.BaseTransport, far))
        ours.connection_made(cast(asyncio.BaseTransport, near))
        return ours

    def add_alias(self, address: str, alias: str) -> None:
        """Let what listens at `address` be reached under `alias` too."""
        self._accepting[alias] = self._accepting[address]

    def accept(self, address: str) -> StreamHandler:
        """A handler for a connection that came from outside this process."""
        return self._accepting[address]()

    def listens_at(self, address: str) -> bool:
        """Whether a listener has this address."""
        return address in self._accepting

    def forget(self, address: str) -> None:
        """Nothing listens there any more."""
        self._accepting.pop(address, None)


class _MemoryListener:
    def __init__(self, network: MemoryNetwork, address: str) -> None:
        self._network = network
        self._address = address

    @property
    def address(self) -> str:
        return self._address

    async def close(self) -> None:
        self._network.forget(self._address)


class _MemoryTransport:
    """One side; see `seams.Transport`."""

    def __init__(self, handler: StreamHandler) -> None:
        self.peer: _MemoryTransport
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._arrived: list[Buffer] = []
        self._arrived_bytes = 0
        self._due = False
        self._reading = True
        self._writing_paused = False
        self._closing = False
        self._lost = False

    def writelines(self, parts: Sequence[Buffer]) -> None:
        if self._closing:
            return
        self.peer._take(parts)
        if self.peer._arrived_bytes > HIGH_BYTES and not self._writing_paused:
            self._writing_paused = True
            self._handler.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self.peer._arrived_bytes

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._deliver_soon()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self.peer._end)
            self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self.peer._arrived.clear()
        self.peer._arrived_bytes = 0
        self.close()

    def _take(self, parts: Sequence[Buffer]) -> None:
        if self._closing:
            return
        self._arrived += parts
        self._arrived_bytes += sum(len(part) for part in parts)
        self._deliver_soon()

    def _deliver_soon(self) -> None:
        if not self._due and self._arrived:
            self._due = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._due = False
        if not self._reading or self._lost or not self._arrived:
            return
        data = b"".join(self._arrived)
        self._arrived.clear()
        self._arrived_bytes = 0
        if self.peer._writing_paused:
            self.peer._writing_paused = False
            self.peer._handler.resume_writing()
        try:
            self._handler.data_received(data)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  (as asyncio: reported, and it is lost)
            self._fail(error)

    def _end(self) -> None:
        """The other side closed: deliver its bytes, then the end.

        Both sides close, even if `eof_received` returns True: Cordwood keeps no half-open
        connection.
        """
        self._reading = True
        self._deliver()
        if not self._lost:
            self._handler.eof_received()
        self._closing = True
        self._lose(None)

    def _fail(self, error: BaseException) -> None:
        self._loop.call_exception_handler(
            {
                "message": "Fatal error: protocol.data_received() call failed.",
                "exception": error,
                "protocol": self._handler,
            }
        )
        self._arrived.clear()
        self._arrived_bytes = 0
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self.peer._end)
        self._lose(error)

    def _lose(self, error: BaseException | None) -> None:
        if not self._lost:
            self._lost = True
            self._handler.connection_lost(cast("Exception | None", error))
