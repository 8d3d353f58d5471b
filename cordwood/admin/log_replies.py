"""Logs and members for the wire, from the metadata store's entries."""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.layout.message_logs import EpochNodes, LogReply
from cordwood.layout.message_nodes import MemberInfo
from cordwood.metadata.epoch_store import EpochRecord
from cordwood.metadata.log_info import LogInfo
from cordwood.nodes import Member, NodeId


def log_reply(
    info: LogInfo, record: EpochRecord | None = None, members: list[MemberInfo] | None = None
) -> LogReply:
    """A log; for a listing without its epochs and the members."""
    return LogReply(
        info.log_id,
        info.name,
        info.replication.copies,
        info.replication.racks,
        info.created_us,
        epoch_nodes(record) if record is not None else [],
        members or [],
        record.next_epoch - 1 if record is not None else 0,
        info.own,
        info.attributes,
        dict(info.replication.wider),
    )


def epoch_nodes(record: EpochRecord) -> list[EpochNodes]:
    """Nodesets by epoch, oldest first."""
    return [each.told for each in record.history]


def member_infos(members: Mapping[NodeId, Member]) -> list[MemberInfo]:
    """Members in node order."""
    return [
        MemberInfo(
            m.node, m.address, m.location, m.incarnation, m.weight, m.authority, m.read_only, m.fill
        )
        for _, m in sorted(members.items())
    ]
