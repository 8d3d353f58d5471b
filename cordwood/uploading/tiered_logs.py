"""The logs that ask for main storage, as the log tree has them now."""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.log_attributes import LogAttributes
from cordwood.metadata.log_info import LogInfo
from cordwood.metadata.log_tree import LogTree
from cordwood.protocol.tier_plan import TierPolicy


class TieredLogs:
    """Read anew where the tree has changed: one round trip if it has not.

    Attributes:
        all: every log by number, whatever it asks for.
        tiered: those with `tier=on`.
    """

    def __init__(self, tree: LogTree) -> None:
        self.all: Mapping[int, LogInfo] = {}
        self.tiered: Mapping[int, LogInfo] = {}
        self._tree = tree
        self._changes = -1

    async def refresh(self) -> None:
        """Read the tree if it has changed.

        Raises:
            Retryable: the metadata store does not answer.
        """
        changes = await self._tree.changes()
        if changes == self._changes:
            return
        self.all = {int(info.log_id): info for info in await self._tree.list()}
        self.tiered = {log: info for log, info in self.all.items() if info.attributes.tier}
        self._changes = changes


def policy_of(attributes: LogAttributes) -> TierPolicy:
    """What a log asks for."""
    return TierPolicy(
        attributes.tier_after_bytes or 1,
        attributes.tier_after_s or 0.0,
        attributes.local_retention or 0.0,
    )
