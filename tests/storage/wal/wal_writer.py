"""A process that appends to a WAL and says what happens: `python wal_writer.py PATH RECORDS …`.

Every line of output is one event: `ack N` once record N is durable, `refused NAME` when
appends begin not to be taken (they are tried again), `failed NAME` for the end of the WAL.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque

from cordwood.errors import CordwoodError, Overloaded
from cordwood.host.real_disk import RealDisk
from cordwood.nodes import NodeId
from cordwood.storage.wal.delta_wal import Wal, WalLimits

OWNER = NodeId(3)
IN_FLIGHT = 4
LIMITS = WalLimits(block_bytes=8192, stall_s=0.3, give_up_s=30.0)


def body(number: int) -> bytes:
    """Record `number`: a few sectors, and recognisable."""
    return b"%08d" % number * 700


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def write(path: str, records: int, how: str) -> None:
    disk = RealDisk(use_direct=how != "buffered", use_kernel_aio=how == "kernel")
    wal = await Wal.open(disk, path, owner=OWNER, limits=LIMITS)
    async for _ in wal.recover():
        pass
    flying: deque[tuple[int, asyncio.Future[int]]] = deque()
    number, refusal = 0, ""
    try:
        while number < records or flying:
            while number < records and len(flying) < IN_FLIGHT:
                try:
                    flying.append((number, wal.append([body(number)])[1]))
                except Overloaded:
                    await asyncio.sleep(0.02)
                    break
                number += 1
            trouble = type(wal.trouble).__name__ if wal.trouble else ""
            if trouble and trouble != refusal:
                say(f"refused {trouble}")
            refusal = trouble
            if flying:
                done, future = flying[0]
                await asyncio.wait([future], timeout=0.05)
                if future.done():
                    flying.popleft()
                    future.result()
                    say(f"ack {done}")
    except CordwoodError as error:
        for done, future in flying:
            assert future.done(), "a WAL that failed leaves nobody waiting"
            if future.exception() is None:
                say(f"ack {done}")  # durable before it failed, and not looked at yet
        say(f"failed {type(error).__name__}")
        try:
            wal.append([b"once more"])
        except CordwoodError as refused:
            say(f"failed {type(refused).__name__}")
    await disk.close()


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
