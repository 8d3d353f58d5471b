"""Counts what this process's clients ask of servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from cordwood.layout.message import Call, Ping
from cordwood.wire.connection import Connection


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Calls by the name of their message; pings, which keep connections, are left out."""
    counts: Counter[str] = Counter()
    call = Connection.call

    def counted(
        connection: Connection, message: Call, *, timeout_s: float, answer_s: float | None = None
    ):
        if not isinstance(message, Ping):
            counts[type(message).__name__] += 1
        return call(connection, message, timeout_s=timeout_s, answer_s=answer_s)

    with patch.object(Connection, "call", counted):
        yield counts
