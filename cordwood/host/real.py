"""The real host: this machine behind the three seams.

::

    async with real_host() as host:
        ...

Works on uvloop and on plain asyncio. Threads are the only thing that it holds;
leaving the block stops them and closes the direct files still open.

Source: CONTRIBUTING.md, "The idea"; docs/design.md §10.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from cordwood.host.kept_memory import keep_some_memory
from cordwood.host.real_disk import RealDisk
from cordwood.host.real_network import RealNetwork
from cordwood.host.seams import Host
from cordwood.host.threads import BlockingPool, half_of_cores

BLOCKING_THREADS = 4
"""Threads of `run_blocking`: the calls are short, and a stuck call must not stop the rest."""


class RealClock:
    """The machine's wall clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class RealHost(Host):
    """A `Host` that owns threads; close it, or use it as an async context manager."""

    disk: RealDisk
    run_blocking: BlockingPool
    run_calculation: BlockingPool

    async def close(self) -> None:
        """Close the direct files still open and stop the threads. Safe to call twice."""
        await self.disk.close()
        self.run_blocking.close()
        self.run_calculation.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def real_host(seed: int | None = None) -> RealHost:
    """This machine as a host.

    Args:
        seed: fixes its stream of chance. None takes a seed from the system's entropy, so that
            outsiders cannot guess the draws; every serving node does so.
    """
    keep_some_memory()
    return RealHost(
        clock=RealClock(),
        network=RealNetwork(),
        disk=RealDisk(),
        random=random.Random(seed),
        run_blocking=BlockingPool("cordwood-blocking", BLOCKING_THREADS),
        run_calculation=BlockingPool("cordwood-calculating", half_of_cores(), yields=True),
    )
