"""Cuts the records of one call into sealed blocks that stay together: a group, or staged blocks.

Source: docs/design.md §2 ("Batches over the block limit and published Spark batches are groups").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cordwood.block import Buffer, Codec
from cordwood.client.append.record_check import Headers
from cordwood.errors import RecordTooLarge
from cordwood.layout.append_group import GroupPart
from cordwood.layout.body import encode_body, seal_body
from cordwood.layout.limits import GROUP_BLOCKS_MAX, GROUP_BYTES_MAX


class Columns(NamedTuple):
    """Records by column, and the bytes that each counts. The records were checked before."""

    values: Sequence[Buffer]
    keys: Sequence[bytes | None] | None
    times_us: Sequence[int] | int | None
    headers: Sequence[Headers] | None
    sizes: Sequence[int]


def cut_blocks(
    columns: Columns,
    codec: Codec,
    block_bytes: int,
    block_records: int,
    now_us: Callable[[], int],
) -> list[GroupPart]:
    """Cut records into blocks within these limits, in order; no records give no blocks."""
    parts: list[GroupPart] = []
    start = size = 0
    for at, one in enumerate(columns.sizes):
        if at > start and (size + one > block_bytes or at - start >= block_records):
            parts.append(_seal(columns, slice(start, at), codec, now_us))
            start, size = at, 0
        size += one
    if start < len(columns.values):
        parts.append(_seal(columns, slice(start, len(columns.values)), codec, now_us))
    return parts


def _seal(columns: Columns, part: slice, codec: Codec, now_us: Callable[[], int]) -> GroupPart:
    times = columns.times_us
    if times is None:
        times = now_us()
    values = columns.values[part]
    raw = encode_body(
        values,
        timestamps_us=times if isinstance(times, int) else times[part],
        keys=columns.keys[part] if columns.keys is not None else None,
        headers=columns.headers[part] if columns.headers is not None else None,
    )
    stored, stored_crc, raw_crc = seal_body(raw, codec)
    return GroupPart(len(values), len(stored), len(raw), stored_crc, raw_crc, codec, stored)


def check_group(parts: Sequence[GroupPart]) -> None:
    """Refuse records that exceed an atomic group on any log.

    Raises:
        RecordTooLarge: it is; with the limit.
    """
    size = sum(part.stored_bytes for part in parts)
    if len(parts) > GROUP_BLOCKS_MAX or size > GROUP_BYTES_MAX:
        raise RecordTooLarge(
            f"an atomic group of {len(parts)} blocks and {size} bytes as stored; it has at most "
            f"{GROUP_BLOCKS_MAX} and {GROUP_BYTES_MAX}: append fewer records at once"
        )
