"""Reads many entries with few calls: one run from one node, or one run from each write set.

Where every node has every entry, one node gives all of them. In a striped ledger a node has no, or
few, consecutive entries. So one node of each write set is asked for the entries of that set, all at
the same time, and this module puts the entries in order.

Source: docs/protocol/ledgers.md, rule 28.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from cordwood.client.ledgers.entry_reading import SPECULATE_S
from cordwood.client.ledgers.ledger_nodes import ask_node, ask_together
from cordwood.errors import Retryable
from cordwood.layout.message_ledgers import RUN_ENTRIES_MAX, ReadRun, RunReply
from cordwood.quorum.ensemble import write_set
from cordwood.quorum.entry_order import read_order

if TYPE_CHECKING:
    from cordwood.client.ledgers.readable_ledger import ReadableLedger

logger = logging.getLogger(__name__)

READ_S = 2.0
"""How long a node may take."""


class Opened(NamedTuple):
    """Entries that passed their checks, in order: payloads, and lengths of the ledger with each."""

    payloads: list[bytes]
    lengths: list[int]


async def read_run(ledger: ReadableLedger, first: int, last: int, bytes_max: int) -> Opened:
    """Entries from `first` on, up to the first one that the asked nodes do not have whole, or do
    not send soon; perhaps none."""
    count = min(last - first + 1, RUN_ENTRIES_MAX)
    striping = ledger.metadata.striping
    step = 1 if striping.write == striping.ensemble else striping.ensemble
    turn = ledger._turn
    ledger._turn += 1
    asked = [
        _ask(ledger, turn, ReadRun(
            ledger.ledger_id, ledger._key, entry, -(-(first + count - entry) // step),
            max(1, bytes_max // step), step,
        ))
        for entry in range(first, first + min(step, count))
    ]  # fmt: skip
    if len(asked) == 1:
        return await asked[0]
    return interleaved(await ask_together(asked), step, count)


def interleaved(parts: Sequence[Opened], step: int, count: int) -> Opened:
    """The entries of write sets in the order of their numbers, up to the first missing one.

    Args:
        parts: each has every `step`-th entry, beginning with the first, the second and so on.
        count: the number of requested entries.
    """
    # Trap: an entry of another part above a missing entry must not get the missing entry's number.
    whole = min(count, *(len(part.payloads) * step + at for at, part in enumerate(parts)))
    payloads, lengths = [b""] * whole, [0] * whole
    for at, part in enumerate(parts):
        taken = len(range(at, whole, step))
        payloads[at::step] = part.payloads[:taken]
        lengths[at::step] = part.lengths[:taken]
    return Opened(payloads, lengths)


async def _ask(ledger: ReadableLedger, turn: int, call: ReadRun) -> Opened:
    """Ask the best node of the first entry; nothing if it does not answer soon."""
    nodes = ledger.metadata.nodes_at(call.first)
    places = write_set(call.first, ledger.metadata.striping)
    if call.step == 1:
        places = tuple(range(len(nodes)))
    turn %= len(places)
    asked = [nodes[place] for place in places[turn:] + places[:turn]]
    node = read_order(asked, ledger._rank)[0]
    try:
        async with asyncio.timeout(SPECULATE_S):
            reply = await ask_node(ledger._cluster, node, call, timeout_s=READ_S)
    except (Retryable, TimeoutError) as error:
        logger.debug("node %d does not read ledger %d: %s", node, ledger.ledger_id, error)
        ledger._note_slow(node)
        return Opened([], [])
    assert isinstance(reply, RunReply), "ReadRun is answered so"
    ledger._slow.pop(node, None)
    ledger._raise_to(reply.lac)
    return Opened(*ledger._seal.read_run(reply.packed, reply.count))
