"""Purging: a node that missed a recovery drops the blocks that the recovery did not keep.

While a node was away, other nodes may have recovered an epoch of which it holds blocks. Above that
epoch's LNG it may then hold blocks that became holes, and no reader may get these. A peer that took
part knows the LNG and the seal. The answer of one of these peers is enough: nodes learn that an
epoch is clean only after its outcome is on full copysets, and every later recovery meets these
copysets and keeps the outcome.

Source: docs/sources/logdevice.md 2.7 ("Purging").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from cordwood.errors import CordwoodError, Unreachable
from cordwood.layout.message import AskEpoch, EpochReply, Reply
from cordwood.nodes import NodeId
from cordwood.recovery.ask import ask_until
from cordwood.wire.peers import Peers

logger = logging.getLogger(__name__)

ASK_TIMEOUT_S = 3.0
"""The answer comes from memory; a peer that takes longer counts as away."""


RETRY_S = 0.5
"""Pause before a purge is tried again: peers that know are on their way."""


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
    # Nothing of the epochs up to `last_over` is held here, so no peer needs to be asked for them.
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
    # Two recoveries, or two attempts of a recovery, may have ended the epoch. The later may have
    # kept more, and no node may keep less than that.
    return max(ends, key=lambda end: (end.seal, end.attempt))


class Purges:
    """The purges of one node that are under way, one a log.

    Args:
        is_behind: whether ended epochs of a log have to be purged before this node may serve them.
        others: the nodes that may know how an epoch ended.
        peers: asked for when a purge begins.
    """

    def __init__(
        self,
        store: Store,
        is_behind: Callable[[int], bool],
        others: Callable[[], Sequence[NodeId]],
        peers: Callable[[], Peers],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._store = store
        self._is_behind = is_behind
        self._others = others
        self._peers = peers
        self._tasks = tasks
        self._running: dict[int, asyncio.Task[None]] = {}
        self._is_open = True

    def begin(self, log: int) -> None:
        """Purge a log until this node may be read again; nothing where that goes on already."""
        # A closing engine may still find that it is behind.
        if self._is_open and log not in self._running:
            self._running[log] = task = self._tasks.create_task(self._purge(log))
            task.add_done_callback(lambda _: self._running.pop(log, None))

    async def _purge(self, log: int) -> None:
        while self._is_behind(log):
            try:
                await purge_log(log, self._store, self._others(), self._peers())
            # Peers may be down for hours. This node stays unreadable for the log until one of them
            # answers.
            except CordwoodError as error:
                logger.info("log %d cannot be purged yet: %s", log, error)
                await asyncio.sleep(RETRY_S)

    def close(self) -> None:
        """Stop all, and begin no more."""
        self._is_open = False
        for task in list(self._running.values()):
            task.cancel()
