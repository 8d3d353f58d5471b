"""When a node that was killed counts as back."""

from __future__ import annotations

from cordwood.demo.rejoin import Rejoined, find_rejoined
from cordwood.errors import CordwoodError, Unreachable
from cordwood.layout.message import LogState, StatusReply
from cordwood.layout.message_nodes import MemberInfo
from cordwood.nodes import NodeId

LOG, TAIL = 7, 90
MEMBERS = [MemberInfo(node, "", "rack1", 1, 1.0) for node in (1, 2)]


def status(
    readable: int, members: list[MemberInfo] = MEMBERS, failed: str = "", log: int = LOG
) -> StatusReply:
    state = LogState(log, False, 2, 0, TAIL, 5, 0, 2, readable)
    return StatusReply(2, b"", "", 0.0, 0, 0, 0, 0, 0, 0, failed, members, [state])


def back(reply: StatusReply | CordwoodError) -> list[Rejoined]:
    replies = {NodeId(1): status(TAIL), NodeId(2): reply}
    return find_rejoined(replies, [NodeId(2)], LOG, TAIL)


def test_it_is_back_once_it_is_purged_and_readable_to_the_tail():
    assert back(status(TAIL)) == [Rejoined(NodeId(2), 2, TAIL, 5)]
    assert back(status(TAIL - 1)) == []


def test_not_while_it_is_silent_or_cannot_store_or_misses_a_member():
    assert back(Unreachable("down")) == []
    assert back(status(TAIL, failed="disk full")) == []
    assert back(status(TAIL, MEMBERS[:1])) == []


def test_what_it_has_of_other_logs_does_not_count():
    assert back(status(TAIL, log=8)) == []
