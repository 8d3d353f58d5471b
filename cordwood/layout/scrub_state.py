"""A node's progress in scrubbing, and its findings, for people."""

from __future__ import annotations

from msgspec import Struct

from cordwood.layout.message_fields import U62, AnyLsn, Sentence


class DamagedCopy(Struct, frozen=True):
    """A node's copy of a range that failed a check; see `scrub_rows.DamagedRange`."""

    log: U62
    first: AnyLsn
    last: AnyLsn
    partition: int
    why: Sentence


class ScrubState(Struct, frozen=True):
    """See the module.

    Attributes:
        bytes_s: the allowed rate of reads; 0 without scrubbing.
        passes: ended passes over all of LogsDB.
        began_us: when the present or last pass began (wall clock), 0 before the first.
        bytes: read since the store was made.
        partition: the present partition; 0 between passes.
        damaged: number of ranges known to be damaged and not repaired.
        some: the first of these ranges.
        mended: number of repaired ranges.
        repaired_blocks, repaired_bytes: blocks stored again since the start, with bytes of bodies.
        repair_waits: the cause for which the last failed repair waits, "" for none.
    """

    bytes_s: int = 0
    passes: int = 0
    began_us: int = 0
    bytes: int = 0
    partition: int = 0
    damaged: int = 0
    some: list[DamagedCopy] = []
    mended: int = 0
    repaired_blocks: int = 0
    repaired_bytes: int = 0
    repair_waits: Sentence = ""
