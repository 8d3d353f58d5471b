"""Appends lines to a log as a producer, so that each is stored once while nodes fail.

A portion of lines is one atomic group of the producer: the log recognises a repeat by its sequence,
so a portion of unknown outcome is sent again until it is answered. The stored lines are always a
prefix of the input, and a later run continues after it (`cordwood append --resume ID`). A run
appends to one log, by its number: with the name, a repeat could go to another log, if the first log
was renamed meanwhile.

Source: client/append/producer.py; protocol/producers.py (a repeat is answered with its place).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cordwood.client.append.producer import PRODUCER_MAX, Producer
from cordwood.errors import (
    BadSetting,
    CordwoodError,
    Misplaced,
    OutcomeUnknown,
    OutOfSequence,
    Retryable,
    UnknownLog,
    UnknownProducer,
)

if TYPE_CHECKING:
    from cordwood.blocking import BlockingStore
    from cordwood.lsn import Lsn

PATIENCE_S = 120.0
"""How long one portion is tried: a cluster that lost a node answers within seconds, a machine that
restarts within two minutes."""

PAUSE_S = 0.5
"""The pause between tries. The client itself has tried for its whole timeout before."""

PORTION_LINES = 16_384
"""Lines in one group, as many as the client puts into a block: a portion stays within an atomic
group's bounds also where each line is empty."""

PROBE_SEQUENCE = 1 << 62
"""A sequence that no run reaches: the log refuses it and answers with the expected sequence."""


class LineAppends:
    """Appends portions of lines in order; see the module.

    Args:
        resume: the producer of an earlier run; None draws a new producer.
        tell: is given a sentence when the log stops answering, and when it answers again.

    Attributes:
        producer: its id, for `--resume`.
        stored: lines of the input that are certainly stored.
        skipped: lines of the input that an earlier run appended.
    """

    def __init__(
        self,
        store: BlockingStore,
        log: str,
        key: bytes | None,
        resume: int | None,
        tell: Callable[[str], None],
    ) -> None:
        if resume is not None and not 1 <= resume <= PRODUCER_MAX:
            raise BadSetting(f"--resume {resume}: producers have the numbers 1 to {PRODUCER_MAX}")
        self._store = store
        self._log = log
        self._key = key
        self._tell = tell
        self._is_new = resume is None
        self._left_to_skip = 0
        self._place: Producer | None = None
        self._log_id = 0
        self._is_unsure = False
        self.producer = resume if resume is not None else 1 + secrets.randbelow(PRODUCER_MAX)
        self.stored = 0
        self.skipped = 0

    def find_place(self) -> None:
        """Ask the log how many lines an earlier run appended; these are skipped.

        Raises:
            BadSetting: the log does not remember that run, so its last line is unknown.
        """
        if self._is_new:
            return
        try:
            self._send([b""], PROBE_SEQUENCE)
        except OutOfSequence as error:
            if error.kind is Misplaced.GAP and error.expected is not None:
                self._left_to_skip = self.skipped = self.stored = error.expected
                return
            raise
        except UnknownProducer:
            raise BadSetting(
                f"--resume {self.producer}: {self._log} does not remember this run. Read the "
                "end of the log to see where it stopped, and append the rest without --resume"
            ) from None
        raise AssertionError("a sequence far ahead of the log is never stored")

    def append(self, lines: Sequence[bytes]) -> list[Lsn]:
        """Append lines; the LSNs of the lines that this run stored, in order.

        Raises:
            OutcomeUnknown: the last portion was sent, and no answer tells whether it is stored.
            CordwoodError: the lines cannot be appended; none of this call's last portion is stored.
        """
        skip = min(self._left_to_skip, len(lines))
        self._left_to_skip -= skip
        lines = lines[skip:]
        lsns: list[Lsn] = []
        for at in range(0, len(lines), PORTION_LINES):
            part = lines[at : at + PORTION_LINES]
            lsns += self._until_answered(part)
            self.stored += len(part)
        return lsns

    def _until_answered(self, lines: Sequence[bytes]) -> list[Lsn]:
        ends_s = time.monotonic() + PATIENCE_S
        is_told = is_unknown = False
        while True:
            try:
                lsns = self._send(lines, self.stored)
            except CordwoodError as error:
                # If a later try stored nothing, an earlier try may have stored the lines.
                is_unknown |= error.is_outcome_unknown
                self._is_unsure |= is_unknown
                is_over = time.monotonic() + PAUSE_S > ends_s
                if is_over or not isinstance(error, (OutcomeUnknown, Retryable)):
                    if is_unknown and not isinstance(error, OutcomeUnknown):
                        raise OutcomeUnknown(
                            f"an earlier try may have stored these lines; the last try: {error}"
                        ) from error
                    raise
                if not is_told:
                    self._tell(f"{self._log} does not answer, trying again: {error}")
                    is_told = True
                time.sleep(PAUSE_S)
                continue
            if is_told:
                self._tell(f"{self._log} answers again")
            self._is_unsure = False
            return lsns

    def _send(self, lines: Sequence[bytes], sequence: int) -> list[Lsn]:
        keys = None if self._key is None else [self._key] * len(lines)
        try:
            return self._store.append_many(
                self._find_log(),
                lines,
                keys=keys,
                producer=self._place_at(sequence),
                atomic=True,
            )
        except CordwoodError:
            # A producer that met an error refuses to go on: the next try takes a new producer.
            self._place = None
            raise

    def _find_log(self) -> int:
        """The log's number. A new run makes a log that does not exist yet, as an append does, and
        with the errors of one."""
        if not self._log_id:
            try:
                self._log_id = self._store.log(self._log).log_id
            except UnknownLog:
                if self.stored or not self._is_new:
                    raise
                self._store.append_many(self._log, [])
                self._log_id = self._store.log(self._log).log_id
        return self._log_id

    def _place_at(self, sequence: int) -> Producer:
        if self._place is None:
            sequences = {self._log_id: sequence} if sequence else None
            self._place = Producer(self.producer, 0, sequences)
        return self._place

    def how_far(self, error: CordwoodError) -> str:
        """The message for a user whose input ended with an error: the stored lines, and how to
        continue."""
        # An earlier try of the same portion may have stored it, even if the last try failed.
        is_unknown = error.is_outcome_unknown or self._is_unsure
        behind = "lines behind them may be stored too" if is_unknown else "no line behind them is"
        return (
            f"the first {self.stored} lines are stored, {behind}. To go on, run this again with "
            f"the same input from its first line and --resume {self.producer}"
        )
