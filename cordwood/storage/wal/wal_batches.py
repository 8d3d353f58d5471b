"""Batches of a WAL: cuts records into batches, and remembers the places of the batches.

Recovery starts at a record's header. A record of a batch has an offset but no header of its own, so
a trim inside a batch needs the header's place.

Source: `layout.wal_batch`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from cordwood.block import Buffer
from cordwood.layout.wal_batch import batch_bytes, cut_batches, pack_batch
from cordwood.layout.wal_run import Numbers
from cordwood.protocol.wal_ring import Range


class PackedRecords(NamedTuple):
    """Records under one header; `size` is of its body."""

    bodies: Sequence[Buffer]
    lengths: Numbers
    size: int

    def parts(self) -> list[Buffer]:
        """Its body."""
        return pack_batch(self.bodies, self.lengths)


def plan_batches(bodies: Sequence[Buffer], bytes_max: int) -> list[PackedRecords]:
    """Cut records into batches whose bodies have at most `bytes_max` bytes, or one record."""
    lengths = np.fromiter(map(len, bodies), np.int64, len(bodies))
    return [
        PackedRecords(bodies[a:b], lengths[a:b], batch_bytes(b - a, int(lengths[a:b].sum())))
        for a, b in cut_batches(lengths, bytes_max)
    ]


class BatchPlaces:
    """Offsets `[start, stop)` of the records of each untrimmed batch, ascending.

    Bounded by the ring: a batch takes 4 KiB of it or shares a block with others.
    """

    def __init__(self, places: Iterable[Range] = ()) -> None:
        self._places = deque(places)

    def add(self, start: int, batch: PackedRecords) -> Numbers:
        """A batch was put after all others; the offsets of its records."""
        stop = start + len(batch.lengths)
        self._places.append((start, stop))
        return np.arange(start, stop)

    def header_of(self, offset: int) -> int:
        """The place of the header for the record at `offset`; earlier batches are forgotten."""
        places = self._places
        while places and places[0][1] <= offset:
            places.popleft()
        return min(offset, places[0][0]) if places else offset
