"""Replaces entries of a manifest by one entry that has all their records: a rule.

A *merge* writes the records of a run of objects into one object. Then this rule replaces the run's
entries by one entry. The manifest must still have exactly the entries that the merge read: the same
objects, and nothing beside or between them. So a merge that is committed twice, or too late, finds
other entries and changes nothing. A merge needs no uploader's turn, and uploads go on beside it,
because their entries come at the end.

A merge has a turn of its own (`Head.merging`), because of its objects that are not committed yet.
For an object of an upload, the end of the manifest tells whether it can still be committed. For an
object of a merge, only the turn tells this. Another node ends a turn whose time is over
(`end_overdue`). If the holder is alive after all, it gets `Fenced`, and its objects are collected.
Safety needs no clock.

The manifest stays a tree. Pages with entries of the run are written anew, and so are the pages
above them. A page without entries is dropped. A page with few entries joins the page before it. So
a commit writes one page for each level, and one more for each page that the run went through.

Source: docs/objects.md, "Compaction"; docs/sources/s3stream.md (b), "Compaction".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cordwood.errors import BadSetting, Fenced, ObjectChanged
from cordwood.lsn import Lsn
from cordwood.protocol import manifest
from cordwood.protocol.manifest import Seal
from cordwood.tiered import MERGED, Entry, Head, Item, Merging, Page, PageRef

PageOf = Callable[[PageRef], Page]
"""A page that was read before."""


TURN_US_MAX = 30 * 86_400_000_000
"""The longest turn: as long as `tier.merge_turn_s` may be. A turn that ends later has its time from
a clock that was ahead. If its holder died, nodes would merge nothing of the log until that time."""


def merge_fence(head: Head) -> int:
    """The fence of the objects of the present turn."""
    return MERGED | head.merging.number


def take_merging(head: Head, holder: str, until_us: int, waits_us: int = 0) -> Head:
    """Begin a turn of merging; the earlier turn cannot commit any more.

    Args:
        until_us: when it may be ended for the holder.
        waits_us: the time now, for a holder that waits until another holder's turn is over; 0 for a
            holder that does not wait.
    Raises:
        Fenced: it has to wait.
    """
    held = head.merging
    if waits_us and held.holder not in ("", holder) and not _is_overdue(held, waits_us):
        raise Fenced(f"log {head.log}: {held.holder!r} has the turn {held.number} at merging")
    merging = Merging(head.merging.number + 1, holder, until_us)
    return head._replace(version=head.version + 1, merging=merging)


def end_merging(head: Head, number: int) -> Head:
    """End a turn; the head itself if it is over already."""
    if head.merging.number != number or not head.merging.holder:
        return head
    return head._replace(version=head.version + 1, merging=Merging(number + 1))


def end_overdue(head: Head, now_us: int) -> Head:
    """End the turn in force if its time is over; the head itself if it is not."""
    if not _is_overdue(head.merging, now_us):
        return head
    return end_merging(head, head.merging.number)


def _is_overdue(held: Merging, now_us: int) -> bool:
    """Whether another process may end a turn."""
    return not now_us <= held.until_us <= now_us + TURN_US_MAX


def check_merging(head: Head, number: int) -> None:
    """See that a turn at merging is in force.

    Raises:
        Fenced: it is not.
    """
    if head.merging.number != number or not head.merging.holder:
        raise Fenced(
            f"log {head.log}: the turn {number} at merging is over; there is {head.merging.number}"
            + (f" of {head.merging.holder!r}" if head.merging.holder else "")
        )


def replace(
    head: Head,
    run: Sequence[Entry],
    merged: Entry,
    number: int,
    page_of: PageOf,
    seal: Seal,
    now_us: int,
) -> Head:
    """Put an entry in the place of a run of entries.

    Args:
        run: the entries as the merge read them, in order.
        merged: the entry that has all their records.
        number: of the turn at merging.
        page_of: gives the pages that `touched` names.
    Raises:
        Fenced: the turn is over.
        ObjectChanged: the manifest holds other objects in this range.
        BadSetting: the merged entry does not hold the same records as the merged objects.
    """
    check_merging(head, number)
    check_merged(head.log, run, merged, number)
    if tuple(_within(manifest.in_order(head), merged, page_of)) != tuple(run):
        raise ObjectChanged(
            f"log {head.log}: from {Lsn(merged.first)} to {Lsn(merged.last)} the manifest holds "
            "other objects than those that were merged"
        )
    merged = merged._replace(replaced_us=now_us)
    levels = [_replaced(items, merged, page_of, seal) for items in head.levels]
    while len(levels) > 1 and not levels[-1]:
        levels.pop()
    return head._replace(version=head.version + 1, levels=tuple(levels))


def check_merged(log: int, run: Sequence[Entry], merged: Entry, number: int) -> None:
    """See that an entry holds what a run does.

    Raises:
        BadSetting: it does not.
    """
    sums = tuple(map(sum, zip(*((each.rows, each.bytes) for each in run), strict=True)))
    fits = bool(run) and (
        (merged.first, merged.last, merged.rows, merged.bytes)
        == (run[0].first, run[-1].last, *sums)
        and (merged.append_first_us, merged.append_last_us)
        == (run[0].append_first_us, run[-1].append_last_us)
        and merged.fence == MERGED | number
    )
    if not fits:
        raise BadSetting(
            f"log {log}: an object from {Lsn(merged.first)} to {Lsn(merged.last)} does not hold "
            "what the merged ones do"
        )


def touched(items: Sequence[Item], first: int, last: int) -> Iterator[PageRef]:
    """The pages among some items that `replace` reads: pages with a part of a range, and the page
    of entries before them, which the remaining entries may join."""
    for index, item in enumerate(items):
        if not isinstance(item, PageRef) or item.last < first:
            continue
        if item.first > last:
            return
        before = items[index - 1] if index else None
        if before is not None and before.last < first and _is_short(before):
            assert isinstance(before, PageRef)
            yield before
        yield item


def _is_short(item: Item) -> bool:
    """Whether a page of entries has space for the entries of another page."""
    return isinstance(item, PageRef) and not item.level and item.objects < manifest.FANOUT


def _within(items: Sequence[Item], merged: Entry, page_of: PageOf) -> Iterator[Entry]:
    """The entries that have a part of a range."""
    for item in items:
        if item.last < merged.first or item.first > merged.last:
            continue
        if isinstance(item, Entry):
            yield item
        else:
            yield from _within(page_of(item).items, merged, page_of)


def _replaced(
    items: Sequence[Item], merged: Entry, page_of: PageOf, seal: Seal
) -> tuple[Item, ...]:
    """Some items with the new entry where the run begins, and without the rest of the run."""
    out: list[Item | list[Item]] = []
    for item in items:
        if item.last < merged.first or item.first > merged.last:
            out.append(item)
        elif isinstance(item, PageRef):
            left = list(_replaced(page_of(item).items, merged, page_of, seal))
            if left and not item.level and out and (before := _room(out[-1], left, page_of)):
                out[-1] = [*before, *left]
            elif left:
                out.append(left)
        elif item.first == merged.first:
            out.append(merged)
    return tuple(_sealed(each, seal) if isinstance(each, list) else each for each in out)


def _room(
    before: Item | list[Item], left: Sequence[Item], page_of: PageOf
) -> Sequence[Item] | None:
    """The entries of the page before, if the remaining entries fit into that page too."""
    if isinstance(before, list):
        return before if len(before) + len(left) <= manifest.FANOUT else None
    if not isinstance(before, PageRef) or before.objects + len(left) > manifest.FANOUT:
        return None
    return page_of(before).items


def _sealed(items: Sequence[Item], seal: Seal) -> PageRef:
    first = items[0]
    level = first.level + 1 if isinstance(first, PageRef) else 0
    return seal(Page(level, tuple(items)))
