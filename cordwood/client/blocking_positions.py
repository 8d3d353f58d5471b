"""The blocking client's calls about places in a log; `blocking.BlockingStore` has them."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from cordwood.client.log_info import AnyLog
from cordwood.client.position_calls import Position
from cordwood.client.positions import Extent, KeyPlace, Place, Point, Size, Trimmed
from cordwood.client.record_check import Timestamp
from cordwood.client.store import Store
from cordwood.host.loop_thread import LoopThread
from cordwood.lsn import Lsn

Result = TypeVar("Result")


class BlockingPositions:
    """See `position_calls.PositionCalls` for what each call does and raises."""

    _thread: LoopThread
    _store: Store

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run to its end, within the client's timeout."""
        raise NotImplementedError

    def trim(self, log: AnyLog, lsn: Position) -> Trimmed:
        """Delete records up to `lsn`; see `store.Store.trim`."""
        return self._call(self._store.trim(log, lsn))

    def find_time(self, log: AnyLog, time: Timestamp, *, approximate: bool = False) -> Place:
        """Where a time lies in a log; see `store.Store.find_time`."""
        return self._call(self._store.find_time(log, time, approximate=approximate))

    def find_key(self, log: AnyLog, key: bytes) -> KeyPlace:
        """Where a key lies in a log; see `store.Store.find_key`."""
        return self._call(self._store.find_key(log, key))

    def extent(self, log: AnyLog) -> Extent:
        """A log's first and last record; see `store.Store.extent`."""
        return self._call(self._store.extent(log))

    def head_attributes(self, log: AnyLog) -> tuple[Lsn, Point | None]:
        """The trim point, and the first record; see `store.Store.head_attributes`."""
        return self._call(self._store.head_attributes(log))

    def tail_attributes(self, log: AnyLog) -> Point | None:
        """The last record; see `store.Store.tail_attributes`."""
        return self._call(self._store.tail_attributes(log))

    def is_empty(self, log: AnyLog) -> bool:
        """Whether a log has no record; see `store.Store.is_empty`."""
        return self._call(self._store.is_empty(log))

    def data_size(
        self, log: AnyLog, start: Timestamp | None = None, stop: Timestamp | None = None
    ) -> Size:
        """About how many bytes a log has; see `store.Store.data_size`."""
        return self._call(self._store.data_size(log, start, stop))
