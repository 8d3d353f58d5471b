"""A small world in which nodes are lost and blocks are made anew, by the rules alone.

Nodes hold envelopes of blocks, know the event log up to some place, and act by what they know:
a sequencer stores, a donor moves one block (or stops half-way), a donor says that it is done, a
node dies, comes back with its disk or with an empty one, is drained. Everything is drawn from a
seed. `check` says what must hold at any time, `finish` lets all come to rest.

The real roles do the same over a network; what the rules get wrong is found here first.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from cordwood.nodes import Authority, Member, NodeId, Nodeset, Replication
from cordwood.protocol.event_log import Verdict, apply, authority_of, refuses, work_of
from cordwood.protocol.rebuild_plan import (
    Held,
    Known,
    Losses,
    Move,
    after_asking,
    is_certain,
    plan_move,
)
from cordwood.quorum.copyset import choose_copyset
from cordwood.rebuilding import (
    Aborted,
    Acked,
    IsRebuilt,
    NeedsRebuild,
    RebuildEvent,
    RebuildingSet,
    TimeRange,
    Undrained,
    Unrecoverable,
)

COUNT = 6
RACKS = ("a", "a", "b", "b", "c", "c")


@dataclass
class Copy:
    """A node's copy of a block: its envelope."""

    copyset: tuple[int, ...]
    wave: int
    moving: bool = False
    """Of a donor's own copy: the new copies are durable, and the others are still to be told."""

    @property
    def order(self) -> tuple[int, tuple[int, ...]]:
        """Which of two counts: the higher. Two donors may come to one wave, so the copysets decide
        then; it does not matter which wins, as long as it is the same everywhere."""
        return self.wave, self.copyset


@dataclass
class WorldNode:
    """One node; `known` is the set that it goes by."""

    number: int
    up: bool = True
    wiped: bool = False
    """It came up with an empty disk, and has not said so yet or waits to be let in."""
    torn: tuple[int, int] | None = None
    """Times of which it lost its copies as it started; it is in service."""
    given: set[tuple[int, int, int]] = field(default_factory=set)
    """Blocks that it gave back to a node that lost a range: the node, its entry's version, and
    the block. No envelope tells it, so a start forgets it."""
    known: RebuildingSet = field(default_factory=RebuildingSet)
    copies: dict[int, Copy] = field(default_factory=dict)


class World:
    """See the module."""

    def __init__(self, seed: int, rule: Replication) -> None:
        self.random = random.Random(seed)
        self.rule = rule
        self.nodes = {n: WorldNode(n) for n in range(1, COUNT + 1)}
        members = tuple(Member(NodeId(n), "", RACKS[n - 1]) for n in self.nodes)
        self.nodeset = Nodeset(members)
        self.set = RebuildingSet()
        self.lsn = 0
        self.blocks = 0
        self.destroyed = 0
        self.calm = False
        self.met: dict[str, int] = {}

    def say(self, event: RebuildEvent) -> Verdict:
        """Append to the event log."""
        self.lsn += 1
        self.set, verdict = apply(self.set, self.lsn, event)
        if verdict is Verdict.TAKEN:
            self.meet(type(event).__name__)
        return verdict

    def meet(self, what: str) -> None:
        self.met[what] = self.met.get(what, 0) + 1

    def lacks(self, node: WorldNode, block: int) -> bool:
        """Whether a node says of a block that it does not know whether it has it."""
        return node.torn is not None and node.torn[0] <= block <= node.torn[1]

    def any_node(self) -> WorldNode:
        return self.nodes[self.random.randint(1, COUNT)]

    def has_data(self, node: WorldNode) -> bool:
        """Whether readers count on it, by the newest set."""
        authority = authority_of(self.set, node.number)
        return not node.wiped and authority is Authority.FULLY_AUTHORITATIVE

    def step(self) -> None:
        """One thing happens."""
        acts = [
            (self.append, 1), (self.catch_up, 4), (self.move, 6), (self.tell_done, 6),
            (self.crash, 2), (self.come_back, 2), (self.report, 4), (self.drain, 2),
            (self.undrain, 3), (self.ack, 3), (self.tear, 1),
        ]  # fmt: skip
        act = self.random.choices([a for a, _ in acts], [w for _, w in acts])[0]
        act()

    def append(self) -> None:
        up = frozenset(NodeId(n) for n, node in self.nodes.items() if self.takes(node))
        copyset = choose_copyset(self.nodeset, self.rule, up, self.random)
        if copyset is None or not self.accept(copyset, copyset):
            return
        self.blocks += 1
        for node in copyset:
            self.nodes[node].copies[self.blocks] = Copy(copyset, 1)

    def takes(self, node: WorldNode) -> bool:
        return node.up and not node.wiped

    def accept(self, nodes: tuple[int, ...], copyset: tuple[int, ...]) -> bool:
        """Whether every node takes a store that names this copyset."""
        return all(
            self.takes(self.nodes[n]) and not refuses(self.nodes[n].known) & {*copyset}
            for n in nodes
        )

    def catch_up(self) -> None:
        node = self.any_node()
        if node.up:
            node.known = self.set

    def held(self, node: WorldNode, block: int) -> Held:
        copy = node.copies[block]
        return Held(1, block, block, block, 1, 1, copy.copyset, copy.wave)

    def plans(self, node: WorldNode, block: int) -> object:
        up = frozenset(NodeId(n) for n, each in self.nodes.items() if self.takes(each))
        return plan_move(
            self.held(node, block), node.number, Losses.of(node.known), self.nodeset, self.rule,
            up, self.random, node.copies[block].moving,
            frozenset(n for n, v, b in node.given if b == block and self.is_of(node, n, v)),
        )  # fmt: skip

    def is_of(self, node: WorldNode, lost: int, version: int) -> bool:
        """Whether an entry is of this version, as a node knows the set."""
        entry = node.known.entry(lost)
        return entry is not None and entry.version == version

    def move(self) -> None:
        """A donor deals with one block, or stops in the middle of it."""
        donor = self.any_node()
        if not self.takes(donor) or not donor.copies:
            return
        block = self.random.choice(sorted(donor.copies))
        noted = donor.copies[block].moving
        if noted and self.plans(donor, block) is None:
            if self.is_overtaken(donor, block):
                self.give_up(donor, block)
            else:
                self.go_on(donor, block)
            return
        if not isinstance(self.plans(donor, block), Move):
            return
        # First it asks the others whether they know better.
        if noted and self.is_overtaken(donor, block):
            self.give_up(donor, block)
            return
        if not noted and not self.compare(donor, block):
            self.settle(donor, block)
            return
        found = self.plans(donor, block)
        if not isinstance(found, Move):
            return
        known = {
            n: Known(x.copies[block].wave, x.copies[block].copyset)
            for n, x in self.nodes.items()
            if block in x.copies
        }
        gifts = set() if found.changes else self.gifts(donor, block, found)
        if self.carry_out(donor, block, *after_asking(found, known)):
            donor.given |= gifts

    def carry_out(self, donor: WorldNode, block: int, found: Move, wave: int) -> bool:
        """The writes of one move, in their order; whether it came to its end."""
        if not self.store(block, found, wave):
            return False
        if not found.changes:
            return True
        self.put(donor, block, Copy(found.copyset, wave, moving=True))
        return self.go_on(donor, block)

    def store(self, block: int, found: Move, wave: int) -> bool:
        """The new copies; False where it stopped before all were durable."""
        for taker in found.stores:
            # A copy that goes back escapes nobody: its donor is not done before the rest is.
            named = found.copyset if found.changes else ()
            if self.stops() or not self.accept((taker,), named):
                self.meet("stopped before the copies")
                return False
            self.put(self.nodes[taker], block, Copy(found.copyset, wave))
        return True

    def stops(self) -> bool:
        return not self.calm and self.random.random() < 0.25

    def go_on(self, donor: WorldNode, block: int) -> bool:
        """All new copies are durable, and the donor has noted that: the others are told."""
        copy = donor.copies[block]
        for other in copy.copyset:
            if other == donor.number:
                continue
            if self.stops() or not self.amend(self.nodes[other], block, copy):
                self.meet("stopped before the envelopes")
                self.give_up(donor, block)
                return False
        if self.stops():
            self.meet("stopped before its own")
            return False
        donor.copies[block] = Copy(copy.copyset, copy.wave)
        self.meet("moved")
        return True

    def is_overtaken(self, donor: WorldNode, block: int) -> bool:
        """Whether a node of the copyset that was noted knows a later envelope."""
        copy = donor.copies[block]
        found = [c for n in copy.copyset if (c := self.nodes[n].copies.get(block)) is not None]
        return any(each.order > copy.order for each in found)

    def give_up(self, donor: WorldNode, block: int) -> None:
        """A move that cannot go on is over where others have overtaken it."""
        copy = donor.copies[block]
        if self.is_overtaken(donor, block):
            donor.copies[block] = Copy(copy.copyset, copy.wave)
            self.compare(donor, block)
        self.settle(donor, block)

    def put(self, node: WorldNode, block: int, envelope: Copy) -> None:
        """A copy with an envelope; of two the higher wave counts, as everywhere."""
        held = node.copies.get(block)
        if held is None or held.order < envelope.order:
            node.copies[block] = envelope

    def amend(self, node: WorldNode, block: int, copy: Copy) -> bool:
        """A node gets an envelope unless it has a later one, and the body if it lacks that."""
        if not self.takes(node) or refuses(node.known) & {*copy.copyset}:
            return False
        self.put(node, block, Copy(copy.copyset, copy.wave))
        return True

    def tell_done(self) -> None:
        donor = self.any_node()
        work = work_of(donor.known, donor.number)
        if not self.takes(donor) or not work:
            return
        lost = self.random.choice(work)
        if not any(self.is_left(donor, block, lost) for block in donor.copies):
            sure = is_certain(donor.known, self.nodeset, self.rule)
            self.say(IsRebuilt(lost, donor.number, donor.known.version, sure))

    def is_left(self, donor: WorldNode, block: int, lost: int) -> bool:
        """Whether a donor has to give a block for a lost node still."""
        copy = donor.copies[block]
        is_mine = lost in copy.copyset and self.plans(donor, block) is not None
        return copy.moving or is_mine

    def gifts(self, donor: WorldNode, block: int, found: Move) -> set[tuple[int, int, int]]:
        """What a donor remembers of a move that changes no envelope."""
        entries = [entry for n in found.stores if (entry := donor.known.entry(n)) is not None]
        return {(entry.node, entry.version, block) for entry in entries}

    def crash(self) -> None:
        node = self.any_node()
        if sum(not each.up or each.wiped for each in self.nodes.values()) >= 2:
            return
        node.up = False
        node.given.clear()
        if self.destroyed < 1 and self.random.random() < 0.6:
            # Never so many that a block is gone: that is another matter.
            self.destroyed += 1
            node.copies.clear()
            node.wiped = True
            node.torn = None

    def tear(self) -> None:
        """A node starts again, has lost the copies of some times, and says so before it serves."""
        node = self.any_node()
        others = [each for each in self.nodes.values() if each.torn is not None]
        if not self.takes(node) or others or not self.blocks or self.set.entry(node.number):
            return
        first = self.random.randint(1, self.blocks)
        node.torn = (first, self.random.randint(first, self.blocks))
        for block in [each for each in node.copies if self.lacks(node, each)]:
            del node.copies[block]
        self.say_torn(node)

    def say_torn(self, node: WorldNode) -> None:
        assert node.torn is not None
        event = NeedsRebuild(node.number, tuple(self.nodes), ranges=(TimeRange(*node.torn),))
        assert self.say(event) is Verdict.TAKEN
        self.meet("lost a range")
        node.known = self.set

    def come_back(self) -> None:
        """A start: the node reads the event log to its end before it does anything."""
        node = self.any_node()
        if node.up:
            return
        node.up = True
        node.known = self.set
        if node.wiped:
            return
        entry = self.set.entry(node.number)
        if entry is None or entry.ranges or (entry.relocates and not entry.is_empty):
            return
        if entry.is_empty:
            node.copies.clear()
            node.wiped = True
            node.torn = None
            return
        assert self.say(Aborted(node.number)) is Verdict.TAKEN
        self.meet("came back with its data")
        node.known = self.set
        if node.torn is not None:
            self.say_torn(node)
        for block in list(node.copies):
            if not self.compare(node, block):
                self.settle(node, block)

    def compare(self, node: WorldNode, block: int) -> bool:
        """Ask the members of the copyset that have data, and believe the highest wave; whether
        this copy is a full one. Where a member lacks the block, or has it under an envelope that
        does not name this node, the move that brought it here came to no end."""
        copy = best = node.copies[block]
        losses = Losses.of(node.known)
        lost = losses.missing(self.held(node, block)) - losses.leaving
        is_full = True
        for n in copy.copyset:
            other = self.nodes[n]
            if n == node.number or n in lost:
                continue
            found = other.copies.get(block)
            is_full &= other.up and found is not None and node.number in found.copyset
            if other.up and found is not None and found.order > best.order:
                best = found
        if node.number in best.copyset and best is not copy:
            node.copies[block] = Copy(best.copyset, best.wave)
        return is_full

    def settle(self, node: WorldNode, block: int) -> None:
        """Drop a copy where a copyset without this node is whole: of a move that came to no end,
        of a node that was away while its copy was made anew, or was drained. All are asked."""
        for other in [*self.nodes.values()]:
            copy = other.copies.get(block)
            if copy is None or node.number in copy.copyset:
                continue
            found = [self.nodes[n].copies.get(block) for n in copy.copyset]
            if all(each is not None and each.copyset == copy.copyset for each in found):
                node.copies.pop(block, None)
                self.meet("a copy too many went")

    def sweep(self) -> None:
        """At rest each node looks at its copies once more."""
        for node in self.nodes.values():
            for block in list(node.copies):
                if node.copies[block].moving:
                    self.go_on(node, block)
                else:
                    self.compare(node, block)
                    self.settle(node, block)

    def report(self) -> None:
        """Somebody says that a node is lost."""
        node = self.any_node()
        if node.up and not node.wiped:
            return
        event = NeedsRebuild(node.number, tuple(self.nodes), forced=self.random.random() < 0.2)
        self.say(event)
        if node.wiped:
            self.say(Unrecoverable(node.number))

    def drain(self) -> None:
        node = self.any_node()
        if self.takes(node):
            self.say(NeedsRebuild(node.number, tuple(self.nodes), True))

    def undrain(self) -> None:
        entry = self.set.entry(self.random.randint(1, COUNT))
        if entry is not None and entry.drain:
            self.say(Undrained(entry.node))

    def ack(self) -> None:
        """A node that is there and is called empty takes part again, with nothing."""
        node = self.any_node()
        entry = self.set.entry(node.number)
        if node.up and entry is not None and entry.ranges:
            if self.say(Acked(node.number, entry.version)) is Verdict.TAKEN:
                node.torn = None
                self.meet("has its range again")
            return
        if not node.up or entry is None or not entry.is_empty or entry.drain:
            return
        node.known = self.set
        if self.say(Acked(node.number, entry.version)) is Verdict.TAKEN:
            if node.wiped:
                self.destroyed = max(0, self.destroyed - 1)
            node.copies.clear()
            node.wiped = False
            node.torn = None
            node.known = self.set

    def check(self) -> None:
        """What must hold at any time: of each block that is somewhere, some envelope names no
        node that is called empty, and each node that it names and that has data has the block."""
        empty = {each.node for each in self.set.lost if each.is_empty}
        counted = [node for node in self.nodes.values() if self.has_data(node)]
        for block in range(1, self.blocks + 1):
            holders = {node.number: node.copies[block] for node in counted if block in node.copies}
            assert not holders or any(
                not empty & {*copy.copyset}
                and all(
                    node.number in holders or self.lacks(node, block)
                    for node in counted
                    if node.number in copy.copyset
                )
                for copy in holders.values()
            ), (block, holders, self.set)

    def finish(self) -> None:
        """Nobody dies any more, and all that is under way comes to its end."""
        for node in self.nodes.values():
            while not node.up:
                self.come_back_of(node)
        for _ in range(200 * max(10, self.blocks)):
            if not self.set.lost and not any(node.wiped for node in self.nodes.values()):
                break
            for act in (self.catch_up, self.move, self.tell_done, self.report, self.ack):
                act()
                self.check()
            self.undrain()
        assert not self.set.lost, self.set
        self.calm = True
        for node in self.nodes.values():
            node.known = self.set
        for _ in range(9):  # what one node learns in a pass lets another go in the next
            self.sweep()

    def come_back_of(self, node: WorldNode) -> None:
        draw, self.any_node = self.any_node, lambda: node  # type: ignore[method-assign]
        self.come_back()
        self.any_node = draw  # type: ignore[method-assign]

    def check_rest(self) -> None:
        """At rest: each block that has a copy has all that its newest envelope promises."""
        for block in range(1, self.blocks + 1):
            holders = {n: x.copies[block] for n, x in self.nodes.items() if block in x.copies}
            assert holders, f"block {block} is gone"
            best = max(holders.values(), key=lambda each: each.order)
            assert {*best.copyset} == holders.keys(), (block, holders)
            assert all(copy == best for copy in holders.values()), (block, holders)
            domains = {self.nodeset[NodeId(n)].location for n in best.copyset}
            assert len(best.copyset) >= self.rule.copies
            assert len(domains) >= self.rule.racks
