"""How a client gives orders about the cluster: each names the state that the client saw.

Source: docs/protocol/rebuilding.md, rule 4; docs/protocol/metadata-and-epochs.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cordwood.client.cluster import Cluster
from cordwood.errors import Fenced
from cordwood.layout.message import Call
from cordwood.settings import ClientSettings

GIVEN_S = 1.0
"""A call that has a first answer after this time may have been given to two nodes."""


class Orders:
    """See the module. A subclass sets `_cluster` and `_settings`."""

    _cluster: Cluster
    _settings: ClientSettings

    async def _order(
        self, question: Call, seen: Callable[[object], Call], again: Callable[[float], bool]
    ) -> None:
        """As `give_order`, within the client's timeout."""
        timeout_s = self._settings.timeout_s
        await give_order(self._cluster, question, seen, again, timeout_s=timeout_s)


async def give_order(
    cluster: Cluster,
    question: Call,
    seen: Callable[[object], Call],
    again: Callable[[float], bool],
    *,
    timeout_s: float,
) -> None:
    """Give an order with the version that the cluster has now. A node that gets the order late
    refuses it if the version has changed since.

    Args:
        question: its answer has the version.
        seen: the order with the version of this answer.
        again: whether to begin anew if it was refused so many seconds after it was given.
    Raises:
        Fenced: it was refused for its version, and is not given again.
        CordwoodError: the order was refused for another reason, or got no answer.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        reply = await cluster.call_any(question, timeout_s=deadline - loop.time())
        given_s = loop.time()
        try:
            await cluster.call_any(seen(reply), timeout_s=deadline - given_s)
            return
        except Fenced:
            now_s = loop.time()
            if now_s >= deadline or not again(now_s - given_s):
                raise
