"""The greeting: golden bytes, refusal of all else, and who may talk to whom."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_damage import damaged, only_ours, truncations

from cordwood.errors import CordwoodError, Malformed, NotOurCluster, Overloaded, Unreachable
from cordwood.layout.hello import (
    ANY_CLUSTER,
    HELLO_BYTES,
    VERSION,
    Hello,
    check_hello,
    pack_hello,
    to_error,
    to_refusal,
    unpack_hello,
)

OURS, OTHER = bytes(range(16)), bytes(range(16, 32))
HELLO = Hello(
    node=0x01020304,
    cluster=OURS,
    incarnation=0x1112131415161718,
    wanted=0x21222324,
    low=1,
    high=0x0102,
)
GOLDEN = bytes.fromhex(
    "434f5244574f4f44" "0100" "0201" "04030201" "000102030405060708090a0b0c0d0e0f"
    "1817161514131211" "24232221" "00000000"
)  # fmt: skip

hellos = st.builds(
    Hello,
    node=st.integers(0, 2**32 - 1),
    cluster=st.binary(min_size=16, max_size=16),
    incarnation=st.integers(0, 2**64 - 1),
    wanted=st.integers(0, 2**32 - 1),
    low=st.integers(0, 9),
    high=st.integers(9, 2**16 - 1),
)


def test_golden_bytes() -> None:
    assert pack_hello(HELLO) == GOLDEN
    assert unpack_hello(GOLDEN) == HELLO
    assert len(GOLDEN) == HELLO_BYTES == 48


@given(hellos)
def test_round_trip(hello: Hello) -> None:
    assert unpack_hello(memoryview(pack_hello(hello))) == hello


def test_another_length_is_refused() -> None:
    for part in truncations(GOLDEN):
        with pytest.raises(Malformed, match="48 bytes"):
            unpack_hello(part)
    with pytest.raises(Malformed, match="48 bytes"):
        unpack_hello(GOLDEN + b"\0")


@pytest.mark.parametrize(
    ("offset", "layout", "value", "why"),
    [
        *((at, "<B", 0x20, "does not speak Cordwood") for at in range(8)),
        (8, "<H", 0x0103, "keeps at 0"),  # lowest above highest
        (44, "<I", 1, "keeps at 0"),
        (44, "<I", 1 << 31, "keeps at 0"),
    ],
)
def test_a_field_that_no_version_writes(offset: int, layout: str, value: int, why: str) -> None:
    data = bytearray(GOLDEN)
    struct.pack_into(layout, data, offset, value)
    with pytest.raises(Malformed, match=why):
        unpack_hello(data)


@settings(max_examples=300)
@given(damaged((GOLDEN,)))
def test_damage_raises_what_is_ours(data: bytes) -> None:
    only_ours(unpack_hello, data)


NODE_1 = Hello(1, OURS, 7)
CLIENT = Hello(0, OURS)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (NODE_1, CLIENT),
        (NODE_1, replace(CLIENT, cluster=ANY_CLUSTER)),  # a client that asks for the first time
        (NODE_1, replace(CLIENT, wanted=1)),
        (NODE_1, Hello(2, OURS, wanted=1)),
        (replace(CLIENT, wanted=1), NODE_1),
        (replace(CLIENT, cluster=ANY_CLUSTER), NODE_1),
        (NODE_1, replace(CLIENT, low=VERSION, high=VERSION + 5)),
        (NODE_1, replace(CLIENT, low=0, high=VERSION)),
    ],
)
def test_these_may_talk(ours: Hello, theirs: Hello) -> None:
    check_hello(ours, theirs)


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        (NODE_1, replace(CLIENT, cluster=OTHER), f"is cluster {OTHER.hex()}"),
        (CLIENT, replace(NODE_1, cluster=OTHER), f"is cluster {OTHER.hex()}"),
        (NODE_1, Hello(2, ANY_CLUSTER), "node 2 does not tell its cluster"),
        (NODE_1, replace(CLIENT, wanted=2), "node 2 was wanted, this is node 1"),
        (replace(CLIENT, wanted=2), NODE_1, "node 2 was wanted, node 1 answered"),
        (replace(CLIENT, wanted=2), CLIENT, "node 2 was wanted, node 0 answered"),
        (NODE_1, replace(CLIENT, low=VERSION + 1, high=VERSION + 1), "upgrade the older one"),
        (NODE_1, replace(CLIENT, low=0, high=VERSION - 1), "upgrade the older one"),
    ],
)
def test_these_may_not_and_are_told_why(ours: Hello, theirs: Hello, why: str) -> None:
    with pytest.raises(NotOurCluster, match=why):
        check_hello(ours, theirs)


def test_a_client_that_sends_entries_one_by_one_is_told_to_upgrade() -> None:
    """Version 3 has other `AddEntries`: a node of ours would only say that a call is wrong."""
    with pytest.raises(NotOurCluster, match=r"protocol 3 to 3.*upgrade the older one"):
        check_hello(NODE_1, replace(CLIENT, low=3, high=3))


@pytest.mark.parametrize(
    "error", [NotOurCluster("another"), Overloaded("crowded"), Unreachable("no member")]
)
def test_a_refusal_comes_out_as_the_error_that_it_was(error: CordwoodError) -> None:
    request, payload = to_refusal(error)
    told = to_error(request, payload)
    assert (type(told), str(told)) == (type(error), str(error))


def test_a_refusal_of_a_kind_that_is_not_known_is_final() -> None:
    assert type(to_error(99, b"go away")) is NotOurCluster
