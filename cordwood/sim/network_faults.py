"""The present faults of the simulated network, one by one, so that each can be undone by itself.

Faults overlap: two partitions may cut one link, and the link is whole again only when both are
over. So every fault is kept with its links, and a link takes the latest fault that is still in
force.

Source: docs/sources/reliability.md §5.1 (partitions of every shape, swizzle-clog).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cordwood.sim.links import LinkSettings
from cordwood.sim.network import SimNetwork

Undo = Callable[[], None]

Pair = tuple[str, str]
"""One direction of a link: from the first host to the second."""


def pairs_between(sources: Iterable[str], targets: Iterable[str]) -> tuple[Pair, ...]:
    """Every direction from one of `sources` to one of `targets`, except from a host to itself."""
    to = tuple(targets)
    return tuple((source, target) for source in sources for target in to if source != target)


class NetworkFaults:
    """See the module."""

    def __init__(self, network: SimNetwork) -> None:
        self._network = network
        self._cuts: dict[int, tuple[Pair, ...]] = {}
        self._changes: dict[int, tuple[tuple[Pair, ...], LinkSettings]] = {}
        self._last_number = 0

    def cut(self, pairs: tuple[Pair, ...]) -> Undo:
        """Let nothing pass in these directions until the undo."""
        number = self._number()
        self._cuts[number] = pairs
        for source, target in pairs:
            self._network.cut((source,), (target,))
        return lambda: self._mend(number)

    def cut_both(self, some: Iterable[str], others: Iterable[str]) -> Undo:
        """Let nothing pass either way between two sets of hosts."""
        here, there = tuple(some), tuple(others)
        return self.cut(pairs_between(here, there) + pairs_between(there, here))

    def change(self, pairs: tuple[Pair, ...], settings: LinkSettings) -> Undo:
        """Give these directions other settings until the undo."""
        number = self._number()
        self._changes[number] = (pairs, settings)
        self._apply(pairs, settings)
        return lambda: self._change_back(number)

    def heal(self) -> None:
        """Undo everything."""
        for number in list(self._changes):
            self._change_back(number)
        self._cuts.clear()
        self._network.mend_all()

    def _number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _mend(self, number: int) -> None:
        mine = self._cuts.pop(number, ())
        held = {pair for pairs in self._cuts.values() for pair in pairs}
        for source, target in mine:
            if (source, target) not in held:
                self._network.links.mend((source,), (target,))
        self._network.mend((), ())  # stalled traffic goes on

    def _change_back(self, number: int) -> None:
        mine, _ = self._changes.pop(number, ((), None))
        self._apply(mine, self._network.links.default)
        for pairs, settings in self._changes.values():
            self._apply(pairs, settings)

    def _apply(self, pairs: Iterable[Pair], settings: LinkSettings) -> None:
        for source, target in pairs:
            self._network.links.change((source,), (target,), settings)
