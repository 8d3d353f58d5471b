"""Who sends a block, and when a reader trusts that: tables, worked examples, and twins."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.nodes import NodeId
from cordwood.protocol.single_copy import (
    CopyFilter,
    Doubt,
    SenderChoice,
    Shuffle,
    ships,
    shuffled,
)


def senders(copyset: tuple[int, ...], rule: CopyFilter) -> list[int]:
    return [node for node in copyset if ships(node, copyset, rule)]


def as_chosen(*down: int, local: tuple[int, ...] = (), copies: int = 0) -> CopyFilter:
    return CopyFilter(Shuffle.NONE, 0, frozenset(down), copies, frozenset(local))


class TestWhoSends:
    @pytest.mark.parametrize(
        ("copyset", "rule", "who"),
        [
            ((4, 2, 7), as_chosen(), [4]),
            ((4, 2, 7), as_chosen(2), [4]),
            # Nodes in the list send too where it is their turn: who is back shows itself.
            ((4, 2, 7), as_chosen(4), [4, 2]),
            ((4, 2, 7), as_chosen(4, 2), [4, 2, 7]),
            ((4, 2, 7), as_chosen(4, 2, 7), [4, 2, 7]),
            ((4, 2, 7), as_chosen(9), [4]),
            ((4,), as_chosen(), [4]),
            # Local: the first of the region, whoever stands before it.
            ((4, 2, 7), as_chosen(local=(7, 8)), [7]),
            ((4, 2, 7), as_chosen(local=(2, 7)), [2]),
            ((4, 2, 7), as_chosen(2, local=(2, 7)), [2, 7]),
            ((4, 2, 7), as_chosen(7, local=(7,)), [4]),  # nobody of the region is up
            ((4, 2, 7), as_chosen(local=(8,)), [4]),
            # A ledger's entry may lack some of its members: as many more send.
            ((4, 2, 7), as_chosen(copies=3), [4]),
            ((4, 2, 7), as_chosen(copies=2), [4, 7]),
            ((4, 2, 7), as_chosen(4, copies=2), [4, 2, 7]),
        ],
    )  # fmt: skip
    def test_table(self, copyset, rule, who) -> None:
        assert senders(copyset, rule) == who

    def test_a_fixed_seed_gives_every_reader_the_same_node(self) -> None:
        for copyset in permutations((1, 2, 3, 4, 5), 3):
            found = {tuple(senders(copyset, CopyFilter(Shuffle.FIXED, seed))) for seed in range(20)}
            assert len(found) == 1

    def test_readers_with_seeds_of_their_own_spread_over_all_copies(self) -> None:
        sent = Counter(
            senders((1, 2, 3), CopyFilter(Shuffle.CLIENT, seed))[0] for seed in range(3000)
        )
        assert all(900 < count < 1100 for count in sent.values())

    @pytest.mark.parametrize("shuffle", [Shuffle.FIXED, Shuffle.CLIENT])
    def test_over_many_copysets_one_reader_s_blocks_come_from_all_nodes(self, shuffle) -> None:
        """With the seed alone one node would stand first in all of its copysets."""
        rule = CopyFilter(shuffle, 99)
        sent = Counter(senders(each, rule)[0] for each in permutations(range(1, 9), 3))
        assert all(25 < count < 60 for count in sent.values())  # 42 each on average

    @given(
        st.permutations(range(1, 9)),
        st.integers(1, 6),
        st.sampled_from(Shuffle),
        st.integers(0, 2**63),
        st.sets(st.integers(1, 8)),
        st.sets(st.integers(1, 8)),
        st.integers(0, 2),
        st.sets(st.integers(1, 8)),
    )
    def test_somebody_who_has_it_sends_it(
        self, nodes, size, shuffle, seed, down, local, lacking, dead
    ) -> None:
        """For whatever is known to be down: if a member holds the block and is not listed, one
        that holds it sends; of those not listed just one does, and whoever lacks it at most."""
        copyset = tuple(nodes[:size])
        lacking = min(lacking, size - 1)
        rule = CopyFilter(shuffle, seed, frozenset(down), size - lacking, frozenset(local))
        holders = set(copyset[lacking:])  # any `lacking` of the members may be without
        up = [node for node in copyset if node not in down]
        who = senders(copyset, rule)
        if len([n for n in up if n not in holders]) < len(up):
            assert set(who) & holders
        if up:
            assert 1 <= len([n for n in who if n not in down]) <= 1 + lacking
        else:
            assert who == list(copyset)
        order = shuffled(copyset, rule)
        assert sorted(order) == sorted(copyset)


NODES = tuple(NodeId(n) for n in range(1, 6))


def choice(enabled: bool = True, down: tuple[int, ...] = ()) -> SenderChoice:
    return SenderChoice(NODES, enabled=enabled, down=[NodeId(n) for n in down])


EVENTS = {
    "down": lambda c, n: c.on_doubt(n, Doubt.UNREACHABLE),
    "damaged": lambda c, n: c.on_doubt(n, Doubt.DAMAGED),
    "bad": lambda c, n: c.on_doubt(n, Doubt.BAD_COPY),
    "slow": lambda c, n: c.on_doubt(n, Doubt.SLOW),
    "whole": lambda c, n: c.on_settled(n, Doubt.DAMAGED),
    "over": lambda c, n: c.on_settled(n, Doubt.SLOW),
    "ships": lambda c, n: c.on_shipped(n),
    "stuck": lambda c, n: c.on_stuck([n] if n else []),
    "suspect": lambda c, n: c.on_suspicion(),
    "slide": lambda c, n: c.on_slide(),
}


def play(script: str, made: SenderChoice) -> str:
    """`down 2 | slide`: after each event what is asked for, a `!` where it is asked anew."""
    said = []
    for event in script.split(" | "):
        word, _, number = event.partition(" ")
        EVENTS[word](made, NodeId(int(number or 0)))
        again = "!" if made.takes_rewind() else ""
        mode = "one" if made.is_single else "all"
        said.append(" ".join([mode + again, *map(str, made.known_down)]))
    return " | ".join(said)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("down 2", "one! 2"),
        ("down 2 | down 2", "one! 2 | one 2"),
        # A node that came back sends where it is its turn; the next slide counts on it again.
        ("down 2 | ships 2 | slide", "one! 2 | one 2 | one!"),
        ("down 2 | slide", "one! 2 | one 2"),
        # Doubt about what comes next: everybody sends all, until the window moves.
        ("suspect | slide", "all! | one!"),
        ("suspect | suspect", "all! | all"),
        ("suspect | down 3 | slide", "all! | all 3 | one! 3"),
        ("suspect | down 3 | ships 3 | slide", "all! | all 3 | all 3 | one!"),
        # Nothing comes: first without the silent ones, then from everybody.
        ("stuck 4 | stuck 4", "one! 4 | all! 4"),
        ("stuck 0", "all!"),
        ("stuck 4 | ships 4 | slide", "one! 4 | one 4 | one!"),
        # What a damaged or a slow node sends proves nothing about what it does not send.
        ("damaged 1 | ships 1 | slide | whole 1", "one! 1 | one 1 | one 1 | one!"),
        ("slow 1 | ships 1 | slide | over 1", "one! 1 | one 1 | one 1 | one!"),
        ("slow 1 | down 1 | over 1", "one! 1 | one 1 | one!"),
        ("bad 1 | ships 1 | slide", "one! 1 | one 1 | one!"),
        # Nobody is left to count on.
        ("down 1 | down 2 | down 3 | down 4 | down 5",
         "one! 1 | one! 1 2 | one! 1 2 3 | one! 1 2 3 4 | all! 1 2 3 4 5"),
    ],
)  # fmt: skip
def test_what_a_reader_asks_for(script: str, said: str) -> None:
    assert play(script, choice()) == said


def test_who_is_slow_sends_nothing_while_others_can() -> None:
    copyset = (1, 2, 3)
    slow = CopyFilter(Shuffle.NONE, known_down=frozenset({1}), quiet=True)
    assert [ships(n, copyset, slow) for n in (2, 3)] == [True, False]
    assert not ships(1, copyset, slow)
    assert ships(1, copyset, replace(slow, quiet=False)), "it might be back"
    everybody = replace(slow, known_down=frozenset(copyset))
    assert all(ships(n, copyset, everybody) for n in copyset)


@pytest.mark.parametrize(
    ("script", "gentle"),
    [
        ("slow 1", True),
        ("slow 1 | slow 2", True),
        ("slow 1 | down 2", False),
        ("down 2 | slow 1", False),
        ("slow 1 | suspect", False),
        ("slow 1 | take | over 1", True),
        ("slow 1 | take | late", False),
        ("down 2 | take | slow 1", True),
    ],
)
def test_who_is_merely_slow_is_changed_for_others_at_the_next_window(
    script: str, gentle: bool
) -> None:
    made = choice()
    for event in script.split(" | "):
        name, *nodes = event.split()
        if name == "take":
            assert made.takes_rewind()
        elif name == "late":
            made.on_late()
        else:
            EVENTS[name](made, NodeId(int(nodes[0])) if nodes else None)
    assert made.is_rewind_due
    assert made.is_gentle == gentle
    assert made.takes_rewind()
    assert not made.is_gentle


def test_without_single_copies_nothing_is_ever_asked_anew() -> None:
    everything = "down 2 | ships 2 | slide | stuck 3 | suspect | slow 1 | over 1 | slide"
    assert "!" not in play(everything, choice(enabled=False))
    assert "one" not in play(everything, choice(enabled=False))


def test_nodes_that_are_down_at_the_start_are_not_asked_anew() -> None:
    made = choice(down=(2, 4))
    assert (made.known_down, made.takes_rewind(), made.is_single) == ((2, 4), False, True)
    assert choice(down=(1, 2, 3, 4, 5)).is_single is False


def test_versions_tell_one_order_from_the_next_and_never_become_0() -> None:
    made = choice()
    made.version = 0xFFFF_FFFF
    made.on_suspicion()
    assert made.takes_rewind()
    assert made.version == 1
    assert not made.takes_rewind()


@given(st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.sampled_from(NODES)), max_size=40))
def test_nobody_is_forgotten_whatever_happens(events) -> None:
    """A twin that remembers what nodes were asked last: they are asked anew whenever that is
    not what the reader wants now, so that none waits for a node that was told otherwise."""
    made = choice()
    asked = (made.is_single, made.known_down)
    for word, node in events:
        EVENTS[word](made, node)
        if made.takes_rewind():
            asked = (made.is_single, made.known_down)
        assert asked[0] == made.is_single
        if made.is_single:
            assert asked[1] == made.known_down
