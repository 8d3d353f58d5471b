"""The runner's view of a peer: how to start it, and one of its logs to append to and read.

A peer may run in several ways on the same servers, for example with topics of two durabilities.
Each way is a variant, and the page has a line for each variant.
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
        client: the client that sends the load, and the reason why it is fair.
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
    """One client of one variant, and its log."""

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
        """Read the first `count` records of the log, of `size` bytes each. Returns the seconds.

        Raises:
            CordwoodError: they did not come in time.
        """

    @abstractmethod
    async def tail(self, load: TailLoad) -> Lag:
        """Append as the load says, and read at the tail of a fresh log.

        Raises:
            CordwoodError: not all records came in time.
        """


class RunningPeer(ABC):
    """A peer's servers, running."""

    @abstractmethod
    def session(self, variant: Variant) -> AbstractAsyncContextManager[Session]:
        """A client for one of the peer's variants, connected, with a fresh log."""


class Peer(ABC):
    """One system. The page shows its variants in this order."""

    name: str
    variants: tuple[Variant, ...]
    warm_up_s: float = 0.5
    """Seconds of appends before the measurement; a JVM needs longer than a binary."""

    @abstractmethod
    def missing(self) -> str | None:
        """The reason why it cannot run here, and the remedy; None if it can run."""

    @abstractmethod
    def version(self) -> str:
        """The server's version; asked only if nothing is missing."""

    async def prepare(self) -> None:
        """Fetch and build its other programs once; most peers have none.

        Raises:
            CordwoodError: a program could not be fetched or built.
        """
        return None

    @abstractmethod
    def running(self, directory: str) -> AbstractAsyncContextManager[RunningPeer]:
        """Start its servers, and stop them at the end of the block.

        Args:
            directory: the absolute path of an empty directory for all files of the servers.

        Raises:
            CordwoodError: they did not start.
        """
