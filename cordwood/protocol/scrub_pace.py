"""Limits the reads of a scrub: a rate in bytes, and less while other work needs disk and cores.

A block costs at least `BLOCK_COST_BYTES`, because each block takes the loop some microseconds.
While the node is busy, each step waits for a pause of the other work, for a limited time: a node
that is never idle is scrubbed too, slowly.

Source: HDFS's block scanner, which reads 1 MiB/s of a volume; Ceph's `osd_scrub_sleep`.
"""

from __future__ import annotations

BLOCK_COST_BYTES = 1024
"""At 1 MiB/s no more than a thousand blocks a second: one or two per cent of a core."""

LOOK_S = 0.1
"""The time between two checks for a pause of the other work."""

BUSY_WAIT_MAX_S = 10.0
"""The longest that one step waits for a pause. A step reads up to a megabyte, so that a node
that is always busy is scrubbed at a tenth of a megabyte a second at least."""


class ScrubPace:
    """See the module; times are seconds.

    Attributes:
        bytes_s: the bytes that a scrub may read in a second.
    """

    def __init__(self, bytes_s: float) -> None:
        assert bytes_s > 0, "a scrub that may read nothing does not run"
        self.bytes_s = bytes_s
        self._activity = 0

    def pause_s(self, size: int, blocks: int) -> float:
        """Seconds to wait after a step that read `size` bytes in `blocks` blocks."""
        return max(size, blocks * BLOCK_COST_BYTES) / self.bytes_s

    def is_busy(self, activity: int) -> bool:
        """Whether other work was done since the last call.

        Args:
            activity: a count that rises with all other work.
        """
        moved, self._activity = activity != self._activity, activity
        return moved
