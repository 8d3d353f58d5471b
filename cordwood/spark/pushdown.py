"""Uses Spark's filters to limit the logs and LSNs that a batch reads.

A filter on `log` or `log_id` leaves logs out; a filter on `lsn` narrows the range of each log.
These are exact, so Spark need not look at the rows again; every other filter stays with Spark. The
record's own timestamp is no help: it may be anything, in any order.

Source: docs/sources/spark.md §2 trap 6; pyspark/sql/datasource.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from cordwood.lsn import LSN_MAX

_NEVER_NULL = ("log", "log_id", "lsn")


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The logs and ranges that the filters leave.

    Attributes:
        names, ids: logs that may be read, None for all.
        first, stop: LSNs that may be read, `[first, stop)`.
    """

    names: frozenset[str] | None = None
    ids: frozenset[int] | None = None
    first: int = 0
    stop: int = LSN_MAX + 1

    def logs(self, logs: Mapping[int, str]) -> dict[int, str]:
        """The remaining logs of `logs` (names by number)."""
        return {
            log: name
            for log, name in logs.items()
            if (self.ids is None or log in self.ids) and (self.names is None or name in self.names)
        }

    def ranges(self, ranges: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        """The remainders of `[first, stop)` by log, without empty ranges."""
        cut = {
            log: (max(first, self.first), min(stop, self.stop))
            for log, (first, stop) in ranges.items()
        }
        return {log: (first, stop) for log, (first, stop) in cut.items() if first < stop}


def narrow(filters: Iterable[Filter]) -> tuple[Narrowed, list[Filter]]:
    """Use the filters that limit logs or LSNs. All filters must hold together.

    Returns:
        The remaining logs and ranges, and the filters that Spark still has to apply.
    """
    narrowed, rest = Narrowed(), []
    for each in filters:
        after = _narrowed(narrowed, each)
        if after is None:
            rest.append(each)
        else:
            narrowed = after
    return narrowed, rest


def _narrowed(so_far: Narrowed, by: Filter) -> Narrowed | None:
    """`so_far` and the filter; None if it is of no use here."""
    column: tuple[str, ...] = getattr(by, "attribute", ())
    if len(column) != 1 or column[0] not in _NEVER_NULL:
        return None
    if isinstance(by, IsNotNull):
        return so_far
    if column[0] == "lsn":
        return _by_lsn(so_far, by)
    values = _wanted(by)
    if values is None:
        return None
    if column[0] == "log":
        names = frozenset(map(str, values))
        return replace(so_far, names=names if so_far.names is None else so_far.names & names)
    ids = frozenset(map(int, values))
    return replace(so_far, ids=ids if so_far.ids is None else so_far.ids & ids)


def _wanted(by: Filter) -> tuple[str | int, ...] | None:
    """The values that the column may have; None if the filter does not list them."""
    if isinstance(by, EqualTo) and isinstance(by.value, (str, int)):
        return (by.value,)
    if isinstance(by, In) and all(isinstance(value, (str, int)) for value in by.value):
        return tuple(by.value)
    return None


def _by_lsn(so_far: Narrowed, by: Filter) -> Narrowed | None:
    value = getattr(by, "value", None)
    if not isinstance(value, int):
        return None
    first, stop = so_far.first, so_far.stop
    match by:
        case EqualTo():
            first, stop = max(first, value), min(stop, value + 1)
        case GreaterThan():
            first = max(first, value + 1)
        case GreaterThanOrEqual():
            first = max(first, value)
        case LessThan():
            stop = min(stop, value)
        case LessThanOrEqual():
            stop = min(stop, value + 1)
        case _:
            return None
    return replace(so_far, first=first, stop=stop)
