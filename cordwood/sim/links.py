"""What lies between two simulated hosts: delay, loss, cuts, power.

A link is one direction between two hosts. It is pure state and chance; what
moves over it is in `sim.transport`.

Source: docs/sources/reliability.md §5.1; TigerBeetle's packet simulator for the kinds of
partition.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

RETRANSMITS_MAX = 6
"""Losses in a row of one segment. With each loss the wait doubles, as in TCP."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """How one direction behaves. The defaults are a quiet network in one building.

    Attributes:
        delay_min_s, delay_jitter_s: a segment takes the first plus up to the second.
        slow_chance, slow_factor: some segments take this many times as long.
        bytes_per_s: what the wire carries.
        window_bytes: limit of bytes in flight or unread, for each connection and direction.
        split_chance: a segment is cut in two at a random byte.
        loss_chance, retransmit_s: a lost segment comes this much later, and all later segments of
            its connection wait.
        reset_chance: a segment resets its connection.
        refuse_chance: a connect is refused although a process listens.
        corrupt_chance: a segment arrives with one bit flipped.
    """

    delay_min_s: float = 0.000_1
    delay_jitter_s: float = 0.000_2
    slow_chance: float = 0.01
    slow_factor: float = 20.0
    bytes_per_s: float = 1.25e9
    window_bytes: int = 256 << 10
    split_chance: float = 0.1
    loss_chance: float = 0.0
    retransmit_s: float = 0.2
    reset_chance: float = 0.0
    refuse_chance: float = 0.0
    corrupt_chance: float = 0.0


class Links:
    """All links of a network: their settings, the links that are cut, the hosts that are off."""

    def __init__(self, chance: random.Random, default: LinkSettings) -> None:
        self.default = default
        self._chance = chance
        self._own: dict[tuple[str, str], LinkSettings] = {}
        self._cut: set[tuple[str, str]] = set()
        self._off: set[str] = set()

    def settings(self, source: str, target: str) -> LinkSettings:
        """The settings of the direction from `source` to `target`."""
        return self._own.get((source, target), self.default) if self._own else self.default

    def change(self, sources: Iterable[str], targets: Iterable[str], to: LinkSettings) -> None:
        """Give every direction from one of `sources` to one of `targets` other settings."""
        for pair in _pairs(sources, targets):
            self._own[pair] = to

    def is_open(self, source: str, target: str) -> bool:
        """Whether bytes that leave `source` now reach `target`."""
        if self._off and (source in self._off or target in self._off):
            return False
        return not self._cut or (source, target) not in self._cut

    def cut(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Stop every direction from one of `sources` to one of `targets`."""
        self._cut.update(_pairs(sources, targets))

    def mend(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Undo `cut` for these directions."""
        self._cut.difference_update(_pairs(sources, targets))

    def mend_all(self) -> None:
        """Undo every `cut`."""
        self._cut.clear()

    def set_power(self, host: str, *, on: bool) -> None:
        """Switch a host off: nothing leaves or reaches it. Or switch it on again."""
        if on:
            self._off.discard(host)
        else:
            self._off.add(host)

    def has_power(self, host: str) -> bool:
        """Whether the host is on."""
        return host not in self._off

    def delay(self, settings: LinkSettings) -> float:
        """Draw the seconds that one segment takes."""
        draw = self._chance.random
        delay = settings.delay_min_s + settings.delay_jitter_s * draw()
        if draw() < settings.slow_chance:
            delay *= settings.slow_factor
        if settings.loss_chance:
            for tries in range(RETRANSMITS_MAX):
                if draw() >= settings.loss_chance:
                    break
                delay += settings.retransmit_s * 2**tries
        return delay


def _pairs(sources: Iterable[str], targets: Iterable[str]) -> list[tuple[str, str]]:
    # A host always reaches itself: its loopback has no cable to pull.
    to = list(targets)
    return [(source, target) for source in sources for target in to if source != target]
