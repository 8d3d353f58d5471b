"""Joins the nodes' reports into one view of a cluster.

Pure: answers in, plain values out. Tables show them, and `--json` prints their fields under the
names that they have here, so these names must not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cordwood.errors import CordwoodError
from cordwood.lsn import format_lsn

if TYPE_CHECKING:
    from cordwood.client.cluster import LogInfo
    from cordwood.layout.message import LogState, StatusReply
    from cordwood.nodes import NodeId

    Answers = Mapping[NodeId, StatusReply | CordwoodError]


AS_EVER = "fully-authoritative"
"""The status of a node's data unless an operator or rebuilding set another."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node.

    Attributes:
        up: whether it answered; if not, all fields after `problem` are 0.
        problem: why it did not answer, or cannot store; "" if all is well.
        sequencing: number of logs that it sequences.
        appended_records, stored_blocks: since it started.
        authority: the reported status of its data, see `nodes.Authority`.
    """

    node: int
    address: str
    location: str
    up: bool
    problem: str
    version: str = ""
    uptime_s: float = 0.0
    wal_used_bytes: int = 0
    wal_capacity_bytes: int = 0
    cache_bytes: int = 0
    connections: int = 0
    sequencing: int = 0
    appended_records: int = 0
    stored_blocks: int = 0
    authority: str = AS_EVER


@dataclass(frozen=True, slots=True)
class LogView:
    """One log, its state the newest that any node tells.

    Attributes:
        epoch: 0 before the first.
        sequencer: the node that numbers its records, None while none does.
        released: the last LSN that readers may see, None while nodes know of none.
        stored_bytes, stored_blocks: on all nodes, so every copy counts.
        replicate_across: copies and domains by scope.
        bytes_by_node: the bytes of the log on each node, by the node's number.
    """

    name: str
    id: int
    copies: int
    racks: int
    created_us: int
    epoch: int
    sequencer: int | None
    released: str | None
    stored_bytes: int
    stored_blocks: int
    replicate_across: dict[str, int]
    bytes_by_node: dict[int, int]


def view_nodes(answers: Answers, addresses: Mapping[NodeId, str]) -> list[NodeView]:
    """Every node that was asked, in node order."""
    members = {
        member.node: member
        for answer in answers.values()
        if not isinstance(answer, CordwoodError)
        for member in answer.members
    }
    views = []
    for node, answer in sorted(answers.items()):
        member = members.get(node)
        view = _view_node(node, addresses.get(node, ""), member.location if member else "", answer)
        views.append(replace(view, authority=member.authority.value) if member else view)
    return views


def _view_node(
    node: int, address: str, location: str, answer: StatusReply | CordwoodError
) -> NodeView:
    if isinstance(answer, CordwoodError):
        return NodeView(node, address, location, False, str(answer))
    return NodeView(
        node,
        address,
        location,
        True,
        answer.failed,
        answer.version,
        round(answer.uptime_s, 3),
        answer.wal_used_bytes,
        answer.wal_capacity_bytes,
        answer.cache_bytes,
        answer.connections,
        sum(log.sequencing for log in answer.logs),
        answer.appended_records,
        answer.stored_blocks,
    )


def view_logs(logs: Sequence[LogInfo], answers: Answers) -> list[LogView]:
    """Logs in the order given."""
    return [_view_log(log, _states_of(log.log_id, answers)) for log in logs]


def _states_of(log: int, answers: Answers) -> dict[NodeId, LogState]:
    return {
        node: state
        for node, answer in sorted(answers.items())
        if not isinstance(answer, CordwoodError)
        for state in answer.logs
        if state.log == log
    }


def _view_log(log: LogInfo, states: Mapping[NodeId, LogState]) -> LogView:
    sequencers = {node: state.epoch for node, state in states.items() if state.sequencing}
    released = max((state.released for state in states.values()), default=0)
    return LogView(
        log.name,
        log.log_id,
        log.replication.copies,
        log.replication.racks,
        log.created_us,
        max((state.epoch for state in states.values()), default=0),
        # For a moment, two nodes may take themselves for the sequencer. The node with the higher
        # epoch is right.
        max(sequencers, key=lambda node: sequencers[node], default=None),
        format_lsn(released) if released else None,
        sum(state.bytes for state in states.values()),
        sum(state.blocks for state in states.values()),
        log.replication.by_scope,
        {node: state.bytes for node, state in states.items()},
    )
