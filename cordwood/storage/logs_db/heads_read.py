"""Reads the index entries of many small logs together: one scan of the directory, and one scan of
each partition that has blocks of them.

A read of one log takes two calls into RocksDB, and each call goes through a thread. For 100,000
logs of one block these calls took over a minute of a core, and the entries themselves some seconds.

Source: docs/protocol/rebuilding.md ("Donors").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from cordwood.layout import logs_db
from cordwood.storage.logs_db.logs_read import Found
from cordwood.storage.logs_db.partition import Partition
from cordwood.storage.logs_db.tables import Tables

TOGETHER_MAX = 256
"""Most logs, and most copies of blocks, that are read together. They take some 20 ms of the event
loop, in turns of 64."""

ROWS_MAX = 2 * TOGETHER_MAX
"""Most rows of a scan. A retried flush may have written rows that no count has yet; if there are
more of them, each log is read by itself."""

BYTES_MAX = 1 << 20
"""Most bytes of a scan. An index entry has some 150 bytes."""


def batches(logs: Iterable[int], copies_of: Callable[[int], int]) -> Iterator[list[int]]:
    """Logs that are read together; a log with many blocks is alone.

    Args:
        logs: ascending, and all that LogsDB has between the first and the last.
        copies_of: the number of copies of blocks that LogsDB has of a log.
    """
    together: list[int] = []
    copies = 0
    for log in logs:
        more = copies_of(log)
        if together and (len(together) >= TOGETHER_MAX or copies + more > TOGETHER_MAX):
            yield together
            together, copies = [], 0
        together.append(log)
        copies += more
    if together:
        yield together


async def read_entries(
    tables: Tables, partitions: Mapping[int, Partition], logs: Sequence[int]
) -> dict[int, list[Found]] | None:
    """The index entries of some logs, ascending for each log; None if they are too many.

    Args:
        partitions: by number.
        logs: ascending.
    Raises:
        TablesFailed, Corrupt: a row cannot be read.
    """
    found: dict[int, list[Found]] = {log: [] for log in logs}
    start, stop = logs_db.directory_range(logs[0])[0], logs_db.directory_range(logs[-1])[1]
    rows, is_end = await tables.scan(
        logs_db.META_TABLE, start, stop, rows_max=ROWS_MAX, bytes_max=BYTES_MAX, is_once=True
    )
    if not is_end:
        return None
    spans: dict[int, tuple[int, int]] = {}
    for key, _ in rows:
        log, number = logs_db.read_directory_key(key)
        if log in found and number in partitions:  # else it was dropped meanwhile
            first, _ = spans.get(number, (log, log))
            spans[number] = (first, log)
    for number, (first, last) in sorted(spans.items()):
        partition = partitions[number]
        rows, is_end = await tables.scan(
            partition.table, logs_db.index_start(first, 0), logs_db.index_stop(last),
            rows_max=ROWS_MAX, bytes_max=BYTES_MAX, is_once=True,
        )  # fmt: skip
        if not is_end:
            return None
        for key, wire in rows:
            entry = logs_db.read_index_key(key)
            if entry.log in found:
                found[entry.log].append((entry, wire, partition))
    if len(spans) > 1:
        for each in found.values():
            each.sort(key=lambda entry: entry[0])
    return found
