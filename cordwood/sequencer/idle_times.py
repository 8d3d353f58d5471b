"""How long a log's producers have been idle at least, by no clock that somebody may have set.

A log that remembers its full number of producers forgets one that was idle for an hour. A producer
that is forgotten too early has its first block stored twice if that is sent again. Wall time proves
nothing: it may step ahead, and the next sequencer's may be an hour ahead of its predecessor's.

For a producer that this process heard, its own steady clock counts. For all others three times are
added up. Each is a lower bound of what passed:

1. from the producer's last block to the log's last record, by their append times. If this node's
   clock is behind that record, as far as this node's clock goes: the record's clock was ahead;
2. from the log's last record to the seal, by the steady clocks of the nodes that sealed;
3. since the seal, by this node's steady clock.

An epoch that the same process begins right after its own goes on with these times.

Source: docs/protocol/producers.md.
"""

from __future__ import annotations

from cordwood.block import Produced
from cordwood.protocol.producers import QUERIES, USERS, ProducerTable

HEARD_MAX = 2 * (USERS.most + QUERIES.most)
"""Twice as many producers as a log remembers: the others are forgotten now and then."""


class IdleTimes:
    """See the module.

    Args:
        epoch: the first epoch in which this process numbers.
        now_s: when lower epochs were sealed, by the loop's clock.
        below_us: no record of lower epochs is younger; this node's clock if that is earlier.
        quiet_us: for at least so long no record was stored before the seal.
    """

    def __init__(self, epoch: int, now_s: float, below_us: int = 0, quiet_us: int = 0) -> None:
        self._epoch = self._newest = epoch
        self._since_s = self._now_s = now_s
        self._below_us = below_us
        self._quiet_us = quiet_us
        # When this process numbered a producer's last block.
        self._heard_s: dict[int, float] = {}

    def continued(self, epoch: int) -> bool:
        """Have the same process's next epoch go on with these times; False if another process may
        have numbered in between."""
        if epoch != self._newest + 1:
            return False
        self._newest = epoch
        return True

    def tick(self, now_s: float) -> None:
        """Set the loop's time, before entries are checked and noted."""
        self._now_s = now_s

    def note(self, producer: int, known: ProducerTable) -> None:
        """A producer's block was numbered; `known` are those that the log remembers."""
        self._heard_s[producer] = self._now_s
        if len(self._heard_s) > HEARD_MAX:
            self._heard_s = {each: at_s for each, at_s in self._heard_s.items() if each in known}

    def of(self, replaced: Produced) -> int:
        """For how many microseconds a producer has been idle at least."""
        if replaced.last_first >> 32 >= self._epoch:
            # Race: it was forgotten, and the block that had it forgotten was lost with an epoch.
            self._heard_s.setdefault(replaced.producer, self._now_s)
        heard_s = self._heard_s.get(replaced.producer)
        if heard_s is not None:
            return int(1e6 * (self._now_s - heard_s))
        before_us = max(0, self._below_us - replaced.last_us)
        return before_us + self._quiet_us + int(1e6 * (self._now_s - self._since_s))
