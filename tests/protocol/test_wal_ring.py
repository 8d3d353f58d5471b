"""The ring's rules: places, the window, and what a scan concludes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.protocol.wal_ring import (
    LOST_RANGES_MAX,
    UNIT,
    Range,
    RingSpace,
    ScanVerdict,
    WalScan,
    WriteWindow,
    align_down,
    align_up,
    united,
)

RING = 16 * UNIT


def space(*, start: int = 0, floor: int = 0, reserve: int = 0, soft: int = 2 * UNIT) -> RingSpace:
    return RingSpace(ring=RING, start=start, floor=floor, reserve=reserve, block_soft=soft)


def test_records_share_a_block_up_to_its_soft_limit() -> None:
    ring = space()
    found = [ring.place(3000) for _ in range(4)]
    assert [(p.offset, p.opens_block) for p in found if p] == [
        (0, True),
        (3000, False),
        (8192, True),
        (11192, False),
    ]
    ring.seal()
    ring.seal()
    after = ring.place(1)
    assert after is not None
    assert (after.offset, after.opens_block) == (16384, True)


def test_a_record_over_the_soft_limit_has_a_block_to_itself() -> None:
    ring = space()
    assert ring.place(10) is not None
    large = ring.place(5 * UNIT)
    assert large is not None
    assert (large.offset, large.opens_block) == (UNIT, True)
    small = ring.place(10)
    assert small is not None
    assert (small.offset, small.opens_block) == (6 * UNIT, True)


def test_a_tail_too_short_is_padding_and_an_exact_one_is_not() -> None:
    ring = space(start=14 * UNIT, floor=14 * UNIT)
    exact = ring.place(2 * UNIT)
    assert exact is not None
    assert (exact.offset, exact.padding) == (14 * UNIT, None)
    ring = space(start=14 * UNIT, floor=14 * UNIT)
    over = ring.place(2 * UNIT + 1)
    assert over is not None
    assert (over.offset, over.padding) == (RING, (14 * UNIT, RING))


def test_a_block_is_not_extended_past_the_laps_end() -> None:
    ring = space(start=15 * UNIT, floor=15 * UNIT)
    assert ring.place(3000) is not None
    over = ring.place(3000)
    assert over is not None
    assert (over.offset, over.opens_block, over.padding) == (RING, True, None)


def test_full_changes_nothing_and_the_reserve_is_for_who_asks() -> None:
    ring = space(reserve=2 * UNIT)
    for _ in range(14):
        assert ring.place(UNIT) is not None
    before = (ring.next, ring.used)
    assert ring.place(UNIT) is None
    assert (ring.next, ring.used) == before == (14 * UNIT, 14 * UNIT)
    assert ring.place(UNIT, use_reserve=True) is not None
    assert ring.place(UNIT, use_reserve=True) is not None
    assert ring.place(1, use_reserve=True) is None
    ring.on_trimmed(3 * UNIT + 17)  # the block of what was trimmed stays
    assert ring.used == 13 * UNIT
    assert ring.place(UNIT) is not None
    assert ring.place(UNIT) is None


Steps = st.lists(
    st.one_of(
        st.tuples(st.just("place"), st.integers(40, 9 * UNIT)),
        st.tuples(st.just("seal"), st.just(0)),
        st.tuples(st.just("trim"), st.integers(0, 100)),
    ),
    max_size=80,
)


@given(Steps, st.integers(0, 40), st.sampled_from((0, UNIT, 4 * UNIT)))
def test_places_never_overlap_what_is_live(
    steps: list[tuple[str, int]], start: int, reserve: int
) -> None:
    ring = space(start=start * UNIT, floor=start * UNIT, reserve=reserve)
    live: list[Range] = []
    end = start * UNIT
    for step, value in steps:
        if step == "seal":
            ring.seal()
        elif step == "trim" and live:
            del live[: value * len(live) // 100]
            ring.on_trimmed(live[0][0] if live else ring.next)
        elif step == "place":
            placement = ring.place(value)
            if placement is None:
                # Full for good reason: even at the best place it does not fit.
                if value <= ring.record_max:
                    assert live
                continue
            span = (placement.offset, placement.offset + value)
            assert span[0] >= end
            assert align_up(span[1]) <= (span[0] // RING + 1) * RING
            assert not placement.opens_block or span[0] % UNIT == 0
            assert placement.padding is None or placement.padding[1] == span[0]
            end = span[1]
            live.append(span)
        assert ring.used <= RING
        if live:
            assert align_up(live[-1][1]) - align_down(live[0][0]) <= RING - reserve


def test_window_grows_by_a_step_up_to_its_limit() -> None:
    window = WriteWindow(start=0, length=2 * UNIT, step=4 * UNIT, limit=10 * UNIT)
    assert window.admits(2 * UNIT)
    assert not window.admits(3 * UNIT)
    assert window.wanted_length(3 * UNIT) == 7 * UNIT
    assert window.wanted_length(9 * UNIT) == 10 * UNIT
    assert window.wanted_length(10 * UNIT) == 10 * UNIT
    assert window.wanted_length(11 * UNIT) is None
    window.start = UNIT
    assert window.wanted_length(11 * UNIT) == 10 * UNIT


# ---- the scan ----


@dataclass(frozen=True)
class On:
    """A record header that stands at the offset it is filed under, unless `offset` says other."""

    size: int
    last: bool = True
    good: bool = True
    durable: int = 0
    incarnation: int = 1
    offset: int | None = None
    tells: tuple[Range, ...] = ()


def walk(
    disk: dict[int, On],
    *,
    scan: int = 0,
    durable: int = 0,
    resume: int = 0,
    window: int = 4 * UNIT,
    incarnation: int = 1,
    is_graceful: bool = False,
) -> tuple[list[int], ScanVerdict, int]:
    """Offsets of good records, the verdict, and how far the scan looked."""
    rule = WalScan(
        ring=RING,
        scan=scan,
        durable=durable,
        resume=resume,
        window=window,
        incarnation=incarnation,
        is_graceful=is_graceful,
    )
    found = []
    while not rule.is_over:
        at = rule.cursor
        on = disk.get(at)
        offset = at if on is None or on.offset is None else on.offset
        if on is None:
            rule.on_nothing()
        elif rule.is_later_lap(offset):
            rule.on_later_lap(on.size, is_last=on.last)
        elif not rule.admits(offset, on.incarnation):
            rule.on_nothing()
        elif not on.good:
            rule.on_bad_body(at + on.size, on.durable, on.incarnation, is_last=on.last)
        else:
            rule.on_record(at + on.size, on.durable, on.incarnation, is_last=on.last)
            rule.on_holes_told(on.tells)
            found.append(at)
        assert rule.cursor > at
    return found, rule.verdict(), rule.cursor


K = UNIT


@pytest.mark.parametrize(
    ("disk", "how", "found", "resume", "holes", "damage", "looked"),
    [
        pytest.param({}, {}, [], 0, (), (), 5 * K, id="empty"),
        pytest.param(
            {0: On(100, last=False), 100: On(200), K: On(K)},
            {},
            [0, 100, K],
            2 * K,
            (),
            (),
            7 * K,
            id="in order, the block's tail jumped",
        ),
        pytest.param(
            {0: On(100), 2 * K: On(100)},
            {},
            [0, 2 * K],
            3 * K,
            ((K, 2 * K),),
            (),
            8 * K,
            id="behind a hole, inside the window",
        ),
        pytest.param(
            {0: On(100), 6 * K: On(100)},
            {},
            [0],
            K,
            (),
            (),
            6 * K,
            id="behind a hole wider than the window: cannot have been written",
        ),
        pytest.param(
            {0: On(100), 5 * K: On(100, durable=5 * K)},
            {},
            [0, 5 * K],
            6 * K,
            (),
            ((K, 5 * K),),
            11 * K,
            id="where the window ends: it was let in when what is lost was durable (seed 56)",
        ),
        pytest.param(
            {0: On(100), 4 * K: On(100), 8 * K: On(100)},
            {},
            [0, 4 * K, 8 * K],
            9 * K,
            ((K, 4 * K), (5 * K, 8 * K)),
            (),
            14 * K,
            id="each record found moves the end on",
        ),
        pytest.param(
            {0: On(5000, last=False, good=False), 5000: On(100), 2 * K: On(100)},
            {},
            [5000, 2 * K],
            3 * K,
            ((0, 5000),),
            (),
            8 * K,
            id="a bad body loses itself only",
        ),
        pytest.param(
            {0: On(100, last=False), K: On(100)},
            {},
            [0, K],
            2 * K,
            ((100, K),),
            (),
            7 * K,
            id="a record lost out of a block's end is missed",
        ),
        pytest.param(
            {0: On(100, last=False)},
            {},
            [0],
            K,
            ((100, K),),
            (),
            6 * K,
            id="torn at the very end",
        ),
        pytest.param(
            {0: On(100), K: On(9 * K, good=False)},
            {},
            [0],
            10 * K,
            ((K, 10 * K),),
            (),
            15 * K,
            id="resumes past a header whose body is torn",
        ),
        pytest.param(
            {0: On(100), 2 * K: On(100, durable=2 * K)},
            {},
            [0, 2 * K],
            3 * K,
            (),
            ((K, 2 * K),),
            8 * K,
            id="a hole that was durable is damage",
        ),
        pytest.param(
            {0: On(100), 3 * K: On(100, durable=2 * K)},
            {},
            [0, 3 * K],
            4 * K,
            ((2 * K, 3 * K),),
            ((K, 2 * K),),
            9 * K,
            id="part damage, part hole",
        ),
        pytest.param(
            {},
            {"durable": 9 * K},
            [],
            9 * K,
            (),
            ((0, 9 * K),),
            14 * K,
            id="the header knows of more than can be read",
        ),
        pytest.param(
            {6 * K: On(100)},
            {"durable": 6 * K},
            [6 * K],
            7 * K,
            (),
            ((0, 6 * K),),
            12 * K,
            id="damage wider than the window hides nothing",
        ),
        pytest.param(
            {0: On(100), K: On(100)},
            {"durable": K, "is_graceful": True},
            [0],
            K,
            (),
            (),
            K,
            id="graceful: nothing past the end is looked at",
        ),
        pytest.param(
            {0: On(100), K: On(100), 2 * K: On(100, incarnation=2)},
            {"resume": K, "incarnation": 2},
            [0, 2 * K],
            3 * K,
            ((K, 2 * K),),
            (),
            8 * K,
            id="left over from an earlier incarnation",
        ),
        pytest.param(
            {0: On(100, incarnation=2), K: On(100), 2 * K: On(100, incarnation=2)},
            {"resume": 3 * K, "incarnation": 3},
            [0, 2 * K],
            3 * K,
            ((K, 2 * K),),
            (),
            8 * K,
            id="incarnations never go back",
        ),
        pytest.param(
            {0: On(100), 6 * K: On(100, incarnation=2, durable=6 * K, tells=((K, 6 * K),))},
            {"resume": 6 * K, "incarnation": 2},
            [0, 6 * K],
            7 * K,
            (),
            (),
            12 * K,
            id="a told hole is neither hole nor damage",
        ),
        pytest.param(
            {0: On(100), 5 * K: On(100, tells=((2 * K, 3 * K),))},
            {"durable": 5 * K},
            [0, 5 * K],
            6 * K,
            (),
            ((K, 2 * K), (3 * K, 5 * K)),
            11 * K,
            id="what no one told stays damage",
        ),
        pytest.param(
            {14 * K: On(100), 15 * K: On(K), 16 * K: On(100)},
            {"scan": 14 * K},
            [14 * K, 15 * K, 16 * K],
            17 * K,
            (),
            (),
            22 * K,
            id="over the lap's end",
        ),
        pytest.param(
            {K: On(2 * K, offset=K + RING), 3 * K: On(100), 4 * K: On(100, durable=4 * K)},
            {},
            [3 * K, 4 * K],
            5 * K,
            (),
            (),
            10 * K,
            id="written over by a later lap: not the end, not damage",
        ),
        pytest.param(
            {0: On(100), K: On(100, offset=K - RING)},
            {},
            [0],
            K,
            (),
            (),
            6 * K,
            id="left over from an earlier lap",
        ),
        pytest.param(
            {0: On(100)},
            {"window": RING},
            [0],
            K,
            (),
            (),
            RING + 2 * K,
            id="never more than a lap past the end",
        ),
    ],
)
def test_scan(
    disk: dict[int, On],
    how: dict[str, int],
    found: list[int],
    resume: int,
    holes: tuple[Range, ...],
    damage: tuple[Range, ...],
    looked: int,
) -> None:
    got, verdict, cursor = walk(disk, **how)  # type: ignore[arg-type]
    assert got == found
    assert verdict.resume == resume
    assert verdict.holes == holes
    assert verdict.damage == damage
    assert cursor == looked


def test_a_later_lap_moves_where_the_next_scan_starts() -> None:
    disk = {K: On(K, offset=K + RING), 2 * K: On(100), 17 * K: On(100)}
    found, verdict, looked = walk(disk, window=RING)
    assert found == [2 * K, 17 * K]
    assert verdict.scan == 2 * K
    assert looked == 19 * K + RING


def test_more_than_a_lap_back_is_not_kept() -> None:
    disk = {unit * K: On(K) for unit in range(2, 30)}
    found, verdict, _ = walk(disk, scan=K)
    assert found[-1] == 29 * K
    assert verdict.scan == 30 * K - RING


@given(
    st.dictionaries(
        st.integers(0, 40).map(lambda unit: unit * UNIT),
        st.builds(
            On,
            size=st.integers(40, 3 * UNIT),
            last=st.booleans(),
            good=st.booleans(),
            durable=st.integers(0, 20).map(lambda unit: unit * UNIT),
            incarnation=st.integers(0, 3),
        ),
    ),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_any_scan_ends_and_its_verdict_holds_together(
    disk: dict[int, On], durable: int, resume: int
) -> None:
    found, verdict, looked = walk(disk, durable=durable * UNIT, resume=resume * UNIT)
    assert looked <= max([41, durable, resume]) * UNIT + 7 * UNIT
    assert verdict.resume % UNIT == 0
    assert verdict.resume >= max([durable * UNIT, resume * UNIT, *found])
    ranges = sorted(verdict.holes + verdict.damage)
    assert all(start < stop <= verdict.resume for start, stop in ranges)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))
    assert not any(start <= offset < stop for offset in found for start, stop in ranges)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=20))
def test_united_ranges_hold_what_any_of_them_holds(drawn: list[tuple[int, int]]) -> None:
    ranges = [(start, start + length) for start, length in drawn]
    found = united(ranges)
    assert {at for each in found for at in range(*each)} == {a for r in ranges for a in range(*r)}
    assert all(before[1] < after[0] for before, after in itertools.pairwise(found))


def test_many_lost_ranges_become_one() -> None:
    apart = [(10 * number, 10 * number + 1) for number in range(LOST_RANGES_MAX + 1)]
    assert united(apart[:-1]) == tuple(apart[:-1])
    assert united(apart) == ((0, 10 * LOST_RANGES_MAX + 1),)
