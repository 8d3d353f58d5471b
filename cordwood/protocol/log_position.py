"""What the answers of storage nodes say together about places in a log: a rule.

Append time never falls along a log. So if one node says that all up to `before` is older, no
record at or below that is what is looked for, whoever holds it; and what one node has `at` a
later time bounds it from above. In between may be records that only silent nodes hold, unless
those that answered meet every copyset of every epoch: then nothing is there, and the first
LSN in between is as good as any: all older records are below it, all others are not.

With fewer answers it errs to the early side only.

Source: docs/sources/logdevice.md 1 ("findTime"), 2.13; docs/design.md §2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cordwood.lsn import OLDEST


class TimeAnswer(NamedTuple):
    """What one node knows: trim point, last LSN that is older, first that may not be."""

    trim: int
    before: int
    at: int


class Found(NamedTuple):
    """A place, and whether enough was heard for it to be exact."""

    lsn: int
    is_complete: bool


def find_time(answers: Iterable[TimeAnswer], tail: int, *, heard_all: bool) -> Found:
    """The first LSN from which on no record is older than a time.

    Before everything that is the LSN after the trim point; after everything the next one to
    be issued; in a log that never held anything the oldest.

    Args:
        answers: at least one.
        tail: what all of them were asked up to.
        heard_all: those that answered meet every copyset.
    """
    known = list(answers)
    before = max(answer.before for answer in known)
    at = min((answer.at for answer in known if answer.at), default=0)
    if at:
        # A node that missed a trim holds what nobody reads any more.
        at = max(at, 1 + max(answer.trim for answer in known))
        return Found(max(OLDEST, min(before + 1, at)), heard_all or before + 1 == at)
    if not before and heard_all:
        return Found(OLDEST, True)
    # Nothing heard of is as late; so nothing is, if enough was heard.
    return Found(max(OLDEST, tail + 1 if heard_all else before + 1), heard_all)


def size_of(sizes: Iterable[int], nodes: int, copies: int) -> int:
    """About how many bytes a log has, each record once.

    Args:
        sizes: what the nodes that answered hold.
        nodes: how many hold some of it; those that did not answer count as the others.
    """
    told = list(sizes)
    return sum(told) * nodes // (len(told) * max(1, copies)) if told else 0


class Part(NamedTuple):
    """A run of a log's blocks: bytes, and the append times of the first and the last."""

    bytes: int
    first_us: int
    last_us: int


def bytes_between(parts: Iterable[Part], start_us: int, stop_us: int) -> int:
    """Of these parts the bytes in [start, stop), a part that is cut counted by its length."""
    total = 0.0
    for part in parts:
        length = part.last_us + 1 - part.first_us
        overlap = min(part.last_us + 1, stop_us) - max(part.first_us, start_us)
        total += part.bytes * max(0, overlap) / length
    return round(total)
