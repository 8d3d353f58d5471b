"""How much room a storage node keeps for whom, in its WAL and in its log cache.

First waves stop first: what was numbered already must still find a place somewhere, or its
sequencer's acks would stall for good. Later waves stop next, and stores of recoveries last:
they end what fills the node. Beyond that nothing is taken, and whoever asks is told so and
comes again. Nobody is kept waiting for good by a full cache: a flush makes room, and it asks
nobody for anything.

Source: docs/design.md §5; docs/sources/logdevice.md 2.13; docs/sources/s3stream.md, trap 3 (a cache
without a bound).
"""

from __future__ import annotations

RETRY_SHARE = 1 / 8
"""Share of the WAL kept for second waves: of 128 MiB, a few times what is in flight."""

LATER_SHARE = 1 / 8
"""What later waves may take of the cache beyond `cache_bytes`, as `RETRY_SHARE` of the WAL."""

RECOVERY_SHARE = 1 / 4
"""The same of stores by a recovery: later waves leave them half of it."""


def first_wave_space(wal_capacity: int, wal_used: int, cache_bytes: int, cached: int) -> int:
    """Bytes left for first waves, in the WAL and in the cache; 0 for none."""
    limit = int(wal_capacity * (1 - RETRY_SHARE))
    return max(0, min(limit - wal_used, cache_bytes - cached))


def most_room(record_bytes_max: int, cache_bytes: int) -> int:
    """Bytes of the largest store that a node ever takes: a WAL record, and what its cache holds.

    An eighth of the cache is left for the headers of a group, whose bodies are as large as that.
    """
    return min(record_bytes_max, cache_bytes * 7 // 8)


def cache_takes(cache_bytes: int, cached: int, size: int, *, by_recovery: bool) -> bool:
    """Whether the cache has room for a store of `size` bytes that is no first wave.

    An empty one takes any, or a large frame would never find a place.

    Args:
        cache_bytes: as `StorageSettings` says.
        cached: bytes that it holds, and that are on their way into it.
    """
    share = RECOVERY_SHARE if by_recovery else LATER_SHARE
    return not cached or cached + size <= cache_bytes * (1 + share)


def cache_bytes_max(cache_bytes: int, frame_bytes_max: int) -> int:
    """The most that the cache ever holds: the bound of recoveries, or one frame."""
    return max(int(cache_bytes * (1 + RECOVERY_SHARE)), frame_bytes_max)
