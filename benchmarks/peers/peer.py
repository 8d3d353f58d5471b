"""The runner's view of a peer: how to start it, and one of its logs to append to and read.

A peer that has several ways to be run on the same servers (topics of two durabilities, say) has
a variant for each; the page has a line for each variant.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from benchmarks.peers.workload import AppendLoad, AppendRun, Lag, TailLoad


@dataclass(frozen=True, slots=True)
class Variant:
    """One line of the page.

    Attributes:
        name: as in figures, `kafka_flush`.
        title: as on the page.
        servers: processes that keep copies.
        copies: of each record.
        synced: whether an ack means that the copies it counts are on the disk.
        durability: the meaning of an ack, in one sentence.
        client: the client that sends the load, and why it is fair.
        notes: other facts that a reader needs to compare, "" for none.
    """

    name: str
    title: str
    servers: int
    copies: int
    synced: bool
    durability: str
    client: str
    notes: str = ""


class Session(ABC):
    """One client of one variant, and the log it works on."""

    reads_consume = False
    """Whether a read removes the records, so that the next repeat has to append them again."""

    @abstractmethod
    async def fresh(self) -> None:
        """Make a new, empty log, and use it in place of the old one.

        Raises:
            CordwoodError: it could not be made.
        """

    @abstractmethod
    async def append(self, load: AppendLoad) -> AppendRun:
        """Append as the load says.

        Raises:
            CordwoodError: an append failed, or its answer did not come in time.
        """

    @abstractmethod
    async def read(self, size: int, count: int) -> float:
        """Seconds to read the first `count` records of the log, of `size` bytes each.

        Raises:
            CordwoodError: they did not come in time.
        """

    @abstractmethod
    async def tail(self, load: TailLoad) -> Lag:
        """Append as the load says and read at the tail of the log, which is fresh.

        Raises:
            CordwoodError: not all records came in time.
        """


class RunningPeer(ABC):
    """A peer's servers, running."""

    @abstractmethod
    def session(self, variant: Variant) -> AbstractAsyncContextManager[Session]:
        """A client for one of the peer's variants, connected, with a fresh log."""


class Peer(ABC):
    """One system. The order of its variants is theirs on the page."""

    name: str
    variants: tuple[Variant, ...]
    warm_up_s: float = 0.5
    """Of appends before anything is measured; a JVM needs longer than a binary."""

    @abstractmethod
    def missing(self) -> str | None:
        """Why it cannot run here, and the remedy; None if it can run."""

    @abstractmethod
    def version(self) -> str:
        """Of its server; asked only if nothing is missing."""

    async def prepare(self) -> None:
        """Fetch and build its other programs once; most peers have none.

        Raises:
            CordwoodError: it could not be had.
        """
        return None

    @abstractmethod
    def running(self, directory: str) -> AbstractAsyncContextManager[RunningPeer]:
        """Start its servers, and stop them at the end of the block.

        Args:
            directory: an absolute path, of an empty directory for all they write.

        Raises:
            CordwoodError: they did not start.
        """
