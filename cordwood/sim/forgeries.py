"""Well-formed frames and calls that only a `sim.stranger` sends.

A *lie* is a frame that a node would believe from a member: it forges a release within an epoch, a
block, a seal, or gossip. So a stranger must not be accepted as a member. A *far* frame names epochs
that were never handed out, and must not be believed from members either. An *edge* call is one that
clients may make, with the largest legal numbers.
"""

from __future__ import annotations

import random

from crc32c import crc32c

from cordwood.block import BlockHeader, BlockKind, Envelope
from cordwood.layout.block_header import pack_envelope, pack_header
from cordwood.layout.frame import Kind
from cordwood.layout.gossip import pack_gossip
from cordwood.layout.log_questions import AskExtent, AskSize, AskTime, Trim
from cordwood.layout.message import (
    ASK_LOGS_MAX,
    AskNodesets,
    AskReleased,
    AskTail,
    Clean,
    Seal,
    TellNodesets,
    pack,
)
from cordwood.layout.waves import pack_pairs, store_head
from cordwood.lsn import EPOCH_MAX, ESN_MAX, LSN_MAX, LogId

LOGS = range(1, 4)
"""The first logs that a run makes."""

FAR = (5000, 1 << 20, EPOCH_MAX)
"""Epochs that no run reaches, and that no node regards as epochs that it missed."""

LOG_MAX = (1 << 62) - 1
TIME_MAX_US = (1 << 62) - 1

Said = tuple[int, int, bytes]
"""A frame's kind, request and payload."""


def _log(chance: random.Random) -> int:
    return chance.choice(LOGS)


def lie(chance: random.Random) -> Said:
    """A frame of a node that may be true."""
    log, epoch = _log(chance), chance.randint(1, 8)
    kind = chance.choice((Kind.RELEASE, Kind.STORE, Kind.GOSSIP, Kind.CALL))
    if kind == Kind.RELEASE:
        return kind, 0, pack_pairs([log, epoch << 32 | ESN_MAX - 1])
    if kind == Kind.STORE:
        return kind, 1, _store(log, epoch << 32 | chance.randint(1, 50))
    if kind == Kind.GOSSIP:
        return kind, 0, pack_gossip([(node, 0, 1 << 40, True) for node in range(1, 6)])
    call = chance.choice((Seal(log, epoch + 1, 0), Clean(log, epoch, epoch + 1, epoch << 32)))
    return kind, 1, pack(call)


def far_call(chance: random.Random) -> bytes:
    """A call of a node, or a client's trim, that would end a log for ever."""
    log, epoch = _log(chance), chance.choice(FAR)
    return pack(
        chance.choice(
            (
                Seal(log, epoch, 0),
                Clean(log, epoch - 1, epoch, 0),
                Clean(log, 1, epoch, 1 << 32),
                TellNodesets(log, epoch, []),
                Trim(log, epoch << 32 | ESN_MAX, epoch << 32 | ESN_MAX),
                Trim(log, LSN_MAX, LSN_MAX),
            )
        )
    )


def far_release(chance: random.Random) -> bytes:
    """A release of a log, and of many logs that do not exist."""
    far = [_log(chance), chance.choice(FAR) << 32 | chance.choice((0, 7, ESN_MAX))]
    logs = range(10**6, 10**6 + chance.choice((0, 1000)))
    return pack_pairs(far + [number for log in logs for number in (log, 1 << 32 | 1)])


def far_store(chance: random.Random) -> bytes:
    """A block of such an epoch, whose LNG claims that all of it is stored."""
    return _store(_log(chance), chance.choice(FAR) << 32 | chance.randint(1, 50))


def edge_call(chance: random.Random) -> bytes:
    """A client's call with the largest possible numbers and lists."""
    log = chance.choice((*LOGS, LOG_MAX))
    return pack(
        chance.choice(
            (
                AskTime(log, TIME_MAX_US, LSN_MAX, True),
                AskTime(log, -TIME_MAX_US, 0, True),
                AskExtent(log, LSN_MAX),
                AskSize(log, -TIME_MAX_US, TIME_MAX_US),
                AskReleased([log] * ASK_LOGS_MAX),
                AskTail(LOG_MAX, True),
                AskNodesets(LOG_MAX),
                Trim(LOG_MAX, LSN_MAX, LSN_MAX),
            )
        )
    )


def _store(log: int, first: int) -> bytes:
    """A STORE of a block that no client appended."""
    body = b"nobody appended this"
    header = BlockHeader(
        log=LogId(log), first=first, count=1, append_time_us=1, kind=BlockKind.DATA,
        stored_bytes=len(body), raw_bytes=len(body), stored_crc=crc32c(body), raw_crc=crc32c(body),
    )  # fmt: skip
    envelope = Envelope((1, 2, 3), 1, 0, first)
    return store_head(1) + pack_header(header) + pack_envelope(envelope) + body
