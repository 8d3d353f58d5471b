"""How a log's manifest grows, is searched and is trimmed: a rule.

The head holds the youngest entries itself. Once it has FANOUT of them, they become a page, which is
written once and never again, and the head holds its reference; FANOUT references of pages become a
page of the next level, and so on. So a commit writes the head and, one time in FANOUT, a page. The
millionth commit costs as much as the first, and a search for an LSN reads one page of each level.

These rules make commits safe:

- the head is replaced only if it is still the head that was read;
- an entry begins where the last one ended, so nothing is committed twice or left out;
- a turn begins with a higher fence in the head, and a commit needs the fence in force. So an object
  that an earlier turn uploaded is never committed any more, and `is_dead` tells this without a
  clock.

Functions that make pages take `seal`, which gives the reference of a page: only the layout knows
the bytes of a page.

Source: docs/objects.md, "The manifest"; docs/sources/s3stream.md (b), "Commit", and complaint 5
(1.23 M objects; a commit larger than the metadata store's batch).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cordwood.errors import BadSetting, Fenced, Malformed
from cordwood.lsn import Lsn
from cordwood.tiered import MERGED, Entry, Head, Item, Page, PageRef, Trimmed

FANOUT = 64
"""A head has 64 items a level at most, 4 levels for 16 million objects: 40 KB. A page has 10 KB."""

TRIMS_KEPT = 8
"""More trims within their grace are joined: their objects stay longer."""

LEVELS_MAX = 12
"""FANOUT to this power exceeds the number of an epoch's LSNs, and so of its objects."""

FENCE_MAX = (1 << 63) - 1
"""The turn that no other follows: that of a deleted log."""

Seal = Callable[[Page], PageRef]


def first_head(log: int, first: int, fence: int, holder: str) -> Head:
    """The head of a log of which nothing was uploaded yet.

    Args:
        first: the LSN that the first entry will begin at.
    """
    assert first > 0, "a log begins at an LSN"
    return Head(log, 1, fence, holder, first, first, ((),), ())


def take_turn(head: Head, fence: int, holder: str) -> Head:
    """Begin a turn; earlier turns cannot commit any more.

    Raises:
        Fenced: a turn as high has begun.
    """
    if fence <= head.fence or fence > FENCE_MAX:
        raise Fenced(
            f"log {head.log}: the uploader {head.holder!r} has turn {head.fence}, and this is "
            f"{fence}"
        )
    return head._replace(version=head.version + 1, fence=fence, holder=holder)


def check_reaches(head: Head, first: int) -> None:
    """See that a head reaches to where an upload goes on, before a turn is taken at it.

    Race: an older copy was put back since the uploader read the head. A turn at it would end the
    turns that put the objects behind its end. These could not be committed any more, so the
    collection would delete them, and nodes let go of their records long ago.

    Args:
        first: where the upload goes on: the end of the head as it was read.
    Raises:
        Malformed: the head ends before it.
    """
    if head.end < first:
        raise Malformed(
            f"the upload of log {head.log} goes on at {Lsn(first)}, and its manifest ends at "
            f"{Lsn(head.end)} by now: it may be an older copy"
        )


def check_turn(head: Head, fence: int) -> None:
    """See that a turn is in force.

    Raises:
        Fenced: it is not.
    """
    if head.fence != fence:
        raise Fenced(
            f"log {head.log}: turn {fence} is over, the uploader {head.holder!r} has {head.fence}"
        )


def append(head: Head, entry: Entry, fence: int, seal: Seal) -> Head:
    """Add an entry.

    Raises:
        Fenced: the turn is over.
        BadSetting: the entry does not begin where the last one ended, or is another turn's.
    """
    check_turn(head, fence)
    if entry.first != head.end or entry.last < entry.first:
        raise BadSetting(
            f"log {head.log}: an object from {Lsn(entry.first)} to {Lsn(entry.last)}, and "
            f"{Lsn(head.end)} comes next"
        )
    if entry.fence != fence:
        raise BadSetting(f"log {head.log}: an object of turn {entry.fence} in turn {fence}")
    return _added(head, entry, seal)


def build(log: int, entries: Sequence[Entry], fence: int, holder: str, seal: Seal) -> Head:
    """The head of a manifest that is written anew, as a repair does.

    Args:
        entries: in order, each beginning where the entry before it ended; of any turns.
        fence: higher than the fence of each entry.
    """
    head = first_head(log, entries[0].first, fence, holder)
    for entry in entries:
        assert entry.first == head.end, f"{Lsn(entry.first)} after {Lsn(head.end)}"
        head = _added(head, entry, seal)
    return head


def extend(head: Head, entries: Sequence[Entry], fence: int, holder: str, seal: Seal) -> Head:
    """A head with entries, of any turns, added after its last entry; a turn begins with it.

    Args:
        entries: in order; the first begins where the head ends, and each other entry where the
            entry before it ended.
        fence: higher than the fence of each entry.
    Raises:
        Fenced: a turn as high has begun.
    """
    head = take_turn(head, fence, holder)
    for entry in entries:
        assert entry.first == head.end, f"{Lsn(entry.first)} after {Lsn(head.end)}"
        head = _added(head, entry, seal)
    return head


def shorten(
    head: Head,
    end: int,
    fence: int,
    holder: str,
    page_of: Callable[[PageRef], Page],
    seal: Seal,
) -> Head:
    """A head without all behind an LSN; a turn begins with it.

    Args:
        end: the last LSN that stays, at least the LSN before the head's start. An entry that
            reaches past it is cut there.
        fence: above all turns.
        page_of: gives the pages that reach past `end`.
    Raises:
        Fenced: a turn as high has begun.
    """
    head = take_turn(head, fence, holder)
    if end < head.start:
        return head._replace(version=head.version + 1, end=head.start, levels=((),))
    levels = [[item for item in items if item.last <= end] for items in head.levels]
    rest: Sequence[Item] = in_order(head)
    while (cut := find(rest, end)) is not None and isinstance(cut, PageRef) and cut.last > end:
        # All younger items lie behind the end, so the page's own level is empty by now.
        rest = page_of(cut).items
        levels[cut.level] = [item for item in rest if item.last <= end]
    while len(levels) > 1 and not levels[-1]:
        levels.pop()
    whole = head._replace(levels=tuple(map(tuple, levels)))
    if not isinstance(cut, Entry) or cut.last <= end:
        return whole._replace(version=head.version + 1, end=end + 1)
    return _added(whole, cut._replace(last=end), seal)


def _added(head: Head, entry: Entry, seal: Seal) -> Head:
    """Add an entry to the youngest level, and make pages of the levels that are full."""
    levels = [list(items) for items in head.levels]
    levels[0].append(entry)
    for level, items in enumerate(levels):
        if len(items) < FANOUT:
            break
        ref = seal(Page(level, tuple(items)))
        items.clear()
        if level + 1 == len(levels):
            levels.append([ref])
            break
        levels[level + 1].append(ref)
    return head._replace(
        version=head.version + 1, end=entry.last + 1, levels=tuple(map(tuple, levels))
    )


def trim(head: Head, start: int, now_us: int) -> Head:
    """Drop all entries below an LSN. Returns the same head if this changes nothing.

    Entries and pages that lie below it as a whole leave the head. This needs no turn: a trim only
    rises, and takes only entries that a later trim would take too.

    Args:
        start: at most `head.end`.
    """
    start = min(start, head.end)
    if start <= head.start:
        return head
    levels = tuple(tuple(item for item in items if item.last >= start) for items in head.levels)
    trims = (*head.trims, Trimmed(start, now_us))
    if len(trims) > TRIMS_KEPT:
        # The two oldest become one, at the later time: the objects of the older are kept longer.
        trims = trims[1:]
    while len(levels) > 1 and not levels[-1]:
        levels = levels[:-1]
    return head._replace(version=head.version + 1, start=start, levels=levels, trims=trims)


# ---- searching ----


def in_order(head: Head) -> tuple[Item, ...]:
    """What the head holds, by LSN: the largest pages are the oldest."""
    return tuple(item for items in reversed(head.levels) for item in items)


def find(items: Sequence[Item], lsn: int) -> Item | None:
    """The entry that holds an LSN, or the page to go on in; None if it is not there."""
    index = bisect_right(items, lsn, key=lambda item: item.first) - 1
    if index < 0 or items[index].last < lsn:
        return None
    return items[index]


def find_from(items: Sequence[Item], lsn: int) -> int:
    """The index of the first item that reaches an LSN; their number if none does."""
    return bisect_left(items, lsn, key=lambda item: item.last)


def find_append_time(items: Sequence[Item], time_us: int) -> Item | None:
    """The first item with a block that was appended at a time or later; None if there is none."""
    index = bisect_left(items, time_us, key=lambda item: item.append_last_us)
    return items[index] if index < len(items) else None


def last_append_us(head: Head) -> int:
    """The append time that the next entry's may not fall below; 0 if there is none."""
    items = in_order(head)
    return items[-1].append_last_us if items else 0


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums over all entries of a manifest."""

    objects: int = 0
    stored: int = 0
    rows: int = 0
    bytes: int = 0


def totals(items: Sequence[Item]) -> Totals:
    """Sum up entries and pages; an object that is trimmed in part counts as a whole."""
    refs = [item for item in items if isinstance(item, PageRef)]
    entries = [item for item in items if isinstance(item, Entry)]
    return Totals(
        sum(ref.objects for ref in refs) + len(entries),
        sum(ref.stored for ref in refs) + sum(entry.size for entry in entries),
        sum(item.rows for item in items),
        sum(item.bytes for item in items),
    )


def ref_of(page: Page, fence: int, crc: int, size: int) -> PageRef:
    """The reference of a page whose bytes have this CRC and size."""
    items = page.items
    summed = totals(items)
    return PageRef(
        items[0].first,
        items[-1].last,
        fence,
        page.level,
        crc,
        size,
        summed.objects,
        summed.stored,
        summed.rows,
        summed.bytes,
        items[0].append_first_us,
        items[-1].append_last_us,
        min(item.time_min_us for item in items),
        max(item.time_max_us for item in items),
        sum(item.payload for item in items),
    )


# ---- objects that can be deleted ----


def is_merged(fence: int) -> bool:
    """Whether a merge put the objects of this fence, and no upload."""
    return fence >= MERGED


def is_merge_over(head: Head, fence: int) -> bool:
    """Whether the turn of a merge's fence is over, so that it cannot commit any more."""
    return fence - MERGED < head.merging.number


def is_dead_object(head: Head, found: Entry | None, name: str, last: int, fence: int) -> bool:
    """Whether an object is, for this log, neither committed nor ever will be.

    An object of the turn in force that begins at or after the end may be on its way. Any other
    object that the manifest does not name cannot be committed any more: commits go on from the end,
    and need the fence in force. An object that a merge put may take the place of others, anywhere,
    as long as the merge's turn is in force.

    Args:
        found: the manifest's entry at the object's last LSN of this log. Not at the first: a trim,
            or a repair, may have cut an entry there.
        name, last, fence: the object's, for this log.
    """
    if found is not None and found.name == name:
        return False
    if is_merged(fence):
        return is_merge_over(head, fence)
    return fence < head.fence or last < head.end


def is_dead_page(head: Head, found: PageRef | None, ref: PageRef) -> bool:
    """Whether a page is not part of the manifest and never will be.

    Args:
        found: the manifest's page of this level that holds the page's last LSN.
        ref: what the page's name says.
    """
    if found is not None and (found.first, found.fence, found.crc) == (
        ref.first,
        ref.fence,
        ref.crc,
    ):
        return False
    if is_merged(ref.fence):
        return is_merge_over(head, ref.fence)
    return ref.fence < head.fence or ref.last < head.start


def trimmed_at_us(head: Head, last: int) -> int | None:
    """When an object that ends at this LSN was let go of; None if it was not, 0 if long ago."""
    if last >= head.start:
        return None
    return next((trim.at_us for trim in head.trims if trim.start > last), 0)


# ---- what a head must say ----


def check_head(head: Head) -> None:
    """See that a head is one.

    Raises:
        Malformed: it is not.
    """
    items = in_order(head)
    if not 1 <= len(head.levels) <= LEVELS_MAX or not 0 < head.start <= head.end:
        raise Malformed(f"the manifest of log {head.log}: its levels or its range are none")
    for level, each in enumerate(head.levels):
        if len(each) >= FANOUT or any(_level(item) != level - 1 for item in each):
            raise Malformed(f"the manifest of log {head.log}: there is no level {level}")
    _check_tiling(f"the manifest of log {head.log}", items)
    if items and not (items[0].last >= head.start and items[-1].last == head.end - 1):
        raise Malformed(f"the manifest of log {head.log} does not tell its range")
    if items and items[0].first > head.start:
        raise Malformed(f"the manifest of log {head.log} begins behind its start")
    if not items and head.start != head.end:
        raise Malformed(f"the manifest of log {head.log} names no object for its range")


def check_page(page: Page, ref: PageRef) -> None:
    """Check that a page is the page of a reference.

    Raises:
        Malformed: it is not.
    """
    what = f"a page of level {ref.level} at {Lsn(ref.first)}"
    if page.level != ref.level or not 0 < len(page.items) <= FANOUT:
        raise Malformed(f"{what} has level {page.level} and {len(page.items)} items")
    if any(_level(item) != page.level - 1 for item in page.items):
        raise Malformed(f"{what} holds items of another level")
    _check_tiling(what, page.items)
    if ref_of(page, ref.fence, ref.crc, ref.size) != ref:
        raise Malformed(f"{what} holds other objects than its reference says")


def _check_tiling(what: str, items: Sequence[Item]) -> None:
    expected = items[0].first if items else 0
    for item in items:
        if item.first != expected or item.last < item.first:
            raise Malformed(f"{what} does not tell of {Lsn(expected)}")
        expected = item.last + 1


def _level(item: Item) -> int:
    return item.level if isinstance(item, PageRef) else -1


# ---- from the objects alone ----


def tile(found: Sequence[Entry], start: int = 0) -> Iterator[Entry]:
    """Choose the objects of a log that cover the most of it without a hole.

    Objects of one log that overlap hold the same records: a range is uploaded once it is released
    and sealed. So any choice is right. This rule takes the longest chain of objects that follow one
    another without an overlap, as committed objects do, because a program that reads objects
    without the manifest reads an overlap twice. Of equal chains it takes the chain of few and large
    objects. If an object begins inside a covered range, the rest of it counts.

    Args:
        found: in any order.
        start: the first LSN that is wanted.
    Returns:
        Entries that do not overlap, in order; if an entry begins after the end of the entry before
        it, there is a hole between them.
    """
    rest = sorted(found, key=lambda entry: (entry.first, entry.last, entry.name))
    reaches: dict[int, int] = {}
    for entry in reversed(rest):
        reach = reaches.get(entry.last + 1, entry.last)
        reaches[entry.first] = max(reaches.get(entry.first, 0), reach)
    end, index = start, 0
    begun: list[Entry] = []
    while True:
        while index < len(rest) and rest[index].first <= end:
            begun.append(rest[index])
            index += 1
        begun = [entry for entry in begun if entry.last >= end]
        if begun:
            best = max(
                begun,
                key=lambda entry: (
                    reaches.get(entry.last + 1, entry.last), entry.first == end, entry.last,
                ),
            )  # fmt: skip
            # The size of the rest of a cut object is not known: it counts as nothing.
            is_cut = best.first < end
            yield best._replace(first=end, payload=0) if is_cut else best
            end = best.last + 1
        elif index < len(rest):
            end = rest[index].first
        else:
            return
