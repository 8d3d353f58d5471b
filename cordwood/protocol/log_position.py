"""Combines the answers of storage nodes about places in a log: a rule.

Append time never falls along a log. So if one node says that all records up to `before` are older,
the place is above `before`, for the records of all nodes. A node's first record `at` or after the
time bounds the place from above. Silent nodes may hold records between these bounds, unless the
nodes that answered meet every copyset of every epoch. Then no record is between the bounds, and the
first LSN there is right: all older records are below it and all others are above.

With fewer answers the result errs only to the early side.

Source: docs/sources/logdevice.md 1 ("findTime"), 2.13; docs/design.md §2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cordwood.lsn import OLDEST


class TimeAnswer(NamedTuple):
    """One node's answer: trim point, last LSN that is older, first LSN that may not be older."""

    trim: int
    before: int
    at: int


class Found(NamedTuple):
    """A place, and whether enough nodes answered for it to be exact."""

    lsn: int
    is_complete: bool


def find_time(answers: Iterable[TimeAnswer], tail: int, *, heard_all: bool) -> Found:
    """The first LSN from which on no record is older than a time.

    If all records are younger, it is the LSN after the trim point. If all are older, it is the
    next LSN to be issued. In a log that never held a record it is the oldest LSN.

    Args:
        answers: at least one.
        tail: the LSN up to which all nodes were asked.
        heard_all: whether the nodes that answered meet every copyset.
    """
    known = list(answers)
    before = max(answer.before for answer in known)
    at = min((answer.at for answer in known if answer.at), default=0)
    if at:
        # A node that missed a trim has records that no reader gets any more.
        at = max(at, 1 + max(answer.trim for answer in known))
        return Found(max(OLDEST, min(before + 1, at)), heard_all or before + 1 == at)
    if not before and heard_all:
        return Found(OLDEST, True)
    # No answer names a record this late; if enough nodes answered, the log has none.
    return Found(max(OLDEST, tail + 1 if heard_all else before + 1), heard_all)


def size_of(sizes: Iterable[int], nodes: int, copies: int) -> int:
    """The estimated bytes of a log, each record counted once.

    Args:
        sizes: bytes held by each node that answered.
        nodes: number of nodes that hold a part of the log. A node that did not answer counts as
            the average of the others.
    """
    told = list(sizes)
    return sum(told) * nodes // (len(told) * max(1, copies)) if told else 0


class Part(NamedTuple):
    """A run of a log's blocks: bytes, and the append times of the first and the last."""

    bytes: int
    first_us: int
    last_us: int


def bytes_between(parts: Iterable[Part], start_us: int, stop_us: int) -> int:
    """The bytes of these parts in [start, stop); a part that is cut counts by its share of time."""
    total = 0.0
    for part in parts:
        length = part.last_us + 1 - part.first_us
        overlap = min(part.last_us + 1, stop_us) - max(part.first_us, start_us)
        total += part.bytes * max(0, overlap) / length
    return round(total)
