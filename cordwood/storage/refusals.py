"""Decide whether a storage node takes a block, and why not.

If the data of a node is being rebuilt, or has been, every member refuses a copyset that names the
node; the node itself is not the only one to refuse. A block stored so late would escape rebuilding,
and readers, which do not wait for that node, would miss a copy that they count on. The rule holds
for stores of recoveries too, because their copysets are new. Each node decides by the list that it
last read from the metadata store (`StorageEngine.rebuilding`). No store waits forever: a running
node clears that status itself (`admin.authority_calls`). Until the other nodes know, sequencers
without another copyset are refused and retry; they never break the rule for spreading copies.

A node that an operator made read-only takes no block with a body. From recoveries it takes the
blocks that end an epoch: plugs, and new envelopes of its own blocks. A node with a nearly full disk
takes blocks of recoveries, and numbered blocks up to half of its reserve. Both kinds of nodes still
take seals and serve reads.

Source: docs/design.md §5; docs/sources/logdevice.md 2.4 ("rejecting stores based on copyset"), 2.7.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from crc32c import crc32c

from cordwood.block import EnvelopeFlag
from cordwood.decisions import StoreRefused, tell
from cordwood.layout.waves import Refusal, StoredBlock, StoreRefusal
from cordwood.lsn import ESN_ISSUED_MAX, EVENT_LOG, format_lsn

if TYPE_CHECKING:
    from cordwood.storage.engine import StorageEngine

logger = logging.getLogger(__name__)


def refusal_of(
    engine: StorageEngine, wave: int, block: StoredBlock, seal_epoch: int, is_full: bool, size: int
) -> StoreRefusal | None:
    """Why a node does not take a block, by its header and size alone; None if it takes it.

    Args:
        seal_epoch: of the recovery that sends it, 0 for a sequencer.
        is_full: there is no space left for first waves.
        size: bytes that the cache has to take with it.
    """
    header = block.header
    if engine.failed:
        return StoreRefusal(wave, header.log, Refusal.FAILED)
    if block.envelope.lng > min(header.last, header.last >> 32 << 32 | ESN_ISSUED_MAX):
        # A block is stored before it is known good; if it were taken, it would release records that
        # no node has.
        logger.warning("log %d: a block claims that LSNs above it are stored", header.log)
        return StoreRefusal(wave, header.log, Refusal.CORRUPT)
    epoch = header.first >> 32
    held = engine.cache.get(header.log)
    is_rebuilt = bool(block.envelope.flags & EnvelopeFlag.REBUILT)
    if is_rebuilt:
        # A donor moves settled blocks only, so a seal is no reason against its block. But the donor
        # may not know how the epoch ended, and a block that became a hole must not be acknowledged
        # and then dropped.
        if held is not None and not held.counts_block(block):
            return StoreRefusal(wave, header.log, Refusal.SEALED, held.ends[epoch].seal)
        # Main storage may have lost the block, and the donor counts on this copy. A trimmed block
        # and an envelope are acknowledged: no copy is wanted.
        if (
            held is not None
            and block.body
            and held.trim < header.last
            and (header.last <= held.gone or header.first <= held.letting_go)
        ):
            return StoreRefusal(wave, header.log, Refusal.LET_GO)
    elif not engine.seals.admits(header.log, epoch, seal_epoch):
        return StoreRefusal(wave, header.log, Refusal.SEALED, engine.seals.of(header.log))
    elif not seal_epoch and held is not None and epoch <= held.clean:
        # Recovered while this node was away, so it never sealed it.
        return StoreRefusal(wave, header.log, Refusal.SEALED, held.clean + 1)
    elif held is not None and held.is_outdated(seal_epoch):
        # Race: a higher epoch was recovered while this node was away, so this node has no higher
        # seal. If it held no block of an epoch, it knows no end by which a late copy would lose.
        return StoreRefusal(wave, header.log, Refusal.SEALED, held.ruling)
    if engine.rebuilding and (rebuilt := engine.rebuilding.intersection(block.envelope.copyset)):
        return StoreRefusal(wave, header.log, Refusal.REBUILDING, min(rebuilt))
    if engine.unsure and header.log != EVENT_LOG:
        # It may be a lost node with its old disk: no copy may count on it before it knows, be it a
        # sequencer's, a recovery's or a donor's.
        return StoreRefusal(wave, header.log, Refusal.FULL)
    # A plug or an amend has no body. An epoch's end can lie on its own nodes only, like its seal.
    is_end = bool(seal_epoch) and not block.body
    # A donor's envelope keeps nothing new. Without it no copy leaves this node, and no copy beside
    # this node's is made anew.
    is_moved = is_rebuilt and not block.body
    if (engine.read_only and not (is_end or is_moved)) or (
        not seal_epoch
        and not is_moved
        and engine.low_space
        and not engine.disk.takes(engine.unflushed_bytes + size)
    ):
        return StoreRefusal(wave, header.log, Refusal.NO_SPACE)
    # On a node that takes no records, no first wave has space, and no append waits for the WAL.
    is_excused = is_moved and bool(engine.read_only or engine.low_space)
    is_first = not seal_epoch and not is_excused and (block.envelope.wave == 1 or is_rebuilt)
    if (is_full and is_first) or not engine.cache_takes(size, by_recovery=bool(seal_epoch)):
        reason = Refusal.NO_SPACE if engine.is_out_of_space or engine.low_space else Refusal.FULL
        return StoreRefusal(wave, header.log, reason)
    return None


def tell_refusal(
    engine: StorageEngine, block: StoredBlock, seal_epoch: int, refusal: StoreRefusal
) -> None:
    """Tell that a node refuses a block."""
    header, is_read_only = block.header, bool(engine.read_only)
    reason = refusal.reason.name
    tell(StoreRefused(header.log, header.first, header.last, reason, seal_epoch, is_read_only))


def damage_of(wave: int, block: StoredBlock) -> StoreRefusal | None:
    """The refusal of a block with a body that fails the header's checksum; None if it passes."""
    header = block.header
    if crc32c(block.body) == header.stored_crc:
        return None
    logger.warning("log %d: the block at %s arrived damaged", header.log, format_lsn(header.first))
    return StoreRefusal(wave, header.log, Refusal.CORRUPT)
