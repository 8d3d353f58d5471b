"""Ledgers for callers without a loop; made by `blocking.BlockingStore`.

Source: docs/ledgers.md; docs/design.md §7.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from cordwood.block import Buffer
from cordwood.client.blocking.facade import Facade, Until, blocking
from cordwood.client.ledgers.ledger_following import Following
from cordwood.client.ledgers.ledgers import Ledgers, UnderReplicated
from cordwood.client.ledgers.readable_ledger import LedgerEntry, ReadableLedger
from cordwood.client.ledgers.writable_ledger import WritableLedger
from cordwood.errors import CordwoodError
from cordwood.host.loop_thread import LoopThread
from cordwood.ledger import DigestKind, LedgerMetadata
from cordwood.protocol.ledger_writer import WriterLimits
from cordwood.quorum.ensemble_choice import ANYWHERE, Placement

if TYPE_CHECKING:
    import pyarrow as pa

Item = TypeVar("Item")


class BlockingWritableLedger(Facade[WritableLedger]):
    """See `writable_ledger.WritableLedger`."""

    append = blocking(WritableLedger.append, changes=True)
    append_many = blocking(WritableLedger.append_many, changes=True, timed=False)
    write = blocking(WritableLedger.write, changes=True)
    force = blocking(WritableLedger.force)
    close = blocking(WritableLedger.close, changes=True)

    def append_soon(self, payload: Buffer) -> Future[int]:
        """As `append`, without waiting: entries have the order of these calls.

        Raises:
            Closed: the client was closed.
        """
        # The loop begins the call later; the caller may refill its buffer before that.
        if not isinstance(payload, bytes):
            payload = bytes(memoryview(payload))  # trap: `bytes(n)` of a number makes n zeros
        return self._thread.start(self._inner.append(payload))

    def abandon(self) -> None:
        """See `WritableLedger.abandon`."""

        async def abandon() -> None:
            self._inner.abandon()

        self._call(abandon())

    @property
    def ledger_id(self) -> int:
        """Its number."""
        return self._inner.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """See `WritableLedger.metadata`."""
        return self._inner.metadata

    @property
    def last_add_pushed(self) -> int:
        """See `WritableLedger.last_add_pushed`."""
        return self._inner.last_add_pushed

    @property
    def last_add_confirmed(self) -> int:
        """See `WritableLedger.last_add_confirmed`."""
        return self._inner.last_add_confirmed

    @property
    def length(self) -> int:
        """See `WritableLedger.length`."""
        return self._inner.length

    @property
    def is_closed(self) -> bool:
        """See `WritableLedger.is_closed`."""
        return self._inner.is_closed

    def __enter__(self) -> BlockingWritableLedger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            with suppress(CordwoodError):  # the client may be closed
                self.abandon()  # the ledger is left to a recovery


def _each(thread: LoopThread, following: Following[Item]) -> Iterator[Item]:
    """Iterate so that an exception in a call that waits, even one from a signal handler, loses no
    item."""

    def next_item() -> Item | None:
        while (item := following.take()) is None:
            if not thread.call(following.fill()):
                return None
        return item

    return Until(next_item)


class BlockingReadableLedger(Facade[ReadableLedger]):
    """See `readable_ledger.ReadableLedger`."""

    read = blocking(ReadableLedger.read, timed=False)
    read_unconfirmed = blocking(ReadableLedger.read_unconfirmed, timed=False)
    read_batch = blocking(ReadableLedger.read_batch, timed=False)
    last_entry = blocking(ReadableLedger.last_entry, timed=False)
    copies = blocking(ReadableLedger.copies, timed=False)
    read_last_add_confirmed = blocking(ReadableLedger.read_last_add_confirmed)
    try_read_last_add_confirmed = blocking(ReadableLedger.try_read_last_add_confirmed)
    wait_confirmed = blocking(ReadableLedger.wait_confirmed, timed=False)
    refresh = blocking(ReadableLedger.refresh)

    @property
    def ledger_id(self) -> int:
        """Its number."""
        return self._inner.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """See `ReadableLedger.metadata`."""
        return self._inner.metadata

    @property
    def last_add_confirmed(self) -> int:
        """See `ReadableLedger`."""
        return self._inner.last_add_confirmed

    @property
    def is_closed(self) -> bool:
        """See `ReadableLedger.is_closed`."""
        return self._inner.is_closed

    @property
    def length(self) -> int:
        """See `ReadableLedger.length`."""
        return self._inner.length

    def batches(self, start: int = 0, until: int | None = None) -> Iterator[list[LedgerEntry]]:
        """See `ReadableLedger.batches`."""
        return _each(self._thread, self._inner.batches(start, until))

    def arrow(
        self, columns: Sequence[str] | None = None, *, start: int = 0, until: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See `ReadableLedger.arrow`."""
        return _each(self._thread, self._inner.arrow(columns, start=start, until=until))

    def follow(self, start: int = 0) -> Iterator[LedgerEntry]:
        """See `ReadableLedger.follow`."""
        return _each(self._thread, self._inner.follow(start))

    def __iter__(self) -> Iterator[LedgerEntry]:
        return self.follow()

    def __enter__(self) -> BlockingReadableLedger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


class BlockingLedgers(Facade[Ledgers]):
    """See `ledgers.Ledgers`."""

    recover = blocking(Ledgers.recover, changes=True, timed=False)
    fence = blocking(Ledgers.fence, changes=True)
    fenced = blocking(Ledgers.fenced)
    repair = blocking(Ledgers.repair, changes=True, timed=False)
    tier = blocking(Ledgers.tier, changes=True, timed=False)
    check = blocking(Ledgers.check, changes=True, timed=False)
    metadata = blocking(Ledgers.metadata)
    delete = blocking(Ledgers.delete, changes=True)
    page = blocking(Ledgers.page)
    autorecovery = blocking(Ledgers.autorecovery)
    switch_autorecovery = blocking(Ledgers.switch_autorecovery, changes=True)
    under_replicated_page = blocking(Ledgers.under_replicated_page)

    def create(
        self,
        *,
        ensemble: int = 3,
        write: int = 2,
        ack: int = 2,
        digest: DigestKind | str = DigestKind.CRC32C,
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        ledger: int | None = None,
        shrinks: bool = False,
        limits: WriterLimits | None = None,
        placement: Placement = ANYWHERE,
        tier: bool = False,
    ) -> BlockingWritableLedger:
        """See `ledgers.Ledgers.create`."""
        made = self._call(
            self._inner.create(
                ensemble=ensemble,
                write=write,
                ack=ack,
                digest=digest,
                password=password,
                custom=custom,
                ledger=ledger,
                shrinks=shrinks,
                limits=limits,
                placement=placement,
                tier=tier,
            ),
            changes=True,
        )
        return BlockingWritableLedger(self._thread, made, self._timeout_s)

    def open(
        self, ledger: int, password: bytes = b"", *, recovery: bool = False
    ) -> BlockingReadableLedger:
        """See `ledgers.Ledgers.open`."""
        # A recovery has a deadline for each step.
        timeout_s = None if recovery else self._timeout_s
        opened = self._thread.call(
            self._inner.open(ledger, password, recovery=recovery),
            timeout_s=timeout_s, changes=recovery,
        )  # fmt: skip
        return BlockingReadableLedger(self._thread, opened, self._timeout_s)

    def list(self, after: int = -1) -> Iterator[int]:
        """See `ledgers.Ledgers.list`."""
        return _each(self._thread, self._inner.list(after))

    def under_replicated(self) -> Iterator[UnderReplicated]:
        """See `ledgers.Ledgers.under_replicated`."""
        return _each(self._thread, self._inner.under_replicated())
