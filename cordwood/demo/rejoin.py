"""Whether a node that was killed and started again has caught up with a log.

A rule over the reports of nodes about themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cordwood.errors import CordwoodError
from cordwood.layout.message import StatusReply
from cordwood.nodes import NodeId


@dataclass(frozen=True, slots=True)
class Rejoined:
    """A node that is back.

    Attributes:
        sealed: the epoch that sealed the log there; 0 if none has.
        readable: the last LSN that it sends to readers; it sends nothing after records that it must
            still purge.
        blocks: the log's blocks on this node.
    """

    node: NodeId
    sealed: int
    readable: int
    blocks: int


def find_rejoined(
    status: Mapping[NodeId, StatusReply | CordwoodError],
    nodes: Sequence[NodeId],
    log: int,
    tail: int,
) -> list[Rejoined]:
    """The nodes that can store, know all members, and are readable up to `tail`."""
    rejoined = []
    for node in nodes:
        reply = status.get(node)
        if reply is None or isinstance(reply, CordwoodError) or reply.failed:
            continue
        knows_all = {member.node for member in reply.members} == set(status)
        for state in reply.logs:
            if state.log == log and knows_all and state.readable >= tail:
                rejoined.append(Rejoined(node, state.sealed, state.readable, state.blocks))
    return rejoined
