"""The right to read each log, as this node knows it from the log tree.

A log may ask for a token (`read_token`). The tree keeps the token's `token_digest`, and a reader
sends the token itself. This node learns a log's digest when the log is first read. When the tree
changes, it learns all known digests again, within a second if the metadata store answers. Until a
digest is known, no block is sent. While the metadata store does not answer, a node uses its present
digests: a reader with a withdrawn token can continue that long. So a node forgets no digest only
because nobody reads the log just now: a read that begins in an outage would wait for the store.

It guards a log from clients that keep to the protocol. Nodes read each other without a token
(recovery, scrubbing, rebuilding), and a caller does not have to prove that it is a node yet. Nor is
a token hidden from a listener on the wire.

Source: docs/sources/logdevice.md 1 ("Gap types", ACCESS), 2.10; its permissions are by principal.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Container, Iterable, Sequence

from cordwood.errors import AccessDenied, CordwoodError, Retryable
from cordwood.log_attributes import token_digest
from cordwood.lsn import EVENT_LOG, LogId
from cordwood.metadata.log_tree import LogTree

logger = logging.getLogger(__name__)

LOGS_MAX = 65_536
"""The most logs whose digests are remembered; a forgotten one is read from the tree again."""

LIST_FROM = 32
"""From this many logs on, one listing of the tree replaces single reads."""

AGAIN_S = 1.0
"""The pause after the metadata store did not answer."""


class ReadRights:
    """See the module.

    Attributes:
        unsure: whether no log but the event log may be read yet, see `StorageEngine.unsure`.
        in_use: gives the logs with readers. on_known: called with a log when its digest becomes
            known, or known again.
    """

    def __init__(self, tree: LogTree, unsure: bool = False) -> None:
        self.unsure = unsure
        self.in_use: Callable[[], Iterable[int]] = tuple
        self.on_known: Callable[[int], None] = lambda log: None
        self._tree = tree
        self._digests: dict[int, str] = {}
        self._wanted: dict[int, None] = {}
        self._changes = 0
        self._seen = 0
        self._news = asyncio.Event()

    def may_read(self, log: int, token: str) -> bool | None:
        """Whether a reader with `token` may read a log; None if not known yet: call `want`."""
        if log == EVENT_LOG:
            return True
        digest = self._digests.get(log)
        if not digest:
            return None if digest is None else True
        return hmac.compare_digest(digest, token_digest(token))

    def want(self, log: int) -> None:
        """Learn a log's digest; `on_known` is called when it is known."""
        self._wanted[log] = None
        self._news.set()

    def on_change(self) -> None:
        """The log tree changed, or may have changed."""
        self._changes += 1
        self._news.set()

    async def check(self, log: int, token: str) -> None:
        """Refuse a question about a log if the client may not read the log.

        Raises:
            AccessDenied: the client may not read it.
            Retryable: the metadata store does not answer.
        """
        if self.may_read(log, token) is None:
            await self._learn([log])
        if not self.may_read(log, token):
            raise AccessDenied(f"log {log} wants a read token")

    async def check_writer(self, log: int, tokens: Container[str]) -> None:
        """Refuse a change of a log's records if the client may not append to it.

        Args:
            tokens: the digests of the tokens that the client has shown.
        Raises:
            AccessDenied: it may not.
            Retryable: the metadata store does not answer.
        """
        info = await self._tree.described(LogId(log))
        wanted = info.attributes.write_token if info is not None else ""
        if wanted and wanted not in tokens:
            raise AccessDenied(f"log {log} wants a write token, and this client showed none")

    async def run(self) -> None:
        """Learn wanted digests, and all again when the tree changes, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                if self._seen != self._changes:
                    await self._learn_again()
                wanted = list(self._wanted)
                await self._learn(wanted)
            except CordwoodError as error:
                logger.warning("what logs ask of their readers has to wait: %s", error)
                await asyncio.sleep(AGAIN_S)
                self._news.set()
                continue
            for log in wanted:
                self._wanted.pop(log, None)
                self.on_known(log)

    async def _learn_again(self) -> None:
        """Learn the digests of all logs in use, and all other known digests.

        Forgotten are those of logs that nobody uses and no listing shows: their next read learns
        them. A read of each deleted log at each change would be many reads in the end.
        """
        changes = self._changes
        logs = dict.fromkeys(self.in_use())
        idle = [log for log in self._digests if log not in logs]
        learnt = await self._learn([*logs], idle)
        self._seen = changes
        self._digests = {log: each for log, each in self._digests.items() if log in learnt}
        for log in logs:
            self.on_known(log)

    async def _learn(self, logs: list[int], idle: Sequence[int] = ()) -> Container[int]:
        """Learn the digests of these logs, never older than the newest known change.

        A deleted log keeps its digest, because its records stay for some time.

        Args:
            idle: these too, but a listing need not show them.
        Returns:
            the logs that were learnt.
        Raises:
            Retryable: the metadata store does not answer.
            Malformed: its answer cannot be read.
        """
        if self.unsure and (logs or idle):
            raise Retryable("this node does not know yet whether its data is what the cluster has")
        while logs or idle:
            changes = self._changes
            found: dict[int, str] = {}
            wanted = [*logs, *idle]
            if len(wanted) >= LIST_FROM:
                listed = await self._tree.list()
                found = {int(info.log_id): info.attributes.read_token or "" for info in listed}
                wanted = [*logs, *(log for log in idle if log in found)]
            for log in wanted:
                if log not in found:
                    info = await self._tree.described(LogId(log))
                    # A number that was never given to a log has no records, so it needs no token.
                    found[log] = (info.attributes.read_token or "") if info is not None else ""
            if changes == self._changes:
                if len(self._digests.keys() | {*wanted}) > LOGS_MAX:
                    self._digests.clear()
                self._digests.update((log, found[log]) for log in wanted)
                return {*wanted}
        return ()
