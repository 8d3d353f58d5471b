"""Files as records, and back: the layout that lets every byte return.

A file is cut at each LF, and the LF is not stored. Nothing else is interpreted: a CR stays at the
end of its line, an empty line is an empty value, and bytes that are not UTF-8 stay as they are. A
line over PIECE_BYTES_MAX, which no block could hold, is cut into several pieces. One record is one
piece::

    key      the file's name, as it was given
    value    the bytes of the piece
    headers  piece  its number in the file, from 0, decimal digits
             ends   how it ends, left out for the common case, an LF:
                      part  the line goes on in the next piece
                      file  the file ends here, without an LF

The number is there because the order of a file need not be the order of its records in
a log: a block that was refused and sent again may land after a later block. A file is its
pieces by number, each followed by an LF unless `ends` is there. An empty file is one empty
piece that ends with `file`; no other piece with `file` is empty, so a piece ends a line unless
`ends` is `part`, or is `file` and the piece is empty.

Source: the issue that asks for this demo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from cordwood.demo.input import Headers
from cordwood.errors import CordwoodError

PIECE_BYTES_MAX = 512 << 10
"""Half of a client's default block, so that a piece fits with its key and headers."""

PIECE = "piece"
ENDS = "ends"
PART = b"part"
FILE = b"file"

HEADER_BYTES_MAX = 64
"""Most bytes of both headers of one record in a body: names, values, offsets."""


class Piece(NamedTuple):
    """A run of a file's bytes.

    Attributes:
        number: its place among the file's pieces, from 0.
        value: the bytes, without the LF that follows; at most PIECE_BYTES_MAX.
        ends: PART, FILE, or None for an LF.
    """

    number: int
    value: bytes
    ends: bytes | None

    @property
    def is_line(self) -> bool:
        """Whether a line ends with this piece."""
        return self.ends is None or (self.ends == FILE and bool(self.value))


class Lines(Protocol):
    """The input: any buffered binary file."""

    def readline(self, limit: int = -1, /) -> bytes: ...


def cut(file: Lines, size: int, limit: int = PIECE_BYTES_MAX) -> Iterator[Piece]:
    """Cut the next `size` bytes of a file into pieces; at least one, also of an empty file.

    Args:
        size: where to stop, for a file that grows while it is read.
        limit: bytes of a piece, its LF included.
    """
    number = 0
    chunk = file.readline(min(limit, size))
    while True:
        size -= len(chunk)
        following = file.readline(min(limit, size)) if size else b""
        if chunk.endswith(b"\n"):
            yield Piece(number, chunk[:-1], None)
        else:
            yield Piece(number, chunk, PART if following else FILE)
        if not following:
            return
        number += 1
        chunk = following


def pack_headers(piece: Piece) -> Headers:
    """The headers of a piece's record."""
    number = (PIECE, b"%d" % piece.number)
    return (number,) if piece.ends is None else (number, (ENDS, piece.ends))


class PiecesBroken(CordwoodError):
    """The records do not make a file."""


def unpack(value: bytes, headers: Headers) -> Piece:
    """The piece in a record.

    Raises:
        PiecesBroken: the headers are not those of a piece.
    """
    found = dict(headers)
    number, ends = found.get(PIECE), found.get(ENDS)
    if number is None or not number.isdigit() or ends not in (None, PART, FILE):
        raise PiecesBroken(f"headers {found} are not those of a piece of a file")
    return Piece(int(number), value, ends)


class Rebuild:
    """Puts one file together from its pieces, which may come in any order.

    Early pieces are kept in memory, so records should come nearly in order.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._next = 0
        self._early: dict[int, Piece] = {}
        self._ended = False

    def add(self, piece: Piece) -> None:
        """Take a piece.

        Raises:
            PiecesBroken: the piece came before, or the file has ended already.
        """
        if piece.number < self._next or piece.number in self._early:
            raise PiecesBroken(f"piece {piece.number} came twice")
        self._early[piece.number] = piece
        while (following := self._early.pop(self._next, None)) is not None:
            if self._ended:
                raise PiecesBroken(f"piece {following.number} lies behind the end of its file")
            self._write(following.value if following.ends else following.value + b"\n")
            self._ended = following.ends == FILE
            self._next += 1

    def finish(self) -> None:
        """End the file: all pieces have come.

        Raises:
            PiecesBroken: some pieces did not come.
        """
        if self._early:
            raise PiecesBroken(
                f"piece {self._next} is missing, and {len(self._early)} wait behind it"
            )
