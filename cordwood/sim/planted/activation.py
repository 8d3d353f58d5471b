"""Bugs of sequencers that begin while their log changes, or is deleted.

Source: docs/protocol/seal-and-recovery.md; docs/protocol/metadata-and-epochs.md.
"""

from __future__ import annotations

from cordwood.errors import CordwoodError
from cordwood.sequencer.log_watch import LogWatch
from cordwood.sim.planted.bug import PlantedBug, at


def _next_write_waited_for(self: LogWatch, error: CordwoodError) -> None:
    self._count = None


BUGS = (
    PlantedBug("look-put-off", "a node that could not read a change waits for the next write of "
                               "anybody, and then looks again",
               at(LogWatch._look_again).instead(_next_write_waited_for),
               scene="tests/sequencer/test_log_watch.py"),
)  # fmt: skip
