"""How a batch's ranges become tasks: large logs are cut, small logs packed together.

A pure function of the ranges and of the records there. Neither ever changes, so a repeated batch is
cut the same. Cuts are by LSN, evenly by records; a reader clips the block that a cut goes through,
which costs one block read twice. Order holds inside a slice only; the column `lsn` restores it.

Source: docs/sources/spark.md §8 ("Splitting one large log").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cordwood.spark.runs import LsnRun, advance, records_in

if TYPE_CHECKING:
    from cordwood.client.values import Tiered  # Most of Spark's processes never connect

OPEN_COST_BYTES = 256 << 10
"""The cost of opening a log, about 2 ms, in bytes that a task could read in that time. With it,
thousands of tiny logs fill several tasks, as small files do in Spark."""

PARTITIONS_MAX = 100_000
"""The approximate most partitions. With more, Spark's driver is busy only with tasks, and larger
slices are better."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The LSNs `[start, stop)` of one log, for a task.

    Attributes:
        objects: the address of main storage, which holds all of them; "" to ask nodes.
        made_us: when the log was made. The address may lead a task to another cluster's store,
            in which another log has the number.
    """

    log_id: int
    name: str
    start: int
    stop: int
    objects: str = ""
    made_us: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """A slice that may be cut, with the known sizes of its contents.

    Attributes:
        runs: where its records are.
        record_bytes: mean size of a record, as sampled.
    """

    slice: Slice
    runs: Sequence[LsnRun]
    record_bytes: float

    @property
    def data_bytes(self) -> int:
        """Its estimated contents."""
        return round(records_in(self.runs) * self.record_bytes)


def joined(slices: Iterable[Slice]) -> tuple[Slice, ...]:
    """The same LSNs, each once, by log and LSN; slices that touch or overlap become one.

    Args:
        slices: without marks of objects.
    """
    found: list[Slice] = []
    for each in sorted(slices, key=lambda one: (one.log_id, one.start)):
        before = found[-1] if found else None
        if before and before.log_id == each.log_id and each.start <= before.stop:
            found[-1] = replace(before, stop=max(before.stop, each.stop))
        else:
            found.append(each)
    return tuple(found)


def plan(
    spans: Iterable[Span], *, target_bytes: int, min_partitions: int
) -> list[tuple[Slice, ...]]:
    """Cut and pack spans into partitions of at most about `target_bytes`.

    Args:
        min_partitions: partitions wanted at least; 0 for no wish. There are fewer only
            where there are fewer records.
    Returns:
        The slices of each partition; together they tile the spans, in their order.
    """
    cuttable = list(spans)
    data = sum(span.data_bytes for span in cuttable)
    target = min(target_bytes, data // min_partitions) if min_partitions else target_bytes
    target = max(target, data // PARTITIONS_MAX, 1)
    return list(_pack((piece for span in cuttable for piece in _cut(span, target)), target))


def mark_objects(
    partitions: Iterable[Sequence[Slice]], tiered: Mapping[int, Tiered]
) -> list[tuple[Slice, ...]]:
    """The same partitions, with slices that name the parts to read from main storage.

    Nodes let go of more records as time goes by. So this comes after the cuts and does not change
    them: a repeated batch has the same records in each partition.

    Args:
        tiered: what main storage holds, by log.
    """
    return [
        tuple(part for each in slices for part in _marked(each, tiered.get(each.log_id)))
        for slices in partitions
    ]


def _marked(whole: Slice, tiered: Tiered | None) -> Iterator[Slice]:
    """The parts of a slice: trimmed, which nodes report; in main storage; and the rest."""
    kept, middle = whole.start, whole.start
    if tiered is not None:
        kept = max(whole.start, min(whole.stop, int(tiered.trim) + 1))
        middle = min(whole.stop, int(tiered.upto) + 1)
    if tiered is None or middle <= kept:
        yield whole
        return
    if whole.start < kept:
        yield replace(whole, stop=kept)
    yield replace(whole, start=kept, stop=middle, objects=tiered.address, made_us=tiered.created_us)
    if middle < whole.stop:
        yield replace(whole, start=middle)


def _cut(span: Span, target: int) -> Iterator[tuple[Slice, int]]:
    """Even pieces of at most about `target` bytes, and the bytes of each."""
    whole = span.slice
    records = records_in(span.runs)
    pieces = max(1, min(records, -(-span.data_bytes // target)))
    start = whole.start
    for piece in range(1, pieces + 1):
        last = piece == pieces
        stop = whole.stop if last else advance(span.runs, records * piece // pieces)
        yield Slice(whole.log_id, whole.name, start, stop), span.data_bytes // pieces
        start = stop


def _pack(pieces: Iterable[tuple[Slice, int]], target: int) -> Iterator[tuple[Slice, ...]]:
    """Fill partitions in order. A piece goes into a partition that has space for it or is empty."""
    packed: list[Slice] = []
    size = 0
    for piece, data_bytes in pieces:
        cost = data_bytes + (OPEN_COST_BYTES if packed else 0)
        if packed and size + cost > target:
            yield tuple(packed)
            packed, size = [], 0
            cost = data_bytes
        packed.append(piece)
        size += cost
    if packed:
        yield tuple(packed)
