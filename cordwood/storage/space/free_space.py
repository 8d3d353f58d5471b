"""The free space that a storage node reserves for later waves and recoveries, in WAL and log cache.

First waves are refused first: numbered blocks must still find a place, or their sequencer's acks
would stall for good. Later waves are refused next, and stores of recoveries last, because these end
the epochs that fill the node. Beyond that the node takes no store; the sender is told and retries.
A full cache delays no sender for good: a flush frees space and depends on no other node.

Source: docs/design.md §5; docs/sources/logdevice.md 2.13; docs/sources/s3stream.md, trap 3 (a cache
without a bound).
"""

from __future__ import annotations

RETRY_SHARE = 1 / 8
"""Share of the WAL reserved for second waves: with 128 MiB, a few times the bytes in flight."""

LATER_SHARE = 1 / 8
"""Share by which later waves may exceed `cache_bytes`, as `RETRY_SHARE` of the WAL."""

RECOVERY_SHARE = 1 / 4
"""Share by which stores of a recovery may exceed `cache_bytes`. Later waves leave half of it to
them."""


def first_wave_space(wal_capacity: int, wal_used: int, cache_bytes: int, cached: int) -> int:
    """Bytes left for first waves, in the WAL and in the cache; 0 for none."""
    limit = int(wal_capacity * (1 - RETRY_SHARE))
    return max(0, min(limit - wal_used, cache_bytes - cached))


def most_room(record_bytes_max: int, cache_bytes: int) -> int:
    """Bytes of the largest store that a node ever takes: it must fit a WAL record and the cache.

    An eighth of the cache is left for the headers of the largest group.
    """
    return min(record_bytes_max, cache_bytes * 7 // 8)


def cache_takes(cache_bytes: int, cached: int, size: int, *, by_recovery: bool) -> bool:
    """Whether the cache has space for a store of `size` bytes that is not a first wave.

    An empty cache takes any store, or a large frame would never find a place.

    Args:
        cache_bytes: as in `StorageSettings`.
        cached: bytes in the cache and on the way into it.
    """
    share = RECOVERY_SHARE if by_recovery else LATER_SHARE
    return not cached or cached + size <= cache_bytes * (1 + share)


def cache_bytes_max(cache_bytes: int, frame_bytes_max: int) -> int:
    """The most that the cache ever holds: the bound of recoveries, or one frame."""
    return max(int(cache_bytes * (1 + RECOVERY_SHARE)), frame_bytes_max)
