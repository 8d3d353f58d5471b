"""Rebuilds the input files from Spark's output, and compares them with the input.

Every Parquet file holds a run of the log. In the order of their first LSN the pieces of each input
file come nearly in order, and few pieces must wait (`pieces.Rebuild`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from cordwood.demo.files import READ_BYTES, InputFile
from cordwood.demo.input import Headers
from cordwood.demo.pieces import PiecesBroken, Rebuild, unpack

BATCH_ROWS = 8_192

NAME_BYTES_MAX = 200
"""Most bytes of a name: file systems allow 255, and a number goes in front."""


def rebuild_files(parquet: Path, files: Sequence[InputFile], directory: Path) -> list[Path]:
    """Write each input file anew.

    Args:
        parquet: the directory that the landing wrote.
        directory: the target; made here. A file's name is never used as a path.
    Returns:
        One path for each of `files`.
    Raises:
        PiecesBroken: the records do not make these files.
    """
    directory.mkdir()
    paths = [directory / _file_name(number, file) for number, file in enumerate(files, start=1)]
    with ExitStack() as opened:
        rebuilds: dict[bytes, Rebuild] = {}
        for file, path in zip(files, paths, strict=True):
            rebuilds[file.key] = Rebuild(opened.enter_context(path.open("xb")).write)
        for key, value, headers in _rows(parquet):
            if key not in rebuilds:
                raise PiecesBroken(f"a record with key {key!r}, which is no input file")
            rebuilds[key].add(unpack(value, headers))
        for rebuild in rebuilds.values():
            rebuild.finish()
    return paths


def _file_name(number: int, file: InputFile) -> str:
    last = os.fsencode(os.path.basename(file.name))
    return f"{number}-{os.fsdecode(last[:NAME_BYTES_MAX])}"


def same_bytes(one: Path, other: Path, size: int) -> bool:
    """Whether `one` is exactly the first `size` bytes of `other`."""
    if one.stat().st_size != size:
        return False
    with one.open("rb") as left, other.open("rb") as right:
        while size > 0:
            chunk = left.read(min(READ_BYTES, size))
            if not chunk or chunk != right.read(len(chunk)):
                return False
            size -= len(chunk)
    return True


def _rows(parquet: Path) -> Iterator[tuple[bytes, bytes, Headers]]:
    import pyarrow.parquet as pq

    firsts = []
    for path in sorted(parquet.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            lsns = file.read(columns=["lsn"]).column("lsn")
            if len(lsns):
                firsts.append((lsns[0].as_py(), path))
    for _, path in sorted(firsts):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=["key", "value", "headers"]):
                yield from zip(
                    batch.column("key").to_pylist(),
                    batch.column("value").to_pylist(),
                    (_headers(each) for each in batch.column("headers").to_pylist()),
                    strict=True,
                )


def _headers(found: list[dict[str, object]] | None) -> Headers:
    pairs = []
    for header in found or ():
        name, value = header["key"], header["value"]
        if not isinstance(name, str) or not isinstance(value, bytes):
            raise PiecesBroken(f"a header {header} that is not of a piece of a file")
        pairs.append((name, value))
    return tuple(pairs)
