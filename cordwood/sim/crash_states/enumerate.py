"""Every legal state of a disk after a crash, from the log of its operations.

A crash may come after any prefix of the log. This module looks just before each end, just before
each waiver, and after everything. These points are enough. A begin only adds states, since the
operation may be found undone. A promise changes nothing on disk and demands more. So every other
prefix has the states of the next of these points, or some of them, and demands no more.

At each point, changes on stable storage are there. Every other change is *open*: in flight, or
ended and not synced, or failed. Each open change is there or not, independently of the others; a
write may also be there in part. `fates` lists the fates of each change. If their combinations are
few, all are gone through. Otherwise some are drawn by chance, out of these and all other fates, and
the count tells the number of all combinations.

A later change on stable storage overrides an earlier open change: the earlier change may still be
lost, but cannot undo the later one. Two states with the same bytes under the same names and with
the same promises are one state.

Source: docs/sources/reliability.md §5.4; Pillai et al., OSDI 2014 (ALICE); Mohan et al.,
OSDI 2018 (CrashMonkey).
"""

from __future__ import annotations

import itertools
import math
import posixpath
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cordwood.sim.crash_states.content import Content, Key
from cordwood.sim.crash_states.disk_log import (
    Bearing,
    Begin,
    Bytes,
    Change,
    DiskLog,
    End,
    Mark,
    Names,
    Operation,
    Outcome,
    SyncFile,
    SyncNames,
    meet,
    rename,
)
from cordwood.sim.crash_states.fates import (
    KEPT,
    LOST,
    Fate,
    Tearing,
    draw_fate,
    fates_of,
    leave,
)
from cordwood.sim.stored_tree import StoredTree

TRIES_PER_STATE = 4
"""Draws for each wanted state: many draws give the same bytes, for example over zeros."""


@dataclass(slots=True)
class CrashCount:
    """The number of states that were looked at, and that could be.

    Attributes:
        points: places in the log where a crash was put.
        whole_points: points at which every combination of the fates that `fates_of` lists was gone
            through.
        states: distinct states that were yielded.
        combinations: fates of open changes, multiplied at each point and summed. States that turn
            out equal are counted each time, so it is an upper bound.
    """

    points: int = 0
    whole_points: int = 0
    states: int = 0
    combinations: int = 0

    def add(self, other: CrashCount) -> None:
        """Add the counts of another exploration."""
        self.points += other.points
        self.whole_points += other.whole_points
        self.states += other.states
        self.combinations += other.combinations


@dataclass(frozen=True, slots=True)
class CrashState:
    """The state that one crash left.

    Attributes:
        content: of the disk; never changed.
        facts: the marks before the crash, in order.
        event: number of events of the log before the crash.
        ordinal: number of the state among its log's states, from 0.
        fates: the fates of the open changes.
    """

    content: Content
    facts: Sequence[object]
    event: int
    ordinal: int
    fates: tuple[tuple[Operation, Fate], ...]

    def tree(self) -> StoredTree:
        """A disk's tree to start from: `SimDisk.tree = state.tree()`."""
        return self.content.tree()

    def story(self) -> str:
        """The crash in words."""
        told = [f"#{each.number} {each.words}: {fate}" for each, fate in self.fates]
        return f"state {self.ordinal}, crash after event {self.event}; " + (
            "; ".join(told) or "nothing was open"
        )


@dataclass(slots=True, eq=False)
class _Open:
    """A change that is not on stable storage.

    Attributes:
        ended: the event of its operation's end; None while in flight.
        has_failed: whether it failed, so that no later sync makes it durable.
        over: changes on stable storage that override it.
        fates: the fates to go through; made at the first use.
    """

    operation: Operation
    change: Change
    ended: int | None = None
    has_failed: bool = False
    over: list[Change] = field(default_factory=list)
    fates: tuple[Fate, ...] = ()
    extends: bool = False

    def was_before(self, event: int) -> bool:
        """Whether it had ended when `event` came."""
        return self.ended is not None and self.ended < event


class CrashStates:
    """The states of one log, as an iterable; `count` grows with them.

    Args:
        log: a log that is not written any more.
        tearing: how writes may be torn.
        per_point: most states of one crash point; if there are more combinations, some are drawn.
        chance: for this draw.
    """

    def __init__(
        self,
        log: DiskLog,
        *,
        tearing: Tearing | None = None,
        per_point: int = 1 << 12,
        chance: random.Random | None = None,
    ) -> None:
        self.count = CrashCount()
        self._log = log
        self._tearing = tearing if tearing is not None else Tearing()
        self._per_point = per_point
        self._chance = chance if chance is not None else random.Random(0)
        self._stable = log.base.copy()
        self._stable.files.update(log.made)
        self._open: list[_Open] = []
        self._begun: dict[int, int] = {}
        self._facts: list[object] = []
        self._seen: set[Key] = set()

    def __iter__(self) -> Iterator[CrashState]:
        for event, each in enumerate(self._log.events):
            if isinstance(each, End) or (isinstance(each, Mark) and each.bearing is Bearing.WAIVER):
                yield from self._states_after(event)
            self._go_past(event, each)
        yield from self._states_after(len(self._log.events))

    # ---- what is on stable storage, and what is open ----

    def _go_past(self, event: int, each: Begin | End | Mark) -> None:
        if isinstance(each, Begin):
            self._begun[each.operation.number] = event
            for effect in each.operation.effects:
                if isinstance(effect, Bytes | Names):
                    self._open.append(_Open(each.operation, effect))
        elif isinstance(each, Mark):
            self._facts.append(each.fact)
            if each.bearing is Bearing.PROMISE:
                self._seen.clear()  # the same bytes, with more promises
        else:
            self._end(event, each)

    def _end(self, event: int, end: End) -> None:
        operation = end.operation
        mine = [each for each in self._open if each.operation is operation]
        if end.outcome is Outcome.REFUSED:
            self._open = [each for each in self._open if each.operation is not operation]
            return
        for each in mine:
            each.ended = event
            each.has_failed = end.outcome is Outcome.FAILED
        if end.outcome is Outcome.FAILED:
            return
        begun = self._begun[operation.number]
        settled = mine if operation.is_durable else []
        settled = self._synced(operation, begun) + settled
        for each in settled:
            self._settle(each)

    def _synced(self, operation: Operation, begun: int) -> list[_Open]:
        """The changes that an operation's syncs, begun at that event, put on stable storage."""
        files = {each.file for each in operation.effects if isinstance(each, SyncFile)}
        places = {each.directory for each in operation.effects if isinstance(each, SyncNames)}
        if not files and not places:
            return []
        return [
            each
            for each in self._open
            if each.was_before(begun)
            and not each.has_failed
            and (
                each.change.file in files
                if isinstance(each.change, Bytes)
                else any(posixpath.dirname(path) in places for path, _ in each.change.changes)
            )
        ]

    def _settle(self, settled: _Open) -> None:
        """Put a change on stable storage, below later changes."""
        self._open.remove(settled)
        for change in (settled.change, *settled.over):
            self._put(self._stable, change, KEPT)
        begun = self._begun[settled.operation.number]
        for other in self._open:
            # Changes that override it are put again after it, and so are changes that override
            # those. Example: a file that was renamed out of a directory, and then replaced at its
            # new place.
            under = (other.change, *other.over)
            if other.was_before(begun) and any(meet(each, settled.change) for each in under):
                other.over.append(settled.change)

    def _put(self, content: Content, change: Change, fate: Fate) -> None:
        if fate == LOST:
            return
        if isinstance(change, Names):
            rename(content.names, change)
        else:
            leave(content.own(change.file), change, fate)

    # ---- the states of one place ----

    def _states_after(self, event: int) -> Iterator[CrashState]:
        combinations = math.prod(len(self._fates(each)) for each in self._open)
        is_whole = combinations <= self._per_point
        self.count.points += 1
        self.count.whole_points += is_whole
        self.count.combinations += combinations
        facts = tuple(self._facts)
        found = 0
        for fates in self._all_fates() if is_whole else self._drawn_fates():
            content = self._left(fates)
            key = content.key()
            if key in self._seen:
                continue
            self._seen.add(key)
            told = tuple(
                (each.operation, fate) for each, fate in zip(self._open, fates, strict=True)
            )
            found += 1
            self.count.states += 1
            yield CrashState(content, facts, event, self.count.states - 1, told)
            if found >= self._per_point:
                return

    def _fates(self, each: _Open) -> tuple[Fate, ...]:
        if not each.fates:
            if isinstance(each.change, Names):
                each.fates = (LOST, KEPT)
            else:
                each.extends = each.change.stop > self._stable.files[each.change.file].size
                each.fates = fates_of(each.change, self._tearing, extends=each.extends)
        return each.fates

    def _all_fates(self) -> Iterator[tuple[Fate, ...]]:
        return itertools.product(*(self._fates(each) for each in self._open))

    def _drawn_fates(self) -> Iterator[tuple[Fate, ...]]:
        """No change, all changes, each change alone and all changes except one, among free
        draws."""
        width = len(self._open)
        yield (LOST,) * width
        yield (KEPT,) * width
        for _ in range(TRIES_PER_STATE * self._per_point):
            if self._chance.random() < 0.25:
                one = self._chance.randrange(width)
                alone, others = self._chance.choice(((LOST, KEPT), (KEPT, LOST)))
                yield tuple(alone if at == one else others for at in range(width))
            else:
                yield tuple(self._draw(each) for each in self._open)

    def _draw(self, each: _Open) -> Fate:
        if isinstance(each.change, Names):
            return self._chance.choice((LOST, KEPT))
        return draw_fate(each.change, self._tearing, self._chance, extends=each.extends)

    def _left(self, fates: Sequence[Fate]) -> Content:
        content = self._stable.copy()
        for each, fate in zip(self._open, fates, strict=True):
            if fate != LOST:
                for change, how in ((each.change, fate), *((over, KEPT) for over in each.over)):
                    self._put(content, change, how)
        return content
