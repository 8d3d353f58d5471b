"""How fast one storage node takes stores, beside fio on the same disk in the same minute.

One node, one connection, waves of one block as a sequencer sends them, with a fixed number
unanswered. All parts of the node work: network, checks, WAL, log cache, and the flush into LogsDB
when enough blocks have gathered.

Source: docs/sources/hotpath.md §5 ("One node alone vs fio").
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from time import perf_counter

from crc32c import crc32c

from cordwood.bench.append import Say
from cordwood.bench.figure import Figure, Sample, make_figure, percentile_ms
from cordwood.bench.fio import FioJob, run_fio
from cordwood.bench.place import bench_place
from cordwood.block import BlockKind, Buffer, Codec, Envelope
from cordwood.errors import CordwoodError, Retryable
from cordwood.host.real_disk import RealDisk
from cordwood.host.real_network import RealNetwork
from cordwood.layout.block_header import (
    BLOCK_HEAD_BYTES_MAX,
    pack_envelope,
    pack_header_fields,
)
from cordwood.layout.frame import Frame, Kind, checksum
from cordwood.layout.hello import ANY_CLUSTER, Hello
from cordwood.layout.message import Seal
from cordwood.layout.waves import SPACE_UNIT_BYTES, read_stored, store_head, stored_space
from cordwood.lsn import make_lsn
from cordwood.settings import MIB
from cordwood.wire.connection import Connection, dial

LOG = 1 << 40
"""A log number that a client cannot use."""

TIMEOUT_S = 10.0

REFERENCE_BYTES = 256 * MIB
"""Bytes of the file that fio writes to, again and again."""


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """One way to store.

    Attributes:
        name: of the figure.
        block_bytes: of a body.
        blocks: of a wave, each of a log of its own.
        in_flight: waves not answered yet.
        waves: of a repeat.
    """

    name: str
    block_bytes: int
    blocks: int
    in_flight: int
    waves: int

    @property
    def wave_bytes(self) -> int:
        """Bodies of one wave."""
        return self.block_bytes * self.blocks

    @property
    def free_bytes(self) -> int:
        """Most bytes of a wave in the node's WAL and cache."""
        bytes_max = self.blocks * (self.block_bytes + BLOCK_HEAD_BYTES_MAX) + SPACE_UNIT_BYTES
        return -(-bytes_max // SPACE_UNIT_BYTES) * SPACE_UNIT_BYTES


BLOCKS = NodeProfile("node_64KiB_stores", 64 << 10, 1, 16, 8_000)
MANY_LOGS = NodeProfile("node_256B_stores_in_200_logs", 256, 200, 4, 1_000)
STANDARD = (BLOCKS, MANY_LOGS)


class _Sender:
    """Waves to one node, and their answers."""

    def __init__(self, profile: NodeProfile) -> None:
        self._profile = profile
        self._body = os.urandom(profile.block_bytes)
        self._crc = crc32c(self._body)
        self._connection: Connection
        self._sent = 0
        self._settled = 0
        # The number of waves, beyond the settled waves, for which the node has free space.
        self._room = profile.in_flight
        self._sent_at: list[float] = []
        self._stop = 0
        self._latencies: list[float] = []
        self._done: asyncio.Future[None]

    async def connect(self, address: str) -> None:
        """Greet as the node itself: only members store."""
        network, client = RealNetwork(), Hello(0, ANY_CLUSTER)
        asking = await dial(network, address, client, self, timeout_s=TIMEOUT_S)
        assert asking.peer is not None, "it has greeted"
        ours = Hello(asking.peer.node, asking.peer.cluster)
        self._connection = await dial(network, address, ours, self, timeout_s=TIMEOUT_S)
        self._asking = asking
        # As a sequencer does: without a seal the node first asks the epoch store about each log.
        for log in range(LOG, LOG + self._profile.blocks):
            await self._connection.call(Seal(log, 1, 0), timeout_s=TIMEOUT_S)

    async def run(self, waves: int) -> list[float]:
        """Send this many waves. Returns the seconds of each."""
        self._latencies = []
        self._stop = self._sent + waves
        self._done = asyncio.get_running_loop().create_future()
        self._fill()
        await self._done
        return self._latencies

    def close(self) -> None:
        self._connection.close()
        self._asking.close()

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        """See `wire.connection.FrameHandler`."""
        if frame.kind != Kind.STORED:
            return
        settled, refusals = read_stored(frame.payload)
        if refusals:
            self._fail(Retryable(f"the node refused a store: {refusals[0]}"))
            return
        now = perf_counter()
        self._latencies += [now - at for at in self._sent_at[self._settled : settled]]
        self._settled = settled
        self._room = stored_space(frame.payload) // self._profile.free_bytes
        self._fill()
        if self._settled >= self._stop and not self._done.done():
            self._done.set_result(None)

    def on_lost(self, connection: Connection, error: CordwoodError) -> None:
        """See `wire.connection.FrameHandler`."""
        self._fail(error)

    def _fail(self, error: CordwoodError) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    def _fill(self) -> None:
        ahead = min(self._profile.in_flight, self._room)
        while self._sent < min(self._stop, self._settled + ahead):
            self._sent += 1
            self._sent_at.append(perf_counter())
            parts = self._wave(self._sent)
            self._connection.send(Kind.STORE, self._sent, parts, checksum(parts))

    def _wave(self, number: int) -> list[Buffer]:
        lsn = make_lsn(1, number)
        size, crc = self._profile.block_bytes, self._crc
        envelope = pack_envelope(Envelope((1, 2, 3), 1, 0, lsn - 1))
        parts: list[Buffer] = [store_head(self._profile.blocks)]
        for log in range(LOG, LOG + self._profile.blocks):
            header = pack_header_fields(
                BlockKind.DATA, Codec.NONE, log, lsn, 1, number, 0, 0, 0, lsn, lsn,
                size, size, crc, crc,
            )  # fmt: skip
            parts += (header + envelope, self._body)
        return parts


async def bench_node(
    profile: NodeProfile, program: str | None, *, directory: str, repeats: int, say: Say
) -> Figure:
    """Measure one profile on a fresh node.

    Args:
        program: fio; None for no reference.
    Raises:
        CordwoodError: the node did not start, or refused a store.
    """
    wave_bytes = profile.wave_bytes
    say(f"{profile.name}: starting")
    async with bench_place(
        None, directory, nodes=1, blocks=profile.waves * (repeats + 1),
        block_bytes=profile.free_bytes,
    ) as place:  # fmt: skip
        job = await _reference(place.directory, profile, wave_bytes)
        sender = _Sender(profile)
        await sender.connect(place.url.removeprefix("cordwood://").split(",")[0])
        samples = []
        try:
            await sender.run(profile.waves // 4)
            for repeat in range(repeats):
                fio = None if program is None else await run_fio(program, job)
                began = perf_counter()
                latencies = sorted(await sender.run(profile.waves))
                seconds = perf_counter() - began
                samples.append(
                    Sample(
                        len(latencies) * wave_bytes / seconds / 1e6,
                        None if fio is None else fio.bytes_per_s / 1e6,
                        percentile_ms(latencies, 0.5),
                        percentile_ms(latencies, 0.99),
                    )
                )
                say(f"{profile.name}: {repeat + 1} of {repeats}")
        finally:
            sender.close()
    return make_figure(
        profile.name, "MB/s", samples, reference_is=job.describe(),
        parameters={
            "block_bytes": profile.block_bytes, "blocks": profile.blocks,
            "in_flight": profile.in_flight, "waves": profile.waves,
            "cores": os.cpu_count() or 0,
        },
    )  # fmt: skip


async def _reference(directory: str, profile: NodeProfile, wave_bytes: int) -> FioJob:
    path = os.path.join(directory, "reference")
    disk = RealDisk()
    try:
        file = await disk.open_direct(path, create_bytes=REFERENCE_BYTES)
        await file.close()
    finally:
        await disk.close()
    block = -(-wave_bytes // 4096) * 4096
    return FioJob(path, 0, REFERENCE_BYTES, block, profile.in_flight, 2.0)
