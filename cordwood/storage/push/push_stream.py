"""One reader's stream at a node: its position, its limits, and the wanted parts of a block.

Source: docs/sources/logdevice.md 2.10.
"""

from __future__ import annotations

from cordwood.block import BlockKind
from cordwood.layout.key_bits import may_hold
from cordwood.layout.reading import ReadRequest
from cordwood.layout.waves import StoredBlock
from cordwood.storage.logs_db.partition import BlockRun, Part, Wanted
from cordwood.storage.push.own_copies import OwnCopies
from cordwood.wire.connection import Connection


class PushStream:
    """One reader's pull; see `ReadRequest` for the fields."""

    __slots__ = ("connection", "digest", "fetching", "heads_only", "held", "high", "keys",
                 "limit", "log", "next", "number", "ready", "sent", "share", "token", "until",
                 "version", "wanted")  # fmt: skip

    def __init__(
        self, connection: Connection, request: ReadRequest, share: OwnCopies | None
    ) -> None:
        self.connection = connection
        self.number = request.stream
        self.log = request.log
        self.next = request.start
        self.until = request.until
        self.high = request.window_high
        self.limit = request.bytes_limit
        self.digest = request.digest
        self.version = request.version
        self.share = share
        self.heads_only = request.heads_only
        self.keys = request.keys
        self.wanted: Wanted | None = None if share is None else share.part
        if request.heads_only or request.keys is not None:
            self.wanted = self._part
        # The client's read token; None for a stream without a required right, such as a node's.
        self.token: str | None = None
        self.sent = 0
        self.ready = False
        self.fetching = False
        # A run from LogsDB that waits for the connection, and the LSN up to which it was read.
        self.held: tuple[BlockRun, int] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the stream gets whole blocks, so that it can share a push with others."""
        return not (self.digest or self.heads_only or self.keys is not None)

    def _part(self, block: StoredBlock) -> Part:
        """The part of a block for a reader that wants only some keys, or no payloads."""
        if self.share is not None and not self.share.part(block):
            return Part.NOTHING
        if block.header.kind != BlockKind.DATA or not (self.heads_only or self.lacks_keys(block)):
            return Part.WHOLE
        return Part.HEAD

    def lacks_keys(self, block: StoredBlock) -> bool:
        """Whether a block has none of the wanted keys."""
        if self.keys is None or block.header.kind != BlockKind.DATA:
            return False
        return not may_hold(block.header.key_bits, self.keys)
