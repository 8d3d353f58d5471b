"""Takes many records of a WAL at once, where they stand back to back and all is well.

For each of them it asks what the scan asks of one (`WalScan.admits`), over columns, and
takes as many as hold up to the first that does not. That record is checked alone.

Source: `protocol.wal_ring`, `storage.wal.wal_recovery`.
"""

from __future__ import annotations

import numpy as np

from cordwood.layout.wal_block import WAL_RECORD_HEADER_BYTES, align_up
from cordwood.layout.wal_run import RecordRun, RunReader, intact_bodies, leading
from cordwood.protocol.wal_ring import WalScan


def take_run(
    data: memoryview, base: int, starts: list[int], scan: WalScan, reader: RunReader
) -> RecordRun | None:
    """Take the records at `starts`, up to the first bad one, and tell `scan`; None for none.

    Args:
        data: memory of one lap.
        base: logical offset of `data[0]`.
        starts: as `data_starts` gave them; the first is the scan's cursor, before its end.
    """
    at = np.array(starts, np.int64)
    headers, count = reader.headers(data, at)
    headers, at = headers[:count], at[:count]
    if not count:
        return None
    cursors = base + at
    incarnations = headers["incarnation"].astype(np.int64)
    limits = scan.limits()
    seen = np.maximum.accumulate(np.concatenate(([limits.seen], incarnations[:-1])))
    is_taken = headers["offset"].astype(np.int64) == cursors
    is_taken &= incarnations >= seen
    is_taken &= (cursors < limits.resume) | (incarnations >= limits.least)
    if limits.end is not None:
        is_taken &= cursors < limits.end
    count = leading(is_taken)
    bodies = at[:count] + WAL_RECORD_HEADER_BYTES
    stops = bodies + headers["length"][:count]
    count = intact_bodies(data, bodies, stops, headers["body_crc"][:count])
    if not count:
        return None
    last = headers[count - 1]
    stop = base + int(stops[count - 1])
    scan.on_run(
        align_up(stop) if last["flags"] else stop,
        int(headers["durable"][:count].max()),
        int(last["incarnation"]),
    )
    return RecordRun(data, cursors[:count], bodies[:count], stops[:count])
