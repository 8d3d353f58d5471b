"""One small world of a ledger, walked whole: every order in which messages arrive.

One ledger, four nodes, E 3, Qw 3, Qa 2, one entry, and two clients, a writer and a recoverer, as
in BookKeeper's TLA+ model. Each state that can be reached is looked at once. A message arrives
together with its answer: a late answer is as good as a client whose next messages are late. What
random worlds meet by luck (`test_ledger_world`) is here met for certain, within these bounds.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import msgspec
import pytest
from ledger_world import RECOVERERS, World
from test_ledger_world import AcksAtOneLess, NoReAdd

from cordwood.ledger import Fragment, LedgerMetadata, LedgerState, Striping, Versioned
from cordwood.protocol.ledger_recovery import OVER, LedgerRecovery
from cordwood.protocol.ledger_writer import LedgerWriter, WriterLimits

THREE = Striping(3, 3, 2)
CLIENT = RECOVERERS[0]

LEFT_OUT = {"began", "_striping", "_limits", "_placed"}
"""What no rule goes by here."""


class Fixed:
    """Draws the first there is: one spare node is all that a world of four has."""

    def sample(self, found: list[Any], count: int) -> list[Any]:
        return sorted(found)[:count]

    def choice(self, found: Any) -> Any:
        return found[0]

    def randint(self, low: int, high: int) -> int:
        return low


def small(entries: int, kind: type[World] = World) -> World:
    """A world in which nothing has happened."""
    world = kind(0)
    world.random = Fixed()  # type: ignore[assignment]
    world.nodes = {n: node for n, node in world.nodes.items() if n <= 4}
    world.striping, world.calm, world.lags_by_kind = THREE, True, False
    world.entries, world.is_narrow, world.is_deaf = entries, True, False
    world.adds_many = False
    world.store = Versioned(LedgerMetadata(1, THREE, (Fragment(0, (1, 2, 3)),)), 1)
    world.writer = world.writer_kind(world.store, WriterLimits())
    return world


class Walk:
    """From a world on, through every state.

    Attributes:
        states: how many there are.
        met: what was met anywhere.
        rests: states in which nothing is left to happen.
    """

    def __init__(self, world: World, *, patience: int = 0, closes: bool = False) -> None:
        self.met: set[str] = set()
        self.rests = 0
        first = pickle.dumps((world, patience, not closes))
        seen = {hash(state_of(world, patience, not closes))}
        left = [first]
        while left:
            for then in self._steps(left.pop()):
                state = hash(state_of(*then))
                if state not in seen:
                    seen.add(state)
                    left.append(pickle.dumps(then))
        self.states = len(seen)

    def _steps(self, state: bytes) -> Iterator[tuple[World, int, bool]]:
        acts = self._acts(*pickle.loads(state))
        self.rests += not acts
        for act in acts:
            world, patience, is_closing = pickle.loads(state)
            spent, closes = act(world)
            world.check()
            self.met.update(world.met)
            yield world, patience - spent, is_closing or closes

    def _acts(
        self, world: World, patience: int, is_closing: bool
    ) -> list[Callable[[World], tuple[int, bool]]]:
        acts: list[Callable[[World], tuple[int, bool]]] = [
            _arrives(place) for place in range(len(world.bag))
        ]
        if patience:
            acts += [_is_given_up(place) for place, ask in enumerate(world.asked) if ask.node]
        writer = world.writer
        if writer and writer.is_open and len(world.sizes) < world.entries:
            acts.append(_adds)
        if writer and writer.is_open and not is_closing:
            acts.append(_closes)
        if CLIENT not in world.recoveries:
            acts.append(_recovers)
        if not acts and world.recoveries[CLIENT].stage not in OVER:
            raise AssertionError("a recovery waits for nothing")
        if not acts and not world.writer_ended:
            assert world.store.metadata.state is not LedgerState.OPEN
        return acts


def _arrives(place: int) -> Callable[[World], tuple[int, bool]]:
    def act(world: World) -> tuple[int, bool]:
        ask = world.bag.pop(place)
        if ask.node == 0:
            world.hand_over(ask, world.write_metadata(ask.what))
        else:
            world.hand_over(ask, world.on_node(world.nodes[ask.node], ask))
        return 0, False

    return act


def _is_given_up(place: int) -> Callable[[World], tuple[int, bool]]:
    def act(world: World) -> tuple[int, bool]:
        ask = world.asked[place]
        world.hand_over(ask, world.silence(ask))
        return 1, False

    return act


def _adds(world: World) -> tuple[int, bool]:
    world.add()
    return 0, False


def _closes(world: World) -> tuple[int, bool]:
    world.close()
    return 0, True


def _recovers(world: World) -> tuple[int, bool]:
    world.begin(CLIENT)
    return 0, False


def state_of(world: World, patience: int, is_closing: bool) -> Any:
    """What two equal worlds have alike: the order in which things came to be does not count."""
    bag = sorted(repr((each.client, each.what, each.node)) for each in world.bag)
    asked = sorted(repr((each.client, each.what, each.node)) for each in world.asked)
    nodes = tuple(
        (each.fenced, each.saw, each.lac, *sorted(each.copies.items()))
        for each in world.nodes.values()
    )
    told = (world.store.version, *world.acked, None, *world.not_stored, None, *world.ends)
    rules = tuple(map(_rule_of, (world.writer, world.recoveries.get(CLIENT))))
    return (
        nodes, told, world.writer_ended, len(world.sizes), rules, tuple(bag),
        tuple(asked) if patience else (), patience, is_closing,
    )  # fmt: skip


_rules: dict[bytes, Any] = {}


def _rule_of(rule: LedgerWriter | LedgerRecovery | None) -> Any:
    key = pickle.dumps(rule)
    if key not in _rules:
        _rules[key] = frozen(rule)
    return _rules[key]


def frozen(value: Any) -> Any:
    """A rule's state as a value, without the order in which sets and dictionaries were filled."""
    if isinstance(value, (int, float, str, bytes, Enum, type(None))):
        return value
    if isinstance(value, (set, frozenset)):
        return ("set", *sorted(map(repr, map(frozen, value))))
    if isinstance(value, dict):
        return ("dict", *sorted((repr(key), repr(frozen(each))) for key, each in value.items()))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(frozen, value))
    if isinstance(value, msgspec.Struct):
        return repr(value)
    return (type(value).__name__, *(frozen(each) for each in _fields(value)))


def _fields(value: Any) -> Iterator[Any]:
    names = getattr(type(value), "__slots__", None) or sorted(vars(value))
    return (getattr(value, name) for name in names if name not in LEFT_OUT)


@pytest.mark.slow
def test_every_order_of_messages_keeps_what_is_acknowledged() -> None:
    walk = Walk(small(1))
    assert walk.states > 30_000
    assert walk.rests
    assert walk.met >= {"metadata in_recovery", "metadata closed", "recovered", "writer fenced"}


class AcksTooSoon(World):
    """A class of a module, so that it can be pickled."""

    writer_kind = AcksAtOneLess


class ReAddsNothing(World):
    """See AcksTooSoon."""

    recovery_kind = NoReAdd


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AcksTooSoon, ReAddsNothing])
def test_a_wrong_rule_does_not_hold_in_every_order(kind: type[World]) -> None:
    with pytest.raises(AssertionError):
        Walk(small(1, kind))
