"""What the tail check lets pass and what it does not; against a log and ways to spoil it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.block import Gap, GapKind, Record
from cordwood.demo.checks import CheckFailed
from cordwood.demo.input import InputRecord
from cordwood.demo.tail_check import TailCheck
from cordwood.lsn import ESN_MAX, OLDEST, Lsn, make_lsn

HEADERS = (("piece", b"0"),)


def sent(number: int) -> InputRecord:
    return InputRecord(b"k%d" % number, b"v%d" % number, number, HEADERS)


def came(lsn: int, number: int) -> Record:
    return Record(Lsn(lsn), b"v%d" % number, b"k%d" % number, number, HEADERS)


def acked(check: TailCheck, *pairs: tuple[int, int]) -> None:
    check.on_acked([Lsn(lsn) for lsn, _ in pairs], [sent(number) for _, number in pairs])


class TestWhatPasses:
    @given(st.integers(1, 12), st.data())
    def test_acknowledgements_and_reads_in_any_interleaving(self, count, data):
        """Reads come in order; acknowledgements whenever they like."""
        check = TailCheck()
        events = ["read"] * count + ["ack"] * count
        order = data.draw(st.permutations(events))
        to_ack = data.draw(st.permutations(range(count)))
        read = 0
        for event in order:
            if event == "read":
                check.on_read([came(OLDEST + read, read)])
                read += 1
            else:
                number, *to_ack = to_ack
                acked(check, (OLDEST + number, number))
        assert check.is_even
        assert check.lag == 0
        assert (check.read, check.acked) == (count, count)
        assert check.next == check.last_acked + 1 == OLDEST + count

    def test_a_bridge_and_the_epoch_after_it(self):
        check = TailCheck()
        acked(check, (OLDEST, 0), (make_lsn(2, 1), 1))
        bridge = Gap(Lsn(OLDEST + 1), make_lsn(2, 0), GapKind.BRIDGE)
        check.on_read([came(OLDEST, 0), bridge, came(make_lsn(2, 1), 1)])
        assert check.is_even
        assert check.gaps == {GapKind.BRIDGE: 1}

    def test_what_is_not_read_yet_is_the_lag(self):
        check = TailCheck()
        acked(check, (OLDEST, 0), (OLDEST + 1, 1))
        check.on_read([came(OLDEST, 0)])
        assert check.lag == 1
        assert not check.is_even

    def test_a_record_that_nobody_appended_is_never_even(self):
        check = TailCheck()
        check.on_read([came(OLDEST, 0)])
        assert check.lag == 0
        assert not check.is_even


class TestWhatDoesNot:
    def failing(self, match: str) -> pytest.RaisesContext[CheckFailed]:
        return pytest.raises(CheckFailed, match=match)

    def test_a_record_twice(self):
        check = TailCheck()
        check.on_read([came(OLDEST, 0)])
        with self.failing("gave out e1n1 where e1n2 comes next"):
            check.on_read([came(OLDEST, 0)])

    def test_a_record_out_of_order(self):
        check = TailCheck()
        with self.failing("gave out e1n2 where e1n1 comes next"):
            check.on_read([came(OLDEST + 1, 1)])

    def test_a_hole_in_the_tiling(self):
        check = TailCheck()
        with self.failing("gave out e1n3 where e1n1 comes next"):
            check.on_read([Gap(Lsn(OLDEST + 2), make_lsn(1, ESN_MAX), GapKind.BRIDGE)])

    @pytest.mark.parametrize("ack_first", [True, False])
    @pytest.mark.parametrize(
        ("record", "match"),
        [
            (Record(OLDEST, b"v1", b"k0", 0, HEADERS), "other bytes"),
            (Record(OLDEST, b"v0", None, 0, HEADERS), "other bytes"),
            (Record(OLDEST, b"v0", b"k0", 1, HEADERS), "another time or other headers"),
            (Record(OLDEST, b"v0", b"k0", 0, ()), "another time or other headers"),
        ],
    )
    def test_a_record_that_is_another(self, ack_first: bool, record, match: str):
        check = TailCheck()
        if ack_first:
            acked(check, (OLDEST, 0))
            with self.failing(match):
                check.on_read([record])
        else:
            check.on_read([record])
            with self.failing(match):
                acked(check, (OLDEST, 0))

    def test_an_acknowledged_record_in_a_gap(self):
        check = TailCheck()
        acked(check, (OLDEST + 2, 0))
        with self.failing("the first at e1n3, lie in a hole gap"):
            check.on_read([Gap(OLDEST, Lsn(OLDEST + 4), GapKind.HOLE)])

    def test_an_acknowledgement_that_the_tail_had_passed(self):
        check = TailCheck()
        check.on_read([Gap(OLDEST, Lsn(OLDEST + 4), GapKind.HOLE)])
        with self.failing("e1n3 was acknowledged, and the tail had passed it"):
            acked(check, (OLDEST + 2, 0))

    def test_one_lsn_acknowledged_twice(self):
        check = TailCheck()
        acked(check, (OLDEST, 0))
        with self.failing("e1n1 was acknowledged"):
            acked(check, (OLDEST, 1))

    def test_lost_data_even_where_nothing_was_acknowledged(self):
        check = TailCheck()
        with self.failing("lost data, e1n1 to e1n1"):
            check.on_read([Gap(OLDEST, OLDEST, GapKind.DATA_LOSS)])
