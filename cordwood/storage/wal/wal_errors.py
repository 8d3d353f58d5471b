"""The errors of a WAL, divided by the next step of its owner.

Errors under Overloaded end by themselves, or by a trim; WalFailed is for good.
"""

from __future__ import annotations

from cordwood.errors import CordwoodError, Overloaded


class WalFull(Overloaded):
    """The ring has no room; nothing was allocated. Trim, then try again."""


class WalStalled(Overloaded):
    """The disk has not ended a write for too long; nothing was allocated. It may come back."""


class WalNoSpace(Overloaded):
    """The disk below has no space for the ring's own blocks; nothing was allocated."""


class WalFailed(CordwoodError):
    """A write failed, so this WAL takes nothing any more: its node must start anew.

    Records in flight may or may not be stored. Acknowledged records are stored.
    """


def wal_full(path: str, used: int, capacity: int) -> WalFull:
    """The error for a WAL without free space."""
    return WalFull(
        f"{path} is full, {used} bytes of {capacity}: it is written to faster than LogsDB "
        "takes it; a larger wal_bytes bears longer bursts"
    )
