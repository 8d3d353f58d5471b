"""Store what recovery decided: records kept, holes plugged, the bridge, all R times.

Every store carries the recovery's own epoch as its seal, so a higher recovery
stops it at each node.

Source: LogDevice digest 2.7 (6); design.md §2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cordwood.block import (
    BlockHeader,
    BlockKind,
    Buffer,
    Envelope,
    EnvelopeFlag,
)
from cordwood.errors import Fenced, NoSequencer, TooFewNodes
from cordwood.host.seams import Host
from cordwood.layout.block_header import BLOCK_HEAD_BYTES_MAX, pack_envelope, pack_header
from cordwood.layout.frame import checksum
from cordwood.layout.waves import Refusal, StoredBlock, StoreRefusal, store_head
from cordwood.lsn import ESN_MAX
from cordwood.nodes import NodeId, Nodeset, Replication
from cordwood.protocol.digest import Mend
from cordwood.quorum.copyset import choose_copyset
from cordwood.wire.store_channel import StoreChannel

MEND_TIMEOUT_S = 10.0
"""One durable wave per node; LogDevice's mutation takes half a second a try."""

FULL_PAUSE_S = 0.2
"""Between tries of a node that has no room just now: a flush takes as long."""

FULL_TRIES = 10
"""Then recovery begins anew, with other nodes maybe: one that cannot flush holds nobody up."""


SPARED_WEIGHT = 1e-6
"""Of a node that takes no new records beside those that do."""


@dataclass(frozen=True, slots=True)
class MendJob:
    """One epoch being mended.

    Attributes:
        seal: the recovery's own epoch.
        nodes: members that sealed and were read; the tail is stored on some of these.
        append_time_us: given to plugs where nothing before them was kept.
        run_bytes: headers, envelopes and bodies stored at once; a block may go over it.
    """

    log: int
    seal: int
    lng: int
    nodes: tuple[NodeId, ...]
    nodeset: Nodeset
    replication: Replication
    append_time_us: int
    run_bytes: int


async def mend_tail(
    job: MendJob, mend: Mend[StoredBlock], channel: StoreChannel, host: Host
) -> None:
    """Store all of `mend`, fully replicated; return once it is durable everywhere.

    Raises:
        Fenced: a higher epoch sealed.
        NoSequencer, TooFewNodes: a node went away or refused; try again.
    """
    wave: list[tuple[BlockHeader, Buffer]] = []
    size = 0
    for header, body in _outcomes(job, mend):
        wave.append((header, body))
        size += BLOCK_HEAD_BYTES_MAX + len(body)
        if size >= job.run_bytes:
            await _store(job, wave, channel, host)
            wave, size = [], 0
    if wave:
        await _store(job, wave, channel, host)


def _outcomes(job: MendJob, mend: Mend[StoredBlock]) -> Iterator[tuple[BlockHeader, Buffer]]:
    """Headers and bodies to store: blocks, then holes, then the bridge."""
    times = [(copy.header.last, copy.header.append_time_us) for copy in mend.blocks]
    for copy in mend.blocks:
        yield copy.header, copy.body.body
    for first, last in mend.holes:
        before = [time for end, time in times if end < first]
        time_us = before[-1] if before else job.append_time_us
        yield _plug(job.log, first, last, BlockKind.HOLE, time_us), b""
    time_us = times[-1][1] if times else job.append_time_us
    yield _plug(job.log, mend.bridge, mend.bridge | ESN_MAX, BlockKind.BRIDGE, time_us), b""


def _plug(log: int, first: int, last: int, kind: BlockKind, time_us: int) -> BlockHeader:
    return BlockHeader(
        log=log,
        first=first,
        count=last - first + 1,
        append_time_us=time_us,
        kind=kind,
        group_first=first,
        group_last=last,
    )


async def _store(
    job: MendJob,
    wave: Sequence[tuple[BlockHeader, Buffer]],
    channel: StoreChannel,
    host: Host,
) -> None:
    """Store one wave on one copyset.

    Of nodes that take no new records if there is no other: the end of an epoch can lie on its
    own nodes only, and without it nothing that comes after is ever released.
    """
    nodes = frozenset(job.nodes)
    copyset = choose_copyset(job.nodeset, job.replication, nodes, host.random) or choose_copyset(
        _all_taking(job.nodeset), job.replication, nodes, host.random
    )
    if copyset is None:
        raise TooFewNodes(
            f"log {job.log} wants {job.replication}, and nodes {job.nodes} cannot give that"
        )
    envelope = pack_envelope(Envelope(copyset, 1, job.seal, job.lng, EnvelopeFlag.BY_RECOVERY))
    parts: list[Buffer] = [store_head(len(wave), job.seal)]
    for header, body in wave:
        parts += (pack_header(header), envelope, body)
    crc = checksum(parts)
    missing: Sequence[NodeId] = copyset
    try:
        async with asyncio.timeout(MEND_TIMEOUT_S):
            for _ in range(FULL_TRIES):
                answers = {node: _answer(channel, node, parts, crc) for node in missing}
                missing = [n for n, answer in answers.items() if _check(job.log, n, await answer)]
                if not missing:
                    return
                # To begin anew would store all of it again, into nodes that are full.
                await asyncio.sleep(FULL_PAUSE_S)
            raise NoSequencer(f"log {job.log} cannot be mended: nodes {missing} have no room")
    except TimeoutError:
        raise NoSequencer(
            f"log {job.log}: mending was not stored within {MEND_TIMEOUT_S:g} s"
        ) from None


def _all_taking(nodeset: Nodeset) -> Nodeset:
    """The same nodes, those of weight 0 with next to none."""
    return Nodeset(tuple(replace(m, weight=m.weight or SPARED_WEIGHT) for m in nodeset.members))


def _answer(
    channel: StoreChannel, node: NodeId, parts: Sequence[Buffer], crc: int
) -> asyncio.Future[Sequence[StoreRefusal] | None]:
    """Send to one node; the future gets its refusals, or None if it was lost."""
    answer: asyncio.Future[Sequence[StoreRefusal] | None] = (
        asyncio.get_running_loop().create_future()
    )

    def settled(_: NodeId, refusals: Sequence[StoreRefusal] | None) -> None:
        if not answer.done():
            answer.set_result(refusals)

    if not channel.send(node, parts, crc, settled):
        answer.set_result(None)
    return answer


def _check(log: int, node: NodeId, refusals: Sequence[StoreRefusal] | None) -> bool:
    """What a node said: whether it had no room just now; False for stored."""
    if refusals is None:
        raise NoSequencer(f"log {log} cannot be mended: node {node} went away")
    for refusal in refusals:
        if refusal.reason == Refusal.SEALED:
            raise Fenced(f"log {log} is sealed by epoch {refusal.epoch}", refusal.epoch)
        if refusal.reason != Refusal.FULL:
            raise NoSequencer(f"log {log} cannot be mended: node {node} is {refusal.reason.name}")
    return bool(refusals)
