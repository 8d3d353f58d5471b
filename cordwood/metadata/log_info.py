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
        created_us: when it was made, µs since 1970 UTC, by its maker's clock.
        own: what was set on the log itself.
        attributes: all of them, as set or inherited.
        mark: of the call that made it, "" for none.
    """

    log_id: LogId
    name: str
    created_us: int = 0
    own: LogAttributes = field(default_factory=LogAttributes)
    attributes: LogAttributes = DEFAULTS
    mark: str = ""

    @property
    def replication(self) -> Replication:
        """What new epochs are asked to keep."""
        return self.attributes.replication
