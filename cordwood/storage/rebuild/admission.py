"""Whether a node may start from its directory, according to the rebuilding set.

The empty directory of a known node lacks the records that the node stored, so a missing record
there would look like absence. The node is admitted when other nodes hold that data: it joins under
a new incarnation, seals all logs, and acks, and only then listens. After a crash in between, the
next start finds the file `anew`, which names the entry of the set by which the directory was begun.

Until then the node ends with an error, and its supervisor starts it again. It reports nothing about
itself: an empty directory is often a disk that was not mounted.

Source: docs/protocol/rebuilding.md; docs/sources/logdevice.md 2.9.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from cordwood.errors import NotOurCluster, Retryable
from cordwood.metadata.event_log import EventLog
from cordwood.metadata.membership import Membership
from cordwood.protocol.event_log import Verdict
from cordwood.protocol.rebuild_watch import Start, on_start
from cordwood.rebuilding import Aborted, Acked
from cordwood.settings import NodeSettings
from cordwood.storage.rebuild.role import stale_words

if TYPE_CHECKING:
    from cordwood.host.seams import Host

logger = logging.getLogger(__name__)

ANEW = "anew"
"""The file's name; it holds the version of an entry, in decimal digits."""


class Admission:
    """See the module: `ask` before the directory is opened, `complete` before the node listens.

    Attributes:
        is_anew: whether the directory is new, and so knows no earlier start of the node.
        is_unsure: whether the node's reported status could not be read; see
            docs/protocol/event-log.md.
    """

    def __init__(
        self, settings: NodeSettings, host: Host, membership: Membership, events: EventLog
    ) -> None:
        self.is_anew = False
        self.is_unsure = False
        self._settings = settings
        self._disk = host.disk
        self._membership = membership
        self._events = events
        self._start = Start.SERVE
        self._version = 0

    def _path(self, name: str) -> str:
        return f"{self._settings.directory}/{name}"

    async def ask(self) -> None:
        """Decide whether the node may start from its directory.

        Raises:
            NotOurCluster: not now, or not from this directory.
            CordwoodError: the metadata store does not answer.
        """
        node = self._settings.node
        files = await self._disk.list_dir(self._settings.directory)
        anew = await self._disk.read_file(self._path(ANEW))
        rebuilding, is_sure = await self._events.at_start()
        entry = rebuilding.entry(node)
        version = int(anew) if anew is not None and anew.isdigit() else None
        # A WAL without an identity is no empty disk: `DataDirectory` reports the fault.
        is_blank = not {"identity", "wal"} & set(files)
        is_known = is_blank and bool((await self._membership.claim(node)).incarnation)
        self._start = on_start(entry, is_known=is_known, is_blank=is_blank, anew=version)
        if not is_sure:
            if self._start not in (Start.SERVE, Start.BACK):
                raise Retryable(
                    f"node {node} cannot be let in yet: the event log does not tell what became "
                    "of its data"
                )
            # It deals with later reports as any running node does.
            self.is_unsure, self._start = True, Start.SERVE
        match self._start:
            case Start.WAITS:
                raise NotOurCluster(self._empty_words(is_lost=entry is not None))
            case Start.STALE:
                raise NotOurCluster(stale_words(self._settings))
            case Start.ANEW:
                assert entry is not None, "it is called empty"
                self.is_anew, self._version = True, entry.version
                # Before the directory has an identity, because a later start regards it as used
                # then.
                text = str(entry.version).encode("ascii")
                await self._disk.write_file(self._path(ANEW), text)
            case _:
                pass

    def _empty_words(self, *, is_lost: bool) -> str:
        node, directory = self._settings.node, self._settings.directory
        if is_lost:
            way_out = "leave it so: its data is being made anew on others (`cordwood rebuild`)"
        else:
            way_out = f"say so (`cordwood rebuild start {node}`): others make its data anew"
        return (
            f"node {node} is in the cluster, but {directory} is empty. Bring its disk back. If it "
            f"is gone, {way_out}, and then the node is let in"
        )

    async def complete(self, seal: Callable[[], Awaitable[None]]) -> None:
        """Complete the admission: the node has claimed its directory, and is about to serve.

        Args:
            seal: seals every log up to its newest epoch.
        Raises:
            NotOurCluster: the set has changed since `ask`.
            CordwoodError: the metadata store does not answer.
        """
        node = self._settings.node
        # Race: a recovery that does without this node may take its epoch after the first seals, and
        # end the epoch before the entry is gone. Once the entry is gone, recoveries wait for this
        # node, and all epochs that were taken before are sealed by the second seals. A crash in
        # between is met by the next start: the member list says that seals are owed.
        if self._start is Start.BACK:
            await seal()
            await self._membership.owe_seals(node)
            _, verdict = await self._events.say(Aborted(node))
            if verdict is Verdict.DONE_ALREADY:
                raise NotOurCluster(stale_words(self._settings))
            await self._events.keep()
            await seal()
            logger.warning(
                "this node was reported lost, and is here with its data: it reports its return"
            )
        elif self._start is Start.ANEW:
            await seal()
            await self._membership.owe_seals(node)
            after, verdict = await self._events.say(Acked(node, self._version))
            if after.entry(node) is not None and verdict is not Verdict.DRAINED:
                raise Retryable(f"node {node} could not be let in: {verdict.value}")
            # A start uses this set if no other node answers. And the word must not get lost with
            # records of the event log: recoveries would leave this node out.
            await self._events.keep()
            await seal()
            logger.warning("this node begins anew: its data lies on other nodes")
        elif not self.is_unsure:
            # Its last start may have ended between its word and this.
            await self._events.keep()
