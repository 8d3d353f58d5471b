"""A loss is told exactly where there is one: the read buffer against a twin that sees everything.

The twin knows which node holds which block and how far each has come, and tries every copyset
that could be. It says of each block by itself what a reader may be given of it; the buffer is told
the same in any order, a frame at a time, and has to come to the same.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st

from cordwood.block import BlockHeader, Gap, GapKind
from cordwood.lsn import make_lsn
from cordwood.nodes import Authority, Member, NodeId, Nodeset, Replication
from cordwood.protocol.gap_detection import Delivery, ReadBuffer
from cordwood.quorum.f_majority import QuorumVerdict, weigh_replies

FULL, GONE, EMPTY, DOWN = (
    Authority.FULLY_AUTHORITATIVE,
    Authority.UNDER_REPLICATED,
    Authority.AUTHORITATIVE_EMPTY,
    Authority.UNAVAILABLE,
)


@dataclass(frozen=True)
class Item:
    header: BlockHeader


@dataclass
class World:
    """Everything there is to know.

    Attributes:
        blocks: `[first, last]` of each, which follow one another from 1.
        copysets: where each was stored, by its place in `blocks`.
        forgot: copies, as node and block, of which their node knows nothing any more.
        rotten: copies that fail their checksum.
        came: by node, how many blocks it has come past; the others say nothing.
        damaged: nodes that know that they lost something.
        said: what is said of nodes that say nothing.
    """

    nodeset: Nodeset
    replication: Replication
    blocks: list[tuple[int, int]]
    copysets: list[tuple[int, ...]]
    forgot: set[tuple[int, int]] = field(default_factory=set)
    rotten: set[tuple[int, int]] = field(default_factory=set)
    came: dict[int, int] = field(default_factory=dict)
    damaged: set[int] = field(default_factory=set)
    said: dict[int, Authority] = field(default_factory=dict)

    def has(self, node: int, at: int) -> bool:
        return node in self.copysets[at] and (node, at) not in self.forgot

    def sends(self, node: int, at: int) -> bool:
        """Whether a reader gets this block, whole, from this node."""
        is_good = self.has(node, at) and (node, at) not in self.rotten
        return self.came.get(node, 0) > at and is_good

    def is_lost(self, at: int) -> bool:
        """Whether, once everybody who would speak has, it may be said that nobody has a block:
        no copyset is left that could hold it, or nobody who could is left to be asked. Where
        nobody has come past it nobody says that there is anything."""
        heard = {
            node
            for node, blocks in self.came.items()
            if blocks > at and not (self.has(node, at) and (node, at) in self.rotten)
        }
        if not heard:
            return False
        left = [n for n in self.nodeset.nodes if self.said.get(n, FULL) is not EMPTY]
        with_data = {n for n in left if self.said.get(n, FULL) is not GONE}
        if with_data <= heard:
            return True
        trusted = heard - self.damaged
        return not any(trusted.isdisjoint(copyset) for copyset in self.possible(left))

    def possible(self, left: list[NodeId]) -> Iterator[tuple[NodeId, ...]]:
        """Every copyset of these nodes. Where they are too few for one, every node of them must be
        heard: as though it had been the copyset."""
        copies, racks = self.replication.copies, self.replication.racks
        found = False
        for copyset in itertools.combinations(left, copies):
            if len({self.nodeset[node].domain("rack") for node in copyset}) >= racks:
                found = True
                yield copyset
        if not found:
            yield from ((node,) for node in left)

    def expected(self) -> tuple[list[str], int]:
        """What comes of each block in turn, and the first one that is still waited for."""
        said = []
        for at in range(len(self.blocks)):
            if any(self.sends(node, at) for node in self.came):
                said.append("given")
            elif self.is_lost(at):
                said.append("lost")
            else:
                return said, at
        return said, len(self.blocks)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    count = draw(st.integers(2, 6))
    racks = draw(st.sampled_from((1, 1, 2)))
    members = tuple(Member(NodeId(n), f"h:{n}", f"rack{n % 3}") for n in range(1, count + 1))
    copies = draw(st.integers(racks, min(3, count)))
    nodeset, replication = Nodeset(members), Replication(copies, racks)
    legal = [
        copyset
        for copyset in itertools.combinations(nodeset.nodes, copies)
        if len({nodeset[node].domain("rack") for node in copyset}) >= racks
    ]
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    lasts = list(itertools.accumulate(sizes))
    blocks = [(last - size + 1, last) for last, size in zip(lasts, sizes, strict=True)]
    copysets = [draw(st.sampled_from(legal)) for _ in blocks]
    world = World(nodeset, replication, blocks, copysets)
    places = [(node, at) for at, copyset in enumerate(copysets) for node in copyset]
    world.forgot = draw(st.sets(st.sampled_from(places), max_size=len(places)))
    world.rotten = draw(st.sets(st.sampled_from(places), max_size=2)) - world.forgot
    for node in nodeset.nodes:
        what = draw(st.sampled_from(("all", "all", "all", "some", "damaged", "mute", "away")))
        if what == "mute":
            continue
        if what == "away":
            world.said[node] = draw(st.sampled_from((GONE, EMPTY, DOWN)))
            continue
        world.came[node] = len(blocks) if what != "some" else draw(st.integers(0, len(blocks)))
        if what == "damaged":
            world.damaged.add(node)
    return world


def frames(world: World, node: int) -> Iterator[tuple[int, int, str]]:
    """What a node says of each block that it comes past."""
    for at in range(world.came[node]):
        if not world.has(node, at):
            yield node, at, "nothing"
        else:
            yield node, at, "rotten" if (node, at) in world.rotten else "sent"


def tell(reader: ReadBuffer[Item], world: World, node: int, at: int, what: str) -> None:
    first, last = world.blocks[at]
    if what == "rotten":
        reader.on_bad_copy(NodeId(node), make_lsn(1, first), make_lsn(1, last))
    elif what == "sent":
        reader.on_block(Item(BlockHeader(1, make_lsn(1, first), last - first + 1, 0)))
    reader.on_marker(NodeId(node), make_lsn(1, last + 1))


def read(world: World, chance: random.Random) -> tuple[list[str], list[str]]:
    """What the buffer says of each block: before the grace period is over, and in the end."""

    def judge(heard: set[NodeId]) -> QuorumVerdict:
        return weigh_replies(heard, world.nodeset, world.replication, world.said)  # type: ignore[arg-type]

    until = make_lsn(1, world.blocks[-1][1])
    reader: ReadBuffer[Item] = ReadBuffer(make_lsn(1, 1), until)
    for node in world.damaged:
        reader.on_damaged(NodeId(node))
    left = {node: list(frames(world, node)) for node in world.came}
    said: dict[int, str] = {}

    def take(*, grace_over: bool) -> None:
        while (taken := reader.take(judge, grace_over=grace_over)) is not None:
            assert isinstance(taken, Delivery) or taken.kind is GapKind.DATA_LOSS
            word = "lost" if isinstance(taken, Gap) else "given"
            for lsn in range(int(taken.first), int(taken.last) + 1):
                assert lsn not in said, "each LSN is given out once"
                said[lsn] = word

    while any(left.values()):
        node = chance.choice(sorted(node for node, more in left.items() if more))
        tell(reader, world, *left[node].pop(0))
        take(grace_over=False)
    early = dict(said)
    take(grace_over=True)
    return _by_block(world, early), _by_block(world, said)


def _by_block(world: World, said: dict[int, str]) -> list[str]:
    """One word for each block in turn, as far as there is one."""
    words = []
    for first, last in world.blocks:
        of_block = {said.get(make_lsn(1, esn), "") for esn in range(first, last + 1)}
        assert len(of_block) == 1, "a block is given, or lost, or waited for as a whole"
        words.append(of_block.pop())
    while words and not words[-1]:
        words.pop()
    assert "" not in words, "nothing is passed over"
    return words


@settings(max_examples=200)
@given(worlds(), st.randoms(use_true_random=False))
def test_what_is_lost_is_told_and_nothing_else_is(world: World, chance: random.Random) -> None:
    expected, waits_at = world.expected()
    early, said = read(world, chance)
    for word in {*said, "waits" if waits_at < len(world.blocks) else "ends"}:
        event(word)
    assert said == expected
    assert early == said[: len(early)], "what is told before the grace period is over holds"


@given(worlds(), st.randoms(use_true_random=False))
def test_nothing_is_lost_while_all_copies_are_there(world: World, chance: random.Random) -> None:
    """Whoever is silent, slow or away for good, if only what is said of it is true: a node called
    empty or gone held nothing."""
    held = {node for copyset in world.copysets for node in copyset}
    world.forgot, world.rotten, world.damaged = set(), set(), set()
    world.said = {
        node: DOWN if node in held else authority for node, authority in world.said.items()
    }
    assert "lost" not in read(world, chance)[1]


@given(worlds(), st.randoms(use_true_random=False))
def test_what_no_node_holds_is_lost_once_all_have_spoken(
    world: World, chance: random.Random
) -> None:
    """And what one of them holds is given."""
    world.said, world.damaged, world.rotten = {}, set(), set()
    world.came = dict.fromkeys(world.nodeset.nodes, len(world.blocks))
    there = [
        any(world.has(node, at) for node in world.nodeset.nodes) for at in range(len(world.blocks))
    ]
    early, said = read(world, chance)
    assert early == said == ["given" if held else "lost" for held in there]
