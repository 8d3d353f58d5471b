"""Which node should sequence a log: weighted rendezvous hashing.

Every node and client that knows the same members names the same owner, and a
member that goes moves only its own logs.

Source: LogDevice digest 2.2.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

from cordwood.nodes import Member, NodeId


def sequencer_order(log: int, members: Iterable[Member]) -> tuple[NodeId, ...]:
    """Nodes in the order in which they should sequence `log`: the owner first."""
    scored = sorted((_score(log, member), member.node) for member in members)
    return tuple(node for _, node in scored)


def _score(log: int, member: Member) -> float:
    text = f"{log}/{member.node}".encode()
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
    chance = (number + 1) / (2**64 + 1)
    return math.inf if member.weight <= 0 else -math.log(chance) / member.weight
