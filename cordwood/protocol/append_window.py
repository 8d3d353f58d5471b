"""The sequencer's sliding window: it gives out LSNs in order and acknowledges them in order.

A run is the consecutive LSNs of one log in one wave. One copyset stores it. Runs may be stored
out of order, but a run retires, and is acknowledged, only after every run before it. The last LSN
retired is the LNG (last known good).

An atomic group may take several consecutive runs. They retire together: the LNG stands before the
group or after it, never inside.

A numbered run is retried on new copysets until it is stored or the epoch ends.

Source: docs/design.md §3 ("Acks are in LSN order"); docs/sources/logdevice.md 2.3, 2.4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from cordwood.lsn import ESN_ISSUED_MAX

Contents = TypeVar("Contents")


class InFlightRun(Generic[Contents]):
    """LSNs `[first, last]` on their way to a copyset.

    Attributes:
        contents: the caller's data for the run (bytes, the clients to acknowledge).
        wave: 0 before the first try, then 1, 2, ….
        waiting: members of the copyset that have not confirmed this wave.
        sent_at: when this wave's wait began; `-inf` forces an immediate retry.
        waves_at: when each wave was sent.
        ends_group: whether the LNG may stand after the run: False inside an atomic group.
        holders: nodes that confirmed an earlier wave: they hold the run with another copyset.
        lacking: nodes that turned out not to hold the run.
        is_parked: the nodes that are up held no copyset, so this wave waits for another node.
    """

    __slots__ = (
        "contents", "copyset", "ends_group", "first", "holders", "is_parked", "lacking", "last",
        "sent_at", "stored", "waiting", "wave", "waves_at",
    )  # fmt: skip

    def __init__(self, first: int, last: int, contents: Contents, ends_group: bool = True) -> None:
        self.first = first
        self.last = last
        self.contents = contents
        self.ends_group = ends_group
        self.wave = 0
        self.copyset: tuple[int, ...] = ()
        self.waiting: set[int] = set()
        self.stored = False
        self.sent_at = 0.0
        self.waves_at: list[float] = []
        self.holders: set[int] = set()
        self.lacking: set[int] = set()
        self.is_parked = False

    def send_to(self, copyset: tuple[int, ...], now: float) -> None:
        """Start a new wave on `copyset`."""
        assert not self.stored, "a stored run needs no new wave"
        self.wave += 1
        self.copyset = copyset
        self.waiting = set(copyset)
        self.sent_at = now
        self.waves_at.append(now)
        self.is_parked = False

    def park(self, now: float) -> None:
        """Wait for a node that makes a copyset possible, and for the next tick that is due."""
        self.is_parked = True
        self.sent_at = now

    def note_holders(self) -> None:
        """This wave is given up: note the nodes that confirmed it as holders of the run."""
        # They hold the body already: the next wave sends them an amend of some hundred bytes.
        confirmed = {node for node in self.copyset if node not in self.waiting}
        self.holders = (self.holders | confirmed) - self.lacking

    def on_stored(self, node: int, wave: int) -> bool:
        """A node confirmed a wave; True if that made the run fully stored."""
        # Race: a late answer to an earlier wave does not count. Its copies name another copyset.
        if wave != self.wave or node not in self.waiting:
            return False
        self.waiting.discard(node)
        self.stored = not self.waiting
        return self.stored


class AppendWindow(Generic[Contents]):
    """Runs of one epoch of one log, in LSN order.

    Attributes:
        lng: last LSN retired; (epoch, 0) before the first.
        next: the LSN that the next run begins with.
    """

    def __init__(self, epoch: int, *, esn_max: int = ESN_ISSUED_MAX) -> None:
        self.next = (epoch << 32) | 1
        self._end = (epoch << 32) | esn_max
        self._runs: deque[InFlightRun[Contents]] = deque()
        self.lng = epoch << 32

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[InFlightRun[Contents]]:
        return iter(self._runs)

    def fits(self, count: int) -> bool:
        """Whether the epoch has `count` more LSNs; if not, the log needs the next epoch."""
        return self.next + count - 1 <= self._end

    def number(
        self, count: int, contents: Contents, *, ends_group: bool = True
    ) -> InFlightRun[Contents]:
        """Give the next `count` LSNs to a new run. Unless `ends_group`, the run after it belongs
        to the same atomic group."""
        assert count > 0, "a run has at least one LSN"
        assert self.fits(count), "a run never crosses an epoch"
        run = InFlightRun(self.next, self.next + count - 1, contents, ends_group)
        self.next += count
        self._runs.append(run)
        return run

    def retire(self) -> list[InFlightRun[Contents]]:
        """Remove stored runs, in whole groups, from the left end, and move the LNG. The caller
        may acknowledge them."""
        retired: list[InFlightRun[Contents]] = []
        for _ in range(self._whole()):
            run = self._runs.popleft()
            assert run.first == self.lng + 1, "the LNG moves over every LSN"
            self.lng = run.last
            retired.append(run)
        return retired

    def _whole(self) -> int:
        """The number of runs at the left end that are stored and form whole groups."""
        whole = 0
        for at, run in enumerate(self._runs, 1):
            # A stored run above one that is not stored waits: acknowledgements follow the order of
            # LSNs.
            if not run.stored:
                break
            # A part of an atomic group is not acknowledged before its last run is stored.
            if run.ends_group:
                whole = at
        return whole
