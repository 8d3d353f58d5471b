"""Asks a node to keep entries of a ledger, or to sync them to its disk, until it accepts or
refuses; and tells it the LAC.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from msgspec.structs import replace

from cordwood.client.cluster import Cluster
from cordwood.client.ledgers.ledger_nodes import ask_node
from cordwood.errors import (
    AccessDenied,
    ChecksumMismatch,
    Closed,
    CordwoodError,
    RecordTooLarge,
    Rejected,
    Retryable,
)
from cordwood.layout.ledger_entry import EntrySeal
from cordwood.layout.ledger_records import unpack_entries
from cordwood.layout.message_ledgers import (
    AddEntries,
    AddRefusal,
    AddReply,
    EntriesReply,
    EntryAnswer,
    EntryItem,
    ForceEntries,
    Found,
    ReadEntries,
    TellLac,
    pack_items,
)
from cordwood.protocol.ledger_writer import Refusal

logger = logging.getLogger(__name__)

FULL_AGAIN_S = 0.2
"""Pause before a full node is asked again: its next flush frees space."""

LAC_AGAIN_S = 1.0
"""Pause before a LAC is sent again to a node that did not take it: a reader asks for that long at a
time."""

_REFUSALS = {
    AddRefusal.FENCED: Refusal.FENCED,
    AddRefusal.GONE: Refusal.FENCED,
    AddRefusal.OTHER: Refusal.ILLEGAL,
    AddRefusal.READ_ONLY: Refusal.READ_ONLY,
    AddRefusal.FULL: Refusal.FAILED,
}


async def ask_to_keep(
    cluster: Cluster, node: int, call: AddEntries | ForceEntries, *, timeout_s: float
) -> tuple[Refusal | None, int]:
    """The reason why a node did not do it, None if it did; and the run that the node names."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        left_s = max(0.001, deadline - loop.time())
        try:
            reply = await ask_node(cluster, node, call, timeout_s=left_s)
        except AccessDenied:
            return Refusal.DENIED, 0
        except RecordTooLarge as error:
            if isinstance(call, AddEntries) and call.count > 1:
                return await _keep_halves(cluster, node, call, timeout_s=left_s)
            logger.warning("node %d takes no such entry of ledger %d: %s", node, call.ledger, error)
            return Refusal.TOO_LARGE, 0
        except Rejected as error:
            logger.warning("node %d refuses entries of ledger %d: %s", node, call.ledger, error)
            return Refusal.FAILED if isinstance(error, Closed) else Refusal.ILLEGAL, 0
        except CordwoodError as error:
            logger.debug("node %d did not take entries: %s", node, error)
            return Refusal.FAILED, 0
        assert isinstance(reply, AddReply), "both calls are answered so"
        if reply.refusal is AddRefusal.NONE:
            return None, reply.run
        if reply.refusal is not AddRefusal.FULL or loop.time() + FULL_AGAIN_S > deadline:
            return _REFUSALS[reply.refusal], 0
        await asyncio.sleep(FULL_AGAIN_S)


async def tell_lac(cluster: Cluster, node: int, call: TellLac, *, timeout_s: float) -> bool:
    """Send a LAC to a node. Returns False, after a pause, if it must be sent again."""
    try:
        await ask_node(cluster, node, call, timeout_s=timeout_s)
    except Retryable as error:
        logger.debug("node %d was not told a LAC: %s", node, error)
        await asyncio.sleep(LAC_AGAIN_S)
        return False
    except CordwoodError as error:
        # It would say the same again. Readers ask all nodes.
        logger.info("node %d does not take a LAC: %s", node, error)
    return True


async def _keep_halves(
    cluster: Cluster, node: int, call: AddEntries, *, timeout_s: float
) -> tuple[Refusal | None, int]:
    """Divide a call into two calls, for a node with a small WAL."""
    runs: set[int] = set()
    kept = unpack_entries(call.packed, call.count)
    items = [EntryItem(each.entry, each.lac, each.length, bytes(each.body)) for each in kept]
    for part in halves(items):
        half = replace(call, count=len(part), packed=pack_items(part))
        refusal, run = await ask_to_keep(cluster, node, half, timeout_s=timeout_s)
        if refusal is not None:
            return refusal, 0
        runs.add(run)
    # A node that restarted in between may have lost the first entries.
    return (None, runs.pop()) if len(runs) == 1 else (Refusal.FAILED, 0)


def halves(items: list[EntryItem]) -> tuple[list[EntryItem], list[EntryItem]]:
    """The first entries, and the others."""
    middle = len(items) // 2
    return items[:middle], items[middle:]


async def add_again(
    cluster: Cluster,
    node: int,
    ledger: int,
    key: bytes,
    seal: EntrySeal,
    items: list[EntryItem],
    *,
    timeout_s: float,
) -> AddReply:
    """Add entries to a node as a recovery does: a fenced node takes them, and a copy there that
    fails its check gives way. Each step may take `timeout_s`.

    Args:
        items: whole copies, each of which was checked.
    Returns:
        The refusal, and the run of the node; run 0 if two runs of it took the entries, or if it
        is of a version that does not tell.
    Raises:
        AccessDenied: the node knows the ledger by another password.
        Unreachable, Overloaded: the node does not answer in time.
        RecordTooLarge: an entry is larger than the node's WAL takes.
    """

    packed = pack_items(items)

    async def add(*, mends: bool) -> AddReply:
        call = AddEntries(ledger, key, len(items), packed, recovery=True, mends=mends)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            left_s = max(0.001, deadline - loop.time())
            reply = await ask_node(cluster, node, call, timeout_s=left_s)
            assert isinstance(reply, AddReply), "AddEntries is answered so"
            # A repair that gave up here would begin again, and fill the node once more.
            if reply.refusal is not AddRefusal.FULL or loop.time() + FULL_AGAIN_S > deadline:
                return reply
            await asyncio.sleep(FULL_AGAIN_S)

    try:
        added = await add(mends=False)
    except RecordTooLarge:
        if len(items) == 1:
            raise
        runs: set[int] = set()
        for part in halves(items):
            added = await add_again(cluster, node, ledger, key, seal, part, timeout_s=timeout_s)
            if added.refusal is not AddRefusal.NONE:
                return added
            runs.add(added.run)
        return AddReply(run=one_run(runs))
    if added.refusal is not AddRefusal.OTHER:
        return added
    asked = ReadEntries(ledger, key, [item.entry for item in items])
    reply = await ask_node(cluster, node, asked, timeout_s=timeout_s)
    assert isinstance(reply, EntriesReply), "ReadEntries is answered so"
    there = {each.entry: each for each in reply.entries}
    # An entry that did not fit into the reply is not known to be damaged.
    if any(_is_another(item, there.get(item.entry), seal) for item in items):
        return added
    logger.warning("node %d had damaged entries of ledger %d", node, ledger)
    return await add(mends=True)


def one_run(runs: Collection[int]) -> int:
    """The run of a node that is the same in all its answers; 0 if there are several."""
    return next(iter(runs)) if len({*runs}) == 1 else 0


def _is_another(item: EntryItem, answer: EntryAnswer | None, seal: EntrySeal) -> bool:
    """Whether a node may have a whole entry that differs from this one."""
    if answer is None:
        return True
    is_equal = (answer.lac, answer.length, answer.body) == (item.lac, item.length, item.body)
    if answer.found is not Found.YES or is_equal:
        return False
    try:
        seal.read(answer.entry, answer.lac, answer.length, answer.body)
    except ChecksumMismatch:
        return False
    return True
