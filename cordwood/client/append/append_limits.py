"""The limits of a client's appends: the amount that it sends at once, and its waits."""

from __future__ import annotations

LAST_TRY_SHARE = 1 / 20
"""Share of its timeout that an append must have left to be tried again."""

STALL_S = 1.0
"""After this long without an answer, the client asks other nodes about the sequencer's node. A
stopped process keeps its connections, so only silence shows it."""

PRODUCERS_MAX = 10_000
"""The most pairs of producer and log with which one client appends at a time."""

SWEEP_S = 0.1
"""How often deadlines are checked."""

FRAME_BLOCKS = 4096
"""Blocks put into one APPEND frame."""

FRAME_BYTES = 4 << 20
"""Bodies put into one APPEND frame."""
