"""The right to read each log, as this node knows it from the log tree.

A log may ask for a token (`read_token`). The tree keeps the token's `token_digest`, and a reader
sends the token itself. This node learns a log's digest when the log is first read. When the tree
changes, it learns the digests of all logs with readers again, within a second if the metadata store
answers. Any other digest counts as old, and the next read of its log learns it again. Until a
digest is known, no block is sent. While the metadata store does not answer, a node uses the digests
that it has, old digests too: a reader with a withdrawn token can continue that long. Without the
old digests, a read that begins in an outage would wait for the store.

It guards a log from clients that keep to the protocol. Nodes read each other without a token
(recovery, scrubbing, rebuilding), and a caller does not have to prove that it is a node yet. Nor is
a token hidden from a listener on the wire.

Source: docs/sources/logdevice.md 1 ("Gap types", ACCESS), 2.10; its permissions are by principal.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Container, Iterable, Mapping

from cordwood.errors import AccessDenied, CordwoodError, Malformed, Retryable
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
        in_use: gives the logs with readers.
        on_known: called with a log when its digest becomes known, or known again.
    """

    def __init__(self, tree: LogTree, unsure: bool = False) -> None:
        self.unsure = unsure
        self.in_use: Callable[[], Iterable[int]] = tuple
        self.on_known: Callable[[int], None] = lambda log: None
        self._tree = tree
        self._digests: dict[int, str] = {}
        # The logs with a digest as of the newest known change of the tree, or with an old digest
        # that has to serve in its place.
        self._current: set[int] = set()
        self._wanted: dict[int, None] = {}
        self._changes = 0
        self._seen = 0
        self._news = asyncio.Event()
        # The timer of the next try to learn the digests that could not be read.
        self._later: asyncio.TimerHandle | None = None

    def may_read(self, log: int, token: str) -> bool | None:
        """Whether a reader with `token` may read a log; None if not known yet: call `want`."""
        if log == EVENT_LOG:
            return True
        if log not in self._current:
            return None
        return self._fits(log, token)

    def _fits(self, log: int, token: str) -> bool:
        digest = self._digests[log]
        return not digest or hmac.compare_digest(digest, token_digest(token))

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
            Malformed: the log's entry cannot be read.
        """
        may = self.may_read(log, token)
        if may is None:
            try:
                unread = await self._learn([log])
            except CordwoodError as error:
                unread = {log: error}
            if unread and not self._has_old(log):
                raise unread[log]
            may = self._fits(log, token)
        if not may:
            raise AccessDenied(f"log {log} wants a read token")

    async def check_writer(self, log: int, tokens: Container[str]) -> None:
        """Refuse a change of a log's records if the client may not append to it.

        Args:
            tokens: the digests of the tokens that the client has shown.
        Raises:
            AccessDenied: it may not.
            Retryable: the metadata store does not answer.
        """
        info = await self._tree.of_one_moment(LogId(log))
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
                unread = await self._learn(wanted)
            except CordwoodError as error:
                logger.warning("the read tokens of logs cannot be read: %s", error)
                self._use_old()
                await asyncio.sleep(AGAIN_S)
                self._news.set()
                continue
            for log in wanted:
                if log not in unread:
                    self._wanted.pop(log, None)
                    self.on_known(log)
            if unread:
                why = next(iter(unread.values()))
                logger.warning("the read tokens of %d logs cannot be read: %s", len(unread), why)
                self._use_old()
                self._try_later(unread)

    def _try_later(self, unread: Iterable[int]) -> None:
        """Have unread logs that still have readers learnt in a while; others do not wait for it."""
        in_use = set(self.in_use())
        for log in unread:
            if log not in in_use:
                self._wanted.pop(log, None)
        if self._wanted and self._later is None:
            self._later = asyncio.get_running_loop().call_later(AGAIN_S, self._on_later)

    def _on_later(self) -> None:
        self._later = None
        self._news.set()

    def _has_old(self, log: int) -> bool:
        """Whether an old digest serves while the metadata store does not answer."""
        return log in self._digests and not self.unsure

    def _use_old(self) -> None:
        """Let waiting reads begin with old digests. These logs stay wanted, so that they are
        learnt as soon as the metadata store answers."""
        for log in [log for log in self._wanted if log not in self._current]:
            if self._has_old(log):
                self._current.add(log)
                self.on_known(log)

    async def _learn_again(self) -> None:
        """Learn the digests of all logs in use; all others are old from now on.

        A node may know thousands of logs without readers: to learn all of them at each change of
        the tree would be as many reads, or a listing of the whole tree.
        """
        changes = self._changes
        logs = dict.fromkeys(self.in_use())
        # First, so that a read that begins meanwhile does not begin with the digest before.
        self._current.intersection_update(logs)
        self._wanted.update(dict.fromkeys(await self._learn([*logs])))
        self._seen = changes
        for log in logs:
            self.on_known(log)

    async def _learn(self, logs: list[int]) -> Mapping[int, CordwoodError]:
        """Learn the digests of these logs, never older than the newest known change.

        A deleted log keeps its digest, because its records stay for some time.

        Returns:
            the logs with entries that cannot be read, with the error.
        Raises:
            Retryable: the metadata store does not answer.
            Malformed: the attributes of directories cannot be read.
        """
        if self.unsure and logs:
            raise Retryable("this node does not know yet whether its data is what the cluster has")
        while logs:
            changes = self._changes
            found: dict[int, str] = {}
            unread: dict[int, CordwoodError] = {}
            if len(logs) >= LIST_FROM:
                listed = await self._tree.list(only_readable=True)
                found = {int(info.log_id): info.attributes.read_token or "" for info in listed}
            for log in logs:
                if log not in found:
                    try:
                        info = await self._tree.of_one_moment(LogId(log))
                    except Malformed as error:
                        # Trap: an entry of a newer version would hold up the reads of all logs.
                        unread[log] = error
                        continue
                    # A number that was never given to a log has no records, so it needs no token.
                    found[log] = (info.attributes.read_token or "") if info is not None else ""
            if changes == self._changes:
                learnt = [log for log in logs if log not in unread]
                if len(self._digests) + sum(log not in self._digests for log in learnt) > LOGS_MAX:
                    self._digests.clear()
                    self._current.clear()
                self._digests.update((log, found[log]) for log in learnt)
                self._current.update(learnt)
                return unread
        return {}
