"""Chooses the nodes of an ensemble, so that each entry lies in two racks.

Entries go to Qw neighbours on the ring, its *windows*. So every window has to have nodes of two
racks, or of two regions or other domains if that is asked for. If the nodes do not allow this, a
soft rule is broken, and an enforced rule gives no ensemble.

Nodes are drawn by weight, and a node with a fuller disk less often. Each place gets a node of
another domain than its neighbours', if there is one. If this leads to a window in one domain, other
domains are tried for the earlier places. So an enforced rule finds an ensemble if there is one.

Source: docs/sources/bookkeeper.md (e).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cordwood.errors import BadSetting
from cordwood.ledger import LedgerMetadata
from cordwood.nodes import SCOPES, Member, NodeId
from cordwood.quorum.copyset import Chance

TRIES_MAX = 20_000
"""Tries before an ensemble counts as impossible: many times more than rings of some ten nodes need,
and a tenth of a second. A rule that needs more tries counts as impossible too."""

DOMAINS_MIN = 2
"""Domains of a window of two nodes or more, as BookKeeper has it. With more, a cluster of two racks
would have no place for any ledger."""


@dataclass(frozen=True, slots=True)
class Placement:
    """How the nodes of a ledger are chosen, by its writer.

    Attributes:
        scope: each entry lies in two of these domains: `rack`, `row`, `cluster`, `dc` or `region`.
        is_enforced: if the nodes do not allow this, there is no ensemble. Otherwise it is kept if
            possible.
        local: a location; the first place of a new ensemble goes to a node of its domain, if there
            is one, so that a reader there has a node nearby for every entry with E = Qw.
    """

    scope: str = "rack"
    is_enforced: bool = False
    local: str = ""

    def __post_init__(self) -> None:
        if self.scope not in SCOPES[1:]:
            raise BadSetting(f"no scope {self.scope!r}; scopes are {', '.join(SCOPES[1:])}")

    def is_near(self, member: Member) -> bool:
        """Whether a node is in the wanted domain of the first place."""
        if not self.local:
            return False
        return member.domain(self.scope) == Member(NodeId(0), "", self.local).domain(self.scope)


ANYWHERE = Placement()
"""Two racks where possible."""


def placement_of(metadata: LedgerMetadata) -> Placement:
    """The choice of nodes for a ledger that is recovered or repaired: the writer's scope, and no
    wanted location."""
    return Placement(metadata.scope, metadata.is_enforced)


def choose_ensemble(
    able: Mapping[NodeId, Member],
    kept: Sequence[Member | None],
    write: int,
    chance: Chance,
    placement: Placement = ANYWHERE,
) -> tuple[NodeId, ...] | None:
    """Fill the empty places of a ring; None if there are too few nodes, or if no choice is allowed.

    Args:
        able: nodes that may be chosen; none of `kept`.
        kept: the ring, with None at the empty places.
        write: Qw, the places of a window.
    Returns:
        All nodes of the ring, in the order of places.
    """
    if sum(each is None for each in kept) > len(able):
        return None
    ring = _Ring([*kept], write, placement, chance)
    filled = ring.fill([able[node] for node in sorted(able)])
    return None if filled is None else tuple(member.node for member in filled)


def windows_in_one(ensemble: Sequence[Member], write: int, scope: str = "rack") -> int:
    """The number of windows of two nodes or more that are in one domain."""
    if write < DOMAINS_MIN:
        return 0
    names = [member.domain(scope) for member in ensemble]
    return sum(len({*window}) < DOMAINS_MIN for window in _windows(names, write))


def _windows(names: Sequence[str], write: int) -> Iterator[list[str]]:
    count = len(names)
    for first in range(count):
        yield [names[(first + step) % count] for step in range(write)]


class _Ring:
    """A ring that is being filled."""

    def __init__(
        self, ring: list[Member | None], write: int, placement: Placement, chance: Chance
    ) -> None:
        self._ring = ring
        self._write = write
        self._placement = placement
        self._chance = chance
        self._tries = 0

    def fill(self, left: list[Member]) -> list[Member] | None:
        places = [place for place, member in enumerate(self._ring) if member is None]
        before = [*self._ring]
        if self._fill(places, left, strict=True):
            return self._whole()
        if self._placement.is_enforced:
            return None
        self._ring = before
        filled = self._fill(places, left, strict=False)
        assert filled, "there are nodes enough, and no rule"
        return self._whole()

    def _whole(self) -> list[Member]:
        return [member for member in self._ring if member is not None]

    def _fill(self, places: list[int], left: list[Member], *, strict: bool) -> bool:
        """Fill these places. Returns whether it was possible."""
        if not places:
            return True
        place, *rest = places
        for member in self._candidates(place, left):
            if strict and self._tries >= TRIES_MAX:
                return False
            self._tries += 1
            self._ring[place] = member
            others = [each for each in left if each is not member]
            if not (strict and self._breaks(place)) and self._fill(rest, others, strict=strict):
                return True
            self._ring[place] = None
        return False

    def _candidates(self, place: int, left: list[Member]) -> Iterator[Member]:
        """One node of each domain, drawn by weight. Nodes of other domains than the neighbours'
        come first; for the first place of a new ring, nodes of the wanted location come first."""
        scope = self._placement.scope
        count = len(self._ring)
        beside = {self._domain((place + step) % count) for step in (-1, 1)}
        near = self._near(left) if place == 0 else []
        apart = [each for each in left if each.domain(scope) not in beside]
        tried: set[str] = set()
        for some in (near, apart, left):
            waits = [each for each in some if each.domain(scope) not in tried]
            while waits:
                drawn = _draw(waits, self._chance)
                tried.add(drawn.domain(scope))
                yield drawn
                waits = [each for each in waits if each.domain(scope) not in tried]

    def _near(self, left: list[Member]) -> list[Member]:
        if any(member is not None for member in self._ring):
            return []
        return [each for each in left if self._placement.is_near(each)]

    def _domain(self, place: int) -> str:
        member = self._ring[place]
        return "" if member is None else member.domain(self._placement.scope)

    def _breaks(self, place: int) -> bool:
        """Whether a window with this place is full, and lies in one domain."""
        if self._write < DOMAINS_MIN:
            return False
        count = len(self._ring)
        names = [self._domain(each) for each in range(count)]
        for back in range(self._write):
            window = {names[(place - back + step) % count] for step in range(self._write)}
            if "" not in window and len(window) < DOMAINS_MIN:
                return True
        return False


def _draw(members: Sequence[Member], chance: Chance) -> Member:
    at = chance.random() * sum(member.ledger_weight for member in members)
    for member in members:
        at -= member.ledger_weight
        if at < 0:
            return member
    return members[-1]
