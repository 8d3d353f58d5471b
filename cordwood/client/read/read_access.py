"""Decides what follows when a node refuses a read without the log's read token.

A node may be ahead of what this client knows of the log, or behind: rights change, and nodes hear
of it one after the other. So this asks the metadata store. If the client lacks the required token,
the reader gets one ACCESS gap to its end, as in LogDevice. After access is restored, the read
begins anew. If the client has the token, the nodes that refused are asked again.

Source: docs/sources/logdevice.md 1 ("Gap types").
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Sequence

from cordwood.client.admin.log_tree import read_token
from cordwood.client.cluster import Cluster, LogInfo
from cordwood.client.read.senders import Senders

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 1.0
"""The pause before a node that refused a reader with the right token is asked again. Nodes hear of
a change within about this time."""


class ReadAccess:
    """See the module."""

    def __init__(
        self,
        senders: Senders,
        cluster: Cluster,
        tokens: Sequence[str],
        on_denied: weakref.WeakMethod[Callable[[], None]],
    ) -> None:
        """
        Args:
            on_denied: told that this client may not read; weak, so that a stream that its
                application lets go of ends at once.
        """
        self._senders = senders
        self._cluster = cluster
        self._tokens = tokens
        self._on_denied = on_denied
        self._loop = asyncio.get_running_loop()
        self._is_asking = False
        self._closed = False

    def close(self) -> None:
        """Stop asking."""
        self._closed = True

    def on_refused(self, info: LogInfo) -> None:
        """Handle a node's refusal of this client."""
        if not (self._closed or self._is_asking):
            self._is_asking = True
            self._cluster.look_up_again(info, self._on_looked_up)

    def _on_looked_up(self, info: LogInfo | None) -> None:
        if self._closed:
            return
        token = None if info is None else read_token(info, self._tokens)
        if token is None:
            call_weakly(self._on_denied)
            return
        is_new, self._senders.token = token != self._senders.token, token
        self._loop.call_later(0.0 if is_new else ASK_AGAIN_S, self._ask_refused)

    def _ask_refused(self) -> None:
        self._is_asking = False
        if not self._closed:
            self._senders.ask_refused()


def call_weakly(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    """Call it if its object is still there."""
    if (found := method()) is not None:
        found()
