"""What callers claim of a log, held against those who know it.

A seal, a clean epoch, a trim and a release hold for good, so one number that is too high ends a
log: what comes later would be refused, trimmed, or shown to readers before it is stored. The epoch
store knows which epochs were handed out, and a log's sequencer knows what it released.

A claim within what this node knows already asks nobody. So appends, and releases of a running
sequencer, cost nothing: it sealed, or told its nodesets, before it released anything. A node that
was away for that asks the epoch store once.

Nodes are believed within an epoch: only its sequencer knows how far it has come. A client is not:
what it says is released must be what this node heard, or what a sequencer confirms.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from cordwood.errors import CordwoodError, Rejected, Unreachable
from cordwood.layout.message import AskReleased, ReleasedReply
from cordwood.lsn import ESN_ISSUED_MAX, ESN_MAX, format_lsn
from cordwood.nodes import NodeId
from cordwood.storage.engine import StorageEngine
from cordwood.wire.peers import Peers

logger = logging.getLogger(__name__)

SEAL_AHEAD_MAX = 1024
"""Epochs that a seal may be above what the epoch store last told this node of a log, before the
store is asked again: a node that was away for long meets this, and a faulty caller. It is not
measured from what was claimed here: seal by seal that led past all that a sequencer passes over."""

WAITING_MAX = 16_384
"""Logs whose release waits for the epoch store. One more is dropped: sequencers say releases
again, and whenever this node connects."""

ASKED_AT_ONCE = 64
"""Logs that the epoch store is asked about side by side."""

RELEASED_TIMEOUT_S = 3.0
"""A look into a sequencer's memory; a node that takes longer is away."""


RENEWED_AT_ONCE = 256
"""Seals on their way into the WAL at once, at a start that lost records."""


async def renew_seals(engine: StorageEngine, newest: Mapping[int, int]) -> None:
    """Seal every log anew whose seal may be among what was lost, or was never asked for.

    Whoever sealed did so under an epoch that the epoch store had handed out; a sequencer
    of an older one would find no seal here, and its store might be the last that its
    copyset needs.

    Args:
        newest: by log, the newest epoch that was handed out.
    """
    forgotten = [log for log in sorted(newest) if engine.sealed(log) < newest[log]]
    for at in range(0, len(forgotten), RENEWED_AT_ONCE):
        some = forgotten[at : at + RENEWED_AT_ONCE]
        await asyncio.gather(*(engine.seal(log, newest[log], 0) for log in some))


def can_be_known_good(lsn: int) -> bool:
    """Whether an epoch's records can be stored up to an LSN: its last one is the bridge's.

    Taken for good, all of the epoch would be settled, and no recovery could store its end.
    """
    return lsn & ESN_MAX <= ESN_ISSUED_MAX


class Claims:
    """See the module; `run` settles the releases that wait.

    Args:
        newest: asks for the newest epoch of a log that was handed out, 0 for none.
        here: up to where this node, as their sequencer, has released logs.
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
        self._waiting: dict[int, int] = {}
        # By log: the newest epoch that the store told of. Logs that it does not have are left out.
        self._told: dict[int, int] = {}
        self._stirred = asyncio.Event()

    def known_epoch(self, log: int) -> int:
        """The highest epoch of a log that this node was shown to be handed out; 0 for none."""
        held = self._engine.cache.get(log)
        if held is None:
            return self._engine.sealed(log)
        return max(self._engine.sealed(log), held.released >> 32, held.nodesets[0])

    async def check_epoch(self, log: int, epoch: int) -> None:
        """Let an epoch pass that was handed out.

        Raises:
            Rejected: it was not.
            Retryable: the metadata store does not say.
        """
        if epoch > self.known_epoch(log):
            await self._check_handed_out(log, epoch)

    async def check_seal(self, log: int, epoch: int) -> None:
        """As `check_epoch`, for a seal, which may be SEAL_AHEAD_MAX ahead."""
        if epoch > self._told.get(log, 0) + SEAL_AHEAD_MAX:
            await self._check_handed_out(log, epoch)

    async def _check_handed_out(self, log: int, epoch: int) -> None:
        newest = await self._newest(log)
        if newest:
            self._told[log] = max(newest, self._told.get(log, 0))
        if epoch > newest:
            raise Rejected(
                f"log {log}: epoch {epoch} means nothing here: the metadata store has handed out "
                f"none above {newest}: is it an older copy?"
            )

    async def check_released(self, log: int, lsn: int) -> None:
        """Let an LSN pass that readers may see, as this node heard or a sequencer confirms.

        Raises:
            Unreachable: nobody says so; this node may hear of it any moment.
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
        """A node says that readers may see up to `lsn`; taken once its epoch is known."""
        epoch = lsn >> 32
        if not can_be_known_good(lsn):
            logger.warning("log %d: no sequencer releases %s", log, format_lsn(lsn))
        elif self._engine.cache.get(log) is not None and epoch <= self.known_epoch(log):
            self._engine.release(log, lsn)
        elif log in self._waiting or len(self._waiting) < WAITING_MAX:
            self._waiting[log] = max(lsn, self._waiting.get(log, 0))
            self._stirred.set()

    async def run(self) -> None:
        """Ask about the epochs of releases that wait, until cancelled."""
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            while self._waiting:
                some = [self._waiting.popitem() for _ in range(min(ASKED_AT_ONCE, self.waiting))]
                settled = await asyncio.gather(*(self._settle(log, lsn) for log, lsn in some))
                refused = [error for error in settled if error is not None]
                if refused:
                    logger.warning("%d releases are not believed: %s", len(refused), refused[0])

    @property
    def waiting(self) -> int:
        """How many logs' releases wait."""
        return len(self._waiting)

    async def _settle(self, log: int, lsn: int) -> Rejected | None:
        try:
            await self.check_epoch(log, lsn >> 32)
        except Rejected as error:
            return error
        except CordwoodError as error:
            logger.info("a release has to come again: %s", error)
        else:
            self._engine.release(log, lsn)
        return None
