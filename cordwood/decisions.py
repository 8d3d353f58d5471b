"""Decisions of nodes and clients as typed values, for listeners.

Code reports its important decisions, such as `tell(SealRaised(log, epoch))`. Without a listener,
`tell` returns at once. Where records pass by the thousand, a caller looks at `LISTENERS` before it
makes the value. The simulator counts decisions and puts them into the story of a record. The switch
`CORDWOOD_STORY` writes them into the log of a process (`story_told`).

Pure rules (`protocol`, `quorum`, `layout`) tell nothing. They return their decision, and the shell
that acts on it calls `tell`.

Source: docs/simulator.md, "Decisions".
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from cordwood.errors import BadSetting
from cordwood.lsn import LogId, format_lsn, parse_lsn

KEPT_MAX = 100_000
"""Decisions that a story keeps: some minutes of a busy node that acknowledges runs."""

_LSNS = frozenset({"first", "last", "lsn", "bridge"})


@dataclass(frozen=True, slots=True)
class Decision:
    """Something was decided about a log.

    Attributes:
        log: its number; NO_LOG if the decision is about a node alone.
    """

    log: LogId

    def concerns(self, log: int, first: int = 0, last: int = 0) -> bool:
        """Whether the decision is about `log`, and about its records from `first` to `last` if
        these are given. A decision about a whole log is about none of its records."""
        return log == self.log and not first

    @property
    def words(self) -> str:
        """The decision in words: its name and its values."""
        name = re.sub(r"(?<!^)(?=[A-Z])", " ", type(self).__name__).lower()
        values = [(field.name, getattr(self, field.name)) for field in fields(self)]
        told = [
            f"{key} {format_lsn(value) if key in _LSNS else value}"
            for key, value in values
            if key != "log" or value
        ]
        return f"{name}: {', '.join(told)}" if told else name


@dataclass(frozen=True, slots=True)
class RunDecision(Decision):
    """About the records from `first` to `last`."""

    first: int
    last: int

    def concerns(self, log: int, first: int = 0, last: int = 0) -> bool:
        """See `Decision.concerns`."""
        return log == self.log and (not first or (self.first <= last and first <= self.last))


@dataclass(frozen=True, slots=True)
class EpochDecision(Decision):
    """About an epoch."""

    epoch: int

    def concerns(self, log: int, first: int = 0, last: int = 0) -> bool:
        """See `Decision.concerns`."""
        return log == self.log and (not first or first >> 32 <= self.epoch <= last >> 32)


# ---- sequencer: runs ----


@dataclass(frozen=True, slots=True)
class RunAcknowledged(RunDecision):
    """All copies of a run, and of every run before it, are durable."""


@dataclass(frozen=True, slots=True)
class RunOvertaken(RunDecision):
    """A run is stored, and one before it is not."""


@dataclass(frozen=True, slots=True)
class GroupNumbered(RunDecision):
    """A group of blocks got its LSNs at once."""


@dataclass(frozen=True, slots=True)
class WaveRetried(RunDecision):
    """A run goes out again, as this wave."""

    wave: int


@dataclass(frozen=True, slots=True)
class AnswerLost(RunDecision):
    """The connection to a node ended before the node answered a store."""

    node: int


@dataclass(frozen=True, slots=True)
class AnsweredLate(RunDecision):
    """A node answered a wave that had been given up."""

    node: int
    wave: int


@dataclass(frozen=True, slots=True)
class RefusalHeard(RunDecision):
    """A sequencer got a node's refusal of a store."""

    node: int
    reason: str


@dataclass(frozen=True, slots=True)
class SpaceAwaited(Decision):
    """Entries wait for free space on nodes."""


@dataclass(frozen=True, slots=True)
class NoSpaceAnywhere(Decision):
    """No copyset has free space for a run."""


@dataclass(frozen=True, slots=True)
class TooFewNodesUp(Decision):
    """Too few nodes are up for a copyset."""


@dataclass(frozen=True, slots=True)
class AppendsRefused(Decision):
    """Entries that were never numbered are refused together."""

    count: int
    why: str


@dataclass(frozen=True, slots=True)
class AppendOverloaded(Decision):
    """A sequencer takes no more entries for now."""

    why: str


# ---- sequencer: epochs ----


@dataclass(frozen=True, slots=True)
class EpochStarted(EpochDecision):
    """This node sequences an epoch."""


@dataclass(frozen=True, slots=True)
class EpochDrained(EpochDecision):
    """An epoch takes no more entries and has no entry in flight: the next epoch is due."""


@dataclass(frozen=True, slots=True)
class TakenEpochKept(EpochDecision):
    """A node goes on with an epoch that it took earlier and did not begin."""


@dataclass(frozen=True, slots=True)
class EpochRestarted(EpochDecision):
    """The epoch is used up or must change: this node takes the next one."""


@dataclass(frozen=True, slots=True)
class EpochEnded(EpochDecision):
    """This node stops sequencing an epoch."""


@dataclass(frozen=True, slots=True)
class RecoveryEnded(EpochDecision):
    """Every epoch below this epoch is recovered."""


@dataclass(frozen=True, slots=True)
class EpochOvertaken(EpochDecision):
    """An epoch was overtaken by a higher one before it began."""

    by: int


@dataclass(frozen=True, slots=True)
class SequencerFenced(EpochDecision):
    """A higher epoch rules; 0 if its number is not known."""

    by: int


@dataclass(frozen=True, slots=True)
class LogGivenUp(EpochDecision):
    """Another node took the log: this one finishes its runs and stops."""

    successor: int


@dataclass(frozen=True, slots=True)
class RuleQuestioned(EpochDecision):
    """A client asked for the tail: the sequencer checked whether it still rules."""

    rules: bool


@dataclass(frozen=True, slots=True)
class ActivationGivenUp(Decision):
    """A node could not start to sequence a log."""

    why: str


@dataclass(frozen=True, slots=True)
class NotRecoveredTold(Decision):
    """Clients that wait for a recovery are told that it failed."""

    why: str


# ---- recovery ----


@dataclass(frozen=True, slots=True)
class RecoveryBegun(EpochDecision):
    """A recovery of all epochs above the clean one and below this one begins."""

    clean: int


@dataclass(frozen=True, slots=True)
class DigestWeighed(EpochDecision):
    """Whether enough members answered to decide how an epoch ended."""

    verdict: str


@dataclass(frozen=True, slots=True)
class TailDecided(EpochDecision):
    """The outcome of an epoch above its LNG: the numbers of blocks and holes, and the bridge's
    place.

    Attributes:
        found: plugs and bridges that an earlier recovery left.
    """

    blocks: int
    holes: int
    bridge: int
    found: int


@dataclass(frozen=True, slots=True)
class MembersLacking(Decision):
    """A recovery needs members that are absent."""

    step: str


@dataclass(frozen=True, slots=True)
class RecoveryFenced(Decision):
    """A recovery met the seal of a higher epoch."""

    by: int


@dataclass(frozen=True, slots=True)
class MendFenced(Decision):
    """A node refused a recovery's block: a higher epoch sealed the node."""

    by: int


@dataclass(frozen=True, slots=True)
class MendAnswered(Decision):
    """A node answered a store of a recovery."""

    node: int


# ---- storage ----


@dataclass(frozen=True, slots=True)
class StoreRefused(RunDecision):
    """A node refused a block.

    Attributes:
        seal: the epoch of the recovery that sent it; 0 for a sequencer.
        read_only: whether an operator made the node read-only.
    """

    reason: str
    seal: int
    read_only: bool


@dataclass(frozen=True, slots=True)
class LateBlockDropped(RunDecision):
    """A block was durable only after its epoch was over, or after it was trimmed."""


@dataclass(frozen=True, slots=True)
class CopyMet(RunDecision):
    """A node got a second copy of a block; it takes the place of the first if it is better."""

    is_better: bool


@dataclass(frozen=True, slots=True)
class SealRaised(EpochDecision):
    """A node refuses every store of a lower epoch from now on."""


@dataclass(frozen=True, slots=True)
class SealRefused(EpochDecision):
    """A node has a higher seal."""

    ruling: int


@dataclass(frozen=True, slots=True)
class EpochPurged(EpochDecision):
    """A node that was away drops an epoch's blocks that do not count.

    Attributes:
        seal: seal of the recovery that ended the epoch; 0 if unknown.
    """

    seal: int


@dataclass(frozen=True, slots=True)
class EpochClosed(EpochDecision):
    """A node learnt how an epoch ended, or that no node knows."""

    is_known: bool


@dataclass(frozen=True, slots=True)
class LogTrimmed(Decision):
    """A node let go of all records up to an LSN."""

    lsn: int

    def concerns(self, log: int, first: int = 0, last: int = 0) -> bool:
        """See `Decision.concerns`."""
        return log == self.log and first <= self.lsn


@dataclass(frozen=True, slots=True)
class RetentionTrimmed(LogTrimmed):
    """A node trims records past the log's retention, by `time` or by `space`."""

    why: str


@dataclass(frozen=True, slots=True)
class ReleaseHeld(Decision):
    """A release waits until the epoch store says that its epoch was handed out."""

    lsn: int


@dataclass(frozen=True, slots=True)
class ClaimRefused(EpochDecision):
    """A message named an epoch that was never handed out."""

    newest: int


@dataclass(frozen=True, slots=True)
class DamageNoted(RunDecision):
    """A range of copies is damaged."""

    why: str


@dataclass(frozen=True, slots=True)
class RotMended(RunDecision):
    """A node stored all its copies of a rotten range again."""


@dataclass(frozen=True, slots=True)
class NodeFailed(Decision):
    """A node stores nothing any more."""

    why: str


@dataclass(frozen=True, slots=True)
class PartitionDropped(Decision):
    """All records of a partition were trimmed: the partition is dropped."""

    partition: int


@dataclass(frozen=True, slots=True)
class PartitionCut(Decision):
    """Much of a partition was trimmed: it is cut."""

    partition: int


# ---- client: appends ----


@dataclass(frozen=True, slots=True)
class AppendCameBack(Decision):
    """A block was refused, or lost with its connection, and will be sent again."""

    why: str


@dataclass(frozen=True, slots=True)
class AppendGivenUp(Decision):
    """Appends of one block end with an error."""

    why: str


@dataclass(frozen=True, slots=True)
class SequencerSought(Decision):
    """A client looks for the log's sequencer."""


@dataclass(frozen=True, slots=True)
class AppendsLost(Decision):
    """A connection ended with blocks in flight: they may or may not be stored."""

    count: int


# ---- client: reads ----


@dataclass(frozen=True, slots=True)
class GapConcluded(RunDecision):
    """A reader is told that a range has no records, and why."""

    kind: str


@dataclass(frozen=True, slots=True)
class Rewound(Decision):
    """A reader asks all nodes anew, from an LSN on."""

    lsn: int
    is_single: bool
    down: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OrderSwitched(Decision):
    """A reader's nodes change to another order at an LSN; some of them count as down."""

    lsn: int
    down: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OldOrderDropped(Decision):
    """A reader drops blocks that a node sent for an older request."""

    node: int


@dataclass(frozen=True, slots=True)
class TailSought(Decision):
    """A reader that got nothing asks for the log's tail."""


@dataclass(frozen=True, slots=True)
class ReaderStuck(Decision):
    """A reader makes no progress: it stops counting on the nodes that are behind."""

    lsn: int


@dataclass(frozen=True, slots=True)
class ReaderHealth(Decision):
    """A reader stands still, or goes on again (no trouble)."""

    trouble: str


@dataclass(frozen=True, slots=True)
class ReaderEnded(Decision):
    """A read ends with an error."""

    why: str


# ---- listeners ----

Listener = Callable[[Decision], None]

LISTENERS: list[Listener] = []
"""The listeners to every decision of this process; none in production."""


def tell(decision: Decision) -> None:
    """Hand a decision to all listeners."""
    for listener in LISTENERS:
        listener(decision)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Give every decision to `listener` during the block."""
    LISTENERS.append(listener)
    try:
        yield
    finally:
        LISTENERS.remove(listener)


class Story:
    """Recent decisions about one log, one record or one range of records.

    Args:
        now_us: the time, in µs.
        who: the node or client that decides.
        most: the number of kept decisions; older ones are dropped.
    """

    def __init__(
        self, now_us: Callable[[], int], who: Callable[[], str] = str, most: int = KEPT_MAX
    ) -> None:
        self._now_us = now_us
        self._who = who
        self._kept: deque[tuple[int, str, Decision]] = deque(maxlen=most)

    def on_decision(self, decision: Decision) -> None:
        """Keep it."""
        self._kept.append((self._now_us(), self._who(), decision))

    def of(self, log: int, first: int = 0, last: int = 0) -> list[tuple[int, str]]:
        """The decisions about `log`, or its records from `first` to `last`, each with its time in
        µs."""
        return [
            (at_us, f"{who + ' ' if who else ''}{decision.words}")
            for at_us, who, decision in self._kept
            if decision.concerns(log, first, last)
        ]


def parse_story(text: str) -> tuple[int, int]:
    """Read `all` (0, 0), the number of a log such as `17`, or its record such as `17:e7n123`.

    Raises:
        BadSetting: the text has none of these forms.
    """
    if text == "all":
        return 0, 0
    number, _, lsn = text.partition(":")
    try:
        log, at = int(number), int(parse_lsn(lsn)) if lsn else 0
    except ValueError as error:
        raise BadSetting(f"a story is told of `all`, `17` or `17:e7n123`, not {text!r}") from error
    if log <= 0:
        raise BadSetting(f"a story is told of `all`, `17` or `17:e7n123`, not {text!r}")
    return log, at


@contextmanager
def story_told(text: str, say: Callable[[str], None]) -> Iterator[None]:
    """Log each decision of the story that `text` asks for, during the block; "" for none.

    Raises:
        BadSetting: see `parse_story`.
    """
    if not text:
        yield
        return
    log, lsn = parse_story(text)

    def on_decision(decision: Decision) -> None:
        if not log or decision.concerns(log, lsn, lsn):
            say(decision.words)

    with listening(on_decision):
        yield
