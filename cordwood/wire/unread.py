"""Bytes that wait for peers which do not read them, over all connections of one node.

Each connection has a bound of its own. Over thousands of connections the sum exceeds a node's
memory, so they are counted together. Only a peer counts whose machine took nothing of an earlier
tick's bytes: bytes of the present tick have not been offered to it yet.

Source: docs/sources/reliability.md §7 (4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

UNREAD_BYTES_MAX = 512 << 20
"""Two peers at their own bound (`connection.BACKLOG_BYTES_MAX`). Readers of logs have windows: some
sixty of them that stopped in the middle leave less."""

Peer = TypeVar("Peer")


class Unread(Generic[Peer]):
    """Counts the bytes of each peer, and names the peer to cut off. A rule; see the module."""

    def __init__(self, now_of: Callable[[Peer], int]) -> None:
        """
        Args:
            now_of: the bytes that wait for a peer at present.
        """
        self._now_of = now_of
        self._waiting: dict[Peer, int] = {}
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes that waited for peers when they were noted last."""
        return self._bytes

    def note(self, peer: Peer, size: int) -> None:
        """Note the bytes that wait for a peer; 0 when it reads again, or is gone."""
        self._bytes += size - self._waiting.pop(peer, 0)
        if size:
            self._waiting[peer] = size

    def excess(self) -> Peer | None:
        """The peer to cut off if too much waits for all of them together: the one with the most."""
        if self._bytes <= UNREAD_BYTES_MAX:
            return None
        # A peer may have read some of it since.
        for peer in list(self._waiting):
            self.note(peer, self._now_of(peer))
        if self._bytes <= UNREAD_BYTES_MAX:
            return None
        return max(self._waiting, key=self._waiting.__getitem__)
