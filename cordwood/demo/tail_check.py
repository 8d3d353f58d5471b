"""Whether the tail saw all acknowledged records: once, in order, byte for byte.

A rule without a clock or a connection. Its input comes in any order: acknowledgements, each with
its record, and the items that the second client read. The item that comes first is kept until the
other comes, so memory holds only the lag of the tail.

- Records and gaps cover the log from its first LSN on: each item begins where the item before it
  ended. So nothing comes twice, and nothing comes out of order.
- A record that was read equals the record acknowledged at its LSN: key, value, timestamp, headers.
  Every record that was read was appended.
- No acknowledged LSN is in a gap, and no gap is a loss of data.

Source: docs/sources/reliability.md §3; docs/design.md §2 ("exactly, without overlap").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cordwood.block import Gap, GapKind, Record
from cordwood.demo.checks import CheckFailed
from cordwood.demo.input import InputRecord
from cordwood.lsn import OLDEST, Lsn, format_lsn


@dataclass(slots=True)
class EpochRead:
    """The records read of an epoch.

    Attributes:
        first, last: LSNs of its first and its last record.
        records: number of records.
    """

    first: Lsn
    last: Lsn
    records: int


class TailCheck:
    """See the module.

    Attributes:
        next: the LSN that must be read next.
        read: records read so far.
        acked: records acknowledged so far.
        last_acked: the highest LSN acknowledged, 0 before the first.
        gaps: gaps read, by kind.
        epochs: the records read of each epoch that has records, oldest first.
        bridges: the gaps in which epochs end, in order.
    """

    def __init__(self) -> None:
        self.next: int = OLDEST
        self.read = 0
        self.acked = 0
        self.last_acked = 0
        self.gaps: dict[GapKind, int] = {}
        self.epochs: dict[int, EpochRead] = {}
        self.bridges: list[Gap] = []
        self._acked_only: dict[int, InputRecord] = {}
        self._read_only: dict[int, Record] = {}

    @property
    def lag(self) -> int:
        """Records acknowledged and not read yet."""
        return len(self._acked_only)

    @property
    def is_even(self) -> bool:
        """Whether exactly the acknowledged records were read."""
        return not (self._acked_only or self._read_only)

    def on_acked(self, lsns: Sequence[Lsn], records: Sequence[InputRecord]) -> None:
        """Records were acknowledged at these LSNs.

        Raises:
            CheckFailed: the tail passed a record without giving it out, or gave out another record.
        """
        for lsn, record in zip(lsns, records, strict=True):
            came = self._read_only.pop(lsn, None)
            if came is not None:
                _compare(record, came)
            elif lsn < self.next or lsn in self._acked_only:
                raise CheckFailed(f"{lsn} was acknowledged, and the tail had passed it without it")
            else:
                self._acked_only[lsn] = record
            self.last_acked = max(self.last_acked, lsn)
        self.acked += len(lsns)

    def on_read(self, items: Sequence[Record | Gap]) -> None:
        """The tail gave these out, in this order.

        Raises:
            CheckFailed: they do not follow the items before, or differ from the acknowledged
                records.
        """
        for item in items:
            if isinstance(item, Gap):
                self._on_gap(item)
            else:
                self._on_record(item)

    def _on_record(self, record: Record) -> None:
        self._follow(record.lsn, record.lsn)
        self.read += 1
        epoch = self.epochs.get(record.lsn >> 32)
        if epoch is None:
            self.epochs[record.lsn >> 32] = EpochRead(record.lsn, record.lsn, 1)
        else:
            epoch.last = record.lsn
            epoch.records += 1
        sent = self._acked_only.pop(record.lsn, None)
        if sent is None:
            self._read_only[record.lsn] = record
        else:
            _compare(sent, record)

    def _on_gap(self, gap: Gap) -> None:
        self._follow(gap.first, gap.last)
        self.gaps[gap.kind] = self.gaps.get(gap.kind, 0) + 1
        if gap.kind is GapKind.DATA_LOSS:
            raise CheckFailed(f"the tail was told of lost data, {gap.first} to {gap.last}")
        if gap.kind is GapKind.BRIDGE:
            self.bridges.append(gap)
        hidden = [lsn for lsn in self._acked_only if gap.first <= lsn <= gap.last]
        if hidden:
            raise CheckFailed(
                f"{len(hidden)} acknowledged records, the first at {format_lsn(min(hidden))}, "
                f"lie in a {gap.kind.value} gap"
            )

    def _follow(self, first: int, last: int) -> None:
        if first != self.next or last < first:
            raise CheckFailed(
                f"the tail gave out {format_lsn(first)} where {format_lsn(self.next)} comes next"
            )
        self.next = last + 1


def _compare(sent: InputRecord, came: Record) -> None:
    if came.value != sent.value or came.key != sent.key:
        raise CheckFailed(f"the record at {came.lsn} came back with other bytes")
    if came.timestamp_us != sent.timestamp_us or tuple(came.headers) != sent.headers:
        raise CheckFailed(f"the record at {came.lsn} came back with another time or other headers")
