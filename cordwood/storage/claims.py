"""Check callers' claims about a log with the nodes that know.

A seal, a clean epoch, a trim and a release are permanent. So one number that is too high ends a
log: later records would be refused, trimmed, or shown to readers before they are stored. The epoch
store knows which epochs were handed out, and a log's sequencer knows what it released.

A claim within this node's own knowledge needs no question. So appends, and releases of a running
sequencer, cost nothing: it sealed, or told its nodesets, before it released anything. A node that
was away for that asks the epoch store once. Blocks of epochs that it does not know wait for the
answer too (`storage.unheard`): a block releases the log up to its LNG.

Nodes are believed within an epoch: only its sequencer knows how far it has come. A client is not:
its released LSN must be known to this node, or confirmed by a sequencer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from cordwood.decisions import ClaimRefused, ReleaseHeld, tell
from cordwood.errors import CordwoodError, Rejected, Unreachable
from cordwood.layout.message import AskReleased, ReleasedReply
from cordwood.layout.waves import Refusal
from cordwood.lsn import ESN_ISSUED_MAX, ESN_MAX, LogId, format_lsn
from cordwood.nodes import NodeId
from cordwood.storage.engine import StorageEngine
from cordwood.storage.unheard import Claim, Unheard
from cordwood.wire.peers import Peers

logger = logging.getLogger(__name__)

ASKED_AT_ONCE = 64
"""The most logs about which the epoch store is asked at the same time."""

RELEASED_TIMEOUT_S = 3.0
"""The answer comes from a sequencer's memory, so a node that takes longer counts as away."""


RENEWED_AT_ONCE = 256
"""The most seals on their way into the WAL at the same time, at a start that lost records."""


async def renew_seals(engine: StorageEngine, newest: Mapping[int, int]) -> None:
    """Seal every log again if its seal may be lost, or was never requested.

    The lost seal was made under an epoch that the epoch store had handed out. Without the seal, a
    sequencer of an older epoch could store here, and this store might be the last one that its
    copyset needs.

    Args:
        newest: by log, the newest epoch that was handed out.
    """
    forgotten = [log for log in sorted(newest) if engine.sealed(log) < newest[log]]
    for at in range(0, len(forgotten), RENEWED_AT_ONCE):
        some = forgotten[at : at + RENEWED_AT_ONCE]
        await asyncio.gather(*(engine.seal(log, newest[log], 0) for log in some))


def can_be_known_good(lsn: int) -> bool:
    """Whether an epoch's records can be stored up to an LSN: the epoch's last LSN belongs to its
    bridge.

    If that LSN counted as known good, all LSNs of the epoch would be settled, and no recovery could
    store its end.
    """
    return lsn & ESN_MAX <= ESN_ISSUED_MAX


def _never_handed_out(log: int, epoch: int, newest: int) -> str:
    return (
        f"log {log}: epoch {epoch} means nothing here: the metadata store has handed out "
        f"none above {newest}: is it an older copy?"
    )


class Claims:
    """See the module; `run` settles the releases that wait.

    Args:
        newest: asks for the newest epoch of a log that was handed out, 0 for none.
        here: the last LSN that this node released of a log that it sequences.
        peers: the other nodes, which may sequence a log as well.
    """

    def __init__(
        self,
        engine: StorageEngine,
        newest: Callable[[int], Awaitable[int]],
        here: Callable[[AskReleased], ReleasedReply],
        peers: Callable[[], Peers],
    ) -> None:
        self._engine = engine
        self._newest = newest
        self._here = here
        self._peers = peers
        self._unheard = Unheard() if engine.unheard is None else engine.unheard

    def known_epoch(self, log: int) -> int:
        """The highest epoch of a log of which this node knows that it was handed out; 0 for
        none."""
        return self._unheard.known(self._engine, log)

    async def check_epoch(self, log: int, epoch: int) -> None:
        """Check that an epoch was handed out.

        Raises:
            Rejected: it was not.
            Retryable: the metadata store does not say.
        """
        if epoch > self.known_epoch(log):
            await self._check_handed_out(log, epoch)

    async def check_seal(self, log: int, epoch: int) -> None:
        """As `check_epoch`, for a seal, which may be SEAL_AHEAD_MAX ahead."""
        if not self._unheard.is_near(log, epoch):
            await self._check_handed_out(log, epoch)

    async def _check_handed_out(self, log: int, epoch: int) -> None:
        newest = await self._ask_newest(log)
        if epoch > newest:
            tell(ClaimRefused(LogId(log), epoch, newest))
            raise Rejected(_never_handed_out(log, epoch, newest))

    async def _ask_newest(self, log: int) -> int:
        newest = await self._newest(log)
        self._unheard.tell(log, newest)
        return newest

    async def check_released(self, log: int, lsn: int) -> None:
        """Check that readers may see a log up to an LSN: this node knows it, or a sequencer
        confirms it.

        Raises:
            Unreachable: no node confirms it yet. A later call may succeed.
        """
        held = self._engine.cache.get(log)
        ask = AskReleased([log])
        if (held is not None and lsn <= held.released) or lsn <= self._here(ask).released[0]:
            return
        answers = await asyncio.gather(*(self._ask(node, ask) for node in self._peers().up))
        if lsn > max(answers, default=0):
            raise Unreachable(
                f"log {log}: no sequencer tells this node that {format_lsn(lsn)} is released"
            )

    async def _ask(self, node: NodeId, ask: AskReleased) -> int:
        try:
            reply = await self._peers().call(node, ask, timeout_s=RELEASED_TIMEOUT_S)
        except CordwoodError as error:
            logger.debug("node %d does not say what it released: %s", node, error)
            return 0
        return reply.released[0] if isinstance(reply, ReleasedReply) and reply.released else 0

    def release(self, log: int, lsn: int) -> None:
        """Take the word of a node that readers may see up to `lsn`. It takes effect once the LSN's
        epoch is known."""
        epoch = lsn >> 32
        if not can_be_known_good(lsn):
            logger.warning("log %d: no sequencer releases %s", log, format_lsn(lsn))
        elif self._engine.cache.get(log) is not None and epoch <= self.known_epoch(log):
            self._engine.release(log, lsn)
        else:
            self._unheard.add_release(log, lsn)

    async def run(self) -> None:
        """Ask about the epochs of releases and stores that wait, until cancelled."""
        while True:
            await self._unheard.wait()
            while some := self._unheard.take(ASKED_AT_ONCE):
                settled = await asyncio.gather(*(self._settle(log, claim) for log, claim in some))
                refused = [why for why in settled if why]
                if refused:
                    logger.warning(
                        "claims of %d logs are not believed: %s", len(refused), refused[0]
                    )

    @property
    def waiting(self) -> int:
        """The number of logs with releases or stores that wait."""
        return len(self._unheard)

    async def _settle(self, log: int, claim: Claim) -> str:
        """The rejected claim in words, "" for none."""
        tell(ReleaseHeld(LogId(log), claim.released))
        try:
            newest = await self._ask_newest(log)
        except CordwoodError as error:
            logger.info(
                "log %d: the claim about its newest epoch cannot be checked: %s", log, error
            )
            self._unheard.assume(log, claim.released >> 32)  # its stores follow, and do not wait
            for epoch, on_told in claim.stores:
                on_told(None if self._unheard.assume(log, epoch) else Refusal.FULL)
            return ""
        for epoch, on_told in claim.stores:
            on_told(None if epoch <= newest else Refusal.CORRUPT)
        if newest >= claim.released >> 32 > 0:
            self._engine.release(log, claim.released)
        said = max(claim.released >> 32, *(epoch for epoch, _ in claim.stores), 0)
        return "" if said <= newest else _never_handed_out(log, said, newest)
