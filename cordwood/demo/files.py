"""Files, or standard input, as the demo's source.

A file is taken with its length at the start of the demo, so that a file that grows does no harm. An
input that cannot be read twice (standard input, a pipe) is first copied into the demo's directory:
its size must be known before the cluster is made, and at the end the rebuilt files are compared
with the input.

Source: the issue that asks for this demo; the layout is in `demo.pieces`.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cordwood.demo.input import InputRecord, Tally
from cordwood.demo.pieces import HEADER_BYTES_MAX, PIECE_BYTES_MAX, cut, pack_headers
from cordwood.errors import BadSetting

STDIN = "-"
INPUT_BYTES_MAX = 2 << 30
"""Most bytes of all files. Three copies, each in the WAL and in LogsDB, are 12 GiB on one disk."""

KEY_BYTES_MAX = 4096
"""Most bytes of a path; no system opens longer paths."""

ROW_BYTES = 24
"""Bytes of a record in a body beside its key, value and headers: timestamp, offsets, rounding."""

FILES_MAX = 512
"""Most files: all are rebuilt at once, and a process may have 1,024 files open."""

READ_BYTES = 1 << 20


@dataclass(slots=True)
class InputFile:
    """One file to take.

    Attributes:
        name: the given name; a second file of the same name gets `#2`.
        key: the name as bytes.
        path: the file to read: the input, or a copy if the input cannot be read twice.
        size: bytes to take.
        lines: LFs in these bytes.
        mtime_us: when it was last written to, µs since 1970 UTC.
    """

    name: str
    key: bytes
    path: Path
    size: int
    lines: int
    mtime_us: int


class Files:
    """Files as a `demo.input.Source`; `size` and `taken` count bytes.

    They may be of any kind, so the demo does not rely on compression.
    """

    log = "files"
    unit = "bytes"

    def __init__(self, files: Sequence[InputFile]) -> None:
        self.files = files
        self.title = f"{len(files)} files"
        if len(files) == 1:
            self.title = "standard input" if files[0].name == STDIN else files[0].name
        self.size = sum(file.size for file in files)
        self.taken = 0
        self.records_max = sum(file.lines + file.size // PIECE_BYTES_MAX + 1 for file in files)
        self.record_bytes_max = self.size + sum(
            (file.lines + file.size // PIECE_BYTES_MAX + 1) * (len(file.key) + HEADER_BYTES_MAX)
            for file in files
        )
        self.stored_bytes_max = self.record_bytes_max + self.records_max * ROW_BYTES
        self.tallies: dict[bytes, Tally] = {}

    def records(self) -> Iterator[InputRecord]:
        """See `Source.records`."""
        for file in self.files:
            tally = self.tallies[file.key] = Tally()
            length = 0
            with file.path.open("rb", buffering=READ_BYTES) as opened:
                for piece in cut(opened, file.size):
                    self.taken += len(piece.value) + (piece.ends is None)
                    tally.records += 1
                    length += len(piece.value)
                    if piece.is_line:
                        tally.add(length)
                        length = 0
                    yield InputRecord(file.key, piece.value, file.mtime_us, pack_headers(piece))


def open_files(names: Sequence[str], copies: Path) -> Files:
    """Look at the files, and copy those that cannot be read twice.

    Args:
        names: paths; `-` is standard input.
        copies: a directory for copies; made if it is needed.

    Raises:
        BadSetting: a file does not exist or cannot be read, or all files together are too large.
    """
    if len(names) > FILES_MAX:
        raise BadSetting(f"{len(names)} files; the demo takes {FILES_MAX} at most")
    files: list[InputFile] = []
    for name in names:
        try:
            files.append(_open_file(name, _unused(name, files), copies))
        except OSError as error:
            raise BadSetting(f"{name} cannot be read: {error.strerror}") from None
    total = sum(file.size for file in files)
    if total > INPUT_BYTES_MAX:
        raise BadSetting(
            f"{total >> 20} MiB are too much for the demo, which stores three copies on "
            f"this disk: it takes {INPUT_BYTES_MAX >> 20} MiB at most; give it fewer files"
        )
    return Files(files)


def _unused(name: str, files: Sequence[InputFile]) -> str:
    """`name`, or `name#2` and so on if the name was given already."""
    taken = {file.name for file in files}
    unused, count = name, 1
    while unused in taken:
        count += 1
        unused = f"{name}#{count}"
    return unused


def _open_file(name: str, unused: str, copies: Path) -> InputFile:
    key = os.fsencode(unused)
    if len(key) > KEY_BYTES_MAX:
        raise BadSetting(f"a name of {len(key)} bytes; a key has {KEY_BYTES_MAX} at most")
    path = Path(name)
    if name == STDIN:
        path = _copy(sys.stdin.buffer, copies)
    elif not stat.S_ISREG(os.stat(path).st_mode):
        with path.open("rb") as pipe:
            path = _copy(pipe, copies)
    state = os.stat(path)
    with path.open("rb") as file:
        lines = count_lines(file, state.st_size)
    return InputFile(unused, key, path, state.st_size, lines, state.st_mtime_ns // 1000)


def _copy(source: BinaryIO, copies: Path) -> Path:
    """Copy an input that can be read only once."""
    copies.mkdir(parents=True, exist_ok=True)
    path = copies / f"input-{len(list(copies.iterdir())) + 1}"
    left = INPUT_BYTES_MAX + 1
    with path.open("xb") as target:
        while left > 0 and (chunk := source.read(min(READ_BYTES, left))):
            target.write(chunk)
            left -= len(chunk)
    return path


def count_lines(file: BinaryIO, size: int) -> int:
    """LFs in the next `size` bytes."""
    lines = 0
    while size > 0 and (chunk := file.read(min(READ_BYTES, size))):
        lines += chunk.count(b"\n")
        size -= len(chunk)
    return lines
