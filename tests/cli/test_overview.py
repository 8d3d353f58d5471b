"""What nodes say of themselves, joined: who is down, who rules a log, how far it is readable."""

from __future__ import annotations

import msgspec

from cordwood.cli.overview import view_logs, view_nodes
from cordwood.client.cluster import LogInfo
from cordwood.errors import Unreachable
from cordwood.layout.message import LogState, StatusReply
from cordwood.layout.message_nodes import MemberInfo
from cordwood.lsn import make_lsn
from cordwood.nodes import Authority, NodeId, Replication


def state(log: int, epoch: int, esn: int, *, sequencing: bool = False) -> LogState:
    return LogState(log, sequencing, epoch, 0, int(make_lsn(epoch, esn)), 2, 100, 0)


def answer(node: int, *logs: LogState, failed: str = "") -> StatusReply:
    members = [MemberInfo(n, f"h:{n}", f"rack{n}", 1, 1.0) for n in (1, 2)]
    return StatusReply(
        node, b"c" * 16, "0.1.0", 5.0, 10, 100, 7, 3, 40, 4, failed, members, list(logs)
    )


LOG = LogInfo(9, "/orders", Replication(3, 2), 123)


class TestNodes:
    def test_a_node_that_is_away_is_listed_with_its_reason_and_place(self):
        answers = {NodeId(2): Unreachable("nobody there"), NodeId(1): answer(1)}
        one, two = view_nodes(answers, {NodeId(1): "h:1", NodeId(2): "h:2"})
        assert (one.node, one.up, one.problem, one.wal_used_bytes) == (1, True, "", 10)
        assert (two.node, two.up, two.problem) == (2, False, "nobody there")
        assert (two.address, two.location) == ("h:2", "rack2")

    def test_what_is_said_of_the_data_of_one_that_is_away(self):
        said = answer(1)
        gone = msgspec.structs.replace(said.members[1], authority=Authority.UNDER_REPLICATED)
        said = msgspec.structs.replace(said, members=[said.members[0], gone])
        answers = {NodeId(1): said, NodeId(2): Unreachable("nobody there")}
        one, two = view_nodes(answers, {})
        assert (one.authority, two.authority) == ("fully-authoritative", "under-replicated")

    def test_a_node_that_cannot_store_says_why(self):
        (node,) = view_nodes({NodeId(1): answer(1, failed="its disk failed")}, {})
        assert node.up
        assert node.problem == "its disk failed"


class TestLogs:
    def test_the_higher_epoch_rules_and_the_highest_released_counts(self):
        answers = {
            NodeId(1): answer(1, state(9, 3, 8, sequencing=True), state(7, 9, 9)),
            NodeId(2): answer(2, state(9, 4, 2, sequencing=True)),
            NodeId(3): Unreachable("away"),
        }
        (log,) = view_logs([LOG], answers)
        assert (log.sequencer, log.epoch, log.released) == (2, 4, "e4n2")
        assert (log.stored_bytes, log.stored_blocks) == (200, 4)
        assert log.bytes_by_node == {1: 100, 2: 100}

    def test_a_log_that_nobody_used_yet(self):
        (log,) = view_logs([LOG], {NodeId(1): answer(1)})
        assert (log.sequencer, log.epoch, log.released, log.stored_bytes) == (None, 0, None, 0)
