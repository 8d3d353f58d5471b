"""The header of a block whose body was uncompressed."""

from __future__ import annotations

from dataclasses import fields, replace

from cordwood.block import BlockHeader, BlockKind, Codec
from cordwood.lsn import LogId


def test_an_uncompressed_header_keeps_all_but_what_tells_of_the_stored_body() -> None:
    header = BlockHeader(
        LogId(1), 2, 3, 4, BlockKind.DATA, Codec.ZSTD, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    )
    plain = BlockHeader(LogId(0), 0, 0, 0)
    same = [
        each.name for each in fields(header)
        if getattr(header, each.name) == getattr(plain, each.name)
    ]  # fmt: skip
    assert same == ["kind"], "only data has a body; a new field needs another value here"
    expected = replace(header, codec=Codec.NONE, stored_bytes=11, stored_crc=13)
    assert header.uncompressed() == expected
