"""Statistics in steps: the ranges of each step, and the record of finished steps.

A step is some GiB of the selected logs, as they were when the first one began. A directory for
progress records the plan and the sums so far, so that a stopped run continues after its last
finished step. The last step removes the record.

Source: docs/sources/spark.md §7.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from cordwood.durable import write_whole
from cordwood.errors import BadSetting
from cordwood.spark.bounds import batch_ranges
from cordwood.spark.catalog import Catalog
from cordwood.spark.jobs.notes import damaged, read_note
from cordwood.spark.options import SELECTIONS, parse_options
from cordwood.spark.splitting import Slice, plan

STEP_BYTES = 4 << 30
"""Records in one step: some minutes. A stop costs at most one step."""

HOUR_S = 3600

Row = TypeVar("Row", "HourOfLog", "GapsOfLog")

Step = Sequence[Slice]


@dataclass(frozen=True, slots=True)
class HourOfLog:
    """One log in one hour.

    Attributes:
        hour: its first second, ISO 8601 in UTC; a year of more than four digits has a sign.
        records, bytes: `bytes` of values and keys in `records` records.
        per_s: records a second, over the whole hour.
        first_lsn, last_lsn: of these records; others may lie between them.
    """

    log: str
    hour: str
    records: int
    bytes: int
    per_s: float
    first_lsn: int
    last_lsn: int


@dataclass(frozen=True, slots=True)
class GapsOfLog:
    """Ranges of one kind of gap in one log; `is_loss` says that records were there."""

    log: str
    kind: str
    ranges: int
    first_lsn: int
    last_lsn: int
    is_loss: bool


@dataclass(slots=True)
class Sums:
    """The sums of the finished steps."""

    hours: list[HourOfLog] = field(default_factory=list)
    gaps: list[GapsOfLog] = field(default_factory=list)

    def add(self, hours: Iterable[HourOfLog], gaps: Iterable[GapsOfLog]) -> None:
        """One more step's; the order stays by log, then by hour or kind."""
        by_hour = {(each.log, each.hour): each for each in self.hours}
        for hour in hours:
            known = by_hour.get((hour.log, hour.hour))
            by_hour[hour.log, hour.hour] = hour if known is None else _both_hours(known, hour)
        by_kind = {(each.log, each.kind): each for each in self.gaps}
        for gap in gaps:
            seen = by_kind.get((gap.log, gap.kind))
            by_kind[gap.log, gap.kind] = gap if seen is None else _both_gaps(seen, gap)
        self.hours = [by_hour[key] for key in sorted(by_hour, key=_in_time)]
        self.gaps = [by_kind[key] for key in sorted(by_kind)]


def _in_time(key: tuple[str, str]) -> tuple[str, int, str]:
    """By log, then by time: a year's sign and digits sort otherwise as text."""
    log, hour = key
    rest = len("-01-01T00:00Z")
    return log, int(hour[:-rest]), hour[-rest:]


def _both_hours(one: HourOfLog, other: HourOfLog) -> HourOfLog:
    records = one.records + other.records
    return HourOfLog(
        one.log, one.hour, records, one.bytes + other.bytes, round(records / HOUR_S, 3),
        min(one.first_lsn, other.first_lsn), max(one.last_lsn, other.last_lsn),
    )  # fmt: skip


def _both_gaps(one: GapsOfLog, other: GapsOfLog) -> GapsOfLog:
    return GapsOfLog(
        one.log, one.kind, one.ranges + other.ranges,
        min(one.first_lsn, other.first_lsn), max(one.last_lsn, other.last_lsn), one.is_loss,
    )  # fmt: skip


def planned_steps(source: Mapping[str, str], step_bytes: int) -> list[Step]:
    """The ranges of each step, over the records released now.

    Raises:
        BadSetting: an option is wrong.
    """
    options = parse_options(source)
    options.check_batch()
    catalog = Catalog(options)
    logs = catalog.selected()
    tails = catalog.tails(logs)
    ranges = batch_ranges(catalog.placed(logs, tails), logs, tails)
    return list(
        plan(catalog.spans(catalog.slices(ranges)), target_bytes=step_bytes, min_partitions=0)
    )


def step_source(source: Mapping[str, str], step: Step) -> dict[str, str]:
    """Options of the source for one step's ranges in the place of its own."""
    chosen = {name.lower() for name in SELECTIONS}
    kept = {
        name: value
        for name, value in source.items()
        if name.lower() not in chosen and not name.lower().startswith(("starting", "ending"))
    }
    starts: dict[str, int] = {}
    stops: dict[str, int] = {}
    for each in step:
        log = str(each.log_id)
        starts[log] = min(each.start, starts.get(log, each.start))
        stops[log] = max(each.stop, stops.get(log, each.stop))
    return {
        **kept,
        "assign": json.dumps([int(log) for log in starts]),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(stops),
    }


class Progress:
    """The steps of a job, the number of finished steps and their sums.

    Attributes:
        steps: all steps.
        done: the number of finished steps, of this run or an earlier run.
        sums: of the finished steps.
    """

    def __init__(
        self, note: Path | None, source: Mapping[str, str], step_bytes: int, cluster: str = ""
    ) -> None:
        """
        Args:
            note: a file; None to note nothing.
            cluster: the cluster that is read now, because logs of another cluster may have the same
                numbers; "" if no cluster was asked.
        Raises:
            BadSetting: the note is of other logs, or of another cluster, or an option is wrong.
            Malformed: the note is damaged.
        """
        self._note = note
        self._cluster = cluster
        self._made_of = {
            name: value
            for name, value in sorted(source.items())
            if name in SELECTIONS or name.startswith(("starting", "ending"))
        }
        self.sums = Sums()
        self.done = 0
        found = None if note is None else read_note(note)
        if note is None or found is None:
            self.steps = planned_steps(source, step_bytes)
            self._write()
        else:
            self._take(note, found)

    def _take(self, note: Path, found: Mapping[str, Any]) -> None:
        if (theirs := found.get("source")) != self._made_of:
            raise BadSetting(
                f"{note.parent} notes statistics of {json.dumps(theirs)}, and these are of "
                f"{json.dumps(self._made_of)}: say the same, or give another directory"
            )
        if self._cluster not in ("", found.get("cluster", self._cluster)):
            # A note of an earlier version has none.
            raise BadSetting(
                f"{note.parent} notes statistics of cluster {found['cluster']}, and this one is "
                f"{self._cluster}: its sums say nothing of these logs. Give another directory"
            )
        try:
            self.steps = [[_slice(each) for each in step] for step in found["steps"]]
            self.done = _count(found["done"])
            self.sums.add(
                [_row(HourOfLog, each) for each in found["hours"]],
                [_row(GapsOfLog, each) for each in found["gaps"]],
            )
            if self.done > len(self.steps):
                raise ValueError(f"{self.done} of {len(self.steps)} steps are done")
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(note, f"{type(error).__name__}: {error}") from error

    def on_step(self, hours: Iterable[HourOfLog], gaps: Iterable[GapsOfLog]) -> None:
        """The next step is done; with the last one the note goes."""
        self.sums.add(hours, gaps)
        self.done += 1
        self._write()

    def _write(self) -> None:
        if self._note is None:
            return
        if self.done >= len(self.steps):
            self._note.unlink(missing_ok=True)
            return
        content = {
            "source": self._made_of,
            "cluster": self._cluster,
            # What `step_source` reads; each run finds out anew where the records are.
            "steps": [
                [[each.log_id, each.name, each.start, each.stop] for each in step]
                for step in self.steps
            ],
            "done": self.done,
            "hours": [asdict(each) for each in self.sums.hours],
            "gaps": [asdict(each) for each in self.sums.gaps],
        }
        write_whole(self._note, json.dumps(content).encode())


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise ValueError(f"{value!r} is no count")
    return value


def _slice(value: Sequence[Any]) -> Slice:
    # Some versions noted more: where the objects are and when the log was made.
    log_id, name, start, stop = value[:4]
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no log's name")
    return Slice(_count(log_id), name, _count(start), _count(stop))


def _row(kind: type[Row], value: Mapping[str, Any]) -> Row:
    """A noted row, every field of its type."""
    types: dict[str, tuple[type, ...]] = {
        "str": (str,), "int": (int,), "float": (int, float), "bool": (bool,),
    }  # fmt: skip
    row = kind(**value)
    for name, wanted in kind.__annotations__.items():
        told = getattr(row, name)
        if not isinstance(told, types[wanted]) or (wanted == "int" and isinstance(told, bool)):
            raise TypeError(f"{name} is {told!r}, not of type {wanted}")
    return row
