"""Turns `earliest`, `latest` and LSNs into the ranges of LSNs that a query reads. It has rules
only.

All stops are exclusive. The tail of a log is its last released LSN, so reading stops
one after it.

Source: docs/sources/spark.md §6, §8; Kafka's rules for its offsets options.
"""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.errors import BadSetting
from cordwood.lsn import OLDEST, format_lsn
from cordwood.spark.options import SourceOptions
from cordwood.spark.places import At, Cursor, Edge, Place, Places, check_strangers, listed

Logs = Mapping[int, str]
"""Names of the selected logs, by number."""


def batch_ranges(
    options: SourceOptions, logs: Logs, tails: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """The ranges that a batch reads: `[first, stop)` by log; logs with nothing to read are left
    out.

    Raises:
        BadSetting: a place lies outside its log, a start lies after its end, or a log is not
            selected.
    """
    starts = options.starts or Places(Edge.EARLIEST)
    check_strangers("startingOffsets", starts, logs)
    check_strangers("endingOffsets", options.ends, logs)
    ranges = {}
    for log, name in logs.items():
        end = tails[log] + 1
        first = _start(name, starts.of(log, name), end)
        stop = _resolve(options.ends.of(log, name), end)
        if stop > end and options.fail_on_data_loss:
            raise BadSetting(
                f"endingOffsets: {name} ends before {format_lsn(end)}, so it cannot be read up to "
                f"{format_lsn(stop)}. With failOnDataLoss=false what there is of it is read"
            )
        stop = min(stop, end)
        if first > stop:
            raise BadSetting(
                f"startingOffsets {format_lsn(first)} of {name} is after endingOffsets "
                f"{format_lsn(stop)}"
            )
        if first < stop:
            ranges[log] = (first, stop)
    return ranges


def initial_places(options: SourceOptions, logs: Logs, tails: Mapping[int, int]) -> dict[int, int]:
    """Where a new stream starts, by log.

    Raises:
        BadSetting: a place lies after its log's end, or belongs to a log that is not selected.
    """
    starts = options.starts or Places(Edge.LATEST)
    check_strangers("startingOffsets", starts, logs)
    check_strangers("endingOffsets", options.ends, logs)
    return {log: _start(name, starts.of(log, name), tails[log] + 1) for log, name in logs.items()}


def stream_stops(options: SourceOptions, logs: Logs, tails: Mapping[int, int]) -> dict[int, int]:
    """The LSN up to which a stream may read now, by log; it waits for an end that the log has not
    reached."""
    if options.ends.all == (Edge.LATEST,):
        # This runs for ten thousand logs in each micro-batch, so it does not look at them one by
        # one.
        return {log: tails[log] + 1 for log in logs}
    stops = {}
    for log, name in logs.items():
        end = tails[log] + 1
        stops[log] = min(end, _resolve(options.ends.of(log, name), end))
    return stops


def check_any(options: SourceOptions, logs: Logs, every: Logs) -> None:
    """Refuse a batch without a log: only a wrong pattern selects none.

    Args:
        every: all logs of the cluster.
    Raises:
        BadSetting: none is selected.
    """
    if not logs:
        raise BadSetting(
            f"subscribePattern {options.selection.pattern!r} matches no log (names are matched "
            f"whole and begin with a slash); {listed(every.values())}"
        )


def _start(name: str, place: Place, end: int) -> int:
    first = _resolve(place, end)
    if first > end:
        raise BadSetting(
            f"startingOffsets: {name} ends before {format_lsn(end)}, so it cannot be read from "
            f"{format_lsn(first)} on"
        )
    return first


def _resolve(place: Place, end: int) -> int:
    match place:
        case Edge.EARLIEST:
            return OLDEST
        case Edge.LATEST:
            return end
        case At() | Cursor():
            raise AssertionError("times and cursors are looked up before places are resolved")
        case _:
            return place
