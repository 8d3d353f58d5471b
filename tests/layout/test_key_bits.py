"""Key bits: what they deny is not there, and what they cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cordwood.layout.key_bits import KNOWN, key_bits, may_hold

keys = st.lists(st.none() | st.binary(max_size=8), max_size=12)


@given(keys, st.sets(st.binary(max_size=8), max_size=4))
def test_what_is_there_is_never_denied(held, wanted) -> None:
    if any(key in wanted for key in held if key is not None):
        assert may_hold(key_bits(held), key_bits(wanted))


def test_a_block_without_keys_has_none_that_is_wanted() -> None:
    assert key_bits(None) == key_bits([None, None]) == KNOWN
    assert not may_hold(KNOWN, key_bits([b"a"]))


def test_where_nothing_is_known_all_may_be_there() -> None:
    assert may_hold(0, key_bits([b"a"]))


def test_one_key_in_thirty_is_taken_for_another() -> None:
    wanted = key_bits([b"wanted"])
    vain = sum(may_hold(key_bits([b"%d" % n]), wanted) for n in range(3100))
    assert 60 <= vain <= 140
