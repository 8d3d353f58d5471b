"""A log's nodesets as nodes keep them: round trips, what is none, and what trims leave."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.errors import Malformed
from cordwood.layout.message_logs import EpochNodes
from cordwood.layout.nodesets import pack_nodesets, read_nodesets, untrimmed
from cordwood.lsn import make_lsn

HISTORY = [EpochNodes(1, [1, 2, 3], 3, 2), EpochNodes(4, [2, 3], 2, 1), EpochNodes(9, [5], 1, 1)]


def test_they_come_back() -> None:
    assert read_nodesets(pack_nodesets(HISTORY)) == HISTORY
    wide = [EpochNodes(1, [1, 2, 3], 3, 1, {"region": 2})]
    assert read_nodesets(pack_nodesets(wide)) == wide
    assert read_nodesets(b"") == []


def test_what_is_none_is_refused() -> None:
    packed = pack_nodesets(HISTORY)
    for wrong in (packed[:-1], packed + b"\0", b"\x81", b"noise"):
        with pytest.raises(Malformed):
            read_nodesets(wrong)


@pytest.mark.parametrize(
    ("trim", "left"),
    [
        (0, [1, 4, 9]),
        (make_lsn(3, 7), [1, 4, 9]),
        (make_lsn(4, 0), [4, 9]),
        (make_lsn(8, 1), [4, 9]),
        (make_lsn(9, 0), [9]),
        (make_lsn(90, 5), [9]),
    ],
)
def test_what_is_wholly_trimmed_is_left_out(trim: int, left: list[int]) -> None:
    assert [each.since for each in untrimmed(HISTORY, trim)] == left
    assert untrimmed([], trim) == []


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=8, unique=True).map(sorted),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_every_epoch_above_a_trim_keeps_its_nodeset(
    since: list[int], trimmed: int, epoch: int
) -> None:
    history = [EpochNodes(each, [each], 1, 1) for each in since]

    def of(entries: list[EpochNodes]) -> EpochNodes | None:
        return next((each for each in reversed(entries) if each.since <= epoch), None)

    if epoch > trimmed:
        assert of(untrimmed(history, make_lsn(trimmed, 1))) == of(history)


@pytest.mark.parametrize(
    "told",
    [
        {"nodes": []},
        {"nodes": [1, 1]},
        {"copies": 0, "racks": 0},
        {"copies": 1, "racks": 2},
        {"wider": {"planet": 1}},
    ],
)
def test_an_epoch_without_nodes_or_copies_is_refused(told: dict[str, object]) -> None:
    """A member told it, it was kept, and the node ended at each start with the first drain."""
    right = {"since": 1, "nodes": [1, 2], "copies": 2, "racks": 1, "wider": {}, "locations": []}
    assert read_nodesets(msgspec.msgpack.encode([right])) == [EpochNodes(1, [1, 2], 2, 1)]
    with pytest.raises(Malformed):
        read_nodesets(msgspec.msgpack.encode([{**right, **told}]))
