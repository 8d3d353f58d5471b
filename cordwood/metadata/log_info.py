"""A log as the log tree describes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from cordwood.log_attributes import DEFAULTS, LogAttributes
from cordwood.lsn import LogId
from cordwood.nodes import Replication


@dataclass(frozen=True, slots=True)
class LogInfo:
    """A log.

    Attributes:
        log_id: its number.
        name: its path, with the leading slash.
        created_us: creation time, µs since 1970 UTC, by its creator's clock.
        own: attributes set on the log itself.
        attributes: all attributes, set or inherited.
        mark: of the call that created it, "" for none.
        is_deleted: whether the log is gone, for good.
    """

    log_id: LogId
    name: str
    created_us: int = 0
    own: LogAttributes = field(default_factory=LogAttributes)
    attributes: LogAttributes = DEFAULTS
    mark: str = ""
    is_deleted: bool = False

    @property
    def replication(self) -> Replication:
        """The replication that new epochs should have."""
        return self.attributes.replication
