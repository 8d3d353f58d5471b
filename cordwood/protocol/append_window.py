"""The sequencer's sliding window: numbers go out in order, acks come back in order.

A run is what one wave brought for one log: consecutive LSNs, stored on one
copyset. It may be stored out of order, but it retires, and is acknowledged, only
when every run before it has; the last LSN retired is the LNG (last known good).

An atomic group may take several runs, numbered one behind the other. It retires as one: the
LNG stands before it or behind it, never inside.

Once numbered, a run is retried on new copysets until it is stored or the epoch
ends; an answer to an earlier wave does not count, because the copies of that
wave name another copyset.

Source: docs/design.md §3 ("Acks are in LSN order"); docs/sources/logdevice.md 2.3, 2.4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from cordwood.lsn import ESN_ISSUED_MAX

Cargo = TypeVar("Cargo")


class Run(Generic[Cargo]):
    """LSNs `[first, last]` on their way to a copyset.

    Attributes:
        cargo: what the shell keeps with it (bytes, whom to acknowledge).
        wave: 0 before the first try, then 1, 2, ….
        waiting: members of the copyset that have not confirmed this wave.
        sent_at: when this wave's wait began; long ago where it need not be waited for.
        waves_at: when each wave was sent.
        ends_group: whether the LNG may stand behind it: False inside an atomic group.
        holders: nodes that have confirmed a wave before this one: they hold it, though with
            another copyset.
        lacking: nodes that turned out not to hold it.
    """

    __slots__ = (
        "cargo", "copyset", "ends_group", "first", "holders", "lacking", "last", "sent_at",
        "stored", "waiting", "wave", "waves_at",
    )  # fmt: skip

    def __init__(self, first: int, last: int, cargo: Cargo, ends_group: bool = True) -> None:
        self.first = first
        self.last = last
        self.cargo = cargo
        self.ends_group = ends_group
        self.wave = 0
        self.copyset: tuple[int, ...] = ()
        self.waiting: set[int] = set()
        self.stored = False
        self.sent_at = 0.0
        self.waves_at: list[float] = []
        self.holders: set[int] = set()
        self.lacking: set[int] = set()

    def send_to(self, copyset: tuple[int, ...], now: float) -> None:
        """Start a new wave on `copyset`."""
        assert not self.stored, "a stored run needs no new wave"
        self.wave += 1
        self.copyset = copyset
        self.waiting = set(copyset)
        self.sent_at = now
        self.waves_at.append(now)

    def note_holders(self) -> None:
        """This wave is given up: who has confirmed it holds the run."""
        confirmed = {node for node in self.copyset if node not in self.waiting}
        self.holders = (self.holders | confirmed) - self.lacking

    def on_stored(self, node: int, wave: int) -> bool:
        """A node confirmed a wave; True if that made the run fully stored."""
        if wave != self.wave or node not in self.waiting:
            return False
        self.waiting.discard(node)
        self.stored = not self.waiting
        return self.stored


class AppendWindow(Generic[Cargo]):
    """Runs of one epoch of one log, in LSN order.

    Attributes:
        lng: last LSN retired; (epoch, 0) before the first.
        next: the LSN that the next run begins with.
    """

    def __init__(self, epoch: int, *, esn_max: int = ESN_ISSUED_MAX) -> None:
        self.next = (epoch << 32) | 1
        self._end = (epoch << 32) | esn_max
        self._runs: deque[Run[Cargo]] = deque()
        self.lng = epoch << 32

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run[Cargo]]:
        return iter(self._runs)

    def fits(self, count: int) -> bool:
        """Whether `count` more LSNs are left in the epoch; if not, it is time for the next."""
        return self.next + count - 1 <= self._end

    def number(self, count: int, cargo: Cargo, *, ends_group: bool = True) -> Run[Cargo]:
        """Give the next `count` LSNs to a new run; the next one goes on in the same atomic
        group unless `ends_group`."""
        assert count > 0, "a run has at least one LSN"
        assert self.fits(count), "a run never crosses an epoch"
        run = Run(self.next, self.next + count - 1, cargo, ends_group)
        self.next += count
        self._runs.append(run)
        return run

    def retire(self) -> list[Run[Cargo]]:
        """Take the stored runs off the left end, whole groups of them, moving the LNG; they
        may be acknowledged."""
        retired: list[Run[Cargo]] = []
        for _ in range(self._whole()):
            run = self._runs.popleft()
            assert run.first == self.lng + 1, "the LNG moves over every LSN"
            self.lng = run.last
            retired.append(run)
        return retired

    def _whole(self) -> int:
        """How many runs from the left end on are stored and make whole groups."""
        whole = 0
        for at, run in enumerate(self._runs, 1):
            if not run.stored:
                break
            if run.ends_group:
                whole = at
        return whole
