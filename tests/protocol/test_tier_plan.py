"""What goes to main storage, when, in which object, and what nodes may drop: as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.protocol.retention import Part
from cordwood.protocol.tier_plan import (
    DRAIN_S,
    OBJECT_BYTES,
    RATE_BYTES_S_MIN,
    SHARED_LOGS_MAX,
    SPLIT_BYTES,
    Plan,
    Pressure,
    Reason,
    TierPolicy,
    Waiting,
    droppable,
    plan_uploads,
    pressure,
    upload_rate,
)

MIB = 1 << 20
NOW_US = 10**15
POLICY = TierPolicy(after_bytes=64 * MIB, after_s=3600, local_retention_s=600)


def waiting(log: int = 1, mib: float = 1, age_s: float = 10, **fields) -> Waiting:
    one = Waiting(log, POLICY, 100, 200, None, int(mib * MIB), NOW_US - int(age_s * 1e6))
    return replace(one, **fields)


def plan(*logs: Waiting, presses: Pressure = Pressure.NONE) -> Plan:
    return plan_uploads(logs, NOW_US, presses)


def shares(made: Plan) -> list[list[tuple[int, str]]]:
    return [[(s.log, s.reason.value) for s in each.shares] for each in made.objects]


class TestWhen:
    @pytest.mark.parametrize(
        ("mib", "age_s", "presses", "reason"),
        [
            (1, 10, 0, None),
            (63.9, 3599, 0, None),
            (64, 10, 0, "size"),
            (900, 10, 0, "size"),
            (0.001, 3600, 0, "age"),
            (64, 9999, 0, "size"),
            (0.001, 10, 1, "disk"),
            (0.001, 10, 2, "disk"),
            (0.001, -10, 0, None),  # a clock that went back
        ],
    )
    def test_by_size_by_age_or_because_the_disk_fills_up(
        self, mib: float, age_s: int, presses: int, reason: str | None
    ):
        made = plan(waiting(mib=mib, age_s=age_s), presses=Pressure(presses))
        assert shares(made) == ([[(1, reason)]] if reason else [])

    @pytest.mark.parametrize(("after_bytes", "after_s"), [(0, 3600), (64 * MIB, 0)])
    def test_at_once_if_a_log_asks_for_it(self, after_bytes, after_s: int):
        policy = TierPolicy(after_bytes, after_s)
        assert len(plan(waiting(mib=0.001, age_s=0, policy=policy)).objects) == 1

    def test_nothing_goes_of_a_log_of_which_nothing_waits(self):
        nothing = [waiting(stop=100), waiting(bytes=0), waiting(stop=50)]
        assert plan(*nothing, presses=Pressure.DROP) == Plan((), ())


class TestHowFar:
    @pytest.mark.parametrize(
        ("next_", "stop", "barrier", "goes", "blocked"),
        [
            (100, 200, None, (100, 200), None),
            (100, 200, 150, (100, 150), None),
            (100, 200, 101, (100, 101), None),
            (100, 200, 100, None, 100),
            (100, 200, 90, None, 90),
            (100, 200, 200, (100, 200), None),
            (100, 200, 999, (100, 200), None),
            (200, 200, 200, None, None),  # a barrier, and nothing waits behind it
        ],
    )
    def test_never_across_what_is_lost_or_unknown_and_that_is_told(
        self, next_: int, stop: int, barrier: int | None, goes, blocked: int | None
    ):
        made = plan(waiting(mib=99, next=next_, stop=stop, barrier=barrier))
        went = [(s.first, s.stop) for each in made.objects for s in each.shares]
        assert went == ([goes] if goes else [])
        assert made.blocked == (((1, blocked),) if blocked else ())

    @pytest.mark.parametrize(("barrier", "is_told"), [(150, True), (199, True), (200, False)])
    def test_it_is_told_where_gaps_alone_come_before_it(self, barrier, is_told):
        """As the end of an epoch does, before another one whose first records are lost."""
        made = plan(waiting(bytes=0, barrier=barrier))
        assert made == Plan((), ((1, barrier),) if is_told else ())

    def test_a_blocked_log_does_not_hold_up_others(self):
        made = plan(waiting(1, 99, barrier=100), waiting(2, 99))
        assert shares(made) == [[(2, "size")]]
        assert made.blocked == ((1, 100),)


class TestInWhichObject:
    def test_large_ones_get_their_own_and_small_ones_share(self):
        logs = [waiting(1, 9, 4000), waiting(2, 1, 4000), waiting(3, 2, 4000), waiting(4, 70)]
        assert shares(plan(*logs)) == [[(1, "age")], [(2, "age"), (3, "age")], [(4, "size")]]

    def test_small_ones_that_are_halfway_there_go_along_and_younger_ones_wait(self):
        logs = [waiting(1, 1, 3600), waiting(2, 1, 1800), waiting(3, 1, 1799), waiting(4, 9, 1900)]
        assert shares(plan(*logs)) == [[(1, "age"), (2, "along")]]

    def test_nothing_goes_along_where_no_small_one_is_due(self):
        assert shares(plan(waiting(1, 70), waiting(2, 1, 3000))) == [[(1, "size")]]

    def test_a_shared_object_is_bounded_in_bytes_and_logs(self):
        sixes = [waiting(log, 6, 4000) for log in range(1, 26)]
        assert [len(each.shares) for each in plan(*sixes).objects] == [10, 10, 5]
        tiny = [waiting(log, 0.001, 4000) for log in range(1, SHARED_LOGS_MAX + 6)]
        assert [len(each.shares) for each in plan(*tiny).objects] == [SHARED_LOGS_MAX, 5]

    def test_more_than_an_object_takes_is_cut(self):
        (one,) = plan(waiting(1, 900)).objects
        assert (one.bytes, one.shares[0].bytes_max) == (OBJECT_BYTES, OBJECT_BYTES)

    def test_what_has_waited_goes_before_what_is_large_and_the_larger_before_the_smaller(self):
        logs = [waiting(1, 64), waiting(2, 9, 4000), waiting(3, 20, 4000), waiting(4, 900)]
        first = [each.shares[0].log for each in plan(*logs).objects]
        assert first[:2] == [3, 2]
        assert set(first[2:]) == {1, 4}


policies = st.builds(
    TierPolicy, st.integers(0, 100 * MIB), st.floats(0, 10_000), st.floats(0, 10_000)
)


@st.composite
def states(draw: st.DrawFn) -> list[Waiting]:
    logs = draw(st.lists(st.integers(1, 99), unique=True, max_size=20))
    return [
        Waiting(
            log,
            draw(policies),
            next_ := draw(st.integers(1, 100)),
            next_ + draw(st.integers(0, 100)),
            draw(st.none() | st.integers(1, 300)),
            draw(st.integers(0, 200 * MIB)),
            NOW_US - draw(st.integers(-(10**9), 10**11)),
        )
        for log in logs
    ]


class TestAlways:
    @given(states(), st.sampled_from(Pressure))
    def test_what_holds_of_every_plan(self, logs, presses):
        made = plan_uploads(logs, NOW_US, presses)
        by_log = {each.log: each for each in logs}
        all_shares = [share for each in made.objects for share in each.shares]
        assert len({share.log for share in all_shares}) == len(all_shares)
        for share in all_shares:
            log = by_log[share.log]
            assert log.next == share.first < share.stop <= log.stop
            assert log.barrier is None or share.stop <= log.barrier
        for each in made.objects:
            numbers = [share.log for share in each.shares]
            assert numbers == sorted(numbers)
            assert each.bytes <= OBJECT_BYTES
            assert len(numbers) == 1 or all(by_log[n].bytes < SPLIT_BYTES for n in numbers)
        for log in logs:
            can_go = log.barrier is None or (log.bytes > 0 and log.barrier > log.next)
            is_blocked = not can_go and log.next < log.stop and log.barrier < log.stop
            assert ((log.log, log.barrier) in made.blocked) is is_blocked
            is_due = (
                log.bytes > 0
                and log.next < log.end
                and (
                    presses
                    or log.bytes >= log.policy.after_bytes
                    or NOW_US - log.oldest_us >= log.policy.after_s * 1e6
                )
            )
            if is_due:
                assert log.log in {share.log for share in all_shares}

    @given(states())
    def test_a_fuller_disk_uploads_no_less(self, logs):
        def uploaded(presses: Pressure) -> set[int]:
            return {s.log for each in plan_uploads(logs, NOW_US, presses).objects
                    for s in each.shares}  # fmt: skip

        assert uploaded(Pressure.NONE) <= uploaded(Pressure.UPLOAD) == uploaded(Pressure.DROP)


def part(last: int, age_s: float) -> Part:
    return Part(last, MIB, NOW_US - int(age_s * 1e6))


class TestDropping:
    PARTS = (part(99, 2000), part(199, 1000), part(299, 500), part(399, 10))

    @pytest.mark.parametrize(
        ("committed", "presses", "through"),
        [
            (0, 0, 0),
            (99, 0, 0),  # the partition's last is not committed
            (100, 0, 99),
            (250, 0, 199),
            (400, 0, 199),  # the third is kept for `local_retention_s`
            (400, 1, 199),
            (400, 2, 399),
            (399, 2, 299),
            (10**9, 2, 399),
        ],
    )
    def test_only_what_is_committed_oldest_first_and_early_on_a_full_disk(
        self, committed, presses: int, through: int
    ):
        assert droppable(self.PARTS, committed, POLICY, NOW_US, Pressure(presses)) == through

    def test_an_old_partition_behind_a_younger_one_waits_for_it(self):
        parts = (part(99, 10), part(199, 9999))
        assert droppable(parts, 10**9, POLICY, NOW_US, Pressure.NONE) == 0

    def test_nothing_is_dropped_of_nothing(self):
        assert droppable((), 10**9, POLICY, NOW_US, Pressure.DROP) == 0

    @given(
        st.lists(st.tuples(st.integers(1, 100), st.floats(0, 5000)), max_size=8),
        st.integers(0, 900), st.sampled_from(Pressure), policies,
    )  # fmt: skip
    def test_never_past_what_is_committed(self, steps, committed, presses, policy):
        parts, last = [], 0
        for span, age_s in steps:
            last += span
            parts.append(part(last, age_s))
        through = droppable(parts, committed, policy, NOW_US, presses)
        assert through == 0 or through < committed
        more = droppable(parts, committed + 50, policy, NOW_US, presses)
        assert more >= through
        assert droppable(parts, committed, policy, NOW_US, Pressure.DROP) >= through


class TestPressure:
    @pytest.mark.parametrize(
        ("free", "expected"),
        [(100, Pressure.NONE), (25, Pressure.NONE), (24, Pressure.UPLOAD), (15, Pressure.UPLOAD),
         (14, Pressure.DROP), (0, Pressure.DROP)],
    )  # fmt: skip
    def test_by_what_is_free(self, free: int, expected):
        assert pressure(free, 100) is expected

    def test_uploads_are_paced_until_the_disk_presses(self):
        assert upload_rate(0, Pressure.NONE) == RATE_BYTES_S_MIN
        assert upload_rate(1000 * MIB, Pressure.NONE) == 1000 * MIB / DRAIN_S
        assert upload_rate(1000 * MIB, Pressure.UPLOAD) == float("inf")

    def test_every_reason_is_given_somewhere(self):
        logs = [waiting(1, 70), waiting(2, 1, 4000), waiting(3, 1, 2000)]
        found = {s.reason for each in plan(*logs).objects for s in each.shares}
        found |= {s.reason for each in plan(waiting(4), presses=Pressure.UPLOAD).objects
                  for s in each.shares}  # fmt: skip
        assert found == set(Reason)
