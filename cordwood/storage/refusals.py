"""Decides whether a storage node takes a block, and gives the reason for a refusal.

Every member of a copyset refuses a block if the copyset names a node whose data is being rebuilt or
was rebuilt. It decides by the nodes in `Shard.rebuilding`, as last read from the metadata store.
The refusal is temporary: a running node clears that status itself (`admin.authority_calls`). Until
the other nodes have heard of that, senders without another copyset are refused and retry. The rule
for the spread of copies is never broken instead.

A node that an operator made read-only takes no block. A node with a nearly full disk takes blocks
of recoveries, and numbered blocks up to half of its reserve. Both kinds of nodes still seal and
serve reads.

Source: docs/design.md §5; docs/sources/logdevice.md 2.4 ("rejecting stores based on copyset"), 2.7.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from crc32c import crc32c

from cordwood.layout.waves import Refusal, StoredBlock, StoreRefusal
from cordwood.lsn import format_lsn

if TYPE_CHECKING:
    from cordwood.storage.engine import Shard

logger = logging.getLogger(__name__)


def refusal_of(
    shard: Shard, wave: int, block: StoredBlock, seal_epoch: int, is_full: bool, size: int
) -> StoreRefusal | None:
    """Why a node does not take a block, without regard to its body; None if it does.

    Args:
        seal_epoch: of the recovery that sends the block, 0 for a sequencer.
        is_full: whether there is no free space for first waves.
        size: bytes that the block adds to the cache.
    """
    header = block.header
    if shard.failed:
        return StoreRefusal(wave, header.log, Refusal.FAILED)
    if block.envelope.lng > header.last:
        # Trap: a block is stored before it is known good. This LNG would release records that no
        # node holds.
        logger.warning("log %d: a block says that what is above it is stored", header.log)
        return StoreRefusal(wave, header.log, Refusal.CORRUPT)
    epoch = header.first >> 32
    if not shard.seals.admits(header.log, epoch, seal_epoch):
        return StoreRefusal(wave, header.log, Refusal.SEALED, shard.seals.of(header.log))
    held = shard.cache.get(header.log)
    if not seal_epoch and held is not None and epoch <= held.clean:
        # Race: the epoch was recovered while this node was away, so this node never sealed it.
        return StoreRefusal(wave, header.log, Refusal.SEALED, held.clean + 1)
    # Trap: every member refuses, not only the rebuilt node, and stores of recoveries too. A copy
    # stored so late would escape the rebuilding. Readers do not wait for the rebuilt node, so they
    # would miss a copy on which they count.
    if shard.rebuilding and (rebuilt := shard.rebuilding.intersection(block.envelope.copyset)):
        return StoreRefusal(wave, header.log, Refusal.REBUILDING, min(rebuilt))
    if shard.read_only or (
        not seal_epoch and shard.low_space and not shard.disk.takes(shard.unflushed_bytes + size)
    ):
        return StoreRefusal(wave, header.log, Refusal.NO_SPACE)
    is_first = not seal_epoch and block.envelope.wave == 1
    if (is_full and is_first) or not shard.cache_takes(size, by_recovery=bool(seal_epoch)):
        reason = Refusal.NO_SPACE if shard.is_out_of_space or shard.low_space else Refusal.FULL
        return StoreRefusal(wave, header.log, reason)
    return None


def damage_of(wave: int, block: StoredBlock) -> StoreRefusal | None:
    """The refusal of a block whose body does not match its header's checksum; None if it does."""
    header = block.header
    if crc32c(block.body) == header.stored_crc:
        return None
    logger.warning("log %d: the block at %s arrived damaged", header.log, format_lsn(header.first))
    return StoreRefusal(wave, header.log, Refusal.CORRUPT)
