"""GOSSIP payloads: golden bytes, round trips, and every damage refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.errors import Malformed
from cordwood.layout.gossip import pack_gossip, read_gossip

WORDS = st.lists(
    st.tuples(
        st.integers(1, 2**32 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**64 - 1),
        st.booleans(),
    ),
    max_size=20,
)


def test_golden_bytes():
    packed = pack_gossip([(3, 7, 2, True)])
    assert (
        packed.hex()
        == "0100000000000000" + "03000000" + "07000000" + "0200000000000000" + "01000000"
    )


@given(WORDS)
def test_what_is_packed_is_read(words):
    assert read_gossip(memoryview(pack_gossip(words))) == words


@given(WORDS, st.data())
def test_every_cut_is_refused(words, data):
    packed = pack_gossip(words)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(Malformed):
        read_gossip(memoryview(packed[:cut]))


@pytest.mark.parametrize("at", [4, 24, 27])
def test_bits_kept_at_0_are_refused(at: int):
    packed = bytearray(pack_gossip([(3, 7, 2, False)]))
    packed[at] |= 0x82
    with pytest.raises(Malformed):
        read_gossip(memoryview(packed))


def test_node_0_is_refused():
    with pytest.raises(Malformed):
        read_gossip(memoryview(pack_gossip([(0, 7, 2, False)])))
