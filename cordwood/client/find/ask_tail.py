"""Asks a log's sequencer for the tail, and has one started where none runs.

Source: docs/sources/logdevice.md 1 ("getTailLSN"), 2.2; docs/design.md §7.
"""

from __future__ import annotations

import asyncio

from cordwood.client.append.log_appends import REDIRECTS_MAX, SEEK_DIALS
from cordwood.client.cluster import Cluster, LogInfo
from cordwood.errors import CordwoodError, NoSequencer, Retryable, Unreachable
from cordwood.layout.message import AskTail, TailReply
from cordwood.lsn import Lsn
from cordwood.nodes import NodeId

TAIL_SEEK_S = 1.0
"""A log's own node may be down this long before the next node is asked to activate the log."""

TAIL_CALL_S = 5.0
"""A sequencer that has to start first recovers a log within this, if enough nodes are up."""

TAIL_RETRY_S = 0.1
"""Pause before a tail is asked again while a sequencer starts."""


async def ask_tail(cluster: Cluster, info: LogInfo, *, timeout_s: float) -> Lsn:
    """The last LSN of a log that readers may see; (E, 0) while epoch E is empty.

    The client follows redirects of nodes. If they lead in circles, it tells the next node to
    sequence the log: see `log_appends`.

    Raises:
        Retryable: no sequencer answered within `timeout_s`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    failure: CordwoodError = NoSequencer(f"no node sequences {info.name}")
    # A node's own error tells more than a timeout of the last repeat.
    told: Retryable | None = None
    redirects, hint = 0, NodeId(0)
    while (left := deadline - loop.time()) > 0:
        cluster.check_open()
        order = cluster.sequencers(info.log_id)
        if hint in order:
            order = (hint, *(node for node in order if node != hint))
        for rank, node in enumerate(order):
            left = deadline - loop.time()
            if left <= 0:
                break
            is_circle = redirects >= REDIRECTS_MAX
            try:
                peer = await cluster.peers.wait_for(
                    node, timeout_s=min(left, TAIL_SEEK_S), dials=SEEK_DIALS
                )
                reply = await peer.call(
                    AskTail(info.log_id, rank > 0 or is_circle), timeout_s=min(left, TAIL_CALL_S)
                )
            except Unreachable as error:
                failure = error
                continue
            except Retryable as error:
                told = error
                hint = NodeId(error.node if isinstance(error, NoSequencer) else 0)
                redirects = redirects + 1 if hint else 0
                break
            assert isinstance(reply, TailReply), "AskTail is answered with a tail"
            return Lsn(reply.released)
        if not hint or redirects > 1:
            await asyncio.sleep(TAIL_RETRY_S)
    raise told or failure
