"""What a write of unknown outcome turns out to be: every case, and against a slow twin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.errors import Malformed
from cordwood.metadata.stored_value import (
    MAKE,
    NONCE_BYTES,
    Verdict,
    pack_stored,
    read_stored,
    settle,
)

OURS, THEIRS = b"o" * NONCE_BYTES, b"t" * NONCE_BYTES


@pytest.mark.parametrize("value", [b"", b"x", b"\x00" * 100])
def test_a_value_comes_back(value: bytes):
    assert read_stored("a", pack_stored(value, OURS)) == value


def test_nothing_is_what_was_deleted_or_only_leads_to_others():
    assert read_stored("a", pack_stored(None, OURS)) is None
    assert read_stored("a", b"") is None


@pytest.mark.parametrize("data", [b"hello", b"\x01", b"\x01short", b"\x00" * 40, b"\x02" * 40])
def test_what_others_wrote_is_refused(data: bytes):
    with pytest.raises(Malformed, match="by hand"):
        read_stored("a", data)


@pytest.mark.parametrize(
    ("expected", "found", "verdict"),
    [
        # The path is still not there, so nobody made it.
        (MAKE, None, Verdict.NOT_DONE),
        # It was made, by us or by another, or as the way to a path below it.
        (MAKE, (pack_stored(b"1", OURS), 0), Verdict.DONE),
        (MAKE, (pack_stored(b"2", THEIRS), 0), Verdict.NOT_DONE),
        (MAKE, (b"", 0), Verdict.NOT_DONE),
        # It is as it was, or we wrote, or another wrote instead of us.
        (4, (pack_stored(b"0", THEIRS), 4), Verdict.NOT_DONE),
        (4, (pack_stored(b"1", OURS), 5), Verdict.DONE),
        (4, (pack_stored(b"2", THEIRS), 5), Verdict.NOT_DONE),
        # Somebody wrote last; whether it was over us nobody can tell.
        (4, (pack_stored(b"3", THEIRS), 6), Verdict.UNKNOWN),
        (MAKE, (pack_stored(b"3", THEIRS), 1), Verdict.UNKNOWN),
        # A delete is a write like any other.
        (4, (pack_stored(None, OURS), 5), Verdict.DONE),
    ],
)
def test_verdicts(expected, found, verdict):
    assert settle(OURS, expected, found) is verdict


@given(before=st.integers(0, 3), was_done=st.booleans(), after=st.integers(0, 3))
def test_a_verdict_is_never_wrong(before, was_done, after):
    """Against the whole story: others write before, ours is done or not, others write again."""
    writes = [THEIRS] * before
    expected = len(writes) - 1
    writes += [OURS] * was_done + [THEIRS] * after
    found = (pack_stored(b"", writes[-1]), len(writes) - 1) if writes else None
    verdict = settle(OURS, expected, found)
    assert verdict in (Verdict.UNKNOWN, Verdict.DONE if was_done else Verdict.NOT_DONE)
    if after <= (0 if was_done else 1):
        assert verdict is not Verdict.UNKNOWN
