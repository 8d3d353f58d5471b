"""Decide whether a block of a producer, or with an expected tail, may be numbered next.

Blocks are checked in the order in which they are numbered, so that the answer holds.

Source: docs/design.md §3 ("Producers", `expected_tail`).
"""

from __future__ import annotations

from cordwood.block import Produced, ProducedBlock
from cordwood.errors import (
    Misplaced,
    OutOfSequence,
    Overloaded,
    ProducerFenced,
    Rejected,
    TailMoved,
    UnknownProducer,
)
from cordwood.layout.waves import AppendEntry, AppendFlag
from cordwood.lsn import format_lsn
from cordwood.protocol.producers import ProducerVerdict, budget_of, is_query
from cordwood.recovery.recover_log import Recovered
from cordwood.sequencer.idle_times import IdleTimes
from cordwood.sequencer.run_contents import Waiting
from cordwood.sequencer.settled_queries import SettledQueries
from cordwood.wire.connection import Connection

Ack = tuple[Connection, int, int]
"""The connection, the token of the append, and the first LSN."""


class ProducerChecks:
    """The knowledge of one epoch's sequencer about producers and about the tail below the epoch.

    Attributes:
        repeats: repeats of blocks that are still in flight: the block's last LSN, and the ack.
        refused: blocks out of their sequence, or after a tail that moved, with their error. The
            error tells which records got LSNs, and the client takes these for stored. So the error
            waits until the log is stored up to this LSN.
    """

    def __init__(
        self, epoch: int, below: Recovered, queries: SettledQueries, idle: IdleTimes
    ) -> None:
        self._epoch = epoch
        self._idle = idle
        self._queries = queries
        self._producers = below.producers
        self._tail = below.tail
        self.repeats: list[tuple[int, Ack]] = []
        self.refused: list[tuple[int, Waiting, Rejected]] = []

    def tick(self, now_s: float) -> None:
        """Set the loop's time, before entries are checked and noted."""
        self._idle.tick(now_s)

    def _judged_us(self, replaced: Produced, now_us: int) -> int:
        """The append time by which a producer's idle time is judged: not `now_us`, which the wall
        clock of this node gives."""
        return replaced.last_us + self._idle.of(replaced)

    def check(self, entry: AppendEntry, last: int, now_us: int) -> int | None:
        """None if `entry` may be numbered next; for a repeat, the first LSN of the original.

        Args:
            last: the last LSN given out, `(epoch, 0)` for none.
            now_us: the append time that it would get; idle times are not measured by it.
        Raises:
            Overloaded: the log remembers as many producers as it may, or a query that it would
                forget is not known to be done.
            UnknownProducer, ProducerFenced, OutOfSequence, TailMoved: it may never be numbered.
        """
        if entry.producer:
            replaced = self._producers.replaced_by(entry.producer)
            # A new producer in a full memory takes the place of the producer that is idle longest.
            if replaced is not None:
                now_us = self._judged_us(replaced, now_us)
            verdict, first = self._producers.look(
                entry.producer, entry.producer_epoch, entry.producer_sequence, entry.count, now_us,
                is_late=bool(entry.flags & AppendFlag.LATE),
            )  # fmt: skip
            if verdict is ProducerVerdict.REPEAT:
                return first
            if verdict is ProducerVerdict.FULL:
                raise _full(entry, self._producers.idle_us(entry.producer, now_us))
            if verdict is not ProducerVerdict.NEXT:
                expected = self._producers.expected(entry.producer, entry.producer_epoch)
                raise _refusal(verdict, entry, expected)
            if (
                replaced is not None
                and is_query(replaced.producer)
                and not self._queries.is_settled(replaced.producer, replaced.epoch)
            ):
                raise _unsettled(entry, replaced)
        # After the check for repeats: the retry of a stored block finds its own record at the tail.
        if entry.flags & AppendFlag.CONDITIONAL:
            self.check_tail(entry, last)
        return None

    def check_tail(self, entry: AppendEntry, last: int) -> None:
        """Check the expected tail. Before the first append, every tail from the last record below
        to (epoch, 0) is accepted: a client that asked during an empty epoch E got (E, 0).
        """
        is_empty = last == self._epoch << 32
        first = self._tail if is_empty else last
        if first <= entry.expected_tail <= last:
            return
        raise TailMoved(
            f"log {entry.log} ends at {format_lsn(last)}, and {format_lsn(entry.expected_tail)} "
            "was expected; nothing was stored"
        )

    def note(self, entry: AppendEntry, first: int, time_us: int) -> None:
        """Note that a producer's block was numbered."""
        place = ProducedBlock(entry.producer_sequence, entry.count, first, time_us)
        self._producers.note(entry.producer, entry.producer_epoch, place)
        self._idle.note(entry.producer, self._producers)

    def misplace(self, waiting: Waiting, error: OutOfSequence) -> None:
        """A block is out of its sequence; `take_refused` says when its client is told."""
        entry = waiting.entry
        # Trap: the error says that all records below `expected` are stored. These may be behind
        # this block, and in flight.
        end = max(entry.producer_sequence + entry.count, error.expected or 0)
        last = self._producers.last_below(entry.producer, entry.producer_epoch, end)
        self.refused.append((last, waiting, error))

    def note_moved(self, waiting: Waiting, error: TailMoved, last: int) -> None:
        """The tail is not where a block expects it, but at `last`; the error waits in the same way.

        Trap: the records up to `last` may be lost with this epoch. Then two clients that compete
        for a tail would both be told that the other was first.
        """
        self.refused.append((last, waiting, error))

    def take_refused(self, lng: int) -> list[tuple[int, Waiting, Rejected]]:
        """Take the refused blocks with errors that are true by now: the log is stored that far."""
        done = [each for each in self.refused if each[0] <= lng]
        self.refused = [each for each in self.refused if each[0] > lng]
        return done

    def take_repeats(self, lng: int) -> list[Ack]:
        """Take the repeats of blocks that are stored by now."""
        done = [ack for last, ack in self.repeats if last <= lng]
        self.repeats = [(last, ack) for last, ack in self.repeats if last > lng]
        return done


def _full(entry: AppendEntry, idle_us: int) -> Overloaded:
    most, kind = (
        budget_of(entry.producer).most,
        "queries" if is_query(entry.producer) else "producers",
    )
    return Overloaded(
        f"log {entry.log} remembers {most} {kind}, and the one idle longest wrote "
        f"{max(0, idle_us) // 1_000_000} s ago: a new one would have it forgotten, and its retries "
        f"stored twice. Write with fewer {kind}, under names that stay, or into more logs; or try "
        "again later; nothing was stored"
    )


def _unsettled(entry: AppendEntry, replaced: Produced) -> Overloaded:
    return Overloaded(
        f"log {entry.log} remembers {budget_of(entry.producer).most} queries. The one idle longest "
        f"(producer {replaced.producer}) has commit {replaced.epoch}, which is not known to be in "
        "all its logs; forgotten, it would be stored twice. Have that query publish on, or try "
        "again; nothing was stored"
    )


def _refusal(verdict: ProducerVerdict, entry: AppendEntry, expected: int) -> Rejected:
    who = f"producer {entry.producer} (epoch {entry.producer_epoch}) of log {entry.log}"
    what = f"records from sequence {entry.producer_sequence} on"
    if verdict is ProducerVerdict.FENCED:
        return ProducerFenced(f"{who}: a higher epoch of it has begun; nothing was stored")
    if verdict is ProducerVerdict.UNKNOWN and not entry.producer_sequence:
        return UnknownProducer(
            f"{who} is not remembered, and its first records may have been stored so long ago that "
            "they are forgotten: read the log to know; nothing was stored"
        )
    if verdict is ProducerVerdict.UNKNOWN:
        return UnknownProducer(
            f"{who} is not remembered, and {what} are not its first: begin a higher epoch"
        )
    if verdict is ProducerVerdict.GAP:
        return OutOfSequence(
            f"{who}: records before {what} are missing, sequence {expected} comes next; nothing "
            "was stored",
            Misplaced.GAP, expected,
        )  # fmt: skip
    return OutOfSequence(
        f"{who}: {what} were given out before, up to {expected - 1}, too long ago to say where: "
        "read the log to know",
        Misplaced.STORED, expected,
    )  # fmt: skip
