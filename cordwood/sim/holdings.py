"""All that a storage node holds of a log, wherever it keeps it."""

from __future__ import annotations

from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LSN_MAX
from cordwood.storage.shard import Shard

BATCH_BYTES = 1 << 20
BATCH_BLOCKS = 1000


async def held_blocks(shard: Shard, log: int) -> list[StoredBlock]:
    """All that a node holds of a log, in its cache and in LogsDB."""
    blocks: list[StoredBlock] = []
    start = 0
    while start <= LSN_MAX:
        run = await shard.reader.read(
            log, start, LSN_MAX, bytes_max=BATCH_BYTES, blocks_max=BATCH_BLOCKS
        )
        blocks += run.blocks
        start = run.next
    return blocks
