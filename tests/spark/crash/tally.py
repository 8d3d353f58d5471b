"""What all schedules of a run came to, for the line at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Of one kind of query; only what was checked and held is counted.

    Attributes:
        schedules: what was done in each, told apart from others by being unequal.
        lost, twice: records, by their LSN or value.
    """

    what: str
    schedules: set[Hashable] = field(default_factory=set)
    deaths: int = 0
    records: int = 0
    lost: int = 0
    twice: int = 0
    digests: Counter[bool] = field(default_factory=Counter)

    def compare(self, wanted: Counter, found: Counter, *, same_digest: bool) -> None:
        """Count the records of one end result."""
        self.records += wanted.total()
        self.lost += (wanted - found).total()
        self.twice += (found - wanted).total()
        self.digests[same_digest] += 1

    def line(self) -> str:
        """For people."""
        return (
            f"{self.what}: {len(self.schedules)} different schedules, {self.deaths} deaths; of "
            f"{self.records:,} records {self.lost} lost, {self.twice} twice; digests equal "
            f"{self.digests[True]} of {self.digests.total()} times"
        )


LANDINGS = Tally("landings")
COPIES = Tally("writes into a log")
