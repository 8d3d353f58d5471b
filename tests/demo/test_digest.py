"""The digest: no order, nothing lost, nothing twice."""

from __future__ import annotations

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from cordwood.demo.digest import Digest, record_numbers

RECORDS = st.tuples(st.binary(max_size=6), st.integers(-(2**40), 2**40), st.binary(max_size=12))


def digest_of(records: list[tuple[bytes, int, bytes]]) -> Digest:
    digest = Digest()
    for record in records:
        digest.add(*record)
    return digest


def sums(records: list[tuple[bytes, int, bytes]]) -> tuple[int, int]:
    digest = digest_of(records)
    return digest.first, digest.second


@given(st.lists(RECORDS, max_size=8), st.randoms())
def test_order_does_not_matter(records, random):
    shuffled = records[:]
    random.shuffle(shuffled)
    assert digest_of(records) == digest_of(shuffled)


@given(st.lists(RECORDS, min_size=1, max_size=8), st.data())
def test_a_record_lost_or_repeated_shows_even_if_the_count_is_made_good(records, data):
    lost = data.draw(st.sampled_from(records))
    others = [record for record in records if record != lost]
    less = records[:]
    less.remove(lost)
    assert sums(less) != sums(records)
    assert sums([*records, lost]) != sums(records)
    if others:
        assert sums([*less, others[0]]) != sums(records)


@given(RECORDS, RECORDS)
def test_records_that_differ_have_other_numbers(one, other):
    assert (record_numbers(*one) == record_numbers(*other)) == (one == other)


def test_what_moves_between_key_time_and_value_shows():
    same_bytes = [(b"ab", 12, b"c"), (b"a", 12, b"bc"), (b"", 12, b"abc"), (b"ab", 1, b"2:c")]
    assert len({record_numbers(*record) for record in same_bytes}) == 4


def test_the_numbers_are_what_the_module_says():
    digits = sha256(b"2:1357035300000000:UA{}").hexdigest()
    first, second = record_numbers(b"UA", 1357035300000000, b"{}")
    assert f"{first:08x}{second:08x}" == digits[:16]
