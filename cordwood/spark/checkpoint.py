"""Read Spark's checkpoint of a query: the query's identity, and the ranges of each batch.

Spark writes `metadata` with the query's id before its first batch, and `offsets/N` before
batch N runs. The id stays when a query is restarted, so (id, batch) names a batch for good;
the run's own id does not.

Source: docs/sources/spark.md §8 ("key by query id"); Spark's OffsetSeqLog.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cordwood.durable import sync_files
from cordwood.errors import BadSetting
from cordwood.lsn import OLDEST
from cordwood.spark.offsets import StreamOffset, parse_offset


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch by its number, and the digest of its ranges (`Checkpoint.fingerprint`)."""

    batch: int
    digest: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in a directory of this machine, which may not be there yet."""

    directory: Path

    @classmethod
    def at(cls, location: str) -> Checkpoint | None:
        """The checkpoint at a location as Spark names it, None if it is not on this machine."""
        directory = _local(location)
        # A path without a scheme may belong to another default file system.
        is_there = directory is not None and (directory / "offsets").is_dir()
        return cls(directory) if directory is not None and is_there else None

    @classmethod
    def of_query(cls, location: str, query: str, name: str = "") -> Checkpoint | None:
        """A query's checkpoint in a directory of many, None if it is not on this machine.

        `spark.sql.streaming.checkpointLocation` is one for all queries of a session, each of which
        has a directory in it, by its name or by chance.

        Trap: a copy of a checkpoint has the query's id too, and may lie beside it.

        Args:
            name: of the query; "" for none.
        Raises:
            BadSetting: several directories are of the query, and none of them has its name.
        """
        root = _local(location)
        if root is None:
            return None
        if name and _is_of(root / name, query):
            return cls.at(str(root / name))
        found = [path.parent for path in sorted(root.glob("*/metadata"))]
        found = [directory for directory in found if _is_of(directory, query)]
        if len(found) > 1:
            raise BadSetting(
                f"{' and '.join(map(str, found))} are checkpoints of one query, and it is not "
                "known which of them it uses now: move the copies out of that directory, and give "
                "the query a name (queryName)"
            )
        return cls.at(str(found[0])) if found else None

    def fingerprint(self, batch: int) -> str:
        """A digest of the ranges that a batch holds, by its offsets. It differs for two plans with
        the same number.

        The query's id is part of it: two queries over one source have equal plans, but write
        different tables. The line between version and offsets has the time of planning, and is left
        out.

        Raises:
            BadSetting: the batch is not there.
        """
        path = self.directory / "offsets" / str(batch)
        try:
            version, _, *offsets = path.read_text().splitlines()
        except (OSError, ValueError) as error:
            raise BadSetting(
                f"the checkpoint {self.directory} does not say what batch {batch} reads ({error})"
            ) from error
        text = "\n".join((self.query(), version, *offsets))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def newest_plan(self) -> Plan | None:
        """The newest planned batch, which Spark runs now; None before the first one.

        Raises:
            BadSetting: it cannot be read.
        """
        batch = self.newest("offsets")
        return Plan(batch, self.fingerprint(batch)) if batch >= 0 else None

    @property
    def is_new(self) -> bool:
        """Whether no batch was planned on it.

        Spark writes `metadata` before it plans the first batch: a start that fails between the
        two has read nothing.
        """
        return self.newest("offsets") < 0

    def newest(self, log: str) -> int:
        """The highest batch in `offsets` or `commits`; -1 for none."""
        try:
            names = [each.name for each in (self.directory / log).iterdir()]
        except FileNotFoundError:
            return -1
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def make_durable(self, batch: int) -> None:
        """Put the files that name a batch on stable storage: Spark does not sync its checkpoint.

        Without this a power cut takes the newest offsets and leaves the batch in the table; Spark
        then plans a batch of the same number with other records.
        """
        offsets = self.directory / "offsets"
        names = [self.directory / "metadata", offsets / str(batch)]
        # Hadoop refuses a file if its checksum file does not match.
        names += [path.with_name(f".{path.name}.crc") for path in names]
        sync_files([path for path in names if path.exists()], self.directory)

    def check(self, published: int, end: dict[str, Any] | None) -> None:
        """Check that this checkpoint made the newest batch of the table.

        Args:
            published: the newest batch of its query in the table, -1 for none.
            end: the offset at the end of that batch, None if it is not known.
        Raises:
            BadSetting: it is older than the table, newer, or damaged, with the way out.
        """
        planned, committed = self.newest("offsets"), self.newest("commits")
        if planned < 0 and committed < 0 and published < 0:
            return
        if committed > published:
            raise self._refused(
                f"it says that batch {committed} is done, and the last one in the table is "
                f"{published}: the table lost a commit, was restored to an older version, or is "
                "another"
            )
        if planned < published:
            raise self._refused(
                f"it knows batches up to {planned}, and the table has {published}: it is an older "
                "copy, or lost its newest files"
            )
        told = self.end_of(planned)
        if planned == published and end is None:
            raise self._refused(
                f"nothing notes where batch {published} of the table ends, as in a table that an "
                "earlier version of Cordwood landed"
            )
        if planned == published and told != end:
            raise self._refused(
                f"its batch {planned} ends elsewhere than the one in the table: it was planned anew"
            )
        if committed >= 0 and not (self.directory / "commits" / str(committed)).read_bytes():
            raise self._refused(f"commits/{committed} is empty, as a power cut leaves it")

    def check_newest(
        self, published: int, last: Mapping[str, Any] | None, *, is_oldest: bool = True
    ) -> None:
        """Check that no other query landed in the table since this query did, or since it began.

        Args:
            published: the newest batch of its query in the table, -1 for none.
            last: where the newest batch of the table ends, of any query; None if it is empty.
            is_oldest: whether a query on an empty table begins at each log's beginning.
        Raises:
            BadSetting: the checkpoint was put back after another query took its place, or the
                table was restored after this query began at the table's end.
        """
        planned = self.newest("offsets")
        if planned < 0 or (last is None and (published >= 0 or not is_oldest)):
            return
        self.check_next(planned, published)
        if published >= 0:
            goes_on = self.end_of(published) == last
        else:
            goes_on = begins_at(self.end_of(planned), last or {})
        if not goes_on:
            raise self._refused(
                f"batch {published} of its query is not the last one in the table: another query "
                "landed records since"
                if published >= 0
                else "its first batch begins elsewhere than where the table ends: another query "
                "landed records since, or the table was restored"
            )

    def check_knows(self, last: Mapping[str, Any], there: Collection[int]) -> None:
        """Check that a query that landed nothing yet knows all logs of the table.

        A query takes a log that it does not know for a new log, and reads it from the beginning.

        Args:
            last: as `check_newest`.
            there: the existing logs; the table may have records of deleted logs.
        Raises:
            BadSetting: another query found a log, and landed it.
        """
        known = parse_offset(self.end_of(self.newest("offsets"))).logs
        others = sorted(parse_offset(last).logs.keys() - known.keys())
        if any(log in there for log in others):
            raise self._refused(
                f"it does not know log {', '.join(map(str, others))}, which is in the table: "
                "another query landed records since"
            )

    def check_next(self, batch: int, published: int) -> None:
        """Check that no batch is missing between a batch and the newest batch of its query.

        Raises:
            BadSetting: a batch is missing.
        """
        if batch > published + 1:
            raise self._refused(
                f"it knows batches up to {batch}, and the last one in the table is {published}: "
                "the table lost a commit, was restored to an older version, or is another"
            )

    def _refused(self, why: str) -> BadSetting:
        return BadSetting(
            f"the checkpoint {self.directory} does not fit its table: {why}. Remove that "
            "directory and start again: the landing then goes on where the table ends"
        )

    def query(self) -> str:
        """The id of its query.

        Raises:
            BadSetting: it has none, or cannot be read.
        """
        path = self.directory / "metadata"
        try:
            return str(json.loads(path.read_text())["id"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._refused(
                f"{path.name} does not say which query it is of ({error})"
            ) from error

    def end_of(self, batch: int) -> dict[str, Any]:
        """The source's offset after a batch; the query has one source.

        Raises:
            BadSetting: the batch is not there, or not of our source.
        """
        path = self.directory / "offsets" / str(batch)
        try:
            # A version, the batch's metadata, then an offset a source.
            lines = path.read_text().splitlines()
            offset = json.loads(lines[-1])
        except (OSError, ValueError, IndexError, RecursionError) as error:
            raise self._refused(
                f"offsets/{batch} does not say what batch {batch} reads ({error})"
            ) from error
        if not isinstance(offset, dict) or "logs" not in offset:
            raise BadSetting(f"{path} holds no offset of Cordwood's: {lines[-1][:200]}")
        return offset

    def done(self) -> dict[str, Any] | None:
        """The offset at the end of the newest finished batch, or at the begin of the first batch;
        None before that.

        A batch that was planned and fails each time has read nothing for good.
        """
        planned, committed = self.newest("offsets"), self.newest("commits")
        finished = min(planned, committed if committed >= 0 else planned - 1)
        if finished >= 0:
            return self.end_of(finished)
        if planned < 0:
            return None
        first = parse_offset(self.end_of(planned))
        begun = first.logs if first.is_initial else first.started
        return StreamOffset(first.cluster, begun, names=first.names).to_json()


def begins_at(first: Mapping[str, Any], last: Mapping[str, Any]) -> bool:
    """Whether a query with a batch 0 that ends at `first` began at a table's end, at `last`.

    A log that the query does not know decides nothing: it was deleted, or found, in between. A log
    that the table does not know is read from its beginning.

    Args:
        last: {} for an empty table.
    """
    begun = parse_offset(first)
    starts = begun.logs if begun.is_initial else begun.started
    ends = parse_offset(last).logs if last else {}
    return all(lsn == ends[log] if log in ends else lsn <= OLDEST for log, lsn in starts.items())


def _is_of(directory: Path, query: str) -> bool:
    """Whether a directory is a checkpoint of this query."""
    try:
        return bool(json.loads((directory / "metadata").read_bytes())["id"] == query)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False  # it belongs to another query, and is just being made


def _local(location: str) -> Path | None:
    """A directory of this machine, from its name in Spark.

    Hadoop takes what stands after the scheme as it is: `%20`, `#` and `?` are part of a name.
    """
    scheme, colon, path = location.partition(":")
    if not colon or "/" in scheme:
        return Path(location) if location else None
    if scheme != "file":
        return None
    if path.startswith("//"):
        host, slash, below = path[2:].partition("/")
        if host:
            return None
        path = slash + below
    return Path(path)
