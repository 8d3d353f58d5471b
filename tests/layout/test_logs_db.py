"""Keys and values of LogsDB: their order, round trips, and what is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.block import BlockHeader, BlockKind, Envelope, EnvelopeFlag
from cordwood.errors import Malformed
from cordwood.layout import logs_db
from cordwood.layout.block_header import pack_envelope, pack_header
from cordwood.layout.logs_db import DirectoryEntry, LogState, PartitionRow
from cordwood.layout.waves import StoredBlock

U32 = st.integers(0, 2**32 - 1)
U63 = st.integers(0, 2**63 - 1)


def block(log: int = 5, first: int = (1 << 32) + 7, count: int = 3, **envelope: int) -> StoredBlock:
    header = BlockHeader(log, first, count, 1000, group_first=first, group_last=first + count - 1)
    whole = Envelope((1, 2, 3), **envelope)
    return StoredBlock(header, whole, pack_header(header) + pack_envelope(whole), b"")


def test_index_keys_are_in_the_order_of_log_last_first_and_precedence() -> None:
    ordered = [
        block(log=4, first=(9 << 32) + 1),
        block(first=(1 << 32) + 1, count=2),
        block(first=(1 << 32) + 2, count=2),
        block(first=(1 << 32) + 1, count=300),
        block(first=(1 << 32) + 300, count=1),
        block(first=(2 << 32) + 1),
        block(first=(2 << 32) + 1, wave=2),
        block(first=(2 << 32) + 1, wave=1, seal_epoch=3, flags=EnvelopeFlag.BY_RECOVERY),
        block(first=(2 << 32) + 1, wave=1, seal_epoch=4, flags=EnvelopeFlag.BY_RECOVERY),
    ]
    keys = [logs_db.index_key(each) for each in ordered]
    assert all(one < other for one, other in pairwise(keys[:3] + keys[5:]))
    assert sorted(keys) == keys or keys[3] < keys[4]
    for key, each in zip(keys, ordered, strict=True):
        read = logs_db.read_index_key(key)
        assert (read.log, read.first, read.last) == (
            each.header.log, each.header.first, each.header.last,
        )  # fmt: skip
        assert (read.by_recovery, read.seal_epoch, read.wave) == each.envelope.precedence
        assert logs_db.index_start(read.log, read.last) <= key < logs_db.index_stop(read.log)
        assert key < logs_db.index_start(read.log, read.last + 1)


def test_a_block_comes_back_from_its_index_entry() -> None:
    stored = block(wave=3, lng=1 << 32)
    assert logs_db.read_head(bytes(stored.wire)) == stored


@given(U63, U63, U63)
def test_body_keys_come_back(log: int, last: int, first: int) -> None:
    assert logs_db.read_body_key(logs_db.body_key(log, last, first)) == (last, first)


@given(
    st.builds(
        LogState, U32, U32, U63, U63, st.integers(-(2**63), 2**63 - 1), U63, U63, U63, U63,
        st.lists(st.tuples(U32, U63), max_size=4).map(tuple),
        st.lists(st.tuples(U32, U32, U63, U32), max_size=4).map(tuple),
        st.lists(U32, max_size=4).map(tuple),
        st.lists(U32, max_size=4).map(tuple),
        st.dictionaries(U32, st.binary(max_size=9), max_size=4).map(lambda d: tuple(d.items())),
        st.tuples(U32, st.binary(max_size=9)),
    )
)  # fmt: skip
def test_states_come_back_and_are_refused_when_cut(state: LogState) -> None:
    packed = logs_db.pack_state(state)
    assert logs_db.read_state(packed) == state
    for wrong in (packed[:-1], packed + b"\0", packed[:10]):
        with pytest.raises(Malformed):
            logs_db.read_state(wrong)


def test_a_state_that_tells_of_one_epoch_twice_is_refused() -> None:
    twice = LogState(produced=((4, b"one"), (5, b""), (4, b"two")))
    with pytest.raises(Malformed, match="twice"):
        logs_db.read_state(logs_db.pack_state(twice))


def test_rows_of_metadata_come_back_and_are_refused_when_cut() -> None:
    row = PartitionRow(-5, 7, 1 << 40, 3)
    entry = DirectoryEntry(1, 2, 3, 4, -5, 6)
    assert logs_db.read_partition(logs_db.pack_partition(row)) == row
    assert logs_db.read_entry(logs_db.pack_entry(entry)) == entry
    assert logs_db.read_offset(logs_db.pack_offset(-1)) == -1
    assert logs_db.read_origin(logs_db.pack_origin(7)) == 7
    assert logs_db.read_partition_key(logs_db.partition_key(9)) == 9
    assert logs_db.read_state_key(logs_db.state_key(9)) == 9
    assert logs_db.read_directory_key(logs_db.directory_key(9, 4)) == (9, 4)
    start, stop = logs_db.directory_range(9)
    assert start < logs_db.directory_key(9, 0) < logs_db.directory_key(9, 1 << 40) < stop
    for read in (
        logs_db.read_partition, logs_db.read_entry, logs_db.read_offset, logs_db.read_origin,
        logs_db.read_partition_key, logs_db.read_state_key, logs_db.read_directory_key,
        logs_db.read_index_key, logs_db.read_body_key,
    ):  # fmt: skip
        with pytest.raises(Malformed):
            read(b"short")


def test_entries_of_one_log_join() -> None:
    one, other = DirectoryEntry(5, 9, 1, 10, 100, 200), DirectoryEntry(3, 7, 2, 20, 150, 250)
    assert one.joined(other) == other.joined(one) == DirectoryEntry(3, 9, 3, 30, 100, 250)


def test_a_hole_and_a_block_of_one_end_are_two_places() -> None:
    header = BlockHeader(5, (1 << 32) + 7, 3, 0, kind=BlockKind.HOLE)
    hole = StoredBlock(header, Envelope((1,)), b"", b"")
    keys = {logs_db.read_index_key(logs_db.index_key(each)).place for each in (hole, block())}
    assert len(keys) == 2
