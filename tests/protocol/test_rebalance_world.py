"""Small worlds in which nodes give blocks to other nodes while nodes are lost and drained."""

from __future__ import annotations

from collections import Counter

import pytest
from rebuild_world import COUNT, World, WorldNode

from cordwood.nodes import Replication
from cordwood.protocol.event_log import gives, work_of
from cordwood.protocol.rebalance_plan import gives as share_of
from cordwood.protocol.rebalance_plan import plan_given
from cordwood.protocol.rebuild_plan import Known, Losses, Move, after_asking
from cordwood.rebuilding import PARTS, Gave, Rebalance, Transfer

STEPS = 300
SEEDS = 150
HUNTED_SEEDS = 300


class Rebalancing(World):
    """Shares that are drawn at random, and may be more than all blocks together."""

    def step(self) -> None:
        """One thing happens. A rebalance begins only while no node is lost or drained, so most
        worlds heal then."""
        chance = self.random.random()
        if self.is_under_way() and chance < 0.75:
            acts = [(self.give, 48), (self.catch_up, 22), (self.tell_gave, 3), (self.order, 2)]
            self.random.choices([a for a, _ in acts], [w for _, w in acts])[0]()
        elif not self.is_under_way() and self.set.lost and chance < 0.65:
            self.heal()
        elif not self.is_under_way() and chance < 0.3:
            self.order()
        else:
            super().step()

    def is_under_way(self) -> bool:
        known = self.set.rebalancing
        return known is not None and bool(known.left)

    def heal(self) -> None:
        for act in (self.catch_up, self.move, self.tell_done, self.ack, self.undrain, self.report):
            act()
        self.come_back()

    def order(self) -> None:
        """An operator begins a rebalance, or ends it early."""
        if self.is_under_way() and self.random.random() < 0.5:
            self.say(Rebalance(()))
            return
        ends = [
            self.random.sample(range(1, COUNT + 1), 2) for _ in range(self.random.randint(1, 9))
        ]
        shares = [Transfer(a, b, self.random.randint(1, PARTS // 2)) for a, b in ends]
        self.say(Rebalance(tuple(shares)))

    def has_work(self, node: WorldNode) -> bool:
        return bool(work_of(node.known, node.number)) or gives(node.known, node.number)

    def given(self, node: WorldNode, block: int) -> Move | None:
        """The move by which a node gives a block, if it does."""
        held = self.held(node, block)
        share = share_of(Losses.of(node.known), held, node.number)
        return None if share is None else plan_given(held, share, self.nodeset, self.rule)

    def give(self) -> None:
        """A donor gives one block, or goes on with a move that it noted, or stops half-way."""
        donor = self.any_node()
        if not self.takes(donor) or not donor.copies or not self.has_work(donor):
            return
        block = self.random.choice(sorted(donor.copies))
        if donor.copies[block].moving:
            if self.is_overtaken(donor, block):
                self.give_up(donor, block)
            elif self.plans(donor, block) is None:
                self.go_on(donor, block)
            return
        # A block that lacks copies is made whole first, and a leftover copy is not given.
        if self.plans(donor, block) is not None or self.given(donor, block) is None:
            return
        if not self.compare(donor, block):
            return
        found = self.given(donor, block)
        if found is None or not self.nodes[found.stores[0]].up:
            return
        known = {
            n: Known(each.copies[block].wave, each.copies[block].copyset)
            for n, each in self.nodes.items()
            if block in each.copies
        }
        if self.carry_out(donor, block, *after_asking(found, known)):
            self.meet("given")

    def tell_gave(self) -> None:
        donor = self.any_node()
        known = donor.known.rebalancing
        if known is None or not self.takes(donor) or not gives(donor.known, donor.number):
            return
        if not any(self.is_left_to(donor, block) for block in donor.copies):
            self.say(Gave(donor.number, known.version))

    def is_left_to(self, donor: WorldNode, block: int) -> bool:
        """Whether a donor has to give a block still: a leftover copy stays for the next loss."""
        if donor.copies[block].moving:
            return True
        return self.given(donor, block) is not None and self.compare(donor, block)

    def finish(self) -> None:
        """The rebalance ends, too."""
        super().finish()
        for _ in range(400 * max(10, self.blocks)):
            if not self.is_under_way():
                break
            for act in (self.catch_up, self.give, self.tell_gave):
                act()
                self.check()
        assert not self.is_under_way(), self.set
        for _ in range(9):
            self.sweep()


def run(seed: int, kind: type[Rebalancing] = Rebalancing) -> Rebalancing:
    """One world, to its rest.

    Raises:
        AssertionError: something did not hold.
    """
    world = kind(seed, Replication(3, 2 if seed % 2 else 1))
    for _ in range(STEPS):
        world.step()
        world.check()
    world.finish()
    world.check_rest()
    return world


def test_every_block_keeps_its_copies_while_nodes_give_blocks_away() -> None:
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        met.update(run(seed).met)
    assert met.keys() >= {"Rebalance", "Gave", "given", "NeedsRebuild", "Aborted", "Acked"}
    assert met["moved"] > SEEDS / 2


class GivesUnstored(Rebalancing):
    """The target of a share is named, and never gets the block."""

    is_giving = False

    def give(self) -> None:
        self.is_giving = True
        super().give()
        self.is_giving = False

    def store(self, block: int, found: Move, wave: int) -> bool:
        return self.is_giving or super().store(block, found, wave)


def test_a_rebalance_that_names_a_node_without_the_block_is_caught() -> None:
    def hunt() -> None:
        for seed in range(HUNTED_SEEDS):
            run(seed, GivesUnstored)

    with pytest.raises(AssertionError):
        hunt()
