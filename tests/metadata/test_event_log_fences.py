"""The base of the event log takes no set whose restatement is lost, whatever number comes next."""

from __future__ import annotations

import random
from contextlib import nullcontext

import pytest
from metadata_play import run_patiently

from cordwood.block import GapKind
from cordwood.errors import Corrupt
from cordwood.layout.rebuild_events import pack_set
from cordwood.lsn import make_lsn
from cordwood.metadata.event_log import StoredEventLog
from cordwood.metadata.memory import MemoryMetadata
from cordwood.protocol.event_log import Verdict
from cordwood.protocol.event_log_follower import EventFollower
from cordwood.protocol.event_log_restating import furthest
from cordwood.rebuilding import NeedsRebuild, RebuildingSet, Restated
from cordwood.sim.planted import find_bug, planted

NODES = tuple(range(1, 17))


def at(epoch: int, esn: int) -> int:
    return int(make_lsn(epoch, esn))


def test_a_node_that_read_a_lost_restatement_does_not_count() -> None:
    """Node B read the first restated set, was not waited for, and is back after the second."""

    async def main() -> None:
        stored = StoredEventLog(MemoryMetadata(random.Random(1)))
        base = await stored.move()
        first = await stored.fence(at(1, 9))
        b, c = EventFollower(base.set), EventFollower(base.set)
        b.on_record(at(2, 1), Restated(first.fence, base.set, NODES))
        c.on_gap(at(3, 0), GapKind.DATA_LOSS)
        second = await stored.fence(at(3, 0))
        assert second.fence > first.fence
        kept = await stored.note_base(b.set)
        assert kept == second, "B is told that a restatement is under way, and does not count"
        said = Restated(second.fence, c.set, NODES)
        for follower in (b, c):
            follower.on_record(at(3, 1), said)
        assert b.set == c.set
        assert (await stored.note_base(b.set)).set == c.set

    run_patiently(main())


def test_nodes_that_restate_the_same_log_agree_on_the_number() -> None:
    """Otherwise each would refuse the restated set of the other, and none would be the last."""

    async def main() -> None:
        stored = StoredEventLog(MemoryMetadata(random.Random(1)))
        await stored.move()
        fences = [(await stored.fence(at(2, 0))).fence for _ in range(3)]
        assert len(set(fences)) == 1
        # A node that asked for the tail earlier lowers nothing.
        assert (await stored.fence(at(1, 4))).fence == fences[0]

    run_patiently(main())


def test_a_restatement_goes_on_that_an_earlier_version_numbered() -> None:
    """Earlier versions counted from 1. Their numbers are below any LSN."""

    async def main() -> None:
        stored = StoredEventLog(MemoryMetadata(random.Random(1)))
        base = await stored.move()
        old = await stored.fence(3)
        assert old.fence == 3
        follower = EventFollower(base.set)
        follower.on_record(at(1, 2), Restated(3, base.set, NODES))
        assert (await stored.note_base(follower.set)).set == follower.set
        new = await stored.fence(at(2, 0))
        follower.on_record(at(2, 1), Restated(new.fence, follower.set, NODES))
        assert (await stored.note_base(follower.set)).set == follower.set

    run_patiently(main())


@pytest.mark.parametrize("older", [None, pack_set(RebuildingSet(7))], ids=["none", "a set"])
def test_a_metadata_store_from_before_the_move_is_named(older: bytes | None) -> None:
    """An assertion failed in a task of the node and ended it, and said nothing of the cause."""

    async def main() -> None:
        store = MemoryMetadata(random.Random(1))
        stored = StoredEventLog(store)
        if older is not None:
            await store.compare_and_set("rebuilding/set", older, 0)
        calls = stored.note_base(RebuildingSet(at(1, 9))), stored.fence(9), stored.read_moved_base()
        for call in calls:
            with pytest.raises(Corrupt, match="an older copy, from before the move"):
                await call
        found = await store.get("rebuilding/set")
        assert (found and found.value) == older, "nothing is written over it"
        base = await stored.move()
        assert await stored.read_moved_base() == base

    run_patiently(main())


class Model:
    """An event log that loses its last records, the base, and nodes that follow it and count.

    The base is that of `StoredEventLog`. A node counts by all events of its set, once the base has
    the set.

    Attributes:
        counted: nodes that an event names by which some node counted.
        forgotten: those of them that a later base, or the last set, lacks.
        is_refused: a follower found a restated set that has no place in the event log.
    """

    def __init__(self, seed: int, stored: StoredEventLog, base: RebuildingSet) -> None:
        self.chance = random.Random(seed)
        self.stored = stored
        self.records: list[tuple[int, NeedsRebuild | Restated]] = []
        self.lost: list[tuple[int, int]] = []
        self.tail = at(1, 0)
        self.epoch = 1
        self.nodes = [EventFollower(base) for _ in range(4)]
        self.away: set[int] = set()
        self.pending: list[tuple[EventFollower, int, Restated]] = []
        self.counted: set[int] = set()
        self.forgotten: set[int] = set()
        self.is_refused = False
        self.restated = 0
        self.number = 0

    def append(self, value: NeedsRebuild | Restated) -> None:
        self.tail += 1
        self.records.append((self.tail, value))

    def lose(self) -> None:
        """Lose the last records, and go on in the next epoch."""
        kept = len(self.records) - self.chance.randint(0, 3)
        if kept < len(self.records) and kept >= 0:
            self.lost.append((self.records[kept][0], self.records[-1][0]))
            del self.records[kept:]
        self.epoch += 1
        self.tail = at(self.epoch, 0)

    def read(self, node: EventFollower, count: int) -> None:
        """Read on up to `count` records, and to the tail after the last of them."""
        ahead = [each for each in self.records if each[0] > node.reached]
        for lsn, value in ahead[:count]:
            self.pass_losses(node, lsn - 1)
            node.on_record(lsn, value)
        if count >= len(ahead):
            self.pass_losses(node, self.tail)

    def pass_losses(self, node: EventFollower, last: int) -> None:
        for first, until in self.lost:
            if node.reached < until and first <= last:
                node.on_gap(until, GapKind.DATA_LOSS)
        node.on_gap(last, GapKind.BRIDGE)

    async def count(self, node: EventFollower) -> None:
        """Count by all that the node knows, if the base has it."""
        if not node.is_whole:
            return
        base = await self.stored.note_base(node.set)
        if base.fence <= node.set.restated:
            self.counted |= {each.node for each in node.set.lost}
            self.look(base.set)

    def look(self, found: RebuildingSet) -> None:
        self.forgotten |= self.counted - {each.node for each in found.lost}

    async def begin_restating(self, node: EventFollower) -> None:
        if node.is_whole or not node.has_read(self.tail):
            return
        there = [each for n, each in enumerate(self.nodes) if n not in self.away]
        whole = [each for each in there if each.is_whole and each.reached >= node.reached]
        if whole:
            node.adopt(whole[0].set, whole[0].reached)
            return
        base = await self.stored.fence(self.tail)
        found = furthest([base.set, *(each.set for each in there)])
        if base.fence > found.restated:
            self.pending.append((node, self.tail, Restated(base.fence, found, NODES)))

    def end_restating(self) -> None:
        if self.pending:
            node, tail, said = self.pending.pop(self.chance.randrange(len(self.pending)))
            if tail == self.tail and node.reached == tail:
                self.append(said)
                self.restated += 1

    def say(self, node: EventFollower) -> None:
        event = NeedsRebuild(self.number + 1, NODES, drain=True, forced=True)
        is_able = node.is_whole and node.has_read(self.tail) and self.number < len(NODES)
        if is_able and node.decide(event).verdict is Verdict.TAKEN:
            self.number += 1
            self.append(event)

    async def step(self) -> None:
        here = [n for n in range(len(self.nodes)) if n not in self.away]
        number = self.chance.choice(here)
        node = self.nodes[number]
        match self.chance.randrange(12):
            case 0:
                self.say(node)
            case 1 | 2:
                self.read(node, self.chance.randint(1, 3))
            case 3:
                await self.count(node)
            case 4:
                self.lose()
            case 5 | 6 | 7:
                self.read(node, len(self.records))
                await self.begin_restating(node)
            case 8 | 9:
                self.end_restating()
            case 10 if len(self.away) < 2:
                # The event that a node has added is lost with the records before it.
                self.read(node, len(self.records))
                self.say(node)
                self.read(node, len(self.records))
                self.away.add(number)
                self.lose()
            case _:
                back = self.chance.choice(range(len(self.nodes)))
                if back in self.away:
                    self.away.discard(back)
                    await self.count(self.nodes[back])
                elif len(self.away) < 2:
                    self.away.add(back)


async def play(seed: int) -> Model:
    stored = StoredEventLog(MemoryMetadata(random.Random(seed)))
    base = await stored.move()
    model = Model(seed, stored, base.set)
    try:
        await play_on(model)
    except Corrupt:
        model.is_refused = True
    return model


async def play_on(model: Model) -> None:
    for _ in range(150):
        await model.step()
    # All nodes are back. They end with one set that has all that counted.
    model.away.clear()
    for _ in range(4):
        for node in model.nodes:
            model.read(node, len(model.records))
            await model.begin_restating(node)
            model.end_restating()
    for node in model.nodes:
        model.read(node, len(model.records))
        if node.is_whole:
            model.look(node.set)


@pytest.mark.parametrize("is_planted", [False, True])
def test_what_counted_is_in_every_later_set(is_planted: bool) -> None:
    async def main() -> None:
        models = [await play(seed) for seed in range(200)]
        assert sum(model.restated for model in models) > 400
        assert any(model.forgotten or model.is_refused for model in models) is is_planted

    with planted(find_bug("restatement-number-again")) if is_planted else nullcontext():
        run_patiently(main())
