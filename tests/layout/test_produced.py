"""What is remembered of producers, as bytes: round trips, and every damage refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.block import Produced, ProducedBlock
from cordwood.errors import Malformed
from cordwood.layout.produced import pack_produced, read_produced
from cordwood.lsn import LSN_MAX

I64 = st.integers(-(2**63), 2**63 - 1)
U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
PLACES = st.builds(ProducedBlock, U64, st.integers(1, 2**32 - 1), st.integers(0, LSN_MAX), I64)
PRODUCED = st.lists(
    st.builds(
        Produced,
        st.integers(1, 2**64 - 1),
        U32,
        st.lists(PLACES, min_size=1, max_size=5).map(tuple),
    ),
    max_size=5,
)


def test_nobody_is_no_bytes():
    assert pack_produced(()) == b""
    assert read_produced(b"") == ()


@given(PRODUCED)
def test_what_is_packed_is_read(produced):
    assert read_produced(pack_produced(produced)) == tuple(produced)


@given(PRODUCED.filter(bool), st.data())
def test_every_cut_and_every_addition_is_refused(produced, data):
    packed = pack_produced(produced)
    cut = data.draw(st.integers(1, len(packed) - 1))
    for damaged in (packed[:cut], packed + b"\0"):
        with pytest.raises(Malformed):
            read_produced(damaged)


@pytest.mark.parametrize(("at", "byte"), [(4, 0), (27, 0)])
def test_a_producer_0_and_a_place_without_records_are_refused(at: int, byte: int):
    packed = bytearray(pack_produced([Produced(1, 0, (ProducedBlock(0, 1, 5),))]))
    if at == 4:
        packed[4] = byte
    else:
        packed[28] = byte
    with pytest.raises(Malformed):
        read_produced(bytes(packed))
