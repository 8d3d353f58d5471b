"""One reader's pull at a node: where it stands, how far it may go, what of a block it wants.

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
        # What a client's right to read rests on; None where nobody asks for one.
        self.token: str | None = None
        self.sent = 0
        self.ready = False
        self.fetching = False
        # What was read from LogsDB and waits for the connection, and what it was read up to.
        self.held: tuple[BlockRun, int] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is sent whole blocks, as other streams at its place are."""
        return not (self.digest or self.heads_only or self.keys is not None)

    def _part(self, block: StoredBlock) -> Part:
        """How much of a block is sent where a reader wants only some keys, or no payloads."""
        if self.share is not None and not self.share.part(block):
            return Part.NOTHING
        if block.header.kind != BlockKind.DATA or not (self.heads_only or self.lacks_keys(block)):
            return Part.WHOLE
        return Part.HEAD

    def lacks_keys(self, block: StoredBlock) -> bool:
        """Whether a block has none of the keys that are wanted."""
        if self.keys is None or block.header.kind != BlockKind.DATA:
            return False
        return not may_hold(block.header.key_bits, self.keys)
