"""A node's report about itself for status pages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from cordwood import __version__
from cordwood.admin.log_replies import member_infos
from cordwood.layout.message import StatusReply
from cordwood.layout.scrub_state import ScrubState
from cordwood.nodes import Member, NodeId
from cordwood.sequencer.role import SequencerRole
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_states import log_states
from cordwood.storage.push.read_streams import ReadStreams


def status_reply(
    node: NodeId,
    cluster: bytes,
    started: float,
    engine: StorageEngine,
    sequencer: SequencerRole,
    streams: ReadStreams,
    connections: int,
    members: Mapping[NodeId, Member],
    scrub: ScrubState,
) -> StatusReply:
    """A node's present status.

    Args:
        started: when, by the loop's clock.
    """
    return StatusReply(
        node=node,
        cluster=cluster,
        version=__version__,
        uptime_s=asyncio.get_running_loop().time() - started,
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
        members=member_infos(members),
        logs=log_states(engine, sequencer.sequencing()),
        scrub=scrub,
    )
