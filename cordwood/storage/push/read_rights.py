"""Who may read which log, as this node knows it from the log tree.

A log may ask for a token (`read_token`); the tree keeps what `token_digest` makes of it, and a
reader sends the token itself. What a log asks for is learnt when it is read first, and learnt
again for all that are read as soon as the tree changes: within a second, where the metadata
store answers. Until it is known nothing is sent. A node that the metadata store does not answer
goes on by what it knew: a reader whose token was taken back is not stopped by it so long.

It guards a log from clients that keep to the protocol. Nodes read each other without a token
(recovery, scrubbing, rebuilding), and nobody proves that it is a node yet; nor is a token hidden
from who listens on the wire.

Source: docs/sources/logdevice.md 1 ("Gap types", ACCESS), 2.10; its permissions are by principal.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Iterable

from cordwood.errors import AccessDenied, CordwoodError
from cordwood.log_attributes import token_digest
from cordwood.lsn import LogId
from cordwood.metadata.log_tree import LogTree

logger = logging.getLogger(__name__)

LOGS_MAX = 65_536
"""Logs whose tokens are remembered; what is forgotten is asked for again."""

LIST_FROM = 32
"""So many logs or more are learnt by one listing of the tree instead of one by one."""

AGAIN_S = 1.0
"""Pause after the metadata store did not answer."""


class ReadRights:
    """See the module.

    Attributes:
        in_use: gives the logs that are read now.
        on_known: told that what a log asks for was learnt, or learnt again.
    """

    def __init__(self, tree: LogTree) -> None:
        self.in_use: Callable[[], Iterable[int]] = tuple
        self.on_known: Callable[[int], None] = lambda log: None
        self._tree = tree
        self._digests: dict[int, str] = {}
        self._wanted: dict[int, None] = {}
        self._changes = 0
        self._seen = 0
        self._news = asyncio.Event()

    def may_read(self, log: int, token: str) -> bool | None:
        """Whether who has `token` may read a log; None while that is not known, `want` asks."""
        digest = self._digests.get(log)
        if not digest:
            return None if digest is None else True
        return hmac.compare_digest(digest, token_digest(token))

    def want(self, log: int) -> None:
        """Learn what a log asks for; `on_known` tells when that is done."""
        self._wanted[log] = None
        self._news.set()

    def on_change(self) -> None:
        """Something in the log tree changed, or may have."""
        self._changes += 1
        self._news.set()

    async def check(self, log: int, token: str) -> None:
        """Refuse a question about a log that the asker may not read.

        Raises:
            AccessDenied: it may not.
            Retryable: the metadata store does not answer.
        """
        if self.may_read(log, token) is None:
            await self._learn([log])
        if not self.may_read(log, token):
            raise AccessDenied(f"log {log} wants a read token")

    async def run(self) -> None:
        """Learn what is wanted, and everything again when the tree changed, until cancelled."""
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
        """All that are read; the others are asked for when they are read again."""
        changes = self._changes
        logs = dict.fromkeys(self.in_use())
        await self._learn([*logs])
        self._seen = changes
        self._digests = {log: each for log, each in self._digests.items() if log in logs}
        for log in logs:
            self.on_known(log)

    async def _learn(self, logs: list[int]) -> None:
        """What these logs ask for: not what it was before a change that is known by now.

        One that was deleted keeps its own: its records are there for a while.

        Raises:
            Retryable: the metadata store does not answer.
            Malformed: what it says cannot be read.
        """
        while logs:
            changes = self._changes
            found: dict[int, str] = {}
            if len(logs) >= LIST_FROM:
                listed = await self._tree.list()
                found = {int(info.log_id): info.attributes.read_token or "" for info in listed}
            for log in logs:
                if log not in found:
                    info = await self._tree.described(LogId(log))
                    # A number that nobody was given has no records either.
                    found[log] = (info.attributes.read_token or "") if info is not None else ""
            if changes == self._changes:
                if len(self._digests) + len(logs) > LOGS_MAX:
                    self._digests.clear()
                self._digests.update((log, found[log]) for log in logs)
                return
