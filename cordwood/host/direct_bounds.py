"""What every direct file refuses, the real one and the simulated one alike.

Source: `host.seams.DirectFile`.
"""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.block import Buffer
from cordwood.errors import BadSetting, Closed, Overloaded
from cordwood.host.seams import (
    DIRECT_OPS_IN_FLIGHT_MAX,
    DIRECT_WRITE_BYTES_MAX,
    DISK_BLOCK_BYTES,
)


def padded_bytes(parts: Sequence[Buffer]) -> int:
    """Bytes that `parts` take on disk: up to the next whole block."""
    length = sum(map(len, parts))
    return length + -length % DISK_BLOCK_BYTES


def check_run(path: str, offset: int, length: int, *, closing: bool, in_flight: int) -> None:
    """Refuse a read or write that cannot be.

    Raises:
        Closed, BadSetting, Overloaded: as `DirectFile` says.
    """
    if closing:
        raise Closed(f"{path} was closed")
    if offset < 0 or length <= 0 or (offset | length) % DISK_BLOCK_BYTES:
        raise BadSetting(
            f"{path}: [{offset}, {offset + length}) is not a run of {DISK_BLOCK_BYTES}-byte blocks"
        )
    if in_flight >= DIRECT_OPS_IN_FLIGHT_MAX:
        raise Overloaded(f"{path}: {in_flight} reads and writes in flight")


def check_write(path: str, size: int, offset: int, length: int) -> None:
    """Refuse a write that is too long or does not fit into `size`.

    Raises:
        BadSetting: with the figures.
    """
    if length > DIRECT_WRITE_BYTES_MAX:
        raise BadSetting(f"{path}: a write of {length} bytes; the most is {DIRECT_WRITE_BYTES_MAX}")
    if offset + length > size:
        raise BadSetting(f"{path}: a write of [{offset}, {offset + length}) in {size} bytes")


def check_create(path: str, size: int) -> None:
    """Refuse a size that no direct file has.

    Raises:
        BadSetting: not a positive multiple of DISK_BLOCK_BYTES.
    """
    if size <= 0 or size % DISK_BLOCK_BYTES:
        raise BadSetting(f"{path}: {size} bytes is not a multiple of {DISK_BLOCK_BYTES}")
