"""`deliveryMode=idempotent`: a task appends as a producer, and the log stores its repeats once.

The id of the producer comes from the query and the partition, and the batch is its epoch. If rows
name their log themselves, the name is a part of the id too: names may lead to other logs when the
task runs again, and rows for one log must not count as repeats of rows for another. A block is one
atomic group, which the log numbers once: sent again with the same sequence and count it is answered
with its place. A repeat from longer ago than the log remembers, or with other cuts, ends with
`OutOfSequence`. The error names the sequence up to which all rows are stored, and the task sends
only the block's rows above it. If the log reports missing rows before the block, the task fails: it
may not skip rows.

After that error the client refuses all later blocks, unsent. So the task makes a new `Producer` and
sends this block alone, to get the log's own answer.

Source: docs/sources/spark.md §8; `protocol.producers`.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.client.values import PLACES_MAX, PRODUCER_MAX, USERS, Producer
from cordwood.errors import BadSetting, Misplaced, OutcomeUnknown, OutOfSequence, Rejected
from cordwood.layout.log_names import normalise_name
from cordwood.lsn import Lsn
from cordwood.spark.sink_rows import RowBlock

logger = logging.getLogger(__name__)


def producer_id(query: str, partition: int) -> int:
    """The id of the producer for a partition of a query."""
    digest = hashlib.blake2b(f"{query} {partition}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % PRODUCER_MAX + 1


@dataclass(frozen=True, slots=True)
class _Sent:
    block: RowBlock
    sequence: int
    answer: Future[list[Lsn]]


class _NameProducer(Producer):
    """A task's producer for one log name: its sequences count the rows for that name.

    Race: the name may be given to another log between two row blocks. That log would take the later
    block for its first one, and the first one of the next attempt for a repeat of it.
    """

    def __init__(
        self, identity: tuple[int, int], name: str, sequence: int, leads: dict[str, int]
    ) -> None:
        """
        Args:
            leads: the log that each name led to first; all producers of a task share it.
        """
        super().__init__(*identity)
        self._name = name
        self._sequence = sequence
        self._leads = leads

    def next_sequence(self, log: int) -> int:
        """See `Producer`."""
        return self._sequence

    def take(self, log: int, count: int) -> int:
        """See `Producer`.

        Raises:
            Rejected: the name led to another log before.
        """
        led = self._leads.setdefault(self._name, log)
        if led != log:
            raise Rejected(
                f"{self._name} led to log {led} when this task began, and is the name of log {log} "
                "now; rows of the batch are in the first one. Run the batch again: it goes into "
                f"log {log} as a whole"
            )
        first = self._sequence
        self._sequence += count
        return first


class OnceAppender:
    """Appends the row blocks of one task."""

    def __init__(
        self, store: BlockingStore, query: str, batch: int, partition: int, log: str = ""
    ) -> None:
        """
        Args:
            log: the log of all rows that name none. It may be renamed, and the query's options
                changed to the new name.
        Raises:
            BadSetting: there are more partitions than a log remembers producers.
        """
        if partition >= USERS.most:
            raise BadSetting(
                f"deliveryMode=idempotent takes up to {USERS.most} partitions, which a log can "
                f"tell apart, and this is number {partition + 1}: write fewer with coalesce, or "
                "use deliveryMode=exactlyOnce"
            )
        self._store = store
        self._query = query
        self._batch = batch
        self._partition = partition
        self._log = normalise_name(log) if log else ""
        self._producers: dict[str, _NameProducer] = {}
        self._leads: dict[str, int] = {}
        self._is_broken = False
        self._next: dict[str, int] = {}
        self._in_flight: deque[_Sent] = deque()

    def append(self, row_blocks: Iterable[RowBlock]) -> tuple[int, int]:
        """Append; records and bytes, once all are on stable storage.

        Raises:
            CordwoodError: as `Store.append_many`; the same row blocks may be sent again.
        """
        records = size = 0
        for block in row_blocks:
            while len(self._in_flight) >= PLACES_MAX or (self._is_broken and self._in_flight):
                self._settle()
            if self._is_broken:
                self._begin_anew()
            self._send(block)
            records += len(block.values)
            size += block.bytes
        while self._in_flight:
            self._settle()
        return records, size

    def _send(self, block: RowBlock) -> None:
        sequence = self._next.get(block.log, 0)
        self._next[block.log] = sequence + len(block.values)
        producer = self._producers.get(block.log)
        if producer is None:
            producer = self._producers[block.log] = self._producer_of(block.log, sequence)
        answer = self._ask(block, producer)
        self._in_flight.append(_Sent(block, sequence, answer))

    def _settle(self) -> None:
        """Wait until the oldest block in flight is known to be stored."""
        sent = self._in_flight.popleft()
        try:
            sent.answer.result()
        except OutOfSequence:
            self._is_broken = True
        except OutcomeUnknown:
            # Blocks after a block with that error; the error itself is a failure as any other.
            if not self._is_broken:
                raise
        else:
            return
        self.settle_alone(sent)

    def settle_alone(self, sent: _Sent) -> None:
        """Send the part of a block that the log does not have.

        Raises:
            OutOfSequence: rows before it are missing, or the log cannot say.
        """
        block, sequence = sent.block, sent.sequence
        while True:
            alone = self._producer_of(block.log, sequence)
            try:
                self._ask(block, alone).result()
            except OutOfSequence as error:
                if error.kind is not Misplaced.STORED or error.expected is None:
                    raise
                stored = error.expected - sequence
                # Sequences only grow: each turn sends less, and an answer that would not let it
                # is an error of the node.
                if stored <= 0:
                    raise
                logger.info("%d rows of %s were stored before: %s", stored, block.log, error)
                if stored >= len(block.values):
                    return
                block, sequence = block.after(stored), error.expected
            else:
                return

    def _begin_anew(self) -> None:
        """Nothing is in flight: go on with producers that met no error."""
        self._producers.clear()
        self._is_broken = False

    def _producer_of(self, log: str, sequence: int) -> _NameProducer:
        query = self._query if log == self._log else f"{self._query} into {log}"
        identity = (producer_id(query, self._partition), self._batch)
        return _NameProducer(identity, log, sequence, self._leads)

    def _ask(self, block: RowBlock, producer: Producer) -> Future[list[Lsn]]:
        return self._store.append_many_soon(
            block.target,
            block.values,
            keys=block.keys,
            timestamps=block.timestamps,
            headers=block.headers,
            producer=producer,
            atomic=True,
        )
