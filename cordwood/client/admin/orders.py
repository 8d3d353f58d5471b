"""How a client gives orders about the cluster: each names the state that the client saw.

Source: docs/protocol/rebuilding.md, rule 4; docs/protocol/metadata-and-epochs.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from cordwood.client.cluster import Cluster
from cordwood.errors import Fenced
from cordwood.layout.message import Call
from cordwood.settings import ClientSettings
from cordwood.wire.connection import Connection

GIVEN_S = 1.0
"""An order that has its first answer after this time may be carried out, although it was refused: a
node that does not hear from the metadata store whether its write was done looks at the entry again,
and may find a later one."""


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
        again: whether to begin anew if the only node that had it refused it so many seconds after
            it was given.
    Raises:
        Fenced: it was refused for its version, and is not given again. It may have been carried
            out, and taken back.
        CordwoodError: the order was refused for another reason, or got no answer.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        reply = await cluster.call_any(question, timeout_s=deadline - loop.time())
        given_s = loop.time()
        asked: list[Connection] = []
        try:
            await cluster.ask_any(seen(reply), timeout_s=deadline - given_s, asked=asked)
            return
        except Fenced as error:
            now_s = loop.time()
            if _may_be_done(asked):
                # Race: the order to the contrary was acknowledged after that.
                raise Fenced(
                    f"{error}. A node that did not answer may have carried this order out before"
                ) from error
            if now_s >= deadline or not again(now_s - given_s):
                raise


def _may_be_done(asked: Sequence[Connection]) -> bool:
    """Whether an order that was refused may have been carried out: by a node that was asked before
    the one that refused it, and that died or lost its connection, which may take no time."""
    return len(asked) > 1
