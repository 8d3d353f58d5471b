"""Why a storage node does not take a block, as a table: no engine, no disk, no cluster."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from made_blocks import LOG, packed, payload

from cordwood.block import EnvelopeFlag
from cordwood.decisions import Decision, StoreRefused, listening
from cordwood.layout.logs_db import LogState
from cordwood.layout.waves import Refusal, StoredBlock, read_store
from cordwood.lsn import ESN_MAX, EVENT_LOG, make_lsn
from cordwood.protocol.seal import SealTable
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.log_cache import CachedLog
from cordwood.storage.refusals import damage_of, refusal_of, tell_refusal

SIZE = 100


@dataclass
class Space:
    """A disk that takes what fits."""

    left: int = 1 << 30

    def takes(self, size: int) -> bool:
        return size <= self.left


@dataclass
class Engine:
    """As much of a storage engine as a refusal looks at."""

    failed: str = ""
    sealed: int = 0
    clean: int = 0
    released: int = 0
    rebuilding: frozenset[int] = frozenset()
    read_only: str = ""
    unsure: bool = False
    low_space: bool = False
    is_out_of_space: bool = False
    cache_left: int = 1 << 30
    disk: Space = field(default_factory=Space)
    unflushed_bytes: int = 0
    trim: int = 0
    tier: int = 0
    letting_go: int = 0

    @property
    def seals(self) -> SealTable:
        table = SealTable()
        if self.sealed:
            table.seal(LOG, self.sealed)
        return table

    @property
    def cache(self) -> dict[int, CachedLog]:
        released = make_lsn(self.released, 0)
        state = LogState(clean=self.clean, released=released, trim=self.trim, tier=self.tier)
        held = CachedLog(state)
        held.letting_go = self.letting_go
        return {LOG: held}

    def cache_takes(self, size: int, *, by_recovery: bool) -> bool:
        return size <= self.cache_left


def block(
    esn: int = 5, epoch: int = 3, *, wave: int = 1, seal: int = 0, lng: int = 0
) -> StoredBlock:
    made = packed(make_lsn(epoch, esn), wave=wave, seal=seal, lng=lng)
    return read_store(payload(made, seal=seal))[1][0]


def from_donor() -> StoredBlock:
    made = block()
    envelope = replace(made.envelope, flags=made.envelope.flags | EnvelopeFlag.REBUILT)
    return StoredBlock(made.header, envelope, made.wire, made.body)


def moved() -> StoredBlock:
    """A donor's envelope for a block that the node holds."""
    made = from_donor()
    return StoredBlock(made.header, made.envelope, made.wire, b"")


def of_event_log() -> StoredBlock:
    made = block()
    return StoredBlock(replace(made.header, log=EVENT_LOG), made.envelope, made.wire, made.body)


FULL_DISK = Space(0)

CASES: dict[str, tuple[Engine, StoredBlock, int, bool, tuple[Refusal, int] | None]] = {
    "taken": (Engine(), block(), 0, False, None),
    "failed": (Engine(failed="EIO"), block(), 0, False, (Refusal.FAILED, 0)),
    "released what nobody has": (
        Engine(), block(5, lng=make_lsn(3, 6)), 0, False, (Refusal.CORRUPT, 0)
    ),
    "known good up to itself": (Engine(), block(5, lng=make_lsn(3, 5)), 0, False, None),
    "sealed above": (Engine(sealed=4), block(), 0, False, (Refusal.SEALED, 4)),
    "sealed by its own epoch": (Engine(sealed=3), block(), 0, False, None),
    "a recovery below the seal": (Engine(sealed=5), block(seal=4), 4, False, (Refusal.SEALED, 5)),
    "the recovery that sealed": (Engine(sealed=5), block(seal=5), 5, False, None),
    "recovered while away": (Engine(clean=3), block(), 0, False, (Refusal.SEALED, 4)),
    "a recovery of a clean epoch": (Engine(clean=3, sealed=4), block(seal=4), 4, False, None),
    "a recovery while its epoch's own release is awaited": (
        Engine(clean=3, released=3, sealed=4), block(seal=4), 4, False, None
    ),
    "a recovery below the release": (
        Engine(released=5, sealed=4), block(seal=4), 4, False, (Refusal.SEALED, 5)
    ),
    "a recovery that has ended": (
        Engine(released=4, sealed=4), block(seal=4), 4, False, (Refusal.SEALED, 4)
    ),
    "a recovery whose epoch is clean": (
        Engine(clean=4, sealed=4), block(seal=4), 4, False, (Refusal.SEALED, 5)
    ),
    "a donor after the node let go": (
        Engine(tier=make_lsn(3, 5)), from_donor(), 0, False, (Refusal.LET_GO, 0)
    ),
    "a donor behind what the node let go of": (
        Engine(tier=make_lsn(3, 4)), from_donor(), 0, False, None
    ),
    "a donor while the node lets go": (
        Engine(letting_go=make_lsn(3, 5)), from_donor(), 0, False, (Refusal.LET_GO, 0)
    ),
    "a donor behind what the node lets go of": (
        Engine(letting_go=make_lsn(3, 4)), from_donor(), 0, False, None
    ),
    "a donor of what is trimmed": (
        Engine(trim=make_lsn(3, 5), letting_go=make_lsn(3, 5)), from_donor(), 0, False, None
    ),
    "a donor's envelope while the node lets go": (
        Engine(letting_go=make_lsn(3, 5)), moved(), 0, False, None
    ),
    "a sequencer while the node lets go": (
        Engine(letting_go=make_lsn(3, 5)), block(), 0, False, None
    ),
    "a donor after the release": (Engine(clean=4, released=5), from_donor(), 0, False, None),
    "a recovery that did not seal here": (Engine(), block(seal=4), 4, False, (Refusal.SEALED, 0)),
    "a member is rebuilt": (
        Engine(rebuilding=frozenset({2, 9})), block(), 0, False, (Refusal.REBUILDING, 2)
    ),
    "another node is rebuilt": (Engine(rebuilding=frozenset({9})), block(), 0, False, None),
    "read-only": (Engine(read_only="an operator"), block(), 0, False, (Refusal.NO_SPACE, 0)),
    "read-only, a recovery": (
        Engine(read_only="an operator", sealed=4), block(seal=4), 4, False, (Refusal.NO_SPACE, 0)
    ),
    "read-only, a donor": (
        Engine(read_only="an operator"), from_donor(), 0, True, (Refusal.NO_SPACE, 0)
    ),
    "read-only, a donor's envelope": (Engine(read_only="an operator"), moved(), 0, True, None),
    "unsure": (Engine(unsure=True), block(), 0, False, (Refusal.FULL, 0)),
    "unsure, a recovery": (
        Engine(unsure=True, sealed=4), block(seal=4), 4, False, (Refusal.FULL, 0)
    ),
    "unsure, a donor": (Engine(unsure=True), from_donor(), 0, False, (Refusal.FULL, 0)),
    "unsure, the event log": (Engine(unsure=True), of_event_log(), 0, False, None),
    "nearly full": (
        Engine(low_space=True, disk=FULL_DISK), block(), 0, False, (Refusal.NO_SPACE, 0)
    ),
    "nearly full, a recovery": (
        Engine(low_space=True, disk=FULL_DISK, sealed=4), block(seal=4), 4, False, None
    ),
    "nearly full, a donor's envelope": (
        Engine(low_space=True, disk=FULL_DISK), moved(), 0, True, None
    ),
    "full, a first wave": (Engine(), block(), 0, True, (Refusal.FULL, 0)),
    "full, a donor's envelope": (Engine(), moved(), 0, True, (Refusal.FULL, 0)),
    "full, a second wave": (Engine(), block(wave=2), 0, True, None),
    "full, a recovery": (Engine(sealed=4), block(seal=4), 4, True, None),
    "full and out of space": (
        Engine(is_out_of_space=True), block(), 0, True, (Refusal.NO_SPACE, 0)
    ),
    "the cache is full": (Engine(cache_left=SIZE - 1), block(wave=2), 0, False, (Refusal.FULL, 0)),
    "failed and sealed": (Engine(failed="EIO", sealed=9), block(), 0, False, (Refusal.FAILED, 0)),
}  # fmt: skip
"""What the node knows, the block, the recovery's seal, whether the WAL is full: the refusal."""


def judged(name: str) -> tuple[Refusal, int] | None:
    engine, sent, seal, is_full, _ = CASES[name]
    known: Any = engine
    refusal = refusal_of(known, 1, sent, seal, is_full, SIZE)
    return None if refusal is None else (refusal.reason, refusal.epoch)


@pytest.mark.parametrize("name", CASES)
def test_a_block_is_refused_for_one_reason(name: str) -> None:
    assert judged(name) == CASES[name][-1]


@pytest.mark.parametrize(
    ("bug", "name"),
    [
        ("seal-unnamed", "a recovery below the seal"),
        ("seal-not-obeyed", "sealed above"),
        ("outdated-recovery-stores", "a recovery below the release"),
    ],
)
def test_a_planted_bug_breaks_its_row(bug: str, name: str) -> None:
    with planted(find_bug(bug)):
        assert judged(name) != CASES[name][-1]


def test_a_refusal_is_told_with_what_sent_it() -> None:
    engine: Any = Engine(sealed=5)
    sent = block(seal=4)
    refusal = refusal_of(engine, 1, sent, 4, False, SIZE)
    assert refusal is not None
    told: list[Decision] = []
    with listening(told.append):
        tell_refusal(engine, sent, 4, refusal)
    at = make_lsn(3, 5)
    assert told == [StoreRefused(LOG, at, at, "SEALED", 4, False)]


def test_a_damaged_body_is_refused_and_a_bridge_has_none() -> None:
    sent = block()
    assert damage_of(1, sent) is None
    bad = StoredBlock(sent.header, sent.envelope, sent.wire, bytes(len(sent.body)))
    refusal = damage_of(1, bad)
    assert refusal is not None
    assert refusal.reason is Refusal.CORRUPT
    assert sent.header.last & ESN_MAX == 5
