"""The worlds of `small_scope`, folded: those that differ in nothing that can still matter are one.

Four folds, each of which leaves whatever a promise is about:

1. **Confirmations are heard when they are sent.** Hearing one changes nothing but how far the
   first sequencer has acknowledged. A store tells any LNG up to there, and a check only ever
   fails for more that was acknowledged, so the world in which all was heard at once has every
   step and every failure of those in which it was not. Only while a block may still go to
   another copyset is there a choice, and a step.
2. **What nobody will ask for again is forgotten**: stores that a sealed node will refuse, the
   LNG of a node that nobody will seal again, the progress of a recovery that gave up, which
   nodes sealed once the digest is decided, an end that only a recovery that is refused anyway
   could come too late for, a seal that none of those left can tell from a
   lower one. Which two nodes hold the outcome need not be chosen before they are stored on.
3. **What a recovery can only do next it has done**: to go on once all nodes have answered, and
   to write down the end once all were told.
4. **Nodes have no names.** A node is what it holds, what may still come to it, and how far each
   recovery got with it; a world keeps its three in order. Copysets are in what may still come,
   so worlds whose stores are all over are alike whatever copysets they went to.

Blocks and recoveries keep their order: LSNs and seals are compared. No step is left out for the
order of independent ones. That a fold is right is not believed: `Folding.fold` takes a world of
`small_scope` to its folded one, and the tests hold what the one search reaches, folded, against
what the other does, set against set. The pure rules are asked once for each argument.

A step touches one node and at most one recovery or block. So nodes, recoveries and blocks are
numbered as they are met, steps are looked up by pairs of numbers, and a world is one integer
made of them: what was seen is kept exactly, there are no digests that could clash.

    python tests/protocol/folded_scope.py --blocks 3 --recoveries 2 --waves 2

walks one, tells of it as it goes, and ends with 1 where a promise does not hold. With `--unfolded`
it walks the unfolded worlds, too, and holds one against the other.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Generic, NamedTuple, TypeVar

import small_scope
from small_scope import NODES, NOT_TOLD, REPLICATION, Broken, End, Held, Told, World

from cordwood.block import BlockKind

NOT_BEGUN, SEALING, READING, MENDING, CLEANING, OVER, ENDED = range(-1, 6)
"""How far an attempt of a recovery is. What is over was refused, or all that it sent has come; what
has ended wrote the end down."""

NOTHING, SEALED, READ, STORED, CLEANED = range(5)
"""How far a recovery is with a node."""

OPEN, ACKNOWLEDGED, DEAD = range(3)
"""Of a block: it may still be acknowledged, it was, or it never will be."""

WAITS_FOR = {SEALING: NOTHING, READING: SEALED, CLEANING: READ}
"""While any node is so far with a recovery, there is more to wait for than itself."""

FORGOTTEN: dict[int, dict[int, int]] = {
    NOT_BEGUN: {},
    SEALING: {},
    READING: {},
    MENDING: {SEALED: NOTHING},
    CLEANING: {SEALED: NOTHING, STORED: READ},
    OVER: dict.fromkeys((SEALED, READ, STORED, CLEANED), NOTHING),
    ENDED: dict.fromkeys((SEALED, READ, STORED), NOTHING),
}
"""What of its progress with a node a recovery does not ask for at a stage, and what that is then.
To store on, or to clean, is all that is to do with a node that was read."""

NUMBER_BITS = 20
"""Of the numbers that a world is made of, each."""

PROGRESS_WORLDS = 1_000_000
"""A minute or so."""

Numbers = tuple[int, ...]
"""A world: its blocks, each recovery, then each node, in order."""

Due = frozenset[tuple[int, int]]


class Node(NamedTuple):
    """A node: its disk, and what may yet come.

    Attributes:
        due: (block, wave) of the first sequencer's stores that may still be taken.
        part: by recovery, how far it is with this node.
    """

    seal: int
    lng: int
    held: frozenset[Held]
    end: Told
    due: Due
    part: tuple[int, ...]


class Course(NamedTuple):
    """An attempt of a recovery; the next one stands behind it.

    Attributes:
        given_up: the next has begun, and only what this one has sent may still come.
        told: the LNGs that it was told, lowest first.
        read: what it was shown, a number for each node's.
        stored: how many nodes have the outcome.
        end: the records that are left, and the bridge.
    """

    seal: int
    attempt: int = 1
    stage: int = SEALING
    given_up: bool = False
    told: tuple[int, ...] = ()
    lng: int = -1
    read: tuple[int, ...] = ()
    outcome: frozenset[Held] = frozenset()
    stored: int = 0
    end: End | None = None


class Block(NamedTuple):
    """A block of the first sequencer, and how many of its latest wave's stores are not taken."""

    wave: int = 1
    missing: int = REPLICATION.copies
    state: int = OPEN


Stage = tuple[tuple[int, int], int]
"""Of an attempt its place in the order of copies, and how far it is."""

Thing = TypeVar("Thing")


class Numbered(Generic[Thing]):
    """Things by number and numbers by thing, as they are met."""

    def __init__(self) -> None:
        self._numbers: dict[Thing, int] = {}
        self.things: list[Thing] = []

    def __call__(self, thing: Thing) -> int:
        number = self._numbers.get(thing)
        if number is None:
            number = self._numbers[thing] = len(self.things)
            self.things.append(thing)
            assert number < 1 << NUMBER_BITS
        return number


class Walked(NamedTuple):
    """What a walk met.

    Attributes:
        steps: from one world to the next, all that were looked at.
        ends: in which the epoch ended.
        seen: every world.
    """

    worlds: int
    ended: int
    steps: int
    ends: frozenset[End]
    seen: set[int]


class Folding:
    """The folded worlds of one start.

    Args:
        places: of each block, which of `COPYSETS` its first wave goes to.
        attempts: see `small_scope.start`.
    """

    def __init__(
        self,
        blocks: int,
        recoveries: int,
        waves: int = 1,
        places: tuple[int, ...] = (0, 1, 2),
        attempts: int = 1,
    ) -> None:
        self.blocks, self.waves, self.attempts = blocks, waves, attempts
        self.recoveries, self.courses = recoveries, recoveries - 1 + attempts
        self.places = places[:blocks]
        self.node, self.course = Numbered[Node](), Numbered[Course]()
        self.row, self.shown = Numbered[tuple[Block, ...]](), Numbered[frozenset[Held]]()
        for each in MEMORISED:
            setattr(self, each, cache(getattr(self, each)))

    def start(self) -> Numbers:
        """Nothing has happened."""
        return self.fold(self.unfolded_start())

    def unfolded_start(self) -> World:
        """The same, of `small_scope`."""
        return small_scope.start(
            self.blocks, self.recoveries, self.waves, self.places, self.attempts
        )

    def fold(self, world: World) -> Numbers:
        """The folded world of which `world` is one."""
        row = tuple(self._block_of(world, block) for block in range(self.blocks))
        courses = [self._course_of(mine) for mine in world.recoveries]
        nodes = [self._node_of(world, node) for node in NODES]
        return self._settled(self.row(row), courses, nodes)

    def _block_of(self, world: World, block: int) -> Block:
        wave = world.waves[block]
        copyset = small_scope.copyset_of(world.places[block], wave)
        missing = sum((block, wave, node) not in world.taken for node in copyset)
        is_heard = small_scope.is_heard(world, block)
        return Block(wave, missing, ACKNOWLEDGED if is_heard else OPEN)

    def _course_of(self, mine: small_scope.Recovery) -> int:
        course = Course(mine.seal, mine.attempt)
        if not mine.attempt:
            return self.course(course._replace(stage=NOT_BEGUN))
        if mine.is_over and not small_scope.is_all_cleaned(mine):
            return self.course(course._replace(stage=OVER))
        if mine.outcome is not None:
            to_go = len(mine.stored) < REPLICATION.copies
            if mine.given_up == small_scope.COPIES and not to_go:
                return self.course(course._replace(stage=OVER))
            return self.course(
                course._replace(
                    stage=MENDING if to_go else CLEANING,
                    given_up=bool(mine.given_up),
                    lng=mine.lng,
                    outcome=mine.outcome,
                    stored=len(mine.stored) if to_go else 0,
                )
            )
        if mine.given_up:
            return self.course(course._replace(stage=OVER))
        if mine.lng >= 0:
            read = sorted(self.shown(each) for each in mine.read if each is not None)
            return self.course(course._replace(stage=READING, lng=mine.lng, read=tuple(read)))
        told = sorted(each for each in mine.sealed if each >= 0)
        return self.course(course._replace(told=tuple(told)))

    def _node_of(self, world: World, node: int) -> int:
        due = frozenset(
            (block, wave)
            for block in range(self.blocks)
            for wave in range(1, self.waves + 1)
            if node in small_scope.copyset_of(world.places[block], wave)
            and (block, wave, node) not in world.taken
        )
        part = tuple(part_of(mine, node) for mine in world.recoveries)
        return self.node(Node(*world.disks[node], due, part))

    def steps(self, numbers: Numbers) -> Iterator[Numbers]:
        """Every folded world that is one message away."""
        row, courses, nodes = self._split(numbers)
        for after in self._row_steps(row):
            yield self._settled(after, courses, nodes)
        for at, course in enumerate(courses):
            if self._may_go_on(course):
                gone = [*courses[:at], self._gone_on(course), *courses[at + 1 :]]
                yield self._settled(row, gone, nodes)
            if self._may_begin(course, courses[at - 1]):
                pair = self._tried_again(courses[at - 1], course)
                yield self._settled(row, [*courses[: at - 1], *pair, *courses[at + 1 :]], nodes)
        for place, node in enumerate(nodes):
            if place and node == nodes[place - 1]:
                continue
            others = [*nodes[:place], *nodes[place + 1 :]]
            for with_node, after in self._stores(node, row):
                yield self._settled(after, courses, [with_node, *others])
            for at, course in enumerate(courses):
                step = self._recovery_step(at, node, course)
                if step is not None:
                    gone = [*courses[:at], step[1], *courses[at + 1 :]]
                    yield self._settled(row, gone, [step[0], *others])

    def _split(self, numbers: Numbers) -> tuple[int, list[int], list[int]]:
        nodes = 1 + self.courses
        return numbers[0], list(numbers[1:nodes]), list(numbers[nodes:])

    def _row_steps(self, number: int) -> tuple[int, ...]:
        """The first sequencer hears of a whole copyset, or waits no longer."""
        row, after = self.row.things[number], []
        for at, block in enumerate(row):
            if block.wave == self.waves or block.state == ACKNOWLEDGED:
                continue
            waved = Block(block.wave + 1, state=block.state)
            ways = [waved if block.state == OPEN else waved._replace(missing=0)]
            if block.state == OPEN and not block.missing:
                ways.append(block._replace(state=ACKNOWLEDGED))
            after += [self.row((*row[:at], each, *row[at + 1 :])) for each in ways]
        return tuple(after)

    def _stores(self, number: int, row_number: int) -> frozenset[tuple[int, int]]:
        """The first sequencer's stores arrive."""
        node, row, after = self.node.things[number], self.row.things[row_number], set()
        acknowledged = self._acknowledged(row_number)
        for at, wave in node.due:
            block = row[at]
            if wave > block.wave:
                continue
            if wave == block.wave and block.state == OPEN:
                block = block._replace(missing=block.missing - 1)
            new = frozenset({small_scope.copy_of(at, wave)})
            taken = node._replace(
                held=small_scope.inserted(node.held, new), due=node.due - {(at, wave)}
            )
            for told in range(min(at, acknowledged) + 1):
                with_node = self.node(taken._replace(lng=max(node.lng, told)))
                after.add((with_node, self.row((*row[:at], block, *row[at + 1 :]))))
        return frozenset(after)

    def _recovery_step(self, at: int, number: int, course_number: int) -> tuple[int, int] | None:
        """A recovery asks a node, and is answered."""
        node, mine = self.node.things[number], self.course.things[course_number]
        # Nobody hears that what a given-up attempt sent was refused.
        over = None if mine.given_up else (number, self.course(ended(mine)))
        step = mine.stage, node.part[at]
        if step == (SEALING, NOTHING):
            seal = small_scope.sealed_with(node.seal, mine.seal)
            if seal is None:
                return over
            after = node._replace(seal=seal)
            return self._met(
                at, after, SEALED, mine._replace(told=tuple(sorted((*mine.told, node.lng))))
            )
        elif step == (READING, SEALED):
            read = tuple(sorted((*mine.read, self.shown(node.held))))
            return self._met(at, node, READ, mine._replace(read=read))
        elif step == (MENDING, READ):
            if not small_scope.admits(node.seal, mine.seal):
                return over
            counting = small_scope.in_time(mine.outcome, node.end)
            after = node._replace(held=small_scope.inserted(node.held, counting))
            stored = mine.stored + 1
            if stored < REPLICATION.copies:
                return self._met(at, after, STORED, mine._replace(stored=stored))
            if mine.given_up:
                return self._met(at, after, STORED, ended(mine))
            return self._met(at, after, STORED, mine._replace(stage=CLEANING, stored=0))
        elif step == (CLEANING, READ):
            if node.seal > mine.seal:
                return over
            end = max(node.end, (*place_of(mine), mine.lng))
            held = small_scope.cleaned(node.held, end)
            return self._met(at, node._replace(held=held, end=end), CLEANED, mine)
        return None

    def _met(self, at: int, node: Node, part: int, mine: Course) -> tuple[int, int]:
        parts = (*node.part[:at], part, *node.part[at + 1 :])
        return self.node(node._replace(part=parts)), self.course(mine)

    def _may_go_on(self, number: int) -> bool:
        """Whether a recovery may go on with the answers that it has."""
        mine = self.course.things[number]
        if mine.stage == SEALING:
            return is_enough(len(mine.told))
        return mine.stage == READING and is_enough(len(mine.read))

    def _gone_on(self, number: int) -> int:
        mine = self.course.things[number]
        if mine.stage == SEALING:
            told = (*mine.told, *(-1,) * (len(NODES) - len(mine.told)))
            lng = small_scope.consensus_lng(told)
            return self.course(Course(mine.seal, mine.attempt, READING, lng=lng))
        if mine.stage == READING:
            read = tuple(self.shown.things[each] for each in mine.read)
            outcome = small_scope.decide(place_of(mine), mine.lng, read)
            return self.course(
                Course(mine.seal, mine.attempt, MENDING, lng=mine.lng, outcome=outcome)
            )
        assert mine.stage == CLEANING
        if mine.given_up:
            return self.course(ended(mine))
        end = small_scope.end_of(mine.lng, mine.outcome)
        lng = mine.lng if self.attempts > 1 else -1
        return self.course(Course(mine.seal, mine.attempt, ENDED, lng=lng, end=end))

    def _may_begin(self, number: int, before: int) -> bool:
        """Whether the attempt before it may be given up for it."""
        mine, other = self.course.things[number], self.course.things[before]
        is_tried = other.stage not in (NOT_BEGUN, OVER, ENDED) and not other.given_up
        return mine.stage == NOT_BEGUN and is_tried

    def _tried_again(self, before: int, number: int) -> tuple[int, int]:
        """One is given up, and the next begins."""
        mine, other = self.course.things[number], self.course.things[before]
        # Before it has decided it has sent nothing that can matter.
        has_sent = other.stage in (MENDING, CLEANING)
        left = other._replace(given_up=True) if has_sent else ended(other)
        return self.course(left), self.course(Course(mine.seal, other.attempt + 1))

    def _settled(self, row: int, courses: list[int], nodes: list[int]) -> Numbers:
        """With all forgotten that nobody asks for, and all done that can only be done."""
        while True:
            stages = tuple([self._stage(each) for each in courses])
            kept = [self._node_kept(each, row, stages) for each in nodes]
            kept_row = self._row_kept(row, tuple([self._due(each) for each in kept]))
            gone = [self._done(at, each, kept, courses) for at, each in enumerate(courses)]
            # What is forgotten of a node changes nothing else than what was just asked of it.
            if kept_row == row and gone == courses:
                return (row, *courses, *sorted(kept))
            row, courses, nodes = kept_row, gone, kept

    def _done(self, at: int, course: int, nodes: list[int], courses: list[int]) -> int:
        """Where a recovery is that waits for nothing more than itself."""
        if self._stage(course)[1] == NOT_BEGUN and self._stage(courses[at - 1])[1] >= OVER:
            return self.course(ended(self.course.things[course]))
        waits_for = WAITS_FOR.get(self._stage(course)[1])
        if waits_for is None or any(self._part(node, at) == waits_for for node in nodes):
            return course
        return self._gone_on(course)

    def _node_kept(self, number: int, row: int, stages: tuple[Stage, ...]) -> int:
        """What of a node can still matter."""
        node, blocks = self.node.things[number], self.row.things[row]
        due: Due = frozenset()
        if small_scope.admits(node.seal, 0):
            due = frozenset(
                (at, wave)
                for at, wave in node.due
                if blocks[at].state != ACKNOWLEDGED or wave <= blocks[at].wave
            )
        pairs = list(zip(node.part, stages, strict=True))
        part = tuple(FORGOTTEN[stage].get(part, part) for part, (_, stage) in pairs)
        is_lng_asked = any(
            (stage == NOT_BEGUN or (stage, part) == (SEALING, NOTHING))
            and small_scope.sealed_with(node.seal, seal) is not None
            for part, ((seal, _), stage) in pairs
        )
        places = [place for place, stage in stages if stage < OVER]
        live = tuple(dict.fromkeys(seal for seal, _ in places))
        seal = node.seal if due else lowest_like(node.seal, live)
        lng = node.lng if is_lng_asked else 0
        late = [each for each in places if each < node.end[:2]]
        is_end_asked = any(small_scope.admits(node.seal, each) for each, _ in late)
        end = node.end if is_end_asked else NOT_TOLD
        return self.node(Node(seal, lng, node.held, end, due, part))

    def _row_kept(self, number: int, due: tuple[Due, ...]) -> int:
        """What of the first sequencer can still matter: the first of its blocks that never will
        be acknowledged ends what it acknowledges."""
        row: list[Block] = []
        coming = [each for of_node in due for each in of_node]
        for at, block in enumerate(self.row.things[number]):
            kept = block
            is_behind_dead = bool(row) and row[-1].state == DEAD
            if is_behind_dead or (block.state == OPEN and self._is_dead(at, block, coming)):
                kept = block._replace(missing=0, state=DEAD)
            elif block.state == OPEN and not block.missing and block.wave == self.waves:
                kept = block._replace(state=ACKNOWLEDGED)
            if kept.state == DEAD and not any(a == at and w > kept.wave for a, w in coming):
                kept = kept._replace(wave=self.waves)
            row.append(kept)
        return self.row(tuple(row))

    def _is_dead(self, at: int, block: Block, coming: list[tuple[int, int]]) -> bool:
        """Whether neither the latest wave nor a later one can be taken by a whole copyset."""
        is_short = coming.count((at, block.wave)) < block.missing
        return is_short and not any(a == at and wave > block.wave for a, wave in coming)

    def _stage(self, course: int) -> Stage:
        mine = self.course.things[course]
        return (mine.seal, mine.attempt), mine.stage

    def _due(self, node: int) -> Due:
        return self.node.things[node].due

    def _part(self, node: int, at: int) -> int:
        return self.node.things[node].part[at]

    def _acknowledged(self, row: int) -> int:
        states = [block.state for block in self.row.things[row]]
        return len(list(itertools.takewhile(ACKNOWLEDGED.__eq__, states)))

    def check(self, numbers: Numbers) -> bool:
        """What `small_scope.check` checks; whether the epoch has ended.

        Raises:
            Broken: a promise does not hold.
        """
        row, courses, nodes = self._split(numbers)
        ends = [(at, end) for at, each in enumerate(courses) if (end := self._end(each))]
        if not ends:
            return False
        if len({end for _, end in ends}) > 1:
            raise Broken(f"epoch 1 ends twice: {ends}", self.unfolded(numbers))
        records, bridge = ends[0][1]
        if not set(range(1, self._acknowledged(row) + 1)) <= set(records):
            raise Broken(f"records were acknowledged beyond {records}", self.unfolded(numbers))
        if max(records, default=0) >= bridge:
            raise Broken(f"the bridge is over a record: {ends}", self.unfolded(numbers))
        holders = [self._records_of(node) for node in nodes]
        for record in records:
            if sum(record in each for each in holders) < REPLICATION.copies:
                raise Broken(f"record {record} has too few copies", self.unfolded(numbers))
        for at, _ in ends:
            for node in nodes:
                if not self._is_shown_right(at, node, courses[at]):
                    raise Broken(f"node shows what is not {end}", self.unfolded(numbers))
        return True

    def _end(self, course: int) -> End | None:
        return self.course.things[course].end

    def _records_of(self, node: int) -> frozenset[int]:
        held = self.node.things[node].held
        return frozenset(each.first for each in held if each.kind == BlockKind.DATA)

    def _is_shown_right(self, at: int, number: int, course: int) -> bool:
        """What it holds of what was told of the end, or what it keeps once it asks for that."""
        node, mine = self.node.things[number], self.course.things[course]
        held = node.held
        if node.part[at] != CLEANED:
            if self.attempts == 1:
                return True
            held = small_scope.cleaned(held, max(node.end, (*place_of(mine), mine.lng)))
        assert mine.end is not None
        return not any(small_scope.is_shown_wrong(each, mine.end, self.blocks) for each in held)

    def unfolded(self, numbers: Numbers) -> tuple[object, ...]:
        """A world in words."""
        row, courses, nodes = self._split(numbers)
        return (
            self.row.things[row],
            *(self.course.things[each] for each in courses),
            *(self.node.things[each] for each in nodes),
        )

    def walk(self, progress: Callable[[int, int], None] = lambda *_: None) -> Walked:
        """Visit every folded world.

        Args:
            progress: told now and then how many worlds were met, and how many of them wait.

        Raises:
            Broken: a promise does not hold in one of them.
        """
        first = self.start()
        seen, todo, ended, steps = {self.packed(first)}, [first], 0, 0
        ends: set[End] = set()
        while todo:
            numbers = todo.pop()
            if self.check(numbers):
                ended += 1
                ends.update(
                    end for each in numbers[1 : 1 + self.courses] if (end := self._end(each))
                )
            for after in self.steps(numbers):
                steps += 1
                packed = self.packed(after)
                if packed not in seen:
                    seen.add(packed)
                    todo.append(after)
                    if len(seen) % PROGRESS_WORLDS == 0:
                        progress(len(seen), len(todo))
        return Walked(len(seen), ended, steps, frozenset(ends), seen)

    def packed(self, numbers: Numbers) -> int:
        """A world as one integer."""
        packed = 0
        for number in numbers:
            packed = packed << NUMBER_BITS | number
        return packed


MEMORISED = (
    "_row_steps",
    "_stores",
    "_recovery_step",
    "_may_go_on",
    "_gone_on",
    "_node_kept",
    "_row_kept",
    "_stage",
    "_due",
    "_part",
    "_acknowledged",
    "_end",
    "_records_of",
    "_is_shown_right",
)
"""Methods of `Folding` that are asked again and again, of numbers."""


def place_of(mine: Course) -> tuple[int, int]:
    """See `small_scope.place_of`."""
    return small_scope.place_of(small_scope.Recovery(mine.seal, mine.attempt))


def ended(mine: Course) -> Course:
    """An attempt of which nothing more can come."""
    return Course(mine.seal, mine.attempt, OVER)


def part_of(mine: small_scope.Recovery, node: int) -> int:
    """How far a recovery is with a node."""
    if node in mine.cleaned:
        return CLEANED
    if node in mine.stored:
        return STORED
    if mine.read[node] is not None:
        return READ
    return SEALED if mine.sealed[node] >= 0 else NOTHING


def is_enough(heard: int) -> bool:
    """Whether so many answers will do, whosever they are."""
    return small_scope.is_enough(frozenset(range(heard)))


def lowest_like(seal: int, live: tuple[int, ...]) -> int:
    """The lowest seal that recoveries of these seals cannot tell from `seal`."""

    def answers(each: int) -> list[object]:
        return [
            (small_scope.sealed_with(each, of), small_scope.admits(each, of), each > of)
            for of in live
        ]

    return next(each for each in (0, *range(2, seal + 1)) if answers(each) == answers(seal))


def walk_unfolded(
    folding: Folding, progress: Callable[[int, int], None] = lambda *_: None
) -> tuple[int, set[int], frozenset[End]]:
    """Visit every world of the same start that is not folded; how many there are, all that they
    fold to, and how the epoch ended.

    Raises:
        Broken: a promise does not hold in one of them.
    """
    reached: set[int] = set()
    ends: set[End] = set()
    visited = itertools.count(1)

    def visit(world: World) -> None:
        small_scope.check(world)
        reached.add(folding.packed(folding.fold(world)))
        if world.clean is not None:
            ends.add(world.clean)
        if (worlds := next(visited)) % PROGRESS_WORLDS == 0:
            progress(worlds, 0)

    worlds, _ = small_scope.walk(folding.unfolded_start(), visit)
    return worlds, reached, frozenset(ends)


def main() -> int:
    """Walk one."""
    parser = argparse.ArgumentParser(description="Walk every folded world of seal and recovery.")
    parser.add_argument("--blocks", type=int, choices=(1, 2, 3), default=3)
    parser.add_argument("--recoveries", type=int, default=2)
    parser.add_argument("--waves", type=int, default=1, help="copysets that a block may go to")
    parser.add_argument("--attempts", type=int, default=1, help="that the first recovery makes")
    parser.add_argument("--places", default="012", help="the first copyset of each block")
    parser.add_argument("--unfolded", action="store_true", help="walk these as well; compare")
    asked = parser.parse_args()
    places = tuple(int(each) for each in asked.places)
    folding = Folding(asked.blocks, asked.recoveries, asked.waves, places, asked.attempts)

    def tell(worlds: int, waiting: int) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        mib, cpu_s = used.ru_maxrss // 1024, time.process_time()
        wait = f"{waiting:,} wait, " if waiting else ""
        print(f"{worlds:,} worlds, {wait}{cpu_s:.0f} s of a core, {mib:,} MiB", flush=True)

    try:
        walked = folding.walk(tell)
        tell(walked.worlds, 0)
        print(f"whole: {walked.worlds:,} worlds, {walked.steps:,} steps, {walked.ended:,} ended")
        if not asked.unfolded:
            return 0
        worlds, reached, ends = walk_unfolded(folding, tell)
    except Broken as broken:
        print(f"broken: {broken}", flush=True)
        return 1
    is_same = (reached, ends) == (walked.seen, walked.ends)
    tell(worlds, 0)
    print(f"unfolded: {worlds:,} worlds, which fold to {'the same' if is_same else 'OTHERS'}")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
