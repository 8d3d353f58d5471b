"""Reads the members' copies of an epoch above its LNG, released or not.

Frames come over the node's own peer connections; `DigestReads` hands each frame to its read.

Source: docs/sources/logdevice.md 2.7 (3, 4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass

from crc32c import crc32c

from cordwood.block import BlockHeader, BlockKind
from cordwood.decisions import DigestWeighed, tell
from cordwood.errors import (
    ChecksumMismatch,
    CordwoodError,
    Overloaded,
    Retryable,
    Unreachable,
)
from cordwood.layout.frame import Frame, Kind
from cordwood.layout.reading import (
    ReadRequest,
    ReadStatus,
    pack_read,
    pack_stop,
    pack_window,
    read_blocks_frame,
    read_reading,
)
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import ESN_MAX, LogId, format_lsn, make_lsn
from cordwood.nodes import NodeId, Nodeset, Replication
from cordwood.protocol.digest import Copy, Digest
from cordwood.quorum.f_majority import QuorumVerdict
from cordwood.recovery.absent import refuse_absent
from cordwood.recovery.ask import ask_until
from cordwood.recovery.heard import Statuses, is_enough, weigh
from cordwood.wire.connection import Connection
from cordwood.wire.peers import Peers

DIGEST_TIMEOUT_S = 10.0
"""The tail above an LNG is one append window; reading it takes far less time."""

DIGEST_BYTES_MAX = 1 << 30
"""The most bytes that recovery holds from one member: many times an append window."""

CREDIT_BYTES = 16 << 20
"""The bytes that a member may send ahead of our acknowledgement."""


class _Reading:
    """One digest read from one member."""

    def __init__(self, request: ReadRequest, connection: Connection) -> None:
        self.request = request
        self.connection = connection
        self.blocks: list[StoredBlock] = []
        self.bytes = 0
        self.released = 0
        self.trim = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class DigestReads:
    """Digest reads now open, by connection and stream number."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._open: dict[tuple[Connection, int], _Reading] = {}
        self._next_stream = 1

    def on_frame(self, node: NodeId, connection: Connection, frame: Frame) -> None:
        """A READING or BLOCKS frame from `node`.

        Raises:
            Malformed, ChecksumMismatch: the frame is damaged.
        """
        if frame.kind == Kind.READING:
            self._on_reading(node, connection, frame)
            return
        head, blocks = read_blocks_frame(frame.payload)
        reading = self._open.get((connection, head.stream))
        # Race: frames of a read that ended or timed out are still under way on the connection.
        if reading is None or reading.done.done():
            return
        for block in blocks:
            if crc32c(block.body) != block.header.stored_crc:
                at = format_lsn(block.header.first)
                reading.done.set_exception(
                    ChecksumMismatch(f"node {node} holds a damaged copy at {at}")
                )
                return
            reading.bytes += block.wire_bytes
        reading.blocks += blocks
        # The node may hear of releases and trims while it sends, so later frames have newer values.
        reading.released = max(reading.released, head.released)
        reading.trim = max(reading.trim, head.trim)
        if reading.bytes > DIGEST_BYTES_MAX:
            text = f"node {node} sends more than {DIGEST_BYTES_MAX} bytes of an epoch's tail"
            reading.done.set_exception(Overloaded(text))
        # The node has sent all its blocks: only now is it known which blocks it does not hold.
        elif head.next > reading.request.until:
            reading.done.set_result(None)
        else:
            window = pack_window(head.stream, reading.request.until, reading.bytes + CREDIT_BYTES)
            connection.send(Kind.WINDOW, 0, (window,))

    def _on_reading(self, node: NodeId, connection: Connection, frame: Frame) -> None:
        stream, status, *_ = read_reading(frame.payload)
        reading = self._open.get((connection, stream))
        if reading is None or reading.done.done() or status == ReadStatus.OK:
            return
        if status == ReadStatus.DAMAGED:
            text = "it lost records; for good, if no node has them (`cordwood nodes accept-loss`)"
        else:
            text = "it has not sealed, so what it holds is not known"
        error = Retryable(text)
        reading.done.set_exception(error)

    def on_down(self, node: NodeId, connection: Connection) -> None:
        """The connection is gone; its digest reads fail."""
        for (each, _), reading in self._open.items():
            if each is connection and not reading.done.done():
                reading.done.set_exception(Unreachable(f"node {node} went away"))

    async def read(self, node: NodeId, log: int, start: int, until: int) -> HeldTail:
        """All copies that `node` holds in `[start, until]`.

        Raises:
            Unreachable: the node is down, or did not finish within DIGEST_TIMEOUT_S.
            ChecksumMismatch: the node has a damaged copy, so it does not know all that it holds.
        """
        connection = await self._peers.wait_for(node, timeout_s=DIGEST_TIMEOUT_S)
        stream = self._next_stream
        self._next_stream += 1
        request = ReadRequest(stream, log, start, until, until, CREDIT_BYTES, digest=True)
        reading = self._open[connection, stream] = _Reading(request, connection)
        connection.send(Kind.READ, 0, (pack_read(request),))
        try:
            async with asyncio.timeout(DIGEST_TIMEOUT_S):
                await reading.done
        except TimeoutError:
            raise Unreachable(
                f"node {node} did not send its tail within {DIGEST_TIMEOUT_S:g} s"
            ) from None
        finally:
            del self._open[connection, stream]
            # Also after a timeout: the node would otherwise keep the stream, and its memory, until
            # the connection ends.
            connection.send(Kind.STOP, 0, (pack_stop(stream),))
        return HeldTail(reading.blocks, reading.released, reading.trim)


@dataclass(frozen=True, slots=True)
class HeldTail:
    """One member's copies of an epoch's end, the release that it knows, and its trim point."""

    blocks: list[StoredBlock]
    released: int
    trim: int = 0


@dataclass(frozen=True, slots=True)
class Collected:
    """A digest, and the nodes that sent the copies in it, in node order.

    Attributes:
        lng: all records of the epoch up to it are stored in full.
        holders: by block, the nodes that hold a copy of exactly this block.
        is_authoritative: whether records that none of these nodes holds were never acknowledged.
        over_by: the highest epoch of which one of the nodes knows a release. If it is above the
            epoch that was read, another recovery has ended that epoch.
    """

    digest: Digest[StoredBlock]
    nodes: tuple[NodeId, ...]
    lng: int
    holders: Mapping[BlockHeader, frozenset[NodeId]]
    is_authoritative: bool
    over_by: int = 0


async def collect_digest(
    log: LogId,
    epoch: int,
    lng: int,
    sealed: Collection[NodeId],
    nodeset: Nodeset,
    replication: Replication,
    reads: DigestReads,
    latest_us: int | None,
    statuses: Statuses,
    empty: Set[NodeId] = frozenset(),
) -> Collected:
    """Read the copies of `epoch` above `lng` from an f-majority that can also store the tail again.

    A member may have trimmed above `lng` since it sealed, and then holds no copies there. Its
    answer carries its release and its trim point. LSNs at or below either are never plugged.

    A record that is younger than `latest_us` was never acknowledged: it would be on a full
    copyset, and the epoch above began at or after the latest append time of an f-majority. The
    digest leaves this record out, because append time must not fall along a log.

    Args:
        latest_us: the append time below which no higher epoch has records. None if it was decided
            without members that may have come back: then it is no bound.
        sealed: the members that took this recovery's seal; only these are read.
        statuses: the reported status of members' data. The status of a member that sealed does
            not count, because it is up.
        empty: members that store no tail, even if they answer.
    Raises:
        NoSequencer: too few members answered, or too few know all that they hold.
    """
    until = (epoch << 32) | ESN_MAX
    away = {node: status for node, status in statuses.items() if node not in sealed}

    def enough(answers: Mapping[NodeId, HeldTail | CordwoodError]) -> bool:
        heard = {node for node, answer in answers.items() if not isinstance(answer, CordwoodError)}
        return is_enough(heard, nodeset, replication, away, empty)

    answers = await ask_until(
        sorted(sealed), lambda node: reads.read(node, log, lng + 1, until), enough
    )
    if not enough(answers):
        failures = {n: a for n, a in answers.items() if isinstance(a, CordwoodError)}
        refuse_absent(log, f"reading the tail of epoch {epoch}", failures)
    heard = {node: tail for node, tail in answers.items() if not isinstance(tail, CordwoodError)}
    released = [tail.released for tail in heard.values()]
    # If a trim point lies in a higher epoch, only this epoch's bridge is left to mend.
    trims = [min(tail.trim, int(make_lsn(epoch, ESN_MAX - 1))) for tail in heard.values()]
    # Race: a node trims and releases while the digest is read. Below its highest trim point or
    # release, records are on full copysets or trimmed, and a missing copy there is no hole.
    lng = max([lng, *trims, *(each for each in released if each >> 32 == epoch)])
    digest: Digest[StoredBlock] = Digest(epoch, lng)
    for tail in heard.values():
        # A plug is the outcome of an earlier recovery, and counts with any append time.
        digest.add(
            Copy(block.header, block.envelope, block)
            for block in tail.blocks
            if latest_us is None
            or block.header.append_time_us <= latest_us
            or block.header.kind != BlockKind.DATA
        )
    holders: dict[BlockHeader, frozenset[NodeId]] = {}
    for node, tail in heard.items():
        for block in tail.blocks:
            # By the whole header, with its checksum: two attempts may have left different blocks at
            # one LSN.
            holders[block.header] = holders.get(block.header, frozenset()) | {node}
    verdict = weigh(heard.keys(), nodeset, replication, away)
    tell(DigestWeighed(log, epoch, verdict.name))
    is_authoritative = verdict is not QuorumVerdict.NON_AUTHORITATIVE
    # No node is heard if all members lost their disks for good.
    over_by = max((each >> 32 for each in released), default=0)
    return Collected(digest, tuple(heard), lng, holders, is_authoritative, over_by)
