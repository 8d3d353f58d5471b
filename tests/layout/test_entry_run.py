"""Runs of entries: what passes for one, and what a reader takes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cordwood.errors import Malformed
from cordwood.layout.answers import check_answer
from cordwood.layout.entry_run import bodies_of, heads_of, is_run, pack_run
from cordwood.layout.ledger_entry import DIGEST_BYTES, EntrySeal
from cordwood.layout.message_ledgers import ReadRun, RunReply
from cordwood.ledger import DigestKind

KEY = bytes(20)


def run_of(
    count: int, first: int = 5, size: int = 10, kind: DigestKind = DigestKind.CRC32C
) -> memoryview:
    seal = EntrySeal(1, kind, b"secret")
    bodies = seal.pack_all(first, 3, 100, [bytes([n % 256]) * size for n in range(count)])
    heads = [(first + n, 3, 100 + (n + 1) * size, len(each)) for n, each in enumerate(bodies)]
    return memoryview(pack_run(heads, bodies))


@pytest.mark.parametrize("kind", DigestKind)
@pytest.mark.parametrize(("count", "size"), [(0, 1), (1, 0), (3, 10), (100, 10), (9, 10_000)])
def test_a_run_is_read_as_it_was_packed(kind: DigestKind, count: int, size: int) -> None:
    packed = run_of(count, size=size, kind=kind)
    assert is_run(packed, 5, count)
    assert [head[0] for head in heads_of(packed, count)] == [*range(5, 5 + count)]
    assert len(bodies_of(packed, count)) == sum(head[3] for head in heads_of(packed, count))
    payloads, lengths = EntrySeal(1, kind, b"secret").read_run(packed, count)
    assert payloads == [bytes([n % 256]) * size for n in range(count)]
    assert lengths == [100 + (n + 1) * size for n in range(count)]
    assert all(type(payload) is bytes for payload in payloads)


@pytest.mark.parametrize("kind", [DigestKind.CRC32, DigestKind.CRC32C, DigestKind.HMAC_SHA1])
@pytest.mark.parametrize("size", [10, 10_000], ids=["small", "large"])
@pytest.mark.parametrize("bad", [0, 4, 8])
def test_a_run_is_read_up_to_a_copy_that_is_damaged(bad: int, size: int, kind: DigestKind) -> None:
    whole = run_of(9, size=size, kind=kind)
    width = size + DIGEST_BYTES[kind]
    end = len(whole) - (8 - bad) * width
    for place in (end - 1, end - width):  # its payload, and its digest
        packed = bytearray(whole)
        packed[place] ^= 1
        payloads, lengths = EntrySeal(1, kind, b"secret").read_run(memoryview(packed), 9)
        assert len(payloads) == len(lengths) == bad


@pytest.mark.parametrize("field", [0, 8, 16], ids=["entry", "LAC", "length"])
@pytest.mark.parametrize("count", [3, 40])
def test_a_digest_covers_what_is_told_of_an_entry(field: int, count: int) -> None:
    packed = bytearray(run_of(count))
    packed[28 * 2 + field] ^= 1
    payloads, _ = EntrySeal(1, DigestKind.CRC32C, b"").read_run(memoryview(packed), count)
    assert len(payloads) == 2
    others = EntrySeal(2, DigestKind.CRC32C, b"").read_run(run_of(count), count)
    assert others == ([], []), "of another ledger"


@pytest.mark.parametrize("count", [1, 30])
def test_a_body_that_is_shorter_than_its_digest_is_damaged(count: int) -> None:
    whole = run_of(count)
    short = [(5 + count, 3, 0, 2)]
    packed = memoryview(
        pack_run([*heads_of(whole, count), *short], [bodies_of(whole, count), b"ab"])
    )
    assert is_run(packed, 5, count + 1)
    payloads, _ = EntrySeal(1, DigestKind.CRC32C, b"").read_run(packed, count + 1)
    assert len(payloads) == count


@given(st.integers(1, 40), st.integers(0, 3000), st.integers(0, 2**31), st.sampled_from(DigestKind))
def test_both_ways_of_reading_a_run_give_the_same(count, size, place, kind) -> None:
    packed = bytearray(run_of(count, size=size, kind=kind))
    packed[place % len(packed)] ^= 1
    if is_run(memoryview(packed), 5, count):
        seal = EntrySeal(1, kind, b"secret")
        one_by_one = seal._read_each(memoryview(packed), count)
        assert seal.read_run(memoryview(packed), count) == one_by_one


@pytest.mark.parametrize("count", [3, 100])
def test_what_is_no_run_is_known(count: int) -> None:
    packed = run_of(count)
    assert not is_run(packed, 6, count), "others were asked for"
    assert not is_run(packed[:-1], 5, count)
    assert not is_run(packed[:5], 5, count)
    assert not is_run(memoryview(bytes(packed) + b"x"), 5, count)
    assert not is_run(memoryview(b"x"), 5, 0)
    heads = [*heads_of(packed, count)]
    bodies = [bytes(heads[0][3])] * count
    twice = pack_run([heads[0], heads[0], *heads[2:]], bodies)
    assert not is_run(memoryview(twice), 5, count)
    for lac, length in ((-2, 0), (3, 1 << 63)):
        far = pack_run([(5, lac, length, heads[0][3]), *heads[1:]], bodies)
        assert not is_run(memoryview(far), 5, count), "a digest covers no such number"


def test_an_answer_that_is_no_run_ends_the_connection() -> None:
    call = ReadRun(1, KEY, 5, 3, 100)
    check_answer(call, RunReply(3, -1, run_of(3)))
    check_answer(call, RunReply(0, -1, memoryview(b"")))
    wrong = [RunReply(4, -1, run_of(4)), RunReply(2, -1, run_of(3)), RunReply(1, -1, run_of(1, 6))]
    for each in wrong:
        with pytest.raises(Malformed):
            check_answer(call, each)


@pytest.mark.parametrize("count", [1, 3, 100])
def test_a_run_may_have_each_third_entry(count: int) -> None:
    heads = [(5 + 3 * n, 3, 9, 1) for n in range(count)]
    packed = memoryview(pack_run(heads, [b"x"] * count))
    assert is_run(packed, 5, count, 3)
    assert not is_run(packed, 6, count, 3)
    assert is_run(packed, 5, count, 2) is (count == 1)
    call = ReadRun(1, KEY, 5, count, 1000, 3)
    check_answer(call, RunReply(count, -1, packed))
    with pytest.raises(Malformed):
        check_answer(replace(call, first=8), RunReply(count, -1, packed))
