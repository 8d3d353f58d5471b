"""A listing is of one moment, by two walks over the keys and the last write between them."""

from __future__ import annotations

import pytest

from cordwood.metadata.store import Versioned
from cordwood.metadata.zookeeper_moment import Seen, at_moment


def seen(text: str | None, zxid: int, data_version: int) -> Seen:
    value = None if text is None else Versioned(text.encode(), zxid)
    return Seen(value, zxid, data_version)


MOMENT = 50

CASES = {
    "nothing was written": ({"a": seen("1", 40, 3)}, {"a": seen("1", 40, 3)}, {"a": "1"}),
    "a write up to the moment counts": (
        {"a": seen("1", 40, 3)}, {"a": seen("2", 50, 4)}, {"a": "2"},
    ),
    "many writes up to the moment": ({"a": seen("1", 40, 3)}, {"a": seen("2", 50, 9)}, {"a": "2"}),
    "one write after the moment does not count": (
        {"a": seen("1", 40, 3)}, {"a": seen("2", 51, 4)}, {"a": "1"},
    ),
    "two writes, the last after the moment": (
        {"a": seen("1", 40, 3)}, {"a": seen("3", 51, 5)}, None,
    ),
    "a key made before the moment": ({}, {"a": seen("1", 49, 0)}, {"a": "1"}),
    "a key made after the moment": ({}, {"a": seen("1", 51, 0)}, {}),
    "a key made and written, the last after the moment": ({}, {"a": seen("1", 52, 1)}, None),
    "deleted before the moment": ({"a": seen("1", 40, 3)}, {"a": seen(None, 50, 4)}, {}),
    "deleted after the moment": ({"a": seen("1", 40, 3)}, {"a": seen(None, 51, 4)}, {"a": "1"}),
    "made again after the moment": ({"a": seen(None, 40, 3)}, {"a": seen("1", 51, 4)}, {}),
    "a path that another program removed": ({"a": seen("1", 40, 3)}, {}, None),
    "a move of a value is seen as a whole": (
        {"a": seen("1", 40, 3), "b": seen(None, 30, 1)},
        {"a": seen(None, 51, 4), "b": seen("1", 51, 2)},
        {"a": "1"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_state_at_a_moment(case: str):
    first, second, expected = CASES[case]

    found = at_moment(first, second, MOMENT)

    texts = None if found is None else {key: each.value.decode() for key, each in found.items()}
    assert texts == expected
