"""Reads the blocks of a range from other nodes: first headers and envelopes only, then bodies from
one node.

These are read streams over the node's own peer connections, as clients have them: a node sends what
is released, says which ranges it does not know (GAPS), and how far the log left it. Streams of
recoveries share the connections, so the numbers here begin where theirs never come to.

Source: docs/protocol/repair.md; docs/protocol/read.md.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from cordwood.errors import CordwoodError, Overloaded, Unreachable
from cordwood.layout.frame import Frame, Kind
from cordwood.layout.reading import (
    NodeGap,
    ReadRequest,
    ReadStatus,
    pack_read,
    pack_stop,
    pack_window,
    read_blocks_frame,
    read_gaps,
    read_heads_frame,
    read_reading,
)
from cordwood.layout.waves import StoredBlock
from cordwood.nodes import NodeId
from cordwood.protocol.repair_plan import HeldCopy, Said
from cordwood.wire.connection import Connection
from cordwood.wire.peers import Peers

FETCH_TIMEOUT_S = 10.0
"""Of each fetch, the wait for a connection included."""

CONNECT_S = 1.0
"""The longest wait for a connection: a node that is up has one, or is tried again soon."""

CREDIT_BYTES = 4 << 20
"""The most bytes that a node may send before this node confirms earlier ones."""

FETCH_BYTES_MAX = 64 << 20
"""The most bytes of bodies that one fetch holds in memory: twice the largest body."""

HEADS_BYTES = 8 << 20
"""The most bytes of headers and envelopes in one fetch, some 60,000 of them. A fetch with more ends
before its range does, and the caller continues after it. A busy node reads this many within a
fraction of FETCH_TIMEOUT_S."""

FIRST_STREAM = 1 << 31


class _Fetch:
    """One fetch from one node.

    Attributes:
        upto: the last LSN up to which everything came.
    """

    def __init__(self, request: ReadRequest, bytes_max: int, *, in_pieces: bool) -> None:
        """
        Args:
            in_pieces: whether it may end before its range does.
        """
        self.request = request
        self.bytes_max = bytes_max
        self.in_pieces = in_pieces
        self.upto = request.start - 1
        self.blocks: list[StoredBlock] = []
        self.bytes = 0
        self.gone = self.let_go = 0
        self.damaged: list[tuple[int, int]] = []
        self.is_sure = True
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: CordwoodError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class CopyFetches:
    """Fetches now open, by connection and stream number."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._open: dict[tuple[Connection, int], _Fetch] = {}
        self._streams = itertools.count(FIRST_STREAM)

    def takes(self, frame: Frame) -> bool:
        """Whether a frame of a read stream is for a fetch, and not for a recovery."""
        return int.from_bytes(frame.payload[:4], "little") >= FIRST_STREAM

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        """A READING, BLOCKS, HEADS or GAPS frame that `takes`.

        Raises:
            Malformed, ChecksumMismatch: the frame is damaged.
        """
        payload = frame.payload
        if frame.kind == Kind.READING:
            stream, status, _, _, trim = read_reading(payload)
            if (fetch := self._of(connection, stream)) is not None:
                fetch.gone = max(fetch.gone, trim)
                if status == ReadStatus.DAMAGED:
                    fetch.is_sure = False
                elif status != ReadStatus.OK:
                    fetch.fail(Unreachable(f"it does not send: {status.name.lower()}"))
        elif frame.kind == Kind.GAPS:
            stream, gaps = read_gaps(payload)
            if (fetch := self._of(connection, stream)) is not None:
                for gap in gaps:
                    if gap.reason == NodeGap.TIERED:
                        fetch.let_go = max(fetch.let_go, gap.last)
                    else:
                        fetch.is_sure = False
        else:
            is_heads = frame.kind == Kind.HEADS
            head, blocks = (read_heads_frame if is_heads else read_blocks_frame)(payload)
            if (fetch := self._of(connection, head.stream)) is not None:
                fetch.gone = max(fetch.gone, head.trim)
                fetch.blocks += blocks
                fetch.bytes += sum(block.wire_bytes for block in blocks)
                self._go_on(connection, fetch, head.next)

    def _of(self, connection: Connection, stream: int) -> _Fetch | None:
        fetch = self._open.get((connection, stream))
        return None if fetch is None or fetch.done.done() else fetch

    def _go_on(self, connection: Connection, fetch: _Fetch, next_lsn: int) -> None:
        request = fetch.request
        fetch.upto = max(fetch.upto, next_lsn - 1)
        if next_lsn > request.until:
            fetch.done.set_result(None)
        elif fetch.bytes > fetch.bytes_max:
            if fetch.in_pieces and fetch.upto >= request.start:
                fetch.done.set_result(None)
            else:
                fetch.fail(Overloaded(f"it sends more than {fetch.bytes_max} bytes of a range"))
        else:
            limit = fetch.bytes + CREDIT_BYTES
            connection.send(Kind.WINDOW, 0, (pack_window(request.stream, request.until, limit),))

    def on_down(self, node: NodeId, connection: Connection) -> None:
        """The connection is gone, and its fetches with it."""
        for (each, _), fetch in self._open.items():
            if each is connection:
                fetch.fail(Unreachable(f"node {node} went away"))

    async def heads(
        self, node: NodeId, log: int, first: int, last: int, *, digest: bool = False
    ) -> Said:
        """What `node` holds of `[first, last]`, without bodies, or of a first part of it.

        Args:
            digest: also unreleased blocks of an epoch that the node has sealed; nodes send these
                only with their bodies.
        Raises:
            CordwoodError: the node is down, or did not finish within FETCH_TIMEOUT_S.
        """
        request = self._request(log, first, last, heads_only=not digest, digest=digest)
        fetch = await self._fetch(node, _Fetch(request, HEADS_BYTES, in_pieces=True))
        copies = [HeldCopy(block.header, block.envelope) for block in fetch.blocks]
        return Said(copies, fetch.is_sure, fetch.gone, fetch.upto, fetch.let_go)

    async def bodies(
        self, node: NodeId, log: int, first: int, last: int, *, digest: bool = False
    ) -> Sequence[StoredBlock]:
        """The blocks of `[first, last]` that `node` holds and can read. The bodies are unchecked.

        Raises:
            CordwoodError: as `heads`.
        """
        request = self._request(log, first, last, heads_only=False, digest=digest)
        fetch = await self._fetch(node, _Fetch(request, FETCH_BYTES_MAX, in_pieces=False))
        return fetch.blocks

    def _request(
        self, log: int, first: int, last: int, *, heads_only: bool, digest: bool
    ) -> ReadRequest:
        return ReadRequest(
            next(self._streams), log, first, last, last, CREDIT_BYTES,
            digest=digest, heads_only=heads_only,
        )  # fmt: skip

    async def _fetch(self, node: NodeId, fetch: _Fetch) -> _Fetch:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + FETCH_TIMEOUT_S
        connection = await self._peers.wait_for(node, timeout_s=CONNECT_S)
        stream = fetch.request.stream
        self._open[connection, stream] = fetch
        connection.send(Kind.READ, 0, (pack_read(fetch.request),))
        try:
            async with asyncio.timeout_at(ends_s):
                await fetch.done
        except TimeoutError:
            raise Unreachable(
                f"node {node} did not send what it has within {FETCH_TIMEOUT_S:g} s"
            ) from None
        finally:
            del self._open[connection, stream]
            connection.send(Kind.STOP, 0, (pack_stop(stream),))
        return fetch
