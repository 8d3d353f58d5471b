"""Records the requested trims, and the trims that nodes make: for `probes.watched`.

Source: docs/simulator.md, "Histories and promises".
"""

from __future__ import annotations

from typing import Any

from cordwood.lsn import EVENT_LOG
from cordwood.sim.history import HistoryRecorder
from cordwood.sim.position_events import NodeTrimmed, RetentionTrims, TrimAsked
from cordwood.sim.recorded_metadata import current_node


def noting_trims(original: Any, recorder: HistoryRecorder) -> Any:
    def on_trimmed(self: Any, record: Any) -> None:
        original(self, record)
        node, lsn = current_node(), self.cache.log(record.log).trim
        recorder.add(NodeTrimmed(recorder.now_us, node, record.log, lsn))

    return on_trimmed


def noting_retention(original: Any, recorder: HistoryRecorder) -> Any:
    async def trim(self: Any, log: int, lsn: int, why: str) -> None:
        asks = self._attributes[log]
        backlog_us = round((asks.backlog_s or 0) * 1e6)
        event = RetentionTrims(
            recorder.now_us, current_node(), log, lsn, why, backlog_us, asks.backlog_bytes or 0
        )
        if lsn:
            recorder.add(event)
        await original(self, log, lsn, why)

    return trim


def noting_event_trims(original: Any, recorder: HistoryRecorder) -> Any:
    async def trim(self: Any, store: Any, lsn: int) -> None:
        name = f"node-{current_node()}"
        recorder.add(TrimAsked(recorder.now_us, name, EVENT_LOG, lsn))
        await original(self, store, lsn)

    return trim


def noting_tier_retention(original: Any, recorder: HistoryRecorder) -> Any:
    async def trim(self: Any, client: Any, info: Any, lsn: int, why: str) -> int:
        asks, log = info.attributes, int(info.log_id)
        backlog_us = round((asks.backlog_s or 0) * 1e6)
        recorder.add(RetentionTrims(
            recorder.now_us, current_node(), log, lsn, why, backlog_us, asks.backlog_bytes or 0
        ))  # fmt: skip
        trimmed: int = await original(self, client, info, lsn, why)
        return trimmed

    return trim
