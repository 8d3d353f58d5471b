"""Turn a read stream's blocks into records: opened, clipped, and only the wanted records."""

from __future__ import annotations

from collections.abc import Set

import msgspec

from cordwood.block import Gap, GapKind, Record
from cordwood.client.blocks import HeldBlock
from cordwood.layout.body import Body, empty_body, open_body
from cordwood.lsn import Lsn
from cordwood.protocol.gap_detection import Delivery


def with_keys(items: list[Record | Gap], keys: Set[bytes]) -> list[Record | Gap]:
    """The records with one of `keys`, and FILTERED gaps in place of the others."""
    kept: list[Record | Gap] = []
    first: Lsn | None = None
    last = 0
    for item in items:
        assert isinstance(item, Record), "a block holds records"
        last = item.lsn
        if item.key not in keys:
            first = item.lsn if first is None else first
            continue
        if first is not None:
            kept.append(Gap(first, Lsn(item.lsn - 1), GapKind.FILTERED))
            first = None
        kept.append(item)
    if first is not None:
        kept.append(Gap(first, Lsn(last), GapKind.FILTERED))
    return kept


def without_keys(items: list[Record | Gap]) -> list[Record | Gap]:
    """The same, and no record has its key."""
    change = msgspec.structs.replace
    return [change(each, key=None) if isinstance(each, Record) else each for each in items]


def body_of(block: HeldBlock, *, verify: bool = True) -> Body:
    """A delivered block's body; empty payloads where none were asked for.

    Raises:
        Corrupt: the body cannot be read.
    """
    if block.rows is not None:
        return open_body(block.header, block.rows.body(), verify=False)
    stored, header = block.stored.body, block.header
    if not stored and header.stored_bytes:
        return empty_body(header)
    return open_body(header, stored, verify=verify)


def records_of(delivery: Delivery[HeldBlock], *, record_keys: bool = True) -> list[Record | Gap]:
    """The records of a delivered block, clipped.

    Args:
        record_keys: without, no record has its key.
    Raises:
        Corrupt: the body cannot be read.
    """
    header = delivery.block.header
    body = body_of(delivery.block)
    if not record_keys:
        body = body.without_keys()
    start, stop = delivery.first - header.first, delivery.last - header.first + 1
    return list(body.records(header.first, header.append_time_us, start, stop))
