"""Control messages about logs and directories: names, attributes and epochs."""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

from cordwood.errors import BadSetting
from cordwood.layout.message_fields import U32, U62, AnyLsn, Location, Mark, Name, Sentence
from cordwood.layout.message_nodes import MemberInfo
from cordwood.log_attributes import DEFAULTS, LogAttributes
from cordwood.nodes import Replication


class EpochNodes(Struct, frozen=True):
    """From epoch `since` on, these nodes may hold records, with this replication.

    Attributes:
        locations: the location of each node by which the epochs' copysets were chosen; empty for
            none.
    """

    since: U32
    nodes: list[U32]
    copies: U32
    racks: U32
    wider: dict[str, U32] = {}
    locations: list[Location] = []

    def __post_init__(self) -> None:
        if self.locations and len(self.locations) != len(self.nodes):
            raise ValueError("a nodeset has another number of locations than of nodes")
        # A node keeps these durably, and a nodeset without nodes would end it at every start.
        if not self.nodes or len({*self.nodes}) != len(self.nodes):
            raise ValueError("a nodeset has no nodes, or one of them twice")
        try:
            self.replication  # noqa: B018
        except BadSetting as error:
            raise ValueError(str(error)) from None

    @property
    def replication(self) -> Replication:
        """See `nodes.Replication.across`, which may raise BadSetting."""
        return _replication(self.copies, self.racks, tuple(self.wider.items()))


@lru_cache(maxsize=256)
def _replication(copies: int, racks: int, wider: tuple[tuple[str, int], ...]) -> Replication:
    """The checked replication, remembered. A log's epochs share a few of them, and a frame holds
    some 40,000 epochs: to check each one anew holds a node up for a third of a second."""
    return Replication.across({**dict(wider), "node": copies, "rack": racks})


class FindLog(Struct, frozen=True, tag="find_log"):
    """Looks a log up by name, or by its number `log`. `create` makes the log if it does not exist
    and the cluster allows this."""

    name: Name
    create: bool
    log: U62 | None = None


class CreateLog(Struct, frozen=True, tag="create_log"):
    """Create a log; 0 copies means the inherited number.

    Attributes:
        mark: a text that only this call and its retries have. By it a retry recognises the log that
            the first try made; "" for none.
    """

    name: Name
    copies: U32
    racks: U32
    attributes: LogAttributes = LogAttributes()
    mark: Mark = ""


class ListLogs(Struct, frozen=True, tag="list_logs"):
    """All logs below a path."""

    prefix: Name


class LogReply(Struct, frozen=True, tag="log"):
    """A log and where its records may be.

    Attributes:
        history: nodesets by epoch, oldest first.
        members: the cluster's nodes, as far as the answering node knows.
        epoch: the last epoch handed out: up to it the history is complete.
        own: attributes that were set on the log itself.
        attributes: all of them, as set or inherited.
    """

    log: U62
    name: Name
    copies: U32
    racks: U32
    created_us: int
    history: list[EpochNodes]
    members: list[MemberInfo]
    epoch: U32 = 0
    own: LogAttributes = LogAttributes()
    attributes: LogAttributes = DEFAULTS
    wider: dict[str, U32] = {}


class LogsReply(Struct, frozen=True, tag="logs"):
    """Logs by name; histories and members are left empty.

    Attributes:
        unread: why logs are left out: a sentence for each entry that cannot be read.
        unread_logs: numbers of such logs.
    """

    logs: list[LogReply]
    unread: list[Sentence] = []
    unread_logs: list[U62] = []


class AskDirectory(Struct, frozen=True, tag="ask_directory"):
    """The attributes of a directory."""

    path: Name


class DirectoryReply(Struct, frozen=True, tag="directory"):
    """A directory: its own attributes, and those that logs below it inherit."""

    path: Name
    own: LogAttributes
    attributes: LogAttributes


class AskEpochs(Struct, frozen=True, tag="ask_epochs"):
    """The epoch store's entry of a log."""

    name: Name


class EpochsReply(Struct, frozen=True, tag="epochs"):
    """A log's epochs; see `metadata.epoch_store.EpochRecord`."""

    log: U62
    next_epoch: int
    clean_epoch: U32
    clean_tail: AnyLsn
    owner: U32
    owner_before: U32
    history: list[EpochNodes]
    token: AnyLsn = 0
    holder: Name = ""
