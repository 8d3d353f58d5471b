"""The durable staged blocks of one node, and the changes that the next flush takes.

Source: docs/design.md §9.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, assert_never

from cordwood.block import Buffer
from cordwood.layout.engine_record import StagingRecord
from cordwood.layout.staged import (
    PinRecord,
    PlaceRecord,
    StagedHead,
    StageRecord,
    UnstageRecord,
    body_key,
    head_key,
    pack_row,
)
from cordwood.storage.logs_db.tables import Row


class Pin(NamedTuple):
    """The attempt that keeps a staged block from expiring."""

    query: str
    attempt: int


@dataclass(slots=True)
class StagedBlock:
    """A staged block; its body is None where LogsDB has it."""

    head: StagedHead
    body: Buffer | None
    pin: Pin | None = None


class StagedIndex:
    """See the module.

    Attributes:
        blocks: by id, in the order in which they came.
        bytes: of all bodies.
    """

    def __init__(self, stored: Iterable[tuple[StagedHead, str, int]] = ()) -> None:
        """
        Args:
            stored: the blocks in LogsDB: head, query and attempt (0 for no pin).
        """
        self.blocks: dict[bytes, StagedBlock] = {}
        self.bytes = 0
        self._changed: dict[bytes, None] = {}
        for head, query, attempt in stored:
            self.blocks[head.stage] = StagedBlock(
                head, None, Pin(query, attempt) if attempt else None
            )
            self.bytes += head.stored_bytes

    def get(self, stage: bytes) -> StagedBlock | None:
        """A staged block, None if it is not here."""
        return self.blocks.get(stage)

    def apply(self, record: StagingRecord) -> int:
        """Apply a durable or replayed record; LogsDB may have it already.

        Returns:
            The additional bytes of bodies in memory.
        """
        match record:
            case StageRecord(head, body):
                held = self.blocks.get(head.stage)
                if held is None:
                    self.bytes += head.stored_bytes
                grown = head.stored_bytes if held is None or held.body is None else 0
                pin = held.pin if held is not None else None
                self.blocks[head.stage] = StagedBlock(head, body, pin)
                self._changed[head.stage] = None
                return grown
            case PinRecord(query, attempt, stages):
                for stage in stages:
                    held = self.blocks.get(stage)
                    if held is not None:
                        held.pin = Pin(query, attempt)
                        self._changed[stage] = None
                return 0
            case UnstageRecord(stages):
                for stage in stages:
                    held = self.blocks.pop(stage, None)
                    if held is not None:
                        self.bytes -= held.head.stored_bytes
                    self._changed[stage] = None
                return 0
            case PlaceRecord(stage, nodes, moves):
                held = self.blocks.get(stage)
                if held is not None and moves > held.head.moves:
                    held.head = replace(held.head, nodes=nodes, moves=moves)
                    self._changed[stage] = None
                return 0
        assert_never(record)

    def cut(self) -> list[Row]:
        """The changes since the last cut, as rows for LogsDB."""
        changed, self._changed = self._changed, {}
        rows: list[Row] = []
        for stage in changed:
            held = self.blocks.get(stage)
            if held is None:
                rows += ((head_key(stage), None), (body_key(stage), None))
                continue
            query, attempt = held.pin or ("", 0)
            if held.body is not None:
                rows.append((body_key(stage), bytes(held.body)))
            rows.append((head_key(stage), pack_row(held.head, query, attempt)))
        return rows

    def evict(self, rows: Iterable[Row]) -> None:
        """LogsDB has these rows: drop their bodies from memory."""
        for key, value in rows:
            held = self.blocks.get(key[1:]) if key[:1] == b"b" and value is not None else None
            if held is not None:
                held.body = None
