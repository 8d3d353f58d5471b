"""The log of a disk, in order: every operation's begin and end, and marks between.

An *operation* is one call at the seam and has one or more *effects*. It ends at the instant at
which the caller gets the result. Its effects are on stable storage then if it `is_durable` (a
direct write, an atomic replacement). Otherwise they are stable only after a sync of the file or
directory, begun after that end, has ended too. So a weaker interface (buffered files, bare renames)
is logged in the same form.

A *mark* is a fact of the workload: "record 7 was acknowledged". The check of a crash state gets the
marks that came before the crash.

Source: docs/sources/reliability.md §5.4; Pillai et al., OSDI 2014 (ALICE).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from cordwood.sim.crash_states.content import Content, FileBytes


@dataclass(frozen=True, slots=True)
class Bytes:
    """A write of bytes to a file; past its end they extend it."""

    file: int
    offset: int
    data: bytes

    @property
    def stop(self) -> int:
        """Offset of the byte after the last."""
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class Names:
    """Names that change in one step: each with a file's number, DIRECTORY, or None for a removed
    name."""

    changes: tuple[tuple[str, int | None], ...]


@dataclass(frozen=True, slots=True)
class SyncFile:
    """The bytes of a file."""

    file: int


@dataclass(frozen=True, slots=True)
class SyncNames:
    """The names in a directory."""

    directory: str


Change = Bytes | Names
Effect = Bytes | Names | SyncFile | SyncNames


@dataclass(frozen=True, slots=True)
class Operation:
    """One call.

    Attributes:
        number: from 1, in the order of their begins.
        words: its description in stories.
        is_durable: whether its changes are on stable storage when it has ended.
    """

    number: int
    words: str
    effects: tuple[Effect, ...]
    is_durable: bool


class Outcome(enum.Enum):
    """How a call ended."""

    DONE = "done"
    FAILED = "failed"
    """The operation ended with an error of the machine: its effects are unknown, now and after
    syncs."""
    REFUSED = "refused"
    """The disk refused the operation, and did nothing."""


@dataclass(frozen=True, slots=True)
class Begin:
    """An operation was called: from here on a crash may find it done."""

    operation: Operation


@dataclass(frozen=True, slots=True)
class End:
    """The caller of an operation got its result."""

    operation: Operation
    outcome: Outcome


class Bearing(enum.Enum):
    """The effect of a fact on the states that a crash may leave."""

    PROMISE = "promise"
    """More must be there: "record 7 was acknowledged"."""
    NEWS = "news"
    """More may be there: "record 8 was asked for"."""
    WAIVER = "waiver"
    """Less must be there: "a trim was asked for"."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A fact of the workload."""

    fact: object
    bearing: Bearing


Event = Begin | End | Mark


class DiskLog:
    """The log of one disk.

    Attributes:
        base: what the disk held before the first event.
        made: the files made since, as they were then; never changed.
        events: in order.
    """

    def __init__(self, base: Content | None = None) -> None:
        self.base = base if base is not None else Content()
        self.made: dict[int, FileBytes] = {}
        self.events: list[Event] = []
        self._names = dict(self.base.names)
        self._in_flight: dict[int, Operation] = {}
        self._operations = 0
        self._files = max(self.base.files, default=0)

    @property
    def in_flight(self) -> tuple[Operation, ...]:
        """Operations that have not ended, in the order of their begins."""
        return tuple(self._in_flight.values())

    def new_file(self, file: FileBytes) -> int:
        """The number of a file without a name; its first bytes come with its name."""
        self._files += 1
        self.made[self._files] = file
        return self._files

    def facts(self) -> list[object]:
        """The facts marked so far, in order."""
        return [event.fact for event in self.events if isinstance(event, Mark)]

    def target(self, path: str) -> int | None:
        """The target of `path` after all ended operations: a file, DIRECTORY, or None."""
        return self._names.get(path)

    def begin(self, words: str, effects: Sequence[Effect], *, is_durable: bool = True) -> Operation:
        """An operation is called.

        It must not change the same bytes or name as an operation in flight: nothing says which one
        stays.
        """
        self._operations += 1
        operation = Operation(self._operations, words, tuple(effects), is_durable)
        for other in self._in_flight.values():
            assert not _any_meet(operation, other), f"{words} overlaps {other.words}, in flight"
        self._in_flight[operation.number] = operation
        self.events.append(Begin(operation))
        return operation

    def end(self, operation: Operation, outcome: Outcome = Outcome.DONE) -> None:
        """The caller of an operation gets its result."""
        del self._in_flight[operation.number]
        self.events.append(End(operation, outcome))
        if outcome is Outcome.DONE:
            for effect in operation.effects:
                if isinstance(effect, Names):
                    rename(self._names, effect)

    def promise(self, fact: object) -> None:
        """A fact after which a crash may take less."""
        self.events.append(Mark(fact, Bearing.PROMISE))

    def news(self, fact: object) -> None:
        """A fact after which a crash may leave more."""
        self.events.append(Mark(fact, Bearing.NEWS))

    def waive(self, fact: object) -> None:
        """A fact after which a crash may take more."""
        self.events.append(Mark(fact, Bearing.WAIVER))


def rename(names: dict[str, int], change: Names) -> None:
    """Carry out a change of names."""
    for path, target in change.changes:
        if target is None:
            names.pop(path, None)
        else:
            names[path] = target


def meet(one: Effect, other: Effect) -> bool:
    """Whether two effects change the same bytes or the same name."""
    if isinstance(one, Bytes) and isinstance(other, Bytes):
        same = one.file == other.file
        return same and one.offset < other.stop and other.offset < one.stop
    if isinstance(one, Names) and isinstance(other, Names):
        return not {path for path, _ in one.changes}.isdisjoint(path for path, _ in other.changes)
    return False


def _any_meet(one: Operation, other: Operation) -> bool:
    return any(meet(mine, theirs) for mine in one.effects for theirs in other.effects)
