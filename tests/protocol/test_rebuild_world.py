"""Small worlds in which nodes are lost and made anew, and rules with a bug that these catch."""

from __future__ import annotations

from collections import Counter

import pytest
from rebuild_world import Copy, World, WorldNode

from cordwood.nodes import Replication
from cordwood.protocol.rebuild_plan import Move
from cordwood.rebuilding import IsRebuilt, NeedsRebuild, Undrained, Unrecoverable

STEPS = 300
SEEDS = 120
SEARCHED_SEEDS = 300


def run(seed: int, kind: type[World] = World) -> World:
    """One world, to its rest.

    Raises:
        AssertionError: something did not hold.
    """
    world = kind(seed, Replication(3, 2 if seed % 2 else 1))
    for _ in range(STEPS):
        world.step()
        world.check()
    come_to_rest(world)
    return world


def come_to_rest(world: World) -> None:
    """All that is under way ends, and what must hold then is looked at."""
    world.finish()
    world.check_rest()


def test_every_block_has_its_copies_whatever_is_lost() -> None:
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        met.update(run(seed).met)
    assert met.keys() >= {
        "NeedsRebuild", "IsRebuilt", "Unrecoverable", "Undrained", "Acked", "Aborted", "moved",
        "stopped before the copies", "stopped before the envelopes", "stopped before its own",
        "came back with its data", "a copy too many went", "lost a range", "has its range again",
    }  # fmt: skip


class EnvelopesFirst(World):
    """Envelopes name the new copies before these are durable."""

    def carry_out(self, donor: WorldNode, block: int, found: Move, wave: int) -> bool:
        self.put(donor, block, Copy(found.copyset, wave))
        for other in found.amends:
            self.amend(self.nodes[other], block, Copy(found.copyset, wave))
        return self.store(block, found, wave)


class NoNote(World):
    """The donor notes nothing of a move before the others are told."""

    def carry_out(self, donor: WorldNode, block: int, found: Move, wave: int) -> bool:
        if not self.store(block, found, wave):
            return False
        for other in found.amends:
            if self.stops() or not self.amend(self.nodes[other], block, Copy(found.copyset, wave)):
                return False
        if self.stops():
            return False
        self.put(donor, block, Copy(found.copyset, wave))
        return True


class ToldEarly(World):
    """A donor says that it is done while its moves are under way."""

    def is_left(self, donor: WorldNode, block: int, lost: int) -> bool:
        return super().is_left(donor, block, lost) and self.random.random() < 0.5


class OldVersion(World):
    """A donor's word counts for the set as it is now, and not as the donor knew it."""

    def say(self, event: object) -> object:  # type: ignore[override]
        if isinstance(event, IsRebuilt):
            event = IsRebuilt(event.node, event.donor, self.set.version, event.is_authoritative)
        return super().say(event)  # type: ignore[arg-type]


class GoesOnBlindly(World):
    """A donor goes on with what it noted, whoever of the new copyset was lost meanwhile."""

    def plans(self, node: WorldNode, block: int) -> object:
        return None if node.copies[block].moving else super().plans(node, block)

    def amend(self, node: WorldNode, block: int, copy: Copy) -> bool:
        if not node.up or block not in node.copies:
            return False
        self.put(node, block, Copy(copy.copyset, copy.wave))
        return True


class SameWave(World):
    """Each move raises the wave that the donor knows by one."""

    def carry_out(self, donor: WorldNode, block: int, found: Move, wave: int) -> bool:
        return super().carry_out(donor, block, found, donor.copies[block].wave + found.changes)


class TakesForTheLost(World):
    """Nodes take stores whose copyset names a lost node."""

    def accept(self, nodes: tuple[int, ...], copyset: tuple[int, ...]) -> bool:
        return all(self.takes(self.nodes[n]) for n in nodes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug",
    [
        EnvelopesFirst, ToldEarly, OldVersion, SameWave, GoesOnBlindly,
        TakesForTheLost,
    ],
)  # fmt: skip
def test_a_bug_is_caught(bug: type[World]) -> None:
    for seed in range(SEARCHED_SEEDS):
        try:
            run(seed, bug)
        except AssertionError:
            return
    pytest.fail(f"{bug.__name__} got away")


def stopped_before_its_own(seed: int, kind: type[World], writes: int) -> World:
    """Node 4 moves a block away from node 3, which is drained: node 6 has the new copy and node 5
    the new envelope, when node 4 stops. Then node 3 stays after all, and node 6 is lost."""
    world = kind(seed, Replication(3))
    world.blocks = 1
    for number in (3, 4, 5):
        world.nodes[number].copies[1] = Copy((4, 5, 3), 1)
    world.say(NeedsRebuild(3, tuple(world.nodes), True))
    donor = world.nodes[4]
    donor.known = world.set
    for number in (1, 2):
        world.nodes[number].up = False
    stops = iter([False] * writes + [True])
    world.stops = lambda: next(stops)  # type: ignore[method-assign]
    world.any_node = lambda: donor  # type: ignore[method-assign]
    world.move()
    del world.stops, world.any_node  # type: ignore[method-assign]
    assert world.nodes[5].copies[1] == Copy((4, 5, 6), 2)
    for number in (1, 2):
        world.nodes[number].up = True
    world.say(Undrained(3))
    world.nodes[6].copies.clear()
    world.nodes[6].wiped = True
    world.say(NeedsRebuild(6, tuple(world.nodes)))
    world.say(Unrecoverable(6))
    for node in world.nodes.values():
        node.known = world.set
    return world


def test_a_move_that_was_noted_comes_to_its_end() -> None:
    for seed in range(20):
        world = stopped_before_its_own(seed, World, writes=3)
        come_to_rest(world)


def test_a_move_that_was_not_noted_leaves_an_envelope_that_nobody_mends() -> None:
    """Node 4 plans anew by the copyset of old, in which nothing is missing; node 5 waits for node
    4, which is first in the copyset that node 5 knows."""
    for seed in range(20):
        world = stopped_before_its_own(seed, NoNote, writes=2)
        with pytest.raises(AssertionError):
            come_to_rest(world)
