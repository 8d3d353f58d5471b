"""Which names of a selection may lead nowhere."""

from __future__ import annotations

import pytest

from cordwood.errors import UnknownLog
from cordwood.lsn import OLDEST
from cordwood.spark.offsets import StreamOffset
from cordwood.spark.options import Selection
from cordwood.spark.selecting import names_of, passed_over, select

A_AND_B = Selection("subscribe", ("/a", "/b"))


def offset(*logs: int, away: tuple[int, ...] = (), **names: int) -> StreamOffset:
    """With `names` by their last letter; without any, it is of an earlier version."""
    given = {f"/{name}": log for name, log in names.items()} or None
    return StreamOffset("c1", dict.fromkeys(logs, int(OLDEST)), away=frozenset(away), names=given)


@pytest.mark.parametrize(
    ("known", "there", "over"),
    [
        # the log of the name is gone
        (offset(1, 2, a=1, b=2), {1: "/a"}, {"/b": 2}),
        (offset(1, 2, a=1, b=2), {}, {"/a": 1, "/b": 2}),
        # the first log of the name is gone, and so is the second
        (offset(1, 2, 3, a=1, b=3), {1: "/a"}, {"/b": 3}),
        # another log was renamed and made again
        (offset(1, 2, a=1, b=2), {1: "/old", 3: "/a"}, {"/b": 2}),
        # nothing is known of the deleted log but its number
        (offset(1, a=1, b=2), {1: "/a"}, {"/b": 2}),
        # nothing is missing
        (offset(1, 2, a=1, b=2), {1: "/a", 3: "/b"}, {}),
        # of an earlier version
        (offset(1, 2), {1: "/a"}, {"/b": 2}),
        (offset(1, 2, 4, away=(4,)), {1: "/a", 4: "/c"}, {"/b": 2}),
    ],
)
def test_a_name_is_passed_over_with_its_log(known, there, over):
    found = select(A_AND_B, there, may_miss=True)
    assert passed_over(A_AND_B, found, there, known) == over


@pytest.mark.parametrize(
    ("known", "there", "wrong"),
    [
        # renamed, and nothing or another log is gone
        (offset(1, 2, a=1, b=2), {1: "/a", 2: "/c"}, "/b"),
        (offset(1, 2, a=1, b=2), {2: "/c"}, "/b"),
        # the first log of the name is gone, the second was renamed
        (offset(1, 2, 3, a=1, b=3), {1: "/a", 3: "/c"}, "/b"),
        # never read, and another log is gone
        (offset(1, 2, a=1, c=2), {1: "/a"}, "/b"),
        (StreamOffset("c1", {}, is_initial=True, names={}), {1: "/a"}, "/b"),
        # of an earlier version
        (offset(1, 2), {2: "/c"}, "/a, /b"),
        (offset(1), {1: "/a"}, "/b"),
    ],
)
def test_any_other_name_is_refused(known, there, wrong):
    found = select(A_AND_B, there, may_miss=True)
    with pytest.raises(UnknownLog, match=f"no log {wrong};"):
        passed_over(A_AND_B, found, there, known)


def test_numbers_are_names_of_their_logs():
    selection = Selection("assign", ("/a", "2"))
    found = select(selection, {1: "/a", 2: "/b"})
    names = names_of(selection, found)
    assert names == {"/a": 1, "2": 2}
    known = StreamOffset("c1", {1: int(OLDEST), 2: int(OLDEST)}, names=names)
    assert passed_over(selection, {1: "/a"}, {1: "/a"}, known) == {"2": 2}


def test_a_pattern_gives_no_names():
    selection = Selection("subscribePattern", pattern="/.*")
    assert names_of(selection, {1: "/a"}) == {}
    assert passed_over(selection, {}, {}, offset(1)) == {}
