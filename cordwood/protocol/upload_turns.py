"""A rule: names the node that uploads a log now, and the node that tends what no log's node tends.

A log is uploaded by the first living node in the order in which nodes should sequence it. Closed
ledgers are uploaded, and their objects deleted, by the living node with the lowest number. Such a
node may be cut off from main storage or from the metadata store, alone and for long. Other nodes
cannot see that. So every STAND_IN_EVERY turns one turn belongs to another living node, each of them
in turn. It then does the work in place of the first node.

Turns follow the clock, which is about the same on all nodes. If clocks differ, two nodes upload a
log at once, or no node does for a turn. Two uploaders are safe: a turn at the manifest ends earlier
turns, and a commit is a compare-and-set. An attempt to upload a ledger ends earlier attempts.

Source: docs/protocol/main-storage.md, rule 6; docs/protocol/ledgers.md, rule 35.
"""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.nodes import NodeId

TURN_S = 60.0
"""The least length of a turn: six looks for records to upload, and as long as a lease on a log, so
a node that died during its upload costs one turn of the next node at most."""

LOOKS_A_TURN = 3
"""With rare looks a turn is longer: the rests between looks are drawn, up to half as long again."""

STAND_IN_EVERY = 5
"""Another node has each fifth turn: five minutes are short beside the hour that records wait. Both
changes of hands cost a read of the manifest and of the headers of waiting records."""


def uploader_of(order: Sequence[NodeId], now_us: int, look_s: float) -> NodeId | None:
    """The node that uploads a log, or ledgers, now; None without nodes.

    Args:
        order: the living nodes: of a log, in the order in which they should sequence it; of
            ledgers, by number.
        now_us: the time by the wall clock, in microseconds.
        look_s: seconds between two looks of a node.
    """
    if not order:
        return None
    turn = int(now_us / 1e6 // max(TURN_S, LOOKS_A_TURN * look_s))
    round_, place = divmod(turn, STAND_IN_EVERY)
    if place < STAND_IN_EVERY - 1 or len(order) == 1:
        return order[0]
    return order[1 + round_ % (len(order) - 1)]


def tender_of(living: Sequence[NodeId], now_us: int, tend_s: float) -> NodeId | None:
    """The node that tends deleted logs and shared objects now; None without nodes.

    The living nodes take turns of `tend_s`, so all of them together look as often as one would.

    Args:
        living: the living nodes, by number.
        now_us: the time by the wall clock, in microseconds.
        tend_s: seconds between two looks.
    """
    return living[int(now_us / 1e6 // tend_s) % len(living)] if living else None
