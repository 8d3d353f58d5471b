"""A rule: chooses the records that go to main storage next, and those that a node may drop then.

**What may go.** All records below `stop`: released records of a clean epoch, or of the newest one,
never change again. No record at or after a *barrier*: the first LSN that is lost or not known. The
plan names such a log (`blocked`), and no record goes past the barrier until an operator accepts the
loss.

**When.** Once enough of a log waits (`after_bytes`), or its oldest record has waited long enough
(`after_s`), or the disk fills up: then all of it, due or not.

**In which object.** A log with SPLIT_BYTES or more gets an object of its own, up to OBJECT_BYTES.
Small logs share an object. If one small log is due, the small logs that are halfway there go along:
an object of ten logs costs as many puts as an object of one log. A log is in one object of a plan,
so its commits stay in order.

**What a node may drop.** Oldest first, by whole partitions; only what is committed; and kept for
`local_retention_s` beyond its append, unless the disk fills up.

Source: docs/objects.md, "Planning"; docs/sources/s3stream.md (b), "Upload", and complaints 3
(upload on the fullness of what is finite, not on the size of a cache) and 5 (1.23 M objects of 71
KB).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from cordwood.protocol.retention import Part

SPLIT_BYTES = 8 << 20
"""AutoMQ's: two row groups. A reader of one log fetches no other log's records."""

OBJECT_BYTES = 64 << 20
"""Bytes of bodies in an object. A writer holds twice as much; 16 puts move a GiB."""

SHARED_LOGS_MAX = 1000
"""A footer has 200 bytes a log, and each log a commit of its own."""

ALONG_SHARE = 0.5
"""A small log goes along with others once it has this share of the bytes or the time that make it
due."""

DRAIN_S = 20.0
"""The time in which an upload may drain the bytes that wait, if nothing presses; AutoMQ's."""

RATE_BYTES_S_MIN = 8 << 20
"""At a lower rate, an object of 64 MiB takes longer than one try may take."""

EARLY_FREE_SHARE = 0.25
"""If less of the disk than this is free, uploads do not wait for size or age."""

DROP_FREE_SHARE = 0.15
"""If less of the disk than this is free, committed records are dropped before `local_retention_s`
is over. Nodes become read-only below 0.05 (`disk_space`)."""


class Pressure(enum.IntEnum):
    """How full a node's disk is."""

    NONE = 0
    UPLOAD = 1
    """Upload all waiting records."""
    DROP = 2
    """Also drop committed records at once."""


class Reason(enum.Enum):
    """The reason why a log is uploaded now."""

    SIZE = "size"
    AGE = "age"
    DISK = "disk"
    ALONG = "along"


@dataclass(frozen=True, slots=True)
class TierPolicy:
    """What a log asks for.

    Attributes:
        after_bytes: bytes that wait before they go; 0 for any.
        after_s: seconds after which the oldest goes; 0 for at once.
        local_retention_s: how long nodes keep records, by append time, though they are committed.
    """

    after_bytes: int = OBJECT_BYTES
    after_s: float = 3600.0
    local_retention_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """One log, as its uploader sees it.

    Attributes:
        log: its number.
        policy: its attributes for uploads.
        next: the LSN at which its manifest ends.
        stop: after the last LSN that may go.
        barrier: the first LSN at or after `next` that is lost or not known; None if there is none.
        bytes: of bodies from `next` to `stop` or the barrier, about.
        oldest_us: append time of the first record there.
    """

    log: int
    policy: TierPolicy
    next: int
    stop: int
    barrier: int | None
    bytes: int
    oldest_us: int

    @property
    def end(self) -> int:
        """Behind the last LSN that an upload may hold."""
        return self.stop if self.barrier is None else min(self.stop, self.barrier)

    @property
    def is_blocked(self) -> bool:
        """Whether something waits, and a barrier stands before all of it.

        Before the barrier there may be gaps, as at the end of an epoch. They wait for records.
        """
        if self.barrier is None or self.barrier >= self.stop:
            return False
        return self.next < self.stop and (self.barrier <= self.next or not self.bytes)


@dataclass(frozen=True, slots=True)
class PlannedShare:
    """What of a log goes into an object: whole blocks from `first` on and below `stop`, until there
    are `bytes_max` bytes of bodies."""

    log: int
    first: int
    stop: int
    bytes_max: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """One object: shares by log number; of one log, its own object."""

    shares: tuple[PlannedShare, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do.

    Attributes:
        objects: the most urgent first.
        blocked: logs that cannot go on, with the LSN of the barrier.
    """

    objects: tuple[PlannedObject, ...]
    blocked: tuple[tuple[int, int], ...]


def pressure(free_bytes: int, total_bytes: int) -> Pressure:
    """The pressure of a disk, by its free space."""
    if free_bytes < total_bytes * DROP_FREE_SHARE:
        return Pressure.DROP
    if free_bytes < total_bytes * EARLY_FREE_SHARE:
        return Pressure.UPLOAD
    return Pressure.NONE


def plan_uploads(logs: Sequence[Waiting], now_us: int, presses: Pressure) -> Plan:
    """Choose the next uploads.

    Args:
        logs: those of this uploader, each once.
        now_us: a clock that goes back only makes uploads later.
    """
    blocked = tuple((each.log, each.barrier or 0) for each in logs if each.is_blocked)
    able = [each for each in logs if each.end > each.next and each.bytes > 0]
    due = [(each, reason) for each in able if (reason := _reason(each, now_us, presses))]
    large = [pair for pair in due if pair[0].bytes >= SPLIT_BYTES]
    small = [pair for pair in due if pair[0].bytes < SPLIT_BYTES]
    if small:
        known = {each.log for each, _ in due}
        small += [
            (each, Reason.ALONG)
            for each in able
            if each.log not in known
            and each.bytes < SPLIT_BYTES
            and _ripeness(each, now_us) >= ALONG_SHARE
        ]
    objects = [PlannedObject((_share(*pair),), min(pair[0].bytes, OBJECT_BYTES)) for pair in large]
    objects += _shared(small)
    return Plan(tuple(sorted(objects, key=_urgency, reverse=True)), blocked)


def _reason(log: Waiting, now_us: int, presses: Pressure) -> Reason | None:
    if log.bytes >= max(1, log.policy.after_bytes):
        return Reason.SIZE
    if now_us - log.oldest_us >= log.policy.after_s * 1e6:
        return Reason.AGE
    return Reason.DISK if presses else None


def _ripeness(log: Waiting, now_us: int) -> float:
    """How much of what makes it due a log has waited; from 1 on it is due."""
    age_s = max(0, now_us - log.oldest_us) / 1e6
    by_age = age_s / log.policy.after_s if log.policy.after_s else 1.0
    return max(by_age, log.bytes / max(1, log.policy.after_bytes))


def _share(log: Waiting, reason: Reason) -> PlannedShare:
    return PlannedShare(log.log, log.next, log.end, OBJECT_BYTES, reason)


def _shared(small: Sequence[tuple[Waiting, Reason]]) -> list[PlannedObject]:
    """Fill objects with small logs, by number."""
    objects: list[PlannedObject] = []
    shares: list[PlannedShare] = []
    size = 0
    for log, reason in sorted(small, key=lambda pair: pair[0].log):
        if shares and (size + log.bytes > OBJECT_BYTES or len(shares) == SHARED_LOGS_MAX):
            objects.append(PlannedObject(tuple(shares), size))
            shares, size = [], 0
        shares.append(_share(log, reason))
        size += log.bytes
    if shares:
        objects.append(PlannedObject(tuple(shares), size))
    return objects


def _urgency(planned: PlannedObject) -> tuple[bool, int]:
    """Logs that waited long enough go before logs that are only large. Then the larger log goes
    first, because it frees more of the disk."""
    return any(share.reason is Reason.AGE for share in planned.shares), planned.bytes


def upload_rate(waiting_bytes: int, presses: Pressure) -> float:
    """Bytes a second that uploads may take of the network and the disk, so that appends do not
    notice; no bound (infinity) while the disk presses."""
    if presses:
        return float("inf")
    return max(float(RATE_BYTES_S_MIN), waiting_bytes / DRAIN_S)


def droppable(
    parts: Sequence[Part],
    committed_end: int,
    policy: TierPolicy,
    now_us: int,
    presses: Pressure,
) -> int:
    """The LSN up to which a node may drop a log's partitions, 0 for nothing.

    Args:
        parts: what the log has in each partition that is full, oldest first.
        committed_end: where its manifest ends; the manifest is durable up to there.
    """
    through = 0
    for part in parts:
        kept_until_us = part.last_us + round(policy.local_retention_s * 1e6)
        is_kept = now_us < kept_until_us and presses < Pressure.DROP
        if part.last >= committed_end or is_kept:
            break
        through = part.last
    return through
