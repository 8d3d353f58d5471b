"""What a node says of itself, for status pages."""

from __future__ import annotations

from cordwood import __version__
from cordwood.layout.message import StatusReply
from cordwood.layout.message_nodes import MemberInfo
from cordwood.nodes import NodeId
from cordwood.sequencer.role import SequencerRole
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_states import log_states
from cordwood.storage.push.read_streams import ReadStreams
from cordwood.storage.scrub.scrub import Scrub


def status_reply(
    engine: StorageEngine,
    streams: ReadStreams,
    sequencer: SequencerRole,
    scrub: Scrub,
    *,
    node: NodeId,
    cluster: bytes,
    uptime_s: float,
    connections: int,
    members: list[MemberInfo],
) -> StatusReply:
    """A node's status as it is now."""
    return StatusReply(
        node=node,
        cluster=cluster,
        version=__version__,
        uptime_s=uptime_s,
        wal_used_bytes=engine.wal.used_bytes,
        wal_capacity_bytes=engine.wal.capacity_bytes,
        cache_bytes=engine.cache.bytes,
        logs_bytes=engine.logs.stored_bytes,
        partitions=len(engine.logs.partitions),
        connections=connections,
        appended_records=sequencer.appended_records,
        stored_blocks=engine.stored_blocks,
        sent_blocks=streams.sent_blocks,
        sent_bytes=streams.sent_bytes,
        filtered_blocks=streams.filtered_blocks,
        failed=engine.failed or engine.damage or engine.read_only or engine.low_space,
        members=members,
        logs=log_states(engine, sequencer.sequencing()),
        scrub=scrub.state(),
    )
