"""Standard input as records: split at LF, the LF not stored.

All other bytes stay: CR, empty lines, bytes that are not UTF-8, and a last line without an LF. The
lines of one `read` are appended at once. So typed lines are answered one by one, a file goes in
large blocks, and no timer is needed.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

from cordwood.errors import RecordTooLarge

READ_BYTES = 1 << 20
"""The bytes that one read asks for. A pipe gives 64 KiB of them. A file gives all of them, which
make one block."""


class LineSplitter:
    """Cuts chunks into lines.

    Args:
        line_bytes_max: a longer line is refused before it is all in memory.
    """

    def __init__(self, line_bytes_max: int) -> None:
        self._max = line_bytes_max
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that end in this chunk.

        Raises:
            RecordTooLarge: a line is over the limit.
        """
        *ended, rest = chunk.split(b"\n")
        if ended:
            self._rest.append(ended[0])
            ended[0] = b"".join(self._rest)
            self._rest, self._rest_bytes = [], 0
        if rest:
            self._rest.append(rest)
            self._rest_bytes += len(rest)
        if self._rest_bytes > self._max or any(len(line) > self._max for line in ended):
            raise RecordTooLarge(f"a line is over {self._max} bytes, the largest record here")
        return ended

    def finish(self) -> list[bytes]:
        """The last line, if it had no LF."""
        rest, self._rest = self._rest, []
        return [b"".join(rest)] if rest else []


def read_lines(descriptor: int, line_bytes_max: int) -> Iterator[list[bytes]]:
    """Lines as they arrive: one list for each read, never an empty list.

    Raises:
        RecordTooLarge: a line is over the limit.
    """
    splitter = LineSplitter(line_bytes_max)
    while chunk := _read(descriptor):
        if lines := splitter.feed(chunk):
            yield lines
    if lines := splitter.finish():
        yield lines


def _read(descriptor: int) -> bytes:
    """What is there, once anything is; nothing at the end."""
    while True:
        try:
            return os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            # Another program with the same pipe or terminal has set it not to wait.
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll()
