"""The logs that ask for main storage, as the log tree has them now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Set

from cordwood.errors import Malformed
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import LogId
from cordwood.metadata.log_entries import numbers_of
from cordwood.metadata.log_info import LogInfo
from cordwood.metadata.log_tree import LogTree
from cordwood.protocol.tier_plan import TierPolicy
from cordwood.storage.said_once import SaidOnce

logger = logging.getLogger(__name__)

READ_ANEW_S = 300.0
"""As often as another node stands in for a log's uploader. It can only if it knows the log."""


class TieredLogs:
    """Read anew where the tree has changed: one round trip if it has not.

    Trap: the creation of a log does not count as a change of the tree. It is met here once this
    node holds some of it, or sequences it, or READ_ANEW_S later.

    A log with an entry that cannot be read holds up no other log. Nothing is known of it: it is not
    uploaded, nothing of it is let go of, and its objects stay.

    Args:
        met: the logs that this node holds or sequences.
    Attributes:
        all: every log by number, with `tier=on` or without.
        tiered: those with `tier=on`.
        unread: numbers of logs with entries that cannot be read; they are in neither of the two.
    """

    def __init__(self, tree: LogTree, met: Callable[[], Set[int]]) -> None:
        self.all: Mapping[int, LogInfo] = {}
        self.tiered: Mapping[int, LogInfo] = {}
        self.unread: Set[int] = frozenset()
        self._said = SaidOnce(logger)
        self._tree = tree
        self._met = met
        self._looked_for: Set[int] = set()
        self._changes = -1
        self._read_s = 0.0

    async def refresh(self) -> None:
        """Read the tree if it has changed, if this node met a log that was not there, or if it was
        read READ_ANEW_S ago.

        Raises:
            Retryable: the metadata store does not answer.
        """
        changes = await self._tree.changes()
        met = self._met() - self.all.keys()
        now_s = asyncio.get_running_loop().time()
        is_known = changes == self._changes and met <= self._looked_for
        if is_known and now_s < self._read_s + READ_ANEW_S:
            return
        errors: dict[str, Malformed] = {}
        self.all = {int(info.log_id): info for info in await self._tree.list(unread=errors)}
        self.unread = numbers_of(errors)
        self._tell(errors)
        self.tiered = {log: info for log, info in self.all.items() if info.attributes.tier}
        self._changes = changes
        self._read_s = now_s
        self._looked_for = met  # numbers that are still missing were deleted

    async def of(self, log: int) -> LogInfo | None:
        """A log as `refresh` found it, or as its own entry says; None if it was deleted.

        Trap: a log that the tree does not list may be there all the same: without a name, or made
        after the list was read. Only its own entry says that it was deleted.

        Raises:
            Malformed: its entry cannot be read.
            Retryable: the metadata store does not answer.
        """
        if log in self.unread:
            raise Malformed(f"the entry of log {log} in the metadata store cannot be read")
        if (info := self.all.get(log)) is not None:
            return info
        return None if await self._tree.is_deleted(log) else await self._tree.described(LogId(log))

    def _tell(self, errors: Mapping[str, Malformed]) -> None:
        if errors:
            told = "; ".join(f"{key}: {error}" for key, error in sorted(errors.items()))
            self._said.warning(
                "these entries cannot be read, so nothing of their logs is uploaded, let go of or "
                f"deleted in main storage: {told}"
            )
        else:
            self._said.over("all entries of logs can be read")


def policy_of(attributes: LogAttributes) -> TierPolicy:
    """A log's attributes."""
    return TierPolicy(
        attributes.tier_after_bytes or 1,
        attributes.tier_after_s or 0.0,
        attributes.local_retention or 0.0,
    )
