"""Heads and pages: golden text, round trips, and no damage that passes."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from layout_damage import bit_flips, truncations

from cordwood.errors import ChecksumMismatch, Corrupt, Malformed
from cordwood.layout.manifest import (
    object_name,
    pack_head,
    pack_lease,
    pack_origin,
    pack_owner,
    pack_page,
    page_name,
    parse_page_name,
    unpack_head,
    unpack_lease,
    unpack_origin,
    unpack_owner,
    unpack_page,
)
from cordwood.layout.object_names import own_name, parse_object_name, shared_name
from cordwood.protocol.manifest import FANOUT, append, check_head, first_head, ref_of, trim
from cordwood.tiered import MERGED, Entry, Head, Merging, Page, PageRef

FIRST = 3 << 32 | 1


def entry(first: int, last: int, fence: int = 1) -> Entry:
    named = Entry(first, last, fence, "", 0x1F2E3D4C, 67_108_864, 25_289, last - first + 1,
                  70_000_000, 1_790_000_000_000_000, 1_790_000_009_000_000, -5,
                  1_790_000_000_000_001, 61_000_000)  # fmt: skip
    return named._replace(name=object_name(7, named))


def grown(count: int) -> tuple[Head, dict[PageRef, bytes]]:
    pages: dict[PageRef, bytes] = {}

    def seal(page: Page) -> PageRef:
        data = pack_page(7, page)
        ref = ref_of(page, 1, crc32c(data), len(data))
        pages[ref] = data
        return ref

    head = first_head(7, FIRST, 1, "node-1/00ff")
    for _ in range(count):
        head = append(head, entry(head.end, head.end + 99), 1, seal)
    return head, pages


GOLDEN = (
    b'cordwood head 1 4a532fe2\n[7,3,1,"node-1/00ff",12884901891,12884902089,'
    b'[[[12884901889,12884901988,1,"",523124044,67108864,25289,100,70000000,1790000000000000,'
    b'1790000009000000,-5,1790000000000001,61000000],[12884901989,12884902088,1,"shared/20261124/'
    b'00000000000000000000000000000005-1f2e3d4c.parquet",523124044,67108864,25289,100,70000000,'
    b"1790000000000000,1790000009000000,-5,1790000000000001,61000000]]],[[12884901891,55]]]"
)

OLDER = b"cordwood head 1 89883383\n" + GOLDEN.partition(b"\n")[2].replace(b",61000000", b"")
"""As it was written before entries told their payload."""


def golden_head() -> Head:
    one = entry(FIRST, FIRST + 99)
    two = entry(FIRST + 100, FIRST + 199)._replace(name=shared_name("20261124", 5, 0x1F2E3D4C))
    head = Head(7, 2, 1, "node-1/00ff", FIRST, FIRST + 200, ((one, two),), ())
    return trim(head, FIRST + 2, 55)


class TestHeads:
    def test_golden_text(self):
        assert pack_head(golden_head()) == GOLDEN
        assert unpack_head(GOLDEN) == golden_head()

    def test_a_head_of_before_is_read_and_its_payload_is_not_known(self):
        head = golden_head()
        entries = tuple(each._replace(payload=0) for each in head.levels[0])
        assert unpack_head(OLDER) == head._replace(levels=(entries,))

    @pytest.mark.parametrize("count", [0, 1, FANOUT, FANOUT**2 + 3])
    def test_round_trip(self, count):
        head, pages = grown(count)
        again = unpack_head(pack_head(head))
        assert again == head
        check_head(again)
        for ref, data in pages.items():
            page = unpack_page(7, data, ref)
            assert ref_of(page, 1, ref.crc, ref.size) == ref

    def test_every_truncation_and_bit_flip_is_refused(self):
        for damaged in (*truncations(GOLDEN), *bit_flips(GOLDEN), GOLDEN + b" "):
            with pytest.raises(Corrupt):
                unpack_head(damaged)

    def test_a_later_version_is_told(self):
        text = GOLDEN.partition(b"\n")[2]
        crc = crc32c(text, crc32c(b"3 "))
        with pytest.raises(Malformed, match="version 3"):
            unpack_head(b"cordwood head 3 %08x\n%b" % (crc, text))

    def test_merges_are_told_and_only_they_make_it_a_second_version(self):
        taken = golden_head()._replace(merging=Merging(3, "node-1/00ff", 77))
        one, two = taken.levels[0]
        merged = one._replace(fence=MERGED | 3, replaced_us=88, name="")
        merged = merged._replace(name=object_name(7, merged))
        replaced = golden_head()._replace(levels=((merged, two),))
        for head, words in (
            (taken, b',[3,"node-1/00ff",77]]'),
            (replaced, b'[12884901889,12884901988,4611686018427387907,"",'),
            (replaced, b"-5,1790000000000001,61000000,88],["),
        ):
            packed = pack_head(head)
            assert packed.startswith(b"cordwood head 2 ")
            assert words in packed
            assert unpack_head(packed) == head
        page = Page(0, (merged, two))
        assert pack_page(7, page).startswith(b"cordwood page 2 ")
        assert pack_page(7, Page(0, (one, two))).startswith(b"cordwood page 1 ")

    @pytest.mark.parametrize(
        "text", [b"", b"{}", b"[]", b"[7,3]", b"[" * 5000, GOLDEN[25:].replace(b"-5", b"null"),
                 GOLDEN[25:].replace(b"node-1", b"\xff\xfe"),
                 GOLDEN[25:].replace(b"[[[", b"[[[[1],")]
    )  # fmt: skip
    def test_text_of_another_shape_is_refused_under_a_right_checksum(self, text):
        with pytest.raises(Malformed):
            unpack_head(b"cordwood head 1 %08x\n%b" % (crc32c(text, crc32c(b"1 ")), text))

    @given(st.binary(max_size=200))
    def test_noise_never_escapes(self, noise):
        with pytest.raises(Corrupt):
            unpack_head(noise)
        framed = b"cordwood head 1 %08x\n%b" % (crc32c(noise, crc32c(b"1 ")), noise)
        with pytest.raises(Malformed):
            unpack_head(framed)

    def test_sizes_stay_as_the_docs_say(self):
        """A head that is as full as can be on three levels, and a page."""
        head, pages = grown(FANOUT**3 // 4 - 1)
        assert 10_000 < len(pack_head(head)) < 30_000
        assert max(map(len, pages.values())) < 12_000
        assert min(map(len, pages.values())) > 5_000


class TestPages:
    def test_every_truncation_and_bit_flip_is_refused(self):
        _, pages = grown(FANOUT)
        ((ref, data),) = pages.items()
        for damaged in (*truncations(data[:400]), data[:-1], data + b" "):
            with pytest.raises(Corrupt):
                unpack_page(7, damaged, ref)
        for bit in range(0, 8 * len(data), 5):
            flipped = bytearray(data)
            flipped[bit >> 3] ^= 1 << (bit & 7)
            with pytest.raises(Corrupt):
                unpack_page(7, flipped, ref)

    def test_another_page_is_not_taken_for_it(self):
        _, pages = grown(2 * FANOUT)
        (one, data), (other, _) = pages.items()
        with pytest.raises(ChecksumMismatch):
            unpack_page(7, data, other)
        head = pack_head(grown(1)[0])
        with pytest.raises(Malformed):
            unpack_page(7, head, one._replace(crc=crc32c(head), size=len(head)))

    def test_a_name_says_what_page_it_is(self):
        _, pages = grown(FANOUT)
        ref = next(iter(pages))
        log, named = parse_page_name(page_name(7, ref))
        assert log == 7
        assert (named.level, named.first, named.last, named.fence, named.crc) == (
            ref.level, ref.first, ref.last, ref.fence, ref.crc,
        )  # fmt: skip
        for wrong in ("", "logs/0000000000000007/head", page_name(7, ref) + "x"):
            with pytest.raises(Malformed):
                parse_page_name(wrong)


class TestObjectNames:
    def test_a_log_s_own_name_follows_from_its_entry(self):
        one = entry(FIRST, FIRST + 9, fence=12)
        assert one.name == own_name(7, FIRST, FIRST + 9, 12, one.footer_crc)
        name = parse_object_name(one.name)
        assert (name.log, name.first, name.last, name.fence) == (7, FIRST, FIRST + 9, 12)

    def test_an_entry_that_a_repair_cut_keeps_its_object_s_name(self):
        cut = entry(FIRST, FIRST + 9)._replace(first=FIRST + 3)
        page = Page(0, (cut,))
        data = pack_page(7, page)
        assert unpack_page(7, data, ref_of(page, 1, crc32c(data), len(data))) == page


def test_an_origin_is_read_as_it_was_written_and_no_damage_passes():
    data = pack_origin(7, 1_790_000_000_000_000)
    assert data == b"cordwood origin 1 25015693\n[7,1790000000000000]"
    assert unpack_origin(7, data) == 1_790_000_000_000_000
    with pytest.raises(Malformed, match="log 7"):
        unpack_origin(8, data)
    for damaged in (*bit_flips(data), *truncations(data)):
        with pytest.raises(Corrupt):
            unpack_origin(7, damaged)


def test_a_lease_comes_back_and_no_damage_passes() -> None:
    names = ["logs/0000000000000007/objects/a.parquet", "shared/20261124/b.parquet"]
    data = pack_lease("spark orders", names)
    first, _, rest = data.partition(b"\n")
    assert first.startswith(b"cordwood lease 1 ")
    assert rest == b'["spark orders",["%b","%b"]]' % tuple(map(str.encode, names))
    assert unpack_lease("leases/x", data) == names
    for damaged in (*bit_flips(data), *truncations(data), pack_origin(7, 1)):
        with pytest.raises(Corrupt):
            unpack_lease("leases/x", damaged)


def test_an_owner_comes_back_and_no_damage_passes() -> None:
    data = pack_owner("77e12e375c56ad5b89510fef59cfcba2")
    assert data.startswith(b"cordwood cluster 1 ")
    assert unpack_owner(data) == "77e12e375c56ad5b89510fef59cfcba2"
    for damaged in (*bit_flips(data), *truncations(data), pack_origin(7, 1)):
        with pytest.raises(Corrupt):
            unpack_owner(damaged)
