"""The second client: follows the tail while the first client appends, and checks the records.

It reads as any reader does, and also looks at the envelope of each block, which names its copies
and the wave in which they were stored. A wave above the first is a store that was tried again on
other nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cordwood.block import Envelope, Gap
from cordwood.client.read.delivered import records_of
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.store import Store
from cordwood.demo.checks import CheckFailed
from cordwood.demo.pauses import Pauses
from cordwood.demo.tail_check import TailCheck
from cordwood.lsn import Lsn


class Copies:
    """The copies of the blocks that were read, as their envelopes name them.

    Attributes:
        blocks: blocks read.
        fewest, fewest_racks: copies, and racks they are in, of the block with the fewest.
        retried: blocks that went out in more than one wave.
        stored_bytes: bodies as stored, one copy of each.
        by_node: blocks that have a copy there.
    """

    def __init__(self, racks: dict[int, str]) -> None:
        self.blocks = 0
        self.fewest = len(racks)
        self.fewest_racks = len(set(racks.values()))
        self.retried = 0
        self.stored_bytes = 0
        self.by_node = dict.fromkeys(sorted(racks), 0)
        self._racks = racks

    def add(self, envelope: Envelope, stored_bytes: int) -> None:
        """Count a block."""
        self.blocks += 1
        self.stored_bytes += stored_bytes
        self.retried += envelope.wave > 1
        self.fewest = min(self.fewest, len(set(envelope.copyset)))
        racks = {self._racks[node] for node in envelope.copyset}
        self.fewest_racks = min(self.fewest_racks, len(racks))
        for node in envelope.copyset:
            self.by_node[node] += 1


class Follow:
    """See the module.

    Attributes:
        copies: the copies that the envelopes named.
        reads: pauses between blocks.
    """

    def __init__(self, store: Store, log: str, check: TailCheck, racks: dict[int, str]) -> None:
        self.copies = Copies(racks)
        self.reads = Pauses(asyncio.get_running_loop().time())
        self._store = store
        self._log = log
        self._check = check
        self._moved = asyncio.Event()

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the records read make `condition` true; one waiter at a time.

        Raises:
            CheckFailed: it did not become true in time; the text names the tail's place.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            raise CheckFailed(
                f"the tail stands at {Lsn(self._check.next)}, {self._check.lag} acknowledged "
                f"records behind, and has not caught up in {timeout_s:g} s"
            ) from None

    async def run(self) -> None:
        """Read from the oldest record on, until cancelled.

        Raises:
            CheckFailed: a record differs from the acknowledged one.
            CordwoodError: the log cannot be read.
        """
        stream = await self._store.read(self._log, start="oldest", until=None)
        try:
            while True:
                await self._read_one(stream)
        finally:
            stream.close()

    async def _read_one(self, stream: ReadStream) -> None:
        taken = await stream.next()
        assert taken is not None, "a stream without an end gives something"
        self.reads.beat(asyncio.get_running_loop().time())
        if isinstance(taken, Gap):
            self._check.on_read([taken])
        else:
            stored = taken.block.stored
            self.copies.add(stored.envelope, stored.header.stored_bytes)
            self._check.on_read(records_of(taken))
        self._moved.set()
