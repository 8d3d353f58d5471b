"""How far a node has come with scrubbing, and what it found, for people."""

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
        bytes_s: what may be read in a second; 0 where nothing is scrubbed.
        passes: over all of LogsDB, that ended.
        began_us: when the present or the last one began (wall clock), 0 before the first.
        bytes: read since the store was made.
        partition: the one that it is at; 0 between passes.
        damaged: how many ranges are known to be damaged, and are not mended.
        some: the first of them.
        mended: how many ranges were damaged and are mended.
        repaired_blocks, repaired_bytes: what was stored again since the start, in bytes of bodies.
        repair_waits: what the last repair that failed waits for, "" for nothing.
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
