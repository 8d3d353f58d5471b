"""The digest: for each range above the LNG one outcome, the same for every recovery."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.block import BlockHeader, BlockKind, Envelope, EnvelopeFlag
from cordwood.lsn import ESN_MAX, make_lsn
from cordwood.protocol.digest import Copy, Digest, Mend

EPOCH = 3


def copy(
    first: int,
    last: int,
    *,
    kind=BlockKind.DATA,
    seal: int = 0,
    wave: int = 1,
    producer: int = 0,
    body: str = "",
):
    flags = EnvelopeFlag.BY_RECOVERY if seal else 0
    header = BlockHeader(
        1, make_lsn(EPOCH, first), last - first + 1, 0, kind=kind, producer=producer
    )
    return Copy(header, Envelope((1, 2, 3), wave, seal, 0, flags), body)


def mend(lng: int, *copies) -> Mend[str]:
    digest: Digest[str] = Digest(EPOCH, make_lsn(EPOCH, lng))
    digest.add(copies)
    return digest.mend()


def mend_unsure(lng: int, *copies) -> Mend[str]:
    digest: Digest[str] = Digest(EPOCH, make_lsn(EPOCH, lng))
    digest.add(copies)
    return digest.mend(is_authoritative=False)


def esns(mended: Mend[str]):
    kept = [(c.header.first & ESN_MAX, c.header.last & ESN_MAX) for c in mended.blocks]
    holes = [(first & ESN_MAX, last & ESN_MAX) for first, last in mended.holes]
    return kept, holes, None if mended.bridge is None else mended.bridge & ESN_MAX


def test_an_empty_epoch_ends_at_its_first_esn() -> None:
    assert esns(mend(0)) == ([], [], 1)


def test_nothing_above_the_lng_puts_the_bridge_right_behind_it() -> None:
    assert esns(mend(6, copy(5, 6))) == ([], [], 7)


def test_records_above_the_lng_are_kept_and_missing_runs_become_one_hole() -> None:
    # The seed's example: e5n5 was never stored, e5n6 and e5n7 were.
    assert esns(mend(3, copy(4, 4), copy(6, 7))) == ([(4, 4), (6, 7)], [(5, 5)], 8)


def test_a_copy_on_a_single_member_is_enough_to_keep_a_record() -> None:
    assert esns(mend(0, copy(1, 10))) == ([(1, 10)], [], 11)


def test_the_highest_wave_represents_a_block() -> None:
    mended = mend(0, copy(1, 2, wave=1, body="old"), copy(1, 2, wave=3, body="new"))
    assert [c.body for c in mended.blocks] == ["new"]


def test_a_hole_of_an_earlier_recovery_beats_a_late_store_of_the_sequencer() -> None:
    late = copy(5, 5)
    plug = copy(5, 5, kind=BlockKind.HOLE, seal=4)
    assert esns(mend(4, plug, late, copy(6, 6, seal=4))) == ([(6, 6)], [(5, 5)], 7)


def test_a_bridge_of_an_earlier_recovery_ends_the_epoch_below_late_stores() -> None:
    bridge = copy(5, ESN_MAX, kind=BlockKind.BRIDGE, seal=4)
    assert esns(mend(3, copy(4, 4, seal=4), bridge, copy(6, 6))) == ([(4, 4)], [], 5)


HOLE, BRIDGE = BlockKind.HOLE, BlockKind.BRIDGE


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        ([copy(1, 1)], ([(1, 1)], [], None)),
        ([copy(2, ESN_MAX, kind=BRIDGE, seal=4)], ([], [], 2)),
        ([copy(1, 1), copy(2, ESN_MAX, kind=BRIDGE, seal=4)], ([(1, 1)], [], 2)),
        ([copy(1, 1), copy(4, 4, seal=4), copy(2, 3, kind=HOLE, seal=4)],
         ([(1, 1), (4, 4)], [(2, 3)], None)),
        # Between the two nobody knows; a hole that ends at the bridge is part of it.
        ([copy(1, 1), copy(4, ESN_MAX, kind=BRIDGE, seal=4)], ([(1, 1)], [], 4)),
        ([copy(1, 1), copy(2, 3, kind=HOLE, seal=4), copy(4, ESN_MAX, kind=BRIDGE, seal=4)],
         ([(1, 1)], [], 2)),
        # A higher recovery kept what a lower one plugged, and may have kept more than is here.
        ([copy(2, 2, seal=5), copy(1, ESN_MAX, kind=BRIDGE, seal=4)], ([(2, 2)], [], None)),
        ([copy(2, 2, seal=5), copy(1, 3, kind=HOLE, seal=4)],
         ([(2, 2)], [(1, 1), (3, 3)], None)),
        ([copy(2, 2), copy(1, 3, kind=HOLE, seal=4)], ([], [(1, 3)], None)),
    ],
)  # fmt: skip
def test_a_recovery_that_cannot_know_keeps_what_another_one_knew(found, outcome) -> None:
    mended = mend_unsure(0, *found)
    assert esns(mended) == outcome
    assert not mended.is_authoritative


def test_of_two_attempts_under_one_seal_the_later_counts_whoever_is_heard_first() -> None:
    plug = copy(4, ESN_MAX, kind=BRIDGE, seal=4, wave=1)
    kept = [copy(4, 4, seal=4, wave=2), copy(5, ESN_MAX, kind=BRIDGE, seal=4, wave=2)]
    for order in ([plug, *kept], [*kept, plug]):
        assert esns(mend(3, *order)) == ([(4, 4)], [], 5)
    assert esns(mend(3, copy(4, ESN_MAX, kind=BRIDGE, seal=4, wave=3), *kept)) == ([], [], 4)


def test_producer_blocks_above_the_first_hole_become_holes() -> None:
    copies = [copy(1, 1, producer=9), copy(3, 3, producer=9), copy(4, 4), copy(5, 5, producer=9)]
    # The last one lies above everything kept, so the bridge covers it.
    assert esns(mend(0, *copies)) == ([(1, 1), (4, 4)], [(2, 3)], 5)


@given(st.sets(st.integers(1, 40)), st.integers(0, 10), st.integers(1, 4))
def test_a_second_recovery_reaches_the_same_end(stored, lng, seal) -> None:
    first = mend(lng, *(copy(esn, esn, body=str(esn)) for esn in sorted(stored)))
    kept, holes, bridge = esns(first)
    again = [copy(a, b, seal=seal, body=str(a)) for a, b in kept]
    again += [copy(a, b, kind=BlockKind.HOLE, seal=seal) for a, b in holes]
    again.append(copy(bridge, ESN_MAX, kind=BlockKind.BRIDGE, seal=seal))
    again += [copy(esn, esn, body=str(esn)) for esn in sorted(stored)]
    assert esns(mend(lng, *again)) == (kept, holes, bridge)


@given(st.sets(st.integers(1, 40)), st.integers(0, 10))
def test_outcomes_tile_from_the_lng_to_the_bridge(stored, lng) -> None:
    kept, holes, bridge = esns(mend(lng, *(copy(esn, esn) for esn in sorted(stored))))
    covered = sorted([*kept, *holes])
    at = lng + 1
    for first, last in covered:
        assert first == at
        at = last + 1
    assert at == bridge
    assert {esn for esn in stored if esn > lng} == {first for first, _ in kept}
