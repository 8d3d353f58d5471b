"""The nouns of main storage: the parts of a log's manifest.

An *entry* says which object holds a range of a log. A manifest is a tree of *pages* of entries
under a *head*. Only the head ever changes: a conditional write replaces it if no other writer did.

A *fence* is the number of an uploader's turn at one log; a turn is taken by writing a higher fence
into the head. The fence is in the name of each object that the uploader puts, so no name is used
twice. Turns at merging objects have numbers of their own, and the fence of a merged object has the
bit `MERGED`.

Source: docs/objects.md, "The manifest" and "Compaction".
"""

from __future__ import annotations

from typing import NamedTuple

MERGED = 1 << 62
"""In the fence of what a merge put. Uploaders count from 1 and never come so far."""


class Entry(NamedTuple):
    """An object's entry in a log's manifest: the part of the object that belongs to the log.

    Attributes:
        first, last: LSNs, both included. The last is that of the object's run of this log, and
            the first may be after the run's first.
        fence: of the turn that uploaded it.
        name: the object's.
        footer_crc: CRC32C of its footer, and of what follows it.
        size, footer_bytes: of the object, and of its footer with what follows it.
        rows, bytes: records, and bytes of their bodies, uncompressed.
        append_first_us, append_last_us: append times of its first and last block.
        time_min_us, time_max_us: the least and the largest of the records' own times.
        payload: bytes of the records as nodes stored them, see `object_file.Piece`; 0 where that
            is not known.
        replaced_us: when it took the place of other entries of its range, by a merge or a repair; 0
            if it never did.
    """

    first: int
    last: int
    fence: int
    name: str
    footer_crc: int
    size: int
    footer_bytes: int
    rows: int
    bytes: int
    append_first_us: int
    append_last_us: int
    time_min_us: int
    time_max_us: int
    payload: int = 0
    replaced_us: int = 0


LOST = "lost"
"""The word in place of an object's name in an entry for a lost range."""


def is_lost(entry: Entry) -> bool:
    """Whether an entry stands for a lost range."""
    return entry.name == LOST


class PageRef(NamedTuple):
    """A page of a manifest, and what lies below it.

    Attributes:
        first, last: LSNs.
        fence: of the turn that wrote it.
        level: 0 for a page of entries, else of pages one level below.
        crc, size: CRC32C and bytes of the page.
        objects, stored, rows, bytes: entries below it, and their sizes, rows and bytes, summed up.
        append_first_us, append_last_us, time_min_us, time_max_us, payload: as of an entry.
    """

    first: int
    last: int
    fence: int
    level: int
    crc: int
    size: int
    objects: int
    stored: int
    rows: int
    bytes: int
    append_first_us: int
    append_last_us: int
    time_min_us: int
    time_max_us: int
    payload: int = 0


Item = Entry | PageRef


class Page(NamedTuple):
    """Some entries, or some pages of one level, in order."""

    level: int
    items: tuple[Item, ...]


class Trimmed(NamedTuple):
    """That a log was trimmed up to, and not at, an LSN; and when."""

    start: int
    at_us: int


class Merging(NamedTuple):
    """The turn at merging a log's objects: at most one is in force.

    Attributes:
        number: of the turn; the next turn has a higher number.
        holder: the name of its holder, for people; empty once the turn is over.
        until_us: when another process may end it, because the holder may have died.
    """

    number: int = 0
    holder: str = ""
    until_us: int = 0


class Head(NamedTuple):
    """A log's manifest, as its pointer has it.

    Attributes:
        log: the log's number.
        version: 1 and up; every head of a log has another.
        fence: fencing number of the current uploader's turn.
        holder: the uploader's name, for people.
        start: the first kept LSN; all records below are trimmed.
        end: the LSN that the next entry begins at.
        levels: entries and pages outside a page: entries, then pages of level 0, 1, …
        trims: the last trims, oldest first.
        merging: the turn at merging objects.
    """

    log: int
    version: int
    fence: int
    holder: str
    start: int
    end: int
    levels: tuple[tuple[Item, ...], ...]
    trims: tuple[Trimmed, ...]
    merging: Merging = Merging()
