"""Names the node that should sequence a log, by weighted rendezvous hashing.

All nodes and clients that know the same members name the same owner. When a member goes, only
its own logs move. Nodes that count as dead come last.

Source: docs/sources/logdevice.md 2.2.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Set

from cordwood.nodes import Member, NodeId


def sequencer_order(
    log: int, members: Iterable[Member], dead: Set[NodeId] = frozenset()
) -> tuple[NodeId, ...]:
    """Nodes in the order in which they should sequence `log`: the owner first.

    Args:
        dead: nodes that come after all others, also with a high score.
    """
    scored = sorted((m.node in dead, _score(log, m), m.node) for m in members)
    return tuple(node for _, _, node in scored)


def _score(log: int, member: Member) -> float:
    text = f"{log}/{member.node}".encode()
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
    chance = (number + 1) / (2**64 + 1)
    return math.inf if member.weight <= 0 else -math.log(chance) / member.weight
