"""Stores recovery's decision: the blocks to keep, the holes and the bridge, each R times.

Every store carries the recovery's own epoch as its seal, so a higher recovery stops it at each
node. In place of a wave it carries the number of the attempt.

A block to keep goes to the nodes that hold it, as far as racks and other scopes allow. These nodes
get only its new envelope, an *amend*; other nodes get the whole block. So a recovery usually writes
about a hundred bytes for a block of any size. A node that does not hold the block intact says so,
and gets the body too.

If the data of a node is reported as being rebuilt, no copyset names the node, as long as other
nodes can take its place: storage nodes refuse the store, even from a recovery (`storage.refusals`).
If there are no other nodes, the store is refused and the recovery is retried. A member that sealed
and was read is up, so it may be about to clear its status, and the storage nodes will hear of that.
A drained node never does, so later attempts leave it out (`recover_log.empty_nodes`).

Source: docs/sources/logdevice.md 2.7 (6); docs/design.md §2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cordwood.block import (
    BlockHeader,
    BlockKind,
    Buffer,
    Envelope,
    EnvelopeFlag,
)
from cordwood.decisions import MendAnswered, MendFenced, tell
from cordwood.errors import Fenced, NoSequencer, TooFewNodes
from cordwood.host.seams import Host
from cordwood.layout.block_header import BLOCK_HEAD_BYTES_MAX, pack_envelope, pack_header
from cordwood.layout.frame import checksum
from cordwood.layout.waves import Refusal, StoredBlock, StoreRefusal, store_head
from cordwood.lsn import ESN_MAX, LogId
from cordwood.nodes import NodeId, Nodeset, Replication
from cordwood.protocol.digest import Mend
from cordwood.quorum.authority import rebuilt_nodes
from cordwood.quorum.copyset import choose_copyset
from cordwood.wire.store_channel import StoreChannel

MEND_TIMEOUT_S = 10.0
"""One durable wave per node; LogDevice's mutation takes half a second a try."""

FULL_PAUSE_S = 0.2
"""The pause between tries of a node without free space: a flush takes as long."""

FULL_TRIES = 10
"""After these tries recovery begins again, perhaps with other nodes, so that a node that cannot
flush does not block the log."""


SPARED_WEIGHT = 1e-6
"""The weight of a node that takes no new records, beside nodes that do; and of a node that does not
hold a block, beside nodes that do."""


@dataclass(frozen=True, slots=True)
class MendJob:
    """One epoch being mended.

    Attributes:
        seal: the recovery's own epoch.
        attempt: the number of this try under that seal. An earlier try may have left copies of
            another outcome on nodes that do not answer now; copies of this try win over them.
        nodes: members that sealed and were read; some of them store the tail.
        append_time_us: of plugs that have no kept block before them.
        run_bytes: headers, envelopes and bodies stored at once; a single block may be larger.
        holders: by block, the nodes that hold exactly this block, by the digest.
        absent: members that counted as nodes without data, and were not asked to store.
    """

    log: LogId
    seal: int
    lng: int
    nodes: tuple[NodeId, ...]
    nodeset: Nodeset
    replication: Replication
    append_time_us: int
    run_bytes: int
    holders: Mapping[BlockHeader, frozenset[NodeId]] = field(default_factory=dict)
    attempt: int = 1
    absent: tuple[NodeId, ...] = ()


async def mend_tail(
    job: MendJob, mend: Mend[StoredBlock], channel: StoreChannel, host: Host
) -> None:
    """Store all of `mend`, fully replicated; return once it is durable everywhere.

    Raises:
        Fenced: a higher epoch sealed.
        NoSequencer, TooFewNodes: a node went away or refused; try again.
    """
    # Blocks with the same holders go out together, to one copyset. Their order does not matter: the
    # epoch is recovered only after all of them are stored.
    waves: dict[frozenset[NodeId], list[tuple[BlockHeader, Buffer]]] = {}
    sizes: dict[frozenset[NodeId], int] = {}
    for header, body in _outcomes(job, mend):
        # Number: a plug has no body, so a whole plug is no larger than an amend.
        holders = job.holders.get(header, frozenset()) if body else frozenset()
        waves.setdefault(holders, []).append((header, body))
        sizes[holders] = sizes.get(holders, 0) + BLOCK_HEAD_BYTES_MAX + len(body)
        if sizes[holders] >= job.run_bytes:
            await store_wave(job, waves.pop(holders), channel, host, holders)
            del sizes[holders]
    for holders, wave in waves.items():
        await store_wave(job, wave, channel, host, holders)


def _outcomes(job: MendJob, mend: Mend[StoredBlock]) -> Iterator[tuple[BlockHeader, Buffer]]:
    """Headers and bodies to store: blocks, then holes, then the bridge, if there is one."""
    times = [(copy.header.last, copy.header.append_time_us) for copy in mend.blocks]
    for copy in mend.blocks:
        yield copy.header, copy.body.body
    for first, last in mend.holes:
        # A plug takes the time of the block before it, so that append time does not fall along the
        # log.
        before = [time for end, time in times if end < first]
        time_us = before[-1] if before else job.append_time_us
        yield _plug(job.log, first, last, BlockKind.HOLE, time_us), b""
    if mend.bridge is None:
        return
    time_us = times[-1][1] if times else job.append_time_us
    yield _plug(job.log, mend.bridge, mend.bridge | ESN_MAX, BlockKind.BRIDGE, time_us), b""


def _plug(log: LogId, first: int, last: int, kind: BlockKind, time_us: int) -> BlockHeader:
    return BlockHeader(
        log=log,
        first=first,
        count=last - first + 1,
        append_time_us=time_us,
        kind=kind,
        group_first=first,
        group_last=last,
    )


@dataclass(frozen=True, slots=True)
class _Payload:
    """One STORE payload, and its checksum."""

    parts: Sequence[Buffer]
    crc: int

    @classmethod
    def of(cls, parts: Sequence[Buffer]) -> _Payload:
        """The payload with its checksum."""
        return cls(parts, checksum(parts))


async def store_wave(
    job: MendJob,
    wave: Sequence[tuple[BlockHeader, Buffer]],
    channel: StoreChannel,
    host: Host,
    holders: frozenset[NodeId] = frozenset(),
) -> None:
    """Store one wave on one copyset; `holders` hold all of its blocks."""
    is_plugs = not any(body for _, body in wave)
    copyset = _choose(job, holders, host, everybody_ends=is_plugs)
    envelope = pack_envelope(
        Envelope(copyset, job.attempt, job.seal, job.lng, EnvelopeFlag.BY_RECOVERY)
    )
    heads = [pack_header(header) + envelope for header, _ in wave]
    parts: list[Buffer] = [store_head(len(wave), job.seal)]
    for head, (_, body) in zip(heads, wave, strict=True):
        parts += (head, body)
    whole = _Payload.of(parts)
    amend = _Payload.of([store_head(len(wave), job.seal, amends=True), *heads])
    missing = {node: amend if node in holders else whole for node in copyset}
    pauses = 0
    try:
        async with asyncio.timeout(MEND_TIMEOUT_S):
            while missing:
                answers = {node: _answer(channel, node, each) for node, each in missing.items()}
                refused = {node: _check(job.log, node, await answers[node]) for node in missing}
                full = [node for node in missing if refused[node] is Refusal.FULL]
                # Race: the node sent its copy in the digest, and lost or trimmed it since. It gets
                # the body too.
                lacking = [node for node in missing if refused[node] is Refusal.NOT_HELD]
                missing = {node: missing[node] for node in full} | dict.fromkeys(lacking, whole)
                if full:
                    # Trap: a new attempt would store all blocks again, on nodes that are full.
                    pauses += 1
                    if pauses == FULL_TRIES:
                        text = f"log {job.log} cannot be mended: nodes {full} have no room"
                        raise NoSequencer(text)
                    await asyncio.sleep(FULL_PAUSE_S)
    except TimeoutError:
        raise NoSequencer(
            f"log {job.log}: mending was not stored within {MEND_TIMEOUT_S:g} s"
        ) from None


def _choose(
    job: MendJob, holders: frozenset[NodeId], host: Host, *, everybody_ends: bool
) -> tuple[NodeId, ...]:
    """A copyset of `holders` and of nodes that are not being rebuilt, as far as possible.

    It has nodes that take no new records only if there are no others. Then it must use them: only
    an epoch's own nodes can hold its end, and without the end no later record is ever released.
    Read-only nodes come last: they take plugs, and amends of blocks that they hold, and no bodies.

    Raises:
        TooFewNodes: the nodes cannot keep the replication.
    """
    everybody = frozenset(job.nodes)
    there = everybody - rebuilt_nodes(job.nodeset.members)
    light = everybody if everybody_ends else holders
    taking = (_all_taking(job.nodeset), _all_taking(job.nodeset, light))
    for nodeset in (job.nodeset, *taking):
        for nodes in (there, everybody):
            copyset = choose_copyset(
                _sparing(nodeset, holders), job.replication, nodes, host.random
            )
            # The order of tries: first without nodes that take no records, then with them; in each,
            # first without nodes that are being rebuilt.
            if copyset is not None:
                return copyset
    read_only = [m.node for m in job.nodeset.members if m.read_only and m.node in everybody]
    way_out = (
        f": nodes {read_only} are read-only; let them store until the log is recovered "
        "(`cordwood nodes storage NODE read-write`)"
    )
    raise TooFewNodes(
        f"log {job.log} wants {job.replication}, and nodes {job.nodes} cannot give that"
        + (way_out if read_only else "")
    )


def _all_taking(nodeset: Nodeset, light: frozenset[NodeId] = frozenset()) -> Nodeset:
    """The same nodes, with a tiny weight instead of 0; read-only nodes keep 0, but for `light`."""
    return Nodeset(
        tuple(
            m
            if m.read_only and m.node not in light
            else replace(m, weight=m.weight or SPARED_WEIGHT)
            for m in nodeset.members
        )
    )


def _sparing(nodeset: Nodeset, holders: frozenset[NodeId]) -> Nodeset:
    """The same nodes, with a tiny weight for those outside `holders`."""
    if not holders:
        return nodeset
    return Nodeset(
        tuple(
            m if m.node in holders else replace(m, weight=m.weight * SPARED_WEIGHT)
            for m in nodeset.members
        )
    )


def _answer(
    channel: StoreChannel, node: NodeId, payload: _Payload
) -> asyncio.Future[Sequence[StoreRefusal] | None]:
    """Send to one node; the future gets its refusals, or None if it was lost."""
    answer: asyncio.Future[Sequence[StoreRefusal] | None] = (
        asyncio.get_running_loop().create_future()
    )

    def settled(_: NodeId, refusals: Sequence[StoreRefusal] | None) -> None:
        if not answer.done():
            answer.set_result(refusals)

    if not channel.send(node, payload.parts, payload.crc, settled):
        answer.set_result(None)
    return answer


def _check(log: LogId, node: NodeId, refusals: Sequence[StoreRefusal] | None) -> Refusal | None:
    """A node's answer: None for stored, or a refusal after which the store is retried.

    Raises:
        Fenced: a higher epoch sealed.
        NoSequencer: the node went away, or refused for good.
    """
    if refusals is None:
        raise NoSequencer(f"log {log} cannot be mended: node {node} went away")
    tell(MendAnswered(log, node))
    for refusal in refusals:
        if refusal.reason == Refusal.SEALED:
            tell(MendFenced(log, refusal.epoch))
            raise Fenced(f"log {log} is sealed by epoch {refusal.epoch}", refusal.epoch)
        if refusal.reason == Refusal.REBUILDING:
            raise NoSequencer(
                f"log {log} cannot be mended: node {node} still takes node {refusal.epoch} for "
                "one that is being rebuilt"
            )
        if refusal.reason not in (Refusal.FULL, Refusal.NOT_HELD):
            raise NoSequencer(f"log {log} cannot be mended: node {node} is {refusal.reason.name}")
    return refusals[0].reason if refusals else None
