"""Whether a node may start from its directory, according to the rebuilding set.

The empty directory of a known node lacks the records that the node stored, so a missing record
there would look like absence. The node is admitted when other nodes hold that data: it joins under
a new incarnation, seals all logs, and acks, and only then listens. After a crash in between, the
next start finds the file `anew`, which names the entry of the set by which the directory was begun.

The old directory of a node that was rebuilt may have the only copies of entries of ledgers, which
no rebuilding makes anew. By an operator's word (the file `keep-ledgers`) such a node drops the
blocks of its logs, keeps its ledgers, and joins like a node with an empty directory::

    the directory is the newest ► `dropping` names the entry ► blocks of logs go
    ► `anew` names the entry ► the node joins

While `dropping` names a later entry than `anew`, the directory counts as one without logs, and the
next start drops the rest.

Until then the node ends with an error, and its supervisor starts it again. It reports nothing about
itself: an empty directory is often a disk that was not mounted.

Source: docs/protocol/rebuilding.md; docs/sources/logdevice.md 2.9.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from cordwood.errors import NotOurCluster, Retryable
from cordwood.metadata.event_log import EventLog
from cordwood.metadata.joins import Joins
from cordwood.metadata.membership import Membership
from cordwood.protocol.event_log import Verdict
from cordwood.protocol.rebuild_watch import Start, on_start
from cordwood.rebuilding import Aborted, Acked
from cordwood.settings import NodeSettings
from cordwood.storage.identity import ACCEPTED, KEEP_LEDGERS
from cordwood.storage.rebuild.order_events import stale_words

if TYPE_CHECKING:
    from cordwood.host.seams import Host

logger = logging.getLogger(__name__)

ANEW = "anew"
"""The file's name; it holds the version of an entry, in decimal digits."""

DROPPING = "dropping"
"""The file's name; it holds the version of the entry by which the blocks of logs were dropped, and
the ledgers were kept."""


class Admission:
    """See the module: `ask` before the directory is opened, `complete` before the node listens.

    Attributes:
        is_anew: whether the node joins without blocks of logs, because they lie on other nodes.
        keeps_ledgers: whether it does so with the ledgers of its old directory. Otherwise that is
            new, and knows no earlier start of the node.
        drops_logs: whether its blocks of logs are to be dropped first.
        is_unsure: whether the node's reported status could not be read; see
            docs/protocol/event-log.md.
        owes_drain: whether the node was lost while it was drained: its return ended the order with
            its entry, so the node orders the drain again once it serves.
    """

    def __init__(
        self,
        settings: NodeSettings,
        host: Host,
        membership: Membership,
        events: EventLog,
        joins: Joins,
    ) -> None:
        self.is_anew = self.keeps_ledgers = self.drops_logs = False
        self.is_unsure = False
        self.owes_drain = False
        self._settings = settings
        self._disk = host.disk
        self._membership = membership
        self._events = events
        self._joins = joins
        self._start = Start.SERVE
        self._version = 0
        self._has_word = False

    def _path(self, name: str) -> str:
        return f"{self._settings.directory}/{name}"

    @property
    def is_blank(self) -> bool:
        """Whether the directory is begun anew, and has nothing of the node's earlier starts."""
        return self.is_anew and not self.keeps_ledgers

    async def _version_in(self, name: str) -> int | None:
        found = await self._disk.read_file(self._path(name))
        return int(found) if found is not None and found.isdigit() else None

    async def _read_word(self, files: Sequence[str]) -> bool:
        """Whether an operator wants the ledgers of this directory."""
        if KEEP_LEDGERS not in files:
            return False
        word = await self._disk.read_file(self._path(KEEP_LEDGERS))
        self._has_word = bool(word)
        return word == ACCEPTED

    async def _note_version(self, name: str) -> None:
        await self._disk.write_file(self._path(name), str(self._version).encode("ascii"))

    async def ask(self) -> None:
        """Decide whether the node may start from its directory.

        Raises:
            NotOurCluster: not now, or not from this directory.
            CordwoodError: the metadata store does not answer.
        """
        node = self._settings.node
        files = await self._disk.list_dir(self._settings.directory)
        anew = await self._version_in(ANEW)
        dropped = await self._version_in(DROPPING) if DROPPING in files else None
        is_dropping = dropped is not None and (anew is None or anew < dropped)
        keeps = await self._read_word(files)
        rebuilding, is_sure = await self._events.at_start()
        entry = rebuilding.entry(node)
        # A WAL without an identity is no empty disk: `DataDirectory` reports the fault.
        is_blank = not {"identity", "wal"} & set(files)
        is_known = is_blank and bool((await self._membership.claim(node)).incarnation)
        self._start = on_start(
            entry, is_known=is_known, is_blank=is_blank, anew=anew,
            keeps_ledgers=keeps, is_dropping=is_dropping,
        )  # fmt: skip
        if is_blank and not is_known and is_sure:
            await self._joins.note(node, rebuilding)
        if not is_sure:
            if self._start not in (Start.SERVE, Start.BACK):
                raise Retryable(
                    f"node {node} cannot be let in yet: the event log does not tell what became "
                    "of its data"
                )
            # The node handles later reports as any running node does.
            self.is_unsure, self._start = True, Start.SERVE
        match self._start:
            case Start.WAITS:
                is_lost = entry is not None and not entry.relocates
                raise NotOurCluster(self._empty_words(is_lost=is_lost, is_dropping=is_dropping))
            case Start.STALE:
                raise NotOurCluster(stale_words(self._settings))
            case Start.ANEW:
                assert entry is not None, "it is called empty"
                self.is_anew, self._version = True, entry.version
                self.keeps_ledgers = dropped == entry.version
                # Before the directory has an identity, because a later start regards it as used
                # then.
                await self._note_version(ANEW)
            case Start.KEEPS_LEDGERS:
                assert entry is not None, "it is called empty"
                self.is_anew = self.keeps_ledgers = self.drops_logs = True
                self._start, self._version = Start.ANEW, entry.version
            case _:
                pass

    async def note_dropping(self) -> None:
        """Note that the blocks of logs begin to go: from now on the directory counts as one without
        them, also if the event log should forget that this node is empty."""
        await self._note_version(DROPPING)

    async def note_dropped(self) -> None:
        """Note that they are gone."""
        await self._note_version(ANEW)

    def _empty_words(self, *, is_lost: bool, is_dropping: bool) -> str:
        node, directory = self._settings.node, self._settings.directory
        if is_lost:
            way_out = "leave it so: its data is being made anew on others (`cordwood rebuild`)"
        else:
            way_out = f"say so (`cordwood rebuild start {node}`): others make its data anew"
        if is_dropping:
            return (
                f"node {node} began to drop the blocks of its logs from {directory}, and is not "
                f"called empty any more. Ledgers are there still: {way_out}, and then the node is "
                "let in with them"
            )
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
            entry = (await self._events.known()).entry(node)
            _, verdict = await self._events.say(Aborted(node))
            if verdict is Verdict.DONE_ALREADY:
                raise NotOurCluster(stale_words(self._settings))
            await self._events.keep()
            await seal()
            self.owes_drain = entry is not None and entry.drain
            logger.warning(
                "this node was reported lost, and is here with its data: it reports its return"
            )
        elif self._start is Start.ANEW:
            await seal()
            await self._membership.owe_seals(node)
            after, verdict = await self._events.say(Acked(node, self._version))
            if after.entry(node) is not None and verdict is not Verdict.DRAINED:
                raise Retryable(f"node {node} could not be let in: {verdict.value}")
            # A start uses this set if no other node answers. And this report must not be lost with
            # records of the event log: recoveries would leave this node out.
            await self._events.keep()
            await seal()
            logger.warning("this node begins anew: its data lies on other nodes")
        elif not self.is_unsure:
            # The last start of this node may have ended between its report and this step.
            await self._events.keep()
        if self._has_word and not self.is_unsure:
            # The word is for one return: after another rebuilding the operator is asked again.
            await self._disk.write_file(self._path(KEEP_LEDGERS), b"")
