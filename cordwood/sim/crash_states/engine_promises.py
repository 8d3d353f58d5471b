"""The records that a storage engine's disk must and may hold, from its calls and their answers.

A copy that must be visible may be replaced by another copy of the same block, if that copy counts
as much or more and may be there: an envelope update replaces an envelope.

Source: `storage.engine`; docs/sources/reliability.md §3 (S2, S3, S12, S13).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from crc32c import crc32c

from cordwood.block import BlockHeader, Envelope
from cordwood.layout.block_header import HEADER_BYTES, pack_envelope, pack_header
from cordwood.lsn import LogId
from cordwood.sim.crash_states.wal_subject import Formatted, Opening

LOGS = (1, 2)

_ENVELOPE = pack_envelope(Envelope((1,)))
HEAD_BYTES = HEADER_BYTES + len(_ENVELOPE)
"""Header and envelope of every copy: each copyset is of one node."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One block as it travels: `wire` is header, envelope and body."""

    log: int
    first: int
    seal_epoch: int
    wire: bytes
    wave: int = 1

    @property
    def epoch(self) -> int:
        """The epoch of the block."""
        return self.first >> 32

    @property
    def head(self) -> bytes:
        """The envelope update that turns any other copy of the block into this copy."""
        return self.wire[:HEAD_BYTES]

    def amended(self, seal_epoch: int, wave: int) -> Copy:
        """The same block with another envelope."""
        envelope = pack_envelope(Envelope((1,), wave, seal_epoch))
        wire = self.wire[:HEADER_BYTES] + envelope + self.wire[HEAD_BYTES:]
        return replace(self, seal_epoch=seal_epoch, wave=wave, wire=wire)

    def stands_for(self, other: Copy) -> bool:
        """Whether it is a copy of the same block, and counts as much or more."""
        is_same = (self.log, self.first) == (other.log, other.first)
        return (
            is_same
            and self.wire[:HEADER_BYTES] == other.wire[:HEADER_BYTES]
            and self.wire[HEAD_BYTES:] == other.wire[HEAD_BYTES:]
            and (self.seal_epoch, self.wave) >= (other.seal_epoch, other.wave)
        )


Copies = frozenset[Copy]

Damaged = Sequence[tuple[int, int, int]]
"""Log, first and last LSN of ranges."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Blocks were sent."""

    copies: Copies


@dataclass(frozen=True, slots=True)
class Stored:
    """The engine answered that blocks are stored."""

    copies: Copies


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine answered that it refused blocks."""

    copies: Copies


@dataclass(frozen=True, slots=True)
class SealAsked:
    """A seal was requested."""

    log: int
    epoch: int


@dataclass(frozen=True, slots=True)
class SealAnswered:
    """The seal was answered."""

    log: int
    epoch: int


@dataclass(frozen=True, slots=True)
class End:
    """An epoch is over: above `lng` only copies that were stored under `seal` count."""

    log: int
    epoch: int
    seal: int
    lng: int

    def drops(self, copy: Copy) -> bool:
        """Whether this end drops an earlier copy."""
        is_of_it = (copy.log, copy.epoch) == (self.log, self.epoch)
        return is_of_it and copy.first > self.lng and copy.seal_epoch != self.seal


@dataclass(frozen=True, slots=True)
class EndAsked:
    """The storage engine is told that an epoch is over."""

    end: End


@dataclass(frozen=True, slots=True)
class EndAnswered:
    """The storage engine noted the end; the copies in `before` were sent earlier."""

    end: End
    before: Copies


@dataclass(frozen=True, slots=True)
class TrimAsked:
    """A trim of a log was requested."""

    log: int
    lsn: int


@dataclass(frozen=True, slots=True)
class TrimAnswered:
    """The trim was answered."""

    log: int
    lsn: int


@dataclass(frozen=True, slots=True)
class Opened:
    """The copies that a start found: from then on they stay, and no others come."""

    copies: Copies
    seals: tuple[tuple[int, int], ...]
    ends: frozenset[End]
    trims: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class EnginePromises:
    """The content that a storage engine's disk must and may have.

    Attributes:
        is_formatted: it must be a WAL.
        must, may: blocks that must be visible, and blocks that may be.
        seals, seals_asked: by log, the seal that must hold, and the highest seal that may.
        ends, ends_asked: epochs that must be known to be over, and epochs that may.
        trims, trims_asked: by log, the lowest and the highest possible trim point.
    """

    is_formatted: bool = False
    must: Copies = frozenset()
    may: Copies = frozenset()
    seals: dict[int, int] = field(default_factory=dict)
    seals_asked: dict[int, int] = field(default_factory=dict)
    ends: frozenset[End] = frozenset()
    ends_asked: frozenset[End] = frozenset()
    trims: dict[int, int] = field(default_factory=dict)
    trims_asked: dict[int, int] = field(default_factory=dict)

    def after(self, facts: Sequence[object]) -> EnginePromises:
        """See `Promised`."""
        then = replace(
            self,
            seals=dict(self.seals),
            seals_asked=dict(self.seals_asked),
            trims=dict(self.trims),
            trims_asked=dict(self.trims_asked),
        )
        for fact in facts:
            then._learn(fact)
        return then

    def _learn(self, fact: object) -> None:
        match fact:
            case Formatted():
                self.is_formatted = True
            case Sent(copies):
                self.may |= copies
            case Stored(copies):
                # A control record in flight may drop them, whichever of the two is durable first.
                self.must |= {copy for copy in copies if not self._may_drop(copy)}
            case Refused(copies):
                self.may -= copies
            case SealAsked(log, epoch):
                _raise(self.seals_asked, log, epoch)
            case SealAnswered(log, epoch):
                _raise(self.seals, log, epoch)
            case EndAsked(end):
                self.ends_asked |= {end}
                self.must = frozenset(copy for copy in self.must if not end.drops(copy))
            case EndAnswered(end, before):
                self.ends |= {end}
                self.may -= {copy for copy in before if end.drops(copy)}
            case TrimAsked(log, lsn):
                _raise(self.trims_asked, log, lsn)
                self.must = frozenset(c for c in self.must if c.log != log or c.first > lsn)
            case TrimAnswered(log, lsn):
                _raise(self.trims, log, lsn)
                self.may = frozenset(c for c in self.may if c.log != log or c.first > lsn)
            case Opened(copies, seals, ends, trims):
                self.must = self.may = copies
                self.trims, self.trims_asked = dict(trims), dict(trims)
                self.seals, self.seals_asked = dict(seals), dict(seals)
                self.ends = self.ends_asked = ends
            case _:
                assert isinstance(fact, Opening), f"{fact} is no fact of a storage engine"

    def _may_drop(self, copy: Copy) -> bool:
        is_trimmed = copy.first <= self.trims_asked.get(copy.log, 0)
        return is_trimmed or any(end.drops(copy) for end in self.ends_asked)

    def judge(self, found: Opened, damaged: Damaged = ()) -> str:
        """The error in the state that a start found; "" for none.

        Args:
            damaged: by log, ranges [first, last] that it reports as unknown.
        """
        seals, trims = dict(found.seals), dict(found.trims)
        there: dict[tuple[int, int], list[Copy]] = {}
        for copy in found.copies:
            there.setdefault((copy.log, copy.first), []).append(copy)
        lost = [
            copy
            for copy in self.must - found.copies
            if not any(each.stands_for(copy) for each in there.get((copy.log, copy.first), ()))
            and not _is_told(copy, damaged)
        ]
        wrongs = {
            "lost, though stored": _places(frozenset(lost)),
            "visible, though never taken, or dropped": _places(found.copies - self.may),
            "its seal was forgotten": [log for log in LOGS if seals[log] < self.seals.get(log, 0)],
            "sealed without a request": [
                log for log in LOGS if seals[log] > self.seals_asked.get(log, 0)
            ],
            "its end was forgotten": _sorted(self.ends - found.ends),
            "ended without a request": _sorted(found.ends - self.ends_asked),
            "its trim was forgotten": [
                log for log in LOGS if trims.get(log, 0) < self.trims.get(log, 0)
            ],
            "trimmed without a request": [
                log for log in LOGS if trims.get(log, 0) > self.trims_asked.get(log, 0)
            ],
        }
        return "; ".join(f"{wrong}: {what}" for wrong, what in wrongs.items() if what)


def _is_told(copy: Copy, damaged: Damaged) -> bool:
    return any(log == copy.log and first <= copy.first <= last for log, first, last in damaged)


def _raise(epochs: dict[int, int], log: int, epoch: int) -> None:
    epochs[log] = max(epochs.get(log, 0), epoch)


def _places(copies: Copies) -> list[tuple[int, int]]:
    return sorted((copy.log, copy.first) for copy in copies)


def _sorted(ends: frozenset[End]) -> list[tuple[int, int]]:
    return sorted((end.log, end.epoch) for end in ends)


def new_copy(log: int, first: int, body: bytes, seal_epoch: int = 0) -> Copy:
    """A block of one record, as a first wave brings it."""
    crc = crc32c(body)
    header = BlockHeader(
        LogId(log),
        first,
        1,
        1_767_225_600_000_000,
        stored_bytes=len(body),
        raw_bytes=len(body),
        stored_crc=crc,
        raw_crc=crc,
    )
    wire = pack_header(header) + pack_envelope(Envelope((1,), 1, seal_epoch)) + body
    return Copy(log, first, seal_epoch, wire)
