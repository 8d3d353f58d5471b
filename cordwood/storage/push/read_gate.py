"""Admits readers that have their log's read token, and stops them when the token no longer fits.

A READ waits here while its log's rights are not known, together with its reader's later windows. A
refused READ is answered with ACCESS and forgotten: a reader that gets the right asks again. Nodes
need no token.

Source: docs/sources/logdevice.md 2.10 (START, STARTED), 1 (ACCESS gaps).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from cordwood.errors import Overloaded
from cordwood.layout.frame import Kind
from cordwood.layout.reading import ReadRequest, ReadStatus, pack_reading
from cordwood.storage.push.read_rights import ReadRights
from cordwood.storage.push.read_streams import STREAMS_MAX, ReadStreams
from cordwood.wire.connection import Connection

logger = logging.getLogger(__name__)


class ReadGate:
    """See the module; without `rights` every client may read every log."""

    def __init__(self, streams: ReadStreams, rights: ReadRights | None = None) -> None:
        self._streams = streams
        self._rights = rights
        # By connection and stream, in the order in which they came.
        self._waiting: dict[Connection, dict[int, tuple[ReadRequest, ReadStatus]]] = {}
        if rights is not None:
            rights.in_use = self._in_use
            rights.on_known = self._on_known

    def start(self, connection: Connection, request: ReadRequest, status: ReadStatus) -> None:
        """Start a stream, refuse it, or let it wait; an older stream of the same number ends.

        One stream too many is refused alone. Closing the connection would end all its streams,
        and the client would connect and ask for the same streams again.
        """
        self.stop(connection, request.stream)
        try:
            self._start(connection, request, status)
        except Overloaded as error:
            logger.warning("log %d: %s", request.log, error)
            _refuse(connection, request.stream, request.version, ReadStatus.FULL)

    def _start(self, connection: Connection, request: ReadRequest, status: ReadStatus) -> None:
        """
        Raises:
            Overloaded: too many streams on this connection.
        """
        if self._rights is None or (connection.peer is not None and connection.peer.node):
            self._streams.start(connection, request, status)
            return
        may_read = self._rights.may_read(request.log, request.token)
        if may_read:
            self._streams.start(connection, request, status, guarded=True)
        elif may_read is None:
            waiting = self._waiting.setdefault(connection, {})
            if len(waiting) >= STREAMS_MAX:
                raise Overloaded(f"more than {STREAMS_MAX} read streams on one connection")
            waiting[request.stream] = (request, status)
            self._rights.want(request.log)
        else:
            _refuse(connection, request.stream, request.version)

    def move_window(self, connection: Connection, number: int, high: int, limit: int) -> None:
        """See `ReadStreams.move_window`."""
        waiting = self._waiting.get(connection, {})
        if number not in waiting:
            self._streams.move_window(connection, number, high, limit)
            return
        request, status = waiting[number]
        moved = replace(
            request,
            window_high=max(request.window_high, high),
            bytes_limit=max(request.bytes_limit, limit),
        )
        waiting[number] = (moved, status)

    def stop(self, connection: Connection, number: int) -> None:
        """Forget a stream; an unknown stream has no effect."""
        self._waiting.get(connection, {}).pop(number, None)
        self._streams.stop(connection, number)

    def drop_connection(self, connection: Connection) -> None:
        """Forget all streams of a lost connection."""
        self._waiting.pop(connection, None)
        self._streams.drop_connection(connection)

    def _in_use(self) -> list[int]:
        """The logs that clients read, or wait to read."""
        waiting = [each.log for some in self._waiting.values() for each, _ in some.values()]
        return sorted({*self._streams.guarded_logs(), *waiting})

    def _on_known(self, log: int) -> None:
        """A log's token is known now: admit its readers, or stop them."""
        assert self._rights is not None, "a connection without rights gets no notices"
        for connection, number, version, token in self._streams.guarded(log):
            if not self._rights.may_read(log, token):
                self._streams.stop(connection, number)
                _refuse(connection, number, version)
        for connection, waiting in list(self._waiting.items()):
            for request, status in [each for each in waiting.values() if each[0].log == log]:
                self.start(connection, request, status)
            if not waiting:
                del self._waiting[connection]


def _refuse(
    connection: Connection, number: int, version: int, why: ReadStatus = ReadStatus.ACCESS
) -> None:
    answer = pack_reading(number, why, 0, version)
    connection.send(Kind.READING, 0, (answer,))
