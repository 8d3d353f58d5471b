"""Asks a log's sequencer for the tail, from a storage node. A sequencer that is asked starts, and
tells all nodes of the log what is released.

Source: docs/protocol/repair.md.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import TYPE_CHECKING

from cordwood.errors import NoSequencer, UnknownLog, Unreachable
from cordwood.layout.message import AskTail, TailReply
from cordwood.nodes import NodeId

if TYPE_CHECKING:
    from cordwood.wire.peers import Peers

TAIL_TIMEOUT_S = 3.0
HOPS = 4
"""The most nodes that are asked for a log's sequencer: each names the next. The last may be this
node."""


def next_logs(logs: Set[int], after: int, most: int) -> list[int]:
    """The next logs by number behind `after`, and then from the least on; `most` at most. So each
    log has its turn to have its sequencer asked."""
    return sorted(logs, key=lambda log: (log <= after, log))[:most]


async def ask_sequencer(
    peers: Peers, me: NodeId, dead: Callable[[], Set[NodeId]], log: int
) -> TailReply | None:
    """The answer of the log's sequencer, which is started if there is none. None if the log was
    deleted.

    Raises:
        CordwoodError: no node is its sequencer.
    """
    node, is_away = me, False
    asked: set[NodeId] = set()
    for _ in range(HOPS):
        asked.add(node)
        try:
            ask = AskTail(log, activate_here=is_away)
            reply = await peers.call(node, ask, timeout_s=TAIL_TIMEOUT_S)
        except UnknownLog:
            return None
        except Unreachable:
            if is_away or node == me:
                raise
            node, is_away = me, True  # the log's owner does not answer
        except NoSequencer as error:
            if not error.node or error.node == node:
                raise
            node, is_away = NodeId(error.node), False
            # In a circle: the log's owner cannot sequence it, and the next node does not know that.
            if node in dead() or node in asked:
                node, is_away = me, True
        else:
            assert isinstance(reply, TailReply), "AskTail has one kind of answer"
            return reply
    raise Unreachable(f"log {log}: one node after the other names another sequencer")
