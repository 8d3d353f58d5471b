"""A stream's offset and its moves: pure rules.

An offset says for each log the next LSN to read. Spark stores it as JSON text in the
checkpoint and compares texts, so there is one text for one offset::

    {"cluster":"5f0c…","from":{"17":"e7n0"},"logs":{"17":"e7n4096","23":"e9n12"},"v":1}

Keys are sorted. LSNs are text, because listeners and jq lose precision above 2**53.
`from` holds the true start of every log that the offset before did not carry: all of
them in batch 0, and later each log that was discovered. It is there because Spark asks
for the initial offset anew after a crash in batch 0, when `latest` may be elsewhere:
the end of batch 0 alone gives its range, `[from, logs)`, even if the start is another
by then. The initial offset has `"init":true`.

`away` holds the logs that the query does not select any more, because they were renamed or deleted.
They keep their places. If one of them is deleted, the query lost nothing. The field is left out
where there are none.

`names` holds the log that each name of `subscribe` and `assign` last led to. It tells a name whose
log was deleted from a name that is wrong (`selecting`). The field is left out for a pattern; in
offsets of versions before it, too.

Offsets never go back. If records are gone, a query fails or continues after them. It never
restarts from the oldest.

Source: docs/sources/spark.md §2 traps 2 and 3, §8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cordwood.errors import BadSetting, CordwoodError
from cordwood.lsn import OLDEST, format_lsn, parse_lsn

VERSION = 1

KNOWN_OFFSETS = 3
"""A batch's two ends, and the last report."""


class DataLoss(CordwoodError):
    """Records that were planned to be read are gone, and `failOnDataLoss` is true."""


def data_loss(log: int, name: str, requested: int, oldest: int | None, kind: str) -> DataLoss:
    """The error for records that are gone; its first line is for machines.

    Args:
        requested: the first LSN that was wanted and is gone.
        oldest: where reading could go on, None if it cannot.
        kind: why, as TRIM, DATA_LOSS or LOG_GONE.
    """
    onward = "none" if oldest is None else format_lsn(oldest)
    return DataLoss(
        f"CORDWOOD_DATA_LOSS log={log} requested={format_lsn(requested)} oldest={onward} "
        f"type={kind}\nRecords of {name} that this query was to read are gone. With "
        "failOnDataLoss=false (--pass-over-losses of `cordwood spark land` and `replay`) it goes "
        "on after them, and they are missing from its result."
    )


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """See the module.

    Attributes:
        cluster: identity of the cluster that the LSNs belong to.
        logs: the next LSN to read, by log.
        started: the `from` of the JSON.
        is_initial: whether `initialOffset` made it.
        away: see the module.
        names: see the module; None if the offset has none.
    """

    cluster: str
    logs: Mapping[int, int]
    started: Mapping[int, int] = field(default_factory=dict)
    is_initial: bool = False
    away: frozenset[int] = frozenset()
    names: Mapping[str, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """The canonical form, keys in order."""
        return {**self.head(), "logs": _written(self.logs), **self.tail()}

    def head(self) -> dict[str, Any]:
        """The fields that stand before the logs."""
        away = {"away": sorted(map(str, self.away))} if self.away else {}
        if self.is_initial:
            return {**away, "cluster": self.cluster, "init": True}
        return {**away, "cluster": self.cluster, "from": _written(self.started)}

    def tail(self) -> dict[str, Any]:
        """The fields that stand after the logs."""
        if self.names is None:
            return {"v": VERSION}
        names = {name: str(log) for name, log in sorted(self.names.items())}
        return {"names": names, "v": VERSION}

    def to_find(self) -> dict[int, int]:
        """The places of the logs that must still be there."""
        if not self.away:
            return dict(self.logs)
        return {log: lsn for log, lsn in self.logs.items() if log not in self.away}


def parse_offset(value: Mapping[str, Any]) -> StreamOffset:
    """Read an offset that `to_json` wrote, perhaps in an earlier run.

    Raises:
        BadSetting: the text is not Cordwood's, or from a later version.
    """
    version = value.get("v")
    if isinstance(version, int) and version > VERSION:
        raise BadSetting(
            f"the checkpoint holds an offset of version {version}, and this Cordwood reads "
            f"version {VERSION}: go on with the Cordwood that wrote it"
        )
    try:
        return StreamOffset(
            str(value["cluster"]),
            _read(value["logs"]),
            _read(value.get("from", {})),
            value.get("init") is True,
            frozenset(map(int, value.get("away", ()))),
            _read_names(value["names"]) if "names" in value else None,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadSetting(
            f"the checkpoint holds an offset that Cordwood did not write ({error!r}): {value}"
        ) from None


class KnownOffsets:
    """The last few offsets in both forms.

    Spark hands each offset back as often as it needs it, as JSON that was read anew. With ten
    thousand logs, reading an offset takes 20 ms and writing it 11 ms; comparing two takes less than
    1 ms.
    """

    def __init__(self) -> None:
        self._known: deque[tuple[Mapping[str, Any], StreamOffset]] = deque(maxlen=KNOWN_OFFSETS)
        self._written: tuple[Mapping[str, Any], StreamOffset] | None = None

    def __reduce__(self) -> tuple[type[KnownOffsets], tuple[()]]:
        # Nothing sent to tasks contains it.
        return KnownOffsets, ()

    def parse(self, value: Mapping[str, Any]) -> StreamOffset:
        """As `parse_offset`."""
        for known, offset in self._known:
            if known == value:
                return offset
        offset = parse_offset(value)
        self._known.append((value, offset))
        return offset

    def to_json(self, offset: StreamOffset) -> dict[str, Any]:
        """As the offset's own; the text of what did not move is taken from the last one."""
        if (
            self._written is None
            or offset.is_initial
            or offset.logs.keys() != self._written[1].logs.keys()
        ):
            value = offset.to_json()
        else:
            # The same logs are in the same order.
            text, logs = dict(self._written[0]["logs"]), self._written[1].logs
            for log, lsn in offset.logs.items():
                if logs[log] != lsn:
                    text[str(log)] = format_lsn(lsn)
            value = {**offset.head(), "logs": text, **self._tail(offset)}
        self._written = (value, offset)
        self._known.append(self._written)
        return value

    def _tail(self, offset: StreamOffset) -> dict[str, Any]:
        """Names rarely change."""
        assert self._written is not None
        value, before = self._written
        if offset.names is None or offset.names != before.names:
            return offset.tail()
        return {"names": value["names"], "v": VERSION}


def check_cluster(written: str, cluster: str) -> None:
    """Refuse an offset that another cluster wrote: the LSNs of one mean nothing in another.

    Raises:
        BadSetting: it is another.
    """
    if written != cluster:
        raise BadSetting(
            f"the checkpoint belongs to cluster {written}, and this one is {cluster}: "
            "give the address of that cluster, or a new checkpointLocation"
        )


def move_on(
    start: StreamOffset,
    stops: Mapping[int, int],
    away: frozenset[int] = frozenset(),
    names: Mapping[str, int] | None = None,
) -> StreamOffset:
    """The offset after reading each log up to its stop; `start` itself if nothing is new.

    A log that `start` does not carry was discovered, and is read from its beginning. A carried log
    without a stop keeps its place for the time when it is selected again.

    Args:
        stops: first LSNs not to read; stops at or below `start` change nothing.
        away: the carried logs that are not selected now.
        names: the log that each given name last led to; None for a pattern.
    """
    logs = dict(start.logs)
    started = dict(start.logs) if start.is_initial else {}
    for log, stop in sorted(stops.items()):
        if log not in logs:
            started[log] = OLDEST
        logs[log] = max(stop, logs.get(log, OLDEST))
    if logs == start.logs and away == start.away and names == start.names:
        return start
    return StreamOffset(start.cluster, logs, started, away=away, names=names)


def ranges(start: StreamOffset, end: StreamOffset) -> dict[int, tuple[int, int]]:
    """The ranges that a batch reads: `[first, stop)` by log, in the order of their numbers.

    It depends only on the two offsets, so that a repeated batch reads the same.

    Raises:
        BadSetting: the offsets do not fit: they belong to two clusters, or one goes back.
    """
    if end.is_initial:
        return {}
    check_cluster(start.cluster, end.cluster)
    found = {}
    carried = {} if start.is_initial else start.logs
    for log, stop in end.logs.items():
        first = carried.get(log)
        if first == stop:
            continue  # most of ten thousand
        if first is None:
            first = end.started.get(log)
        if first is None or first > stop:
            raise BadSetting(
                f"offsets of log {log} go back, or begin nowhere: from {start.to_json()} to "
                f"{end.to_json()}. Was the checkpoint edited or mixed with another?"
            )
        if first < stop:
            found[log] = (first, stop)
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a micro-batch; None is no limit.

    Attributes:
        max_records: exactly.
        max_bytes: about; the size of records is known by sample.
        min_records: fewer wait to become more.
    """

    max_records: int | None = None
    max_bytes: int | None = None
    min_records: int = 0


def share_bytes(
    limit: int, counts: Mapping[int, int], sizes: Mapping[int, float], turn: int
) -> dict[int, int]:
    """Share a trigger's bytes among logs in proportion to the waiting bytes, but at least one
    record for each log.

    Args:
        limit: bytes in all.
        counts: records that may be read, at least 1 for each log.
        sizes: mean bytes of a record, by log.
        turn: as in `share_out`.
    Returns:
        Records by log, at least 1; logs that must wait are left out.
    """
    backlog = {log: max(1, round(count * sizes[log])) for log, count in counts.items()}
    if sum(backlog.values()) <= limit:
        return dict(counts)
    shares = share_out(limit, backlog, turn)
    return {log: min(counts[log], max(1, int(share / sizes[log]))) for log, share in shares.items()}


def share_out(limit: int, backlog: Mapping[int, int], turn: int) -> dict[int, int]:
    """Share a trigger's records among logs by their backlog, the least one each.

    Args:
        limit: records in all, at least 1.
        backlog: records that wait, at least 1 for each log.
        turn: counts the triggers: where there are more logs than records, the logs
            take turns.
    Returns:
        Records by log, at least 1; logs that must wait are left out.
    """
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    logs = sorted(backlog)
    if limit < len(logs):
        at = turn * limit % len(logs)
        return dict.fromkeys((logs + logs)[at : at + limit], 1)
    spare, rest = limit - len(logs), total - len(logs)
    shares = {log: 1 + spare * (backlog[log] - 1) // rest for log in logs}
    left = limit - sum(shares.values())
    # The records that rounding left over go to the logs from which it took the most, lower numbers
    # first.
    by_loss = sorted(logs, key=lambda log: -(spare * (backlog[log] - 1) % rest))
    for log in by_loss[:left]:
        shares[log] += 1
    return shares


def _written(places: Mapping[int, int]) -> dict[str, str]:
    """Sorted as text, as every JSON tool that sorts keys does."""
    return {key: format_lsn(places[int(key)]) for key in sorted(map(str, places))}


def _read(places: Mapping[str, str]) -> dict[int, int]:
    return {int(log): parse_lsn(lsn) for log, lsn in places.items()}


def _read_names(names: Mapping[str, str]) -> dict[str, int]:
    return {name: int(log) for name, log in names.items()}
