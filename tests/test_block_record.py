"""What programs rely on in a record, whatever it is made of."""

from __future__ import annotations

import copy
import gc
import pickle

import msgspec
import pytest

from cordwood import Lsn, Record
from cordwood.layout.body import encode_body, parse_body
from cordwood.lsn import make_lsn

RECORD = Record(make_lsn(1, 2), b"value", b"key", 3, [("h", None)], 4)
PLAIN = Record(Lsn(5), b"value")


def test_it_is_made_by_place_and_by_name_with_defaults() -> None:
    assert Record(lsn=Lsn(5), value=b"value", key=None, timestamp_us=0, headers=(),
                           append_time_us=0) == PLAIN  # fmt: skip
    with pytest.raises(TypeError):
        Record(Lsn(5))  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Record(Lsn(5), b"value", place=1)  # type: ignore[call-arg]


def test_records_are_equal_by_all_that_is_in_them() -> None:
    assert Record(Lsn(5), b"value") == PLAIN
    for other in (Record(Lsn(6), b"value"), Record(Lsn(5), b"other"), Record(Lsn(5), b"value", b""),
                  (Lsn(5), b"value", None, 0, (), 0)):  # fmt: skip
        assert other != PLAIN
    assert len({PLAIN, Record(Lsn(5), b"value"), Record(Lsn(6), b"value")}) == 2
    with pytest.raises(TypeError):
        hash(RECORD)  # its headers are a list
    with pytest.raises(TypeError):
        sorted([PLAIN, PLAIN])  # type: ignore[type-var]


def test_it_prints_its_fields() -> None:
    assert repr(RECORD) == (
        "Record(lsn=Lsn(e1n2), value=b'value', key=b'key', timestamp_us=3, "
        "headers=[('h', None)], append_time_us=4)"
    )


def test_it_does_not_change() -> None:
    for name in ("value", "key", "place"):
        with pytest.raises(AttributeError):
            setattr(PLAIN, name, b"other")
    with pytest.raises(AttributeError):
        del PLAIN.value
    changed = msgspec.structs.replace(PLAIN, value=b"other")
    assert (changed.value, changed.lsn, PLAIN.value) == (b"other", 5, b"value")


def test_it_matches_patterns() -> None:
    match RECORD:
        case Record(lsn, b"value", key, timestamp_us=time_us):
            assert (lsn, key, time_us) == (make_lsn(1, 2), b"key", 3)
        case _:
            pytest.fail("it does not match")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_is_pickled_and_copied(protocol: int) -> None:
    for again in (pickle.loads(pickle.dumps(RECORD, protocol)), copy.deepcopy(RECORD)):
        assert again == RECORD
        assert type(again.lsn) is Lsn


@pytest.mark.parametrize("count", [1, 2, 100])
def test_those_that_are_read_are_the_same_and_cost_the_collector_nothing(count: int) -> None:
    body = parse_body(encode_body([b"value"] * count, timestamps_us=3, keys=[b"key"] * count))
    records = body.records(make_lsn(1, 7), 9)
    assert records == [
        Record(make_lsn(1, 7 + at), b"value", b"key", 3, (), 9) for at in range(count)
    ]
    assert not any(map(gc.is_tracked, records))
