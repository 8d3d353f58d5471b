"""Purging: a node that missed a recovery drops the blocks that the recovery did not keep.

While a node was away, other nodes may have recovered an epoch of which it holds blocks. Above that
epoch's LNG it may then hold blocks that became holes, and no reader may get these. A peer that took
part knows the LNG and the seal. The answer of one such peer is enough: nodes learn that an epoch is
clean only after its outcome is on full copysets, and every later recovery meets these copysets and
keeps the outcome.

Source: docs/sources/logdevice.md 2.7 ("Purging").
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from cordwood.errors import CordwoodError, Unreachable
from cordwood.layout.message import AskEpoch, EpochReply, Reply
from cordwood.nodes import NodeId
from cordwood.recovery.ask import ask_until
from cordwood.wire.peers import Peers

logger = logging.getLogger(__name__)

ASK_TIMEOUT_S = 3.0
"""The answer comes from memory; a peer that takes longer counts as away."""


class Store(Protocol):
    """The part of a storage node that purging uses."""

    def unclean_epochs(self, log: int) -> tuple[Sequence[int], int]:
        """The epochs held here that are over and not known to be clean; and the last one over."""

    async def purge(
        self, log: int, epoch: int, seal: int, lng: int, produced: bytes = b"", attempt: int = 1
    ) -> None:
        """Drop the blocks of `epoch` that do not count; the seal is 0 if none of it is held."""


async def purge_log(log: int, store: Store, others: Sequence[NodeId], peers: Peers) -> None:
    """Bring this node's copy of `log` in line with the recoveries that it missed.

    Raises:
        Unreachable: no peer that took part answers; no block that counts was dropped.
        CordwoodError: the WAL takes no more records.
    """
    epochs, last_over = store.unclean_epochs(log)
    for epoch in epochs:
        end = await _ask_end(log, epoch, others, peers)
        logger.info("log %d epoch %d was recovered without this node: purging", log, epoch)
        await store.purge(log, epoch, end.seal, end.lng, end.produced, end.attempt)
    if not epochs or epochs[-1] < last_over:
        await store.purge(log, last_over, 0, 0)


async def _ask_end(log: int, epoch: int, others: Sequence[NodeId], peers: Peers) -> EpochReply:
    def known(answers: Mapping[NodeId, Reply | CordwoodError]) -> list[EpochReply]:
        return [a for a in answers.values() if isinstance(a, EpochReply) and a.known]

    answers = await ask_until(
        others,
        lambda node: peers.call(node, AskEpoch(log, epoch), timeout_s=ASK_TIMEOUT_S),
        lambda so_far: bool(known(so_far)),
    )
    ends = known(answers)
    if not ends:
        raise Unreachable(f"no peer knows how epoch {epoch} of log {log} ended")
    return max(ends, key=lambda end: (end.seal, end.attempt))
