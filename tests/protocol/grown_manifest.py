"""A manifest with its pages, and a plain list of its entries beside it."""

from __future__ import annotations

from cordwood.protocol.manifest import (
    append,
    check_head,
    check_page,
    find,
    first_head,
    in_order,
    ref_of,
)
from cordwood.tiered import Entry, Page, PageRef

FIRST = 1 << 33


def entry(first: int, last: int, fence: int = 1, name: str = "") -> Entry:
    at = first - FIRST
    return Entry(first, last, fence, name or f"o{first}-{last}-{fence}", 7, 1000, 100,
                 last - first + 1, 5000, at, at + 9, at - 3, at + 20, 4000)  # fmt: skip


class Grown:
    """A manifest with its pages, and a list of all entries beside it: the slow, obvious twin."""

    def __init__(self, count: int = 0, span: int = 10) -> None:
        self.head = first_head(7, FIRST, 1, "a")
        self.pages: dict[PageRef, Page] = {}
        self.twin: list[Entry] = []
        self.sealed = 0
        for _ in range(count):
            self.add(span)

    def seal(self, page: Page) -> PageRef:
        ref = ref_of(page, self.head.fence, len(self.pages), 100)
        self.pages[ref] = page
        self.sealed += 1
        return ref

    def add(self, span: int) -> Entry:
        new = entry(self.head.end, self.head.end + span - 1, self.head.fence)
        self.head = append(self.head, new, self.head.fence, self.seal)
        self.twin.append(new)
        return new

    def find(self, lsn: int) -> Entry | None:
        items, reads = in_order(self.head), 0
        while True:
            item = find(items, lsn)
            if item is None or isinstance(item, Entry):
                assert reads < len(self.head.levels)
                return item
            items, reads = self.pages[item].items, reads + 1

    def all(self, items=None) -> list[Entry]:
        found: list[Entry] = []
        for item in in_order(self.head) if items is None else items:
            found += [item] if isinstance(item, Entry) else self.all(self.pages[item].items)
        return found

    def check(self) -> None:
        check_head(self.head)
        for ref, page in self.pages.items():
            check_page(page, ref)
