"""A rule: chooses the objects of a log to merge.

A run of small objects becomes one object that is worth a get. Objects of several logs become
objects of one log. Each merge at least doubles the largest object that goes into it, or fills half
of an object, so a record is written anew a few times at most, however long its log lives.

Trap: a log's share of an object of several logs costs no object of its own. Merged, it does. So
shares of less than SHARED_BYTES_MIN in all stay where they are.

Source: docs/objects.md, "Compaction"; docs/sources/s3stream.md (b), "Compaction", and complaint
5 (1.23 M objects, of 71 KB in the mean).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cordwood.protocol.tier_plan import OBJECT_BYTES
from cordwood.tiered import Entry, Head, PageRef

SHARED_BYTES_MIN = 1 << 20
"""A request costs a store about as much as a megabyte."""

PAGES_LOOKED_AT = 4
"""The youngest pages at which a node looks: those of a missed day with an object each six
minutes."""


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """The bounds of merges.

    Attributes:
        object_bytes: the most bytes of bodies in a merged object, which is made in memory.
        entries_min: this many small objects are merged even if they do not fill half an object.
        shared_bytes_min: shares of objects of several logs get an object of their own from this
            size on.
    """

    object_bytes: int = OBJECT_BYTES
    entries_min: int = 2
    shared_bytes_min: int = SHARED_BYTES_MIN

    @property
    def small_bytes(self) -> int:
        """An object with at most this many bytes of bodies is small."""
        return self.object_bytes // 2


def plan_merges(entries: Sequence[Entry], policy: MergePolicy) -> list[tuple[Entry, ...]]:
    """The runs of entries that are merged, each into one.

    Args:
        entries: in order, without a hole.
    """
    runs = (_growing(run, policy) for run in _runs(entries, policy))
    return [tuple(run) for run in runs if _is_worth_it(run, policy)]


def worn_pages(head: Head, policy: MergePolicy) -> list[PageRef]:
    """The youngest pages of entries that look as if something were to be merged in them."""
    pages = head.levels[1] if len(head.levels) > 1 else ()
    return [
        page
        for page in pages[-PAGES_LOOKED_AT:]
        if isinstance(page, PageRef)
        and page.objects >= policy.entries_min
        and page.bytes >= policy.shared_bytes_min
        and page.bytes <= page.objects * policy.small_bytes // 4
    ]


def _runs(entries: Sequence[Entry], policy: MergePolicy) -> Iterator[list[Entry]]:
    """Small objects that stand side by side, as many as go into an object."""
    run: list[Entry] = []
    size = 0
    for entry in entries:
        # What a repair found lost is in no object: it has no bytes in the store.
        is_small = entry.bytes <= policy.small_bytes and entry.size > 0
        if run and (not is_small or size + entry.bytes > policy.object_bytes):
            yield run
            run, size = [], 0
        if is_small:
            run.append(entry)
            size += entry.bytes
    if run:
        yield run


def _growing(run: list[Entry], policy: MergePolicy) -> list[Entry]:
    """The end of a run in which no object has more than half of all."""
    while len(run) > 1:
        total = sum(entry.bytes for entry in run)
        largest = max(range(len(run)), key=lambda index: run[index].bytes)
        if total >= policy.small_bytes or 2 * run[largest].bytes <= total:
            break
        run = run[largest + 1 :]
    return run


def _is_worth_it(run: Sequence[Entry], policy: MergePolicy) -> bool:
    total = sum(entry.bytes for entry in run)
    if len(run) < 2:
        return False
    if total >= policy.small_bytes:
        return True
    own = sum(not entry.name.startswith("shared/") for entry in run)
    return len(run) >= policy.entries_min and (own >= 2 or total >= policy.shared_bytes_min)
