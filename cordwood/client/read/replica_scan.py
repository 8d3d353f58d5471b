"""One node's copies of a log's range, each judged by its own checksum.

For audits. A reader merges nodes and takes the first good copy; this asks one node, on a connection
of its own, and keeps for each block the facts that an audit compares: its place, the envelope of
the copy, and whether its bytes match its header. The checksum of each body is computed, and the
body is dropped.

Source: docs/sources/spark.md §7 ("compare block digests, not records").
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crc32c import crc32c

from cordwood.client.admin.log_tree import check_read_token
from cordwood.client.cluster import Cluster
from cordwood.client.find.log_info import AnyLog
from cordwood.errors import AccessDenied, CordwoodError, Unreachable
from cordwood.layout.frame import Frame, Kind
from cordwood.layout.reading import (
    NodeGap,
    ReadRequest,
    ReadStatus,
    pack_read,
    pack_window,
    read_blocks_frame,
    read_gaps,
    read_reading,
)
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LSN_MAX, LogId
from cordwood.nodes import NodeId
from cordwood.wire.connection import Connection

if TYPE_CHECKING:
    from cordwood.client.store import Store

STREAM = 1
"""The only stream of the connection."""

CREDIT_BYTES = 8 << 20
"""Bytes that the node may send ahead of the verified bytes: as for a reader."""

DIAL_TIMEOUT_S = 5.0
"""How long a connection may take. A node that is up answers within milliseconds."""

STALL_TIMEOUT_S = 30.0
"""The longest silence of a node before the scan fails. A read from its disk takes less."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of one block on one node.

    Attributes:
        first, last: its LSNs.
        kind: `block.BlockKind` as a number.
        bytes: of the body, as stored.
        raw_crc: CRC32C of the uncompressed body, by the header: equal for all good copies.
        is_intact: whether the body's own checksum is right.
        copyset: the nodes that should hold this copy.
        by_recovery, seal_epoch, wave: the precedence of the copy; of several copies, the highest
            counts.
    """

    first: int
    last: int
    kind: int
    bytes: int
    raw_crc: int
    is_intact: bool
    copyset: tuple[int, ...]
    by_recovery: bool
    seal_epoch: int
    wave: int


@dataclass(frozen=True, slots=True)
class NodeCopies:
    """A node's report.

    Attributes:
        is_damaged: whether it knows that it lost records.
        trim: up to where it trimmed the log.
        tiered: ranges `(first, last)` that it let go of, because main storage holds them.
    """

    copies: list[Copy]
    is_damaged: bool
    trim: int = 0
    tiered: tuple[tuple[int, int], ...] = ()


async def scan_node(
    cluster: Cluster, node: NodeId, log: LogId, start: int, stop: int, token: str = ""
) -> NodeCopies:
    """Read all that `node` holds of the LSNs `[start, stop)`, all of them released.

    Args:
        token: the log's read token, if it asks for one.
    Raises:
        AccessDenied: it asks for another.
        Unreachable: it cannot be reached, or says nothing for STALL_TIMEOUT_S.
    """
    scan = _Scan(log, stop)
    connection = await cluster.dial_node(node, scan, timeout_s=DIAL_TIMEOUT_S)
    try:
        high = min(LSN_MAX, stop)
        request = ReadRequest(STREAM, log, start, stop - 1, high, CREDIT_BYTES, token=token)
        connection.send(Kind.READ, 0, (pack_read(request),))
        while not scan.is_done:
            scan.news.clear()
            try:
                async with asyncio.timeout(STALL_TIMEOUT_S):
                    await scan.news.wait()
            except TimeoutError:
                raise Unreachable(f"node {node} sends nothing more of log {log}") from None
    finally:
        connection.close()
    if scan.is_refused:
        raise AccessDenied(f"node {node} does not let this client read log {log}")
    if scan.error is not None:
        raise Unreachable(f"node {node} was lost while it was scanned: {scan.error}")
    return NodeCopies(scan.copies, scan.is_damaged, scan.trim, tuple(scan.tiered))


async def scan_copies(store: Store, log: AnyLog, node: NodeId, start: int, stop: int) -> NodeCopies:
    """As `scan_node`, of a log by name or number."""
    info = await store.log(log)
    token = check_read_token(info, store._settings.read_tokens)
    return await scan_node(store._cluster, node, info.log_id, start, stop, token)


class _Scan:
    """The handler of the connection."""

    def __init__(self, log: LogId, stop: int) -> None:
        self.copies: list[Copy] = []
        self.tiered: list[tuple[int, int]] = []
        self.trim = 0
        self.is_damaged = False
        self.is_refused = False
        self.is_done = False
        self.error: CordwoodError | None = None
        self.news = asyncio.Event()
        self._log = log
        self._stop = stop
        self._received = 0

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        """Take blocks, or the node's answer to the request."""
        if frame.kind == Kind.READING:
            _, status, _, _, trim = read_reading(frame.payload)
            self.trim = max(self.trim, trim)
            self.is_damaged |= status == ReadStatus.DAMAGED
            self.is_refused = status == ReadStatus.ACCESS
            self.is_done |= self.is_refused
        elif frame.kind == Kind.GAPS:
            # The scan asks for all blocks: a node leaves out only damaged blocks and those in main
            # storage.
            _, gaps = read_gaps(frame.payload)
            self.is_damaged |= any(gap.reason is not NodeGap.TIERED for gap in gaps)
            self.tiered += [(g.first, g.last) for g in gaps if g.reason is NodeGap.TIERED]
        elif frame.kind == Kind.BLOCKS:
            head, blocks = read_blocks_frame(frame.payload)
            for stored in blocks:
                self._received += stored.wire_bytes
                self.copies.append(_copy(stored))
            self.trim = max(self.trim, head.trim)
            self.is_done = head.next >= self._stop
            if not self.is_done:
                limit = self._received + CREDIT_BYTES
                window = pack_window(STREAM, min(LSN_MAX, self._stop), limit)
                connection.send(Kind.WINDOW, 0, (window,))
        self.news.set()

    def on_lost(self, connection: Connection, error: CordwoodError) -> None:
        """The connection was lost; after the scan's end, this side closed it."""
        if not self.is_done:
            self.error = error
            self.is_done = True
        self.news.set()


def _copy(stored: StoredBlock) -> Copy:
    header, envelope = stored.header, stored.envelope
    by_recovery, seal_epoch, wave = envelope.precedence
    return Copy(
        header.first,
        header.last,
        int(header.kind),
        header.stored_bytes,
        header.raw_crc,
        crc32c(stored.body) == header.stored_crc,
        tuple(envelope.copyset),
        by_recovery,
        seal_epoch,
        wave,
    )
