"""The driver's questions to the cluster: which logs exist, where they end, and where they have
records.

Ends are released LSNs only. The recovery of an epoch may still change what lies beyond them, and a
planned range must hold the same records forever.

Source: docs/sources/spark.md §8.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from functools import lru_cache

from cordwood.block import Gap
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.client.values import Tiered
from cordwood.errors import AccessDenied, BadSetting, CordwoodError, UnknownLog
from cordwood.layout.limits import RECORD_BYTES_DEFAULT
from cordwood.lsn import ESN_MAX, OLDEST, Lsn
from cordwood.spark.find_time import Seen, find_time
from cordwood.spark.gap_probe import may_not_read
from cordwood.spark.group import cursors_of
from cordwood.spark.offsets import StreamOffset, data_loss
from cordwood.spark.options import SourceOptions
from cordwood.spark.places import (
    At,
    Cursor,
    Edge,
    Place,
    Places,
    check_strangers,
    is_number,
)
from cordwood.spark.runs import LsnRun, records_in, runs_of
from cordwood.spark.selecting import missing_of, names_of, passed_over, select
from cordwood.spark.shared_store import shared_store
from cordwood.spark.splitting import Slice, Span

logger = logging.getLogger(__name__)

DISCOVER_EVERY_S = 1.0
"""How often a pattern, or the name of a deleted log, looks for new logs: one question a second, and
they are found soon."""

DISCOVER_SHARE = 10
"""If listing takes long because there are many logs, it happens less often: in a tenth of the
time."""

DISCOVER_WAIT_S = 0.05
"""A micro-batch waits this long for the list; a later list serves the next micro-batch. A list of a
thousand logs takes 30 ms, and a list of ten thousand logs 300 ms."""

EPOCH_ENDS_KEPT = 65_536
"""A closed epoch's end never changes, so it is asked once; a few MiB at most."""

SAMPLES_MAX = 16
"""The most logs of a batch of which a block is read, to learn the size of records."""

RECORD_BYTES_GUESS = 1024
"""The guessed size of a record if no block was read. It only decides how small logs share tasks."""


class Catalog:
    """The driver's view of the selected logs; lives as long as the query."""

    def __init__(self, options: SourceOptions, *, may_miss: bool = False) -> None:
        """
        Args:
            may_miss: leave out named logs that do not exist; the caller asks `check_missing`.
        """
        self._options = options
        self._may_miss = may_miss
        self._selected: dict[int, str] | None = None
        self._sought: set[str] = set()  # subscribed names of deleted logs: they may be made again
        self._passed: dict[str, int] = {}  # by `check_missing`
        self._listed_at = 0.0
        self._list_took_s = 0.0
        self._listing: Future[dict[int, str]] | None = None
        self._first_tails: dict[int, int] = {}
        self._epoch_end = lru_cache(maxsize=EPOCH_ENDS_KEPT)(self._ask_epoch_end)
        self._is_trimmed = lru_cache(maxsize=EPOCH_ENDS_KEPT)(self._ask_trimmed)

    @property
    def store(self) -> BlockingStore:
        """The client."""
        options = self._options
        return shared_store(options.servers, options.request_timeout_s, options.client_settings())

    @property
    def cluster(self) -> str:
        """The cluster's identity."""
        return self.store.cluster_id

    def all_logs(self) -> dict[int, str]:
        """Every log's name, by number."""
        return {info.log_id: info.name for info in self.store.logs()}

    def selected(self) -> dict[int, str]:
        """The selected logs' names, by number. A pattern finds new logs, and a name finds the log
        that is made again after its log was deleted.

        Raises:
            UnknownLog: a named log does not exist, and none may be missing.
        """
        if self._selected is None:
            self._listed_at = time.monotonic()
            selection = self._options.selection
            self._selected = select(selection, self.all_logs(), may_miss=self._may_miss)
            names = missing_of(selection, self._selected)
            self._sought.update(name for name in names if not is_number(name))
        elif self._is_pattern or self._sought:
            self._selected = self._discovered(self._selected)
        return self._selected

    @property
    def _is_pattern(self) -> bool:
        return self._options.selection.option == "subscribePattern"

    def select_again(self, places: Mapping[int, int]) -> dict[int, str]:
        """The logs that are selected now, after a log was not found by its number.

        Names select logs once: a log that was renamed is still selected, and a log that took its
        name is not. Only the names of deleted logs are looked up again, now and later.

        Args:
            places: the next LSN to read, by log.
        Raises:
            DataLoss: a log that was read is gone, and `failOnDataLoss` is true.
        """
        there, known = self.all_logs(), self._selected or {}
        self.check_there(there, {**dict.fromkeys(known, int(OLDEST)), **places})
        gone = {log: name for log, name in known.items() if log not in there}
        logger.warning("logs that were read are gone: %s", ", ".join(sorted(gone.values())))
        if self._is_pattern:
            self._selected = select(self._options.selection, there)
        else:
            self._sought.update({*gone.values()}.intersection(self._options.selection.logs))
            left = {log: name for log, name in known.items() if log in there}
            self._selected = self._with_made_again(left, there)
        return self._selected

    def _with_made_again(self, known: dict[int, str], there: Mapping[int, str]) -> dict[int, str]:
        """The known logs, and the existing logs that now have the names of deleted logs."""
        found = {
            log: name for log, name in there.items() if name in self._sought and log not in known
        }
        self._sought.difference_update(found.values())
        return dict(sorted({**known, **found}.items()))

    def _discovered(self, known: dict[int, str]) -> dict[int, str]:
        """The logs of the newest list; asks for another list when it is due."""
        if self._listing is None:
            pause_s = max(DISCOVER_EVERY_S, DISCOVER_SHARE * self._list_took_s)
            if time.monotonic() < self._listed_at + pause_s:
                return known
            self._listed_at = time.monotonic()
            self._listing = self.store.log_names_soon()
            # Count from the time when the list came. It may be looked at only a trigger's interval
            # later.
            self._listing.add_done_callback(self._note_listing)
        wait({self._listing}, timeout=DISCOVER_WAIT_S)
        if not self._listing.done():
            return known
        listing, self._listing = self._listing, None
        try:
            there = listing.result()
            if self._is_pattern:
                return select(self._options.selection, there)
            return self._with_made_again(known, there)
        except (CordwoodError, CancelledError) as error:
            # Known logs are still read; a list does not decide whether they can be.
            logger.warning("new logs were not looked for, and will be again: %s", error)
            return known

    def _note_listing(self, _: Future[dict[int, str]]) -> None:
        self._list_took_s = time.monotonic() - self._listed_at

    def tails(self, logs: Mapping[int, str]) -> dict[int, Lsn]:
        """The last released LSN of each log, by number."""
        tails = dict(zip(logs, self.store.tails(list(logs)), strict=True))
        self._note_tails(tails)
        return tails

    def released(self, logs: Mapping[int, str]) -> dict[int, Lsn]:
        """As `tails`, cheaper: a call to a node for all logs that it sequences.

        A sequencer that was replaced and has not heard of it may report a lower LSN than the last
        released, never a higher one. So this is for polling, and `tails` for a final answer.
        """
        tails = self.store.released_by_number(logs)
        self._note_tails(tails)
        return tails

    def _note_tails(self, tails: Mapping[int, int]) -> None:
        self._first_tails = {**tails, **self._first_tails}

    def not_new(self, slices: Sequence[Slice]) -> list[Slice]:
        """Ranges that begin before the log's end at this query's first look.

        Records released since then are read within seconds, before anything trims or loses them.
        """
        return [
            each for each in slices if each.start <= self._first_tails.get(each.log_id, each.start)
        ]

    def nodes_asked(self, logs: Mapping[int, str]) -> int:
        """Calls that `released` makes at most."""
        return max(1, min(len(logs), len(self.store.members)))

    def carried(self, logs: Mapping[int, str]) -> dict[int, Lsn]:
        """Places in `startingOffsets`, by number, of logs that exist but are not selected now.

        A stream carries them, as its checkpoint would: a log that was renamed away and comes back
        is read on, and not from its beginning.
        """
        starts = self._options.starts
        if starts is None:
            return {}
        places = {
            int(log): place
            for log, place in starts.by_log.items()
            if is_number(log) and isinstance(place, int) and int(log) not in logs
        }
        there = self.all_logs() if places else {}
        return {log: place for log, place in places.items() if log in there}

    def placed(
        self, logs: Mapping[int, str], tails: Mapping[int, int], carried: Collection[int] = ()
    ) -> SourceOptions:
        """The options, with LSNs in the place of times and cursors, and without `carried` logs.

        Raises:
            BadSetting: a log has no record so late, and the options make that an error.
        """
        options = self._without_missing(logs)
        starts = options.starts
        if starts is not None and carried:
            kept = {
                log: place
                for log, place in starts.by_log.items()
                if not (is_number(log) and int(log) in carried)
            }
            starts = Places(starts.default, kept)
        check_strangers("endingTimestamp", options.ends, logs)
        if starts is not None:
            check_strangers("startingTimestamp", starts, logs)
            starts = self._without_cursors(starts, logs, tails)
            none = Edge.LATEST if options.no_later == "latest" else None
            starts = self._without_times("startingTimestamp", starts, none, logs, tails)
        ends = self._without_times("endingTimestamp", options.ends, Edge.LATEST, logs, tails)
        return dataclasses.replace(options, starts=starts, ends=ends)

    def _without_missing(self, logs: Mapping[int, str]) -> SourceOptions:
        """The options without the places of deleted logs, if names lead to no log.

        Spark asks where a stream starts also if batch 0 runs again. Whether a name is wrong is
        told by `check_missing`.
        """
        options = self._options
        if not self._may_miss or not missing_of(options.selection, logs):
            return options
        starts = None if options.starts is None else options.starts.without_strangers(logs)
        return dataclasses.replace(
            options, starts=starts, ends=options.ends.without_strangers(logs)
        )

    def _without_cursors(
        self, places: Places, logs: Mapping[int, str], tails: Mapping[int, int]
    ) -> Places:
        """`places` with LSNs in place of cursors; the log's beginning without a cursor."""
        if Cursor.CURSOR not in places.all:
            return places
        cursors = cursors_of(self.store, self._options.group)
        by_log: dict[str, Place] = {}
        for log, name in logs.items():
            place = places.of(log, name)
            if place is Cursor.CURSOR:
                at = cursors.get(log)
                # A cursor may stand after a bridge that this client has not seen released yet.
                place = Edge.EARLIEST if at is None else min(at, Lsn(tails[log] + 1))
            by_log[str(log)] = place
        return Places(Edge.EARLIEST, by_log)

    def _without_times(
        self,
        option: str,
        places: Places,
        none: Edge | None,
        logs: Mapping[int, str],
        tails: Mapping[int, int],
    ) -> Places:
        """`places` with LSNs in place of times. If no record is so late, `none` is used, and None
        for it is an error."""
        if not any(isinstance(place, At) for place in places.all):
            return places
        by_log: dict[str, Place] = {}
        for log, name in logs.items():
            place = places.of(log, name)
            if isinstance(place, At):
                found = self.find_time(log, place.time_us, tails[log] + 1)
                if found is not None:
                    by_log[str(log)] = Lsn(found)
                    continue
                if none is None:
                    raise BadSetting(
                        f"{option}: {name} has no record from {_utc(place.time_us)} on. With "
                        "startingOffsetsByTimestampStrategy=latest it is read from its end"
                    )
                place = none
            by_log[str(log)] = place
        # A log that is discovered later is read from its beginning, as without times.
        return Places(Edge.LATEST if option.startswith("ending") else Edge.EARLIEST, by_log)

    def find_time(self, log: int, time_us: int, stop: int) -> int | None:
        """The first record of a log below `stop` that was appended at `time_us` or later.

        It is the store's own answer if enough nodes gave one. Otherwise this searches over blocks,
        for which one copy of each block is enough.
        """
        place = self.store.find_time(log, time_us)
        if not place.is_partial:
            return place.lsn if place.lsn < stop else None
        runs = self.runs(log, OLDEST, stop)
        return find_time(time_us, runs, lambda lsn, end: self._look(log, lsn, end))

    def _look(self, log: int, lsn: int, stop: int) -> Seen | None:
        """The first block with records in `[lsn, stop)`.

        Ask for one LSN first: a wider question makes every node send all that it holds.
        """
        for until in (lsn, stop - 1):
            if lsn >= stop:
                return None
            with self.store.read(log, lsn, until) as reader:
                for run in reader.block_runs(
                    bytes_max=1, timeout_s=self._options.request_timeout_s
                ):
                    for taken in run:
                        if not isinstance(taken, Gap):
                            header = taken.block.header
                            return Seen(header.first, header.last, header.append_time_us)
                        lsn = taken.last + 1
        return None

    def runs(self, log: int, start: int, stop: int) -> list[LsnRun]:
        """Where `[start, stop)` of a log may have records."""
        return runs_of(start, stop, lambda epoch: self._epoch_end(log, epoch))

    def is_surely_empty(self, log: int, start: int, stop: int) -> bool:
        """Whether `[start, stop)` of a log is known to have had no record: it has only the ends of
        epochs."""
        if start >> 32 == stop >> 32:
            return start >= stop  # most of ten thousand
        epochs = range(start >> 32, stop >> 32)
        if any(self._epoch_end(log, epoch) is None for epoch in epochs):
            return False
        return not self.runs(log, start, stop)

    def may_hide_records(self, log: int, start: int, stop: int) -> bool:
        """Whether `[start, stop)` of a log has an epoch of which no node knows the end, although it
        was not trimmed: its bridge is lost, and its records may be there.

        `runs` takes such an epoch for empty.
        """
        return any(
            self._epoch_end(log, epoch) is None and not self._is_trimmed(log, epoch)
            for epoch in range(start >> 32, stop >> 32)
        )

    def slices(self, ranges: Mapping[int, tuple[int, int]]) -> list[Slice]:
        """Slices of the ranges of logs by number; deleted logs are left out.

        Raises:
            DataLoss: a log is gone, and `failOnDataLoss` is true.
        """
        names = self._selected or {}
        if not names.keys() >= ranges.keys():
            names = self.all_logs()
        self.check_there(names, {log: first for log, (first, _) in ranges.items()})
        return [
            Slice(log, names[log], first, stop)
            for log, (first, stop) in ranges.items()
            if log in names
        ]

    def check_there(self, names: Mapping[int, str], places: Mapping[int, int]) -> None:
        """Check that the logs to read exist.

        Raises:
            DataLoss: a log is gone, and `failOnDataLoss` is true.
        """
        for log, first in places.items():
            if log not in names and self._options.fail_on_data_loss:
                raise data_loss(log, f"log {log}", first, None, "LOG_GONE")

    def check_missing(self, there: Mapping[int, str], offset: StreamOffset) -> dict[str, int]:
        """Check that named logs that do not exist were read and deleted; see `selecting`.

        Args:
            there: every log's name, by number.
            offset: what the checkpoint says; a new stream has read nothing.
        Returns:
            The names that lead nowhere, and the deleted log that each led to.
        Raises:
            UnknownLog: a named log does not exist, and is none of those.
        """
        selection, found = self._options.selection, self._selected
        if found is None:
            found = select(selection, there, may_miss=True)
        self._passed = passed_over(selection, found, there, offset)
        if self._passed:
            logger.warning("deleted logs are passed over: %s", ", ".join(sorted(self._passed)))
        return self._passed

    def names_now(self, offset: StreamOffset, logs: Mapping[int, str]) -> dict[str, int] | None:
        """The log that each given name last led to, for the next offset; None for a pattern.

        Args:
            offset: the offset before; see `StreamOffset.names`.
            logs: the selected logs, with the names that they were found under.
        """
        if self._is_pattern:
            return None
        # The first offset after a start on one of an earlier version notes what was passed over.
        before = self._passed if offset.names is None else offset.names
        return {**before, **names_of(self._options.selection, logs)}

    def tiered(self, slices: Sequence[Slice]) -> dict[int, Tiered]:
        """By log, the part that main storage holds; logs without such a part are left out.

        Slices of new records need no question: main storage has none of them.
        """
        found: dict[int, Tiered] = {}
        for log in {each.log_id: None for each in self.not_new(slices)}:
            try:
                told = self.store.tiered(log)
            except CordwoodError as error:
                # Leave these records to nodes, which have the same records. Tasks wait longer for
                # an answer.
                logger.warning("log %d is read from nodes: %s", log, error)
                continue
            if not told.address:
                break
            if told.upto:
                found[log] = told
        return found

    def spans(self, slices: Sequence[Slice]) -> list[Span]:
        """Sizes and places of the slices, for `splitting.plan`."""
        runs = [self.runs(each.log_id, each.start, each.stop) for each in slices]
        sizes = self._record_sizes(slices, runs)
        return list(map(Span, slices, runs, sizes))

    def _record_sizes(
        self, slices: Sequence[Slice], runs: Sequence[Sequence[LsnRun]]
    ) -> list[float]:
        """Mean bytes of each slice's records; read from a block where a cut may depend on it.

        The blocks read for this depend on the slices alone, so that a repeated batch is cut the
        same.
        """
        counts = list(map(records_in, runs))
        large = [
            index
            for index, count in enumerate(counts)
            if count * RECORD_BYTES_DEFAULT > self._options.target_partition_bytes
        ]
        large.sort(key=lambda index: (-counts[index], slices[index].log_id))
        sampled: dict[int, float] = {}
        for index in large[:SAMPLES_MAX]:
            size = self._sample(slices[index], runs[index][0].first)
            if size is not None:
                sampled[index] = size
        mean = sum(sampled.values()) / len(sampled) if sampled else RECORD_BYTES_GUESS
        return [sampled.get(index, mean) for index in range(len(slices))]

    def _sample(self, read: Slice, lsn: int) -> float | None:
        """Mean bytes of the records in the block at `lsn`; None without one."""
        try:
            with self.store.read(read.log_id, lsn, lsn) as reader:
                for taken in next(reader.block_runs(timeout_s=self._options.request_timeout_s)):
                    if not isinstance(taken, Gap):
                        header = taken.block.header
                        return header.raw_bytes / header.count
        except UnknownLog:
            pass  # it was deleted since: a read of it reports the error
        return None

    def sizes(
        self, logs: Mapping[int, str], places: Mapping[int, int], counts: Mapping[int, int]
    ) -> dict[int, float]:
        """Mean bytes of the next records of each log, from the next block.

        Args:
            places: the next LSN with a record, by log.
            counts: records that wait, by log. If there are many logs, blocks of those with the most
                records are read, and their mean is used for the others.
        """
        most = sorted(places, key=lambda log: (-counts[log], log))[:SAMPLES_MAX]
        sampled: dict[int, float] = {}
        for log in most:
            lsn = places[log]
            size = self._sample(Slice(log, logs[log], lsn, lsn + 1), lsn)
            if size is not None:
                sampled[log] = max(1.0, size)
        mean = sum(sampled.values()) / len(sampled) if sampled else RECORD_BYTES_GUESS
        return {log: sampled.get(log, mean) for log in places}

    def _ask_epoch_end(self, log: int, epoch: int) -> Lsn | None:
        """
        Raises:
            DataLoss: the log was deleted since its end was asked, and `failOnDataLoss` is true.
            AccessDenied: this query may not read it.
        """
        try:
            return self.store.epoch_end(log, epoch)
        except AccessDenied as error:
            raise may_not_read((self._selected or {}).get(log, f"log {log}")) from error
        except UnknownLog as error:
            if self._options.fail_on_data_loss:
                first = epoch << 32 | 1
                raise data_loss(log, f"log {log}", first, None, "LOG_GONE") from error
            return None

    def _ask_trimmed(self, log: int, epoch: int) -> bool:
        """Whether an epoch is trimmed as a whole; asked once of each epoch with an unknown end."""
        try:
            return self.store.extent(log).trim >= epoch << 32 | ESN_MAX
        except UnknownLog:
            return True  # nothing is left to read


def _utc(time_us: int) -> str:
    """A time for an error."""
    try:
        when = datetime.datetime.fromtimestamp(time_us / 1e6, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_us // 1000} ms after 1970"
    return when.isoformat(timespec="milliseconds")
