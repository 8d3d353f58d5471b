"""Runs of blocks and gaps for objects, made by hand and by Hypothesis."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from cordwood.block import BlockHeader, Buffer, Codec, Gap, GapKind
from cordwood.layout.body import encode_body, parse_body, seal_body
from cordwood.layout.columns import pack_bytes, pack_nullable, pack_offsets
from cordwood.layout.object_columns import rows_to_blocks
from cordwood.layout.object_file import Footer, ObjectRun, piece_blocks, read_group
from cordwood.layout.object_writer import FinishedObject, ObjectWriter
from cordwood.lsn import ESN_MAX, Lsn, make_lsn

Item = tuple[BlockHeader, bytes] | Gap
NOW_US = 1_790_000_000_000_000


@dataclass
class Made:
    """A log as it is made: what comes next, and all that came."""

    log: int
    name: str = "/orders"
    next: int = make_lsn(3, 40)
    items: list[Item] = field(default_factory=list)
    append_us: int = NOW_US

    @property
    def first(self) -> int:
        """Where it begins."""
        item = self.items[0]
        return int(item.first if isinstance(item, Gap) else item[0].first)

    def block(self, raw: bytes, codec: Codec = Codec.NONE, **fields: int) -> Made:
        """Add a block with this body."""
        stored, stored_crc, raw_crc = seal_body(raw, codec)
        count = parse_body(raw).count
        header = BlockHeader(
            self.log, self.next, count, self.append_us, codec=codec,
            stored_bytes=len(stored), raw_bytes=len(raw), stored_crc=stored_crc, raw_crc=raw_crc,
            group_first=self.next, group_last=self.next + count - 1,
        )  # fmt: skip
        for name, value in fields.items():
            setattr(header, name, value)
        self.items.append((header, stored))
        self.next += count
        self.append_us += 1000
        return self

    def gap(self, count: int, kind: GapKind) -> Made:
        """Add a gap."""
        self.items.append(Gap(Lsn(self.next), Lsn(self.next + count - 1), kind))
        self.next += count
        return self

    def bridge(self) -> Made:
        """End the epoch."""
        return self.gap((self.next | ESN_MAX) + 2 - self.next, GapKind.BRIDGE)


def written(logs: Sequence[Made], group_bytes: int = 1 << 20) -> FinishedObject:
    """An object of these logs."""
    writer = ObjectWriter(group_bytes, group_bytes // 4)
    for made in logs:
        writer.begin_log(made.log, made.name, made.first)
        for item in made.items:
            if isinstance(item, Gap):
                writer.add_gap(item)
            else:
                writer.add_block(*item)
    return writer.finish()


def read_run(
    run: ObjectRun, footer: Footer, content: Buffer
) -> list[tuple[BlockHeader, bytes] | Gap]:
    """Blocks, with bodies uncompressed, and gaps of a run, in order."""
    view = memoryview(content)
    found: list[tuple[BlockHeader, bytes] | Gap] = list(run.gap_list())
    for piece in run.pieces:
        group = footer.index.groups[piece.group]
        rows = read_group(footer, piece.group, view[group.start : group.stop])
        found += [(h, bytes(raw)) for h, raw in piece_blocks(piece, rows, log=run.log)]
    return sorted(found, key=lambda item: item.first if isinstance(item, Gap) else item[0].first)


def all_blocks(footer: Footer, content: Buffer) -> list[BlockHeader]:
    """The headers of all blocks of an object."""
    view = memoryview(content)
    headers = []
    for number, group in enumerate(footer.index.groups):
        rows = read_group(footer, number, view[group.start : group.stop])
        headers += [header for header, _ in rows_to_blocks(rows)]
    return headers


def odd_bodies() -> dict[str, bytes]:
    """Bodies that `parse_body` takes and `encode_body` does not write."""

    def body(flags: int, *columns: bytes, stamps: bytes = b"") -> bytes:
        offsets, _ = pack_offsets([2, 3])
        fixed = struct.pack("<IBBHq", 2, 1, flags, 0, 77)
        return b"".join([fixed, offsets, stamps, *columns, b"abcde"])

    two, _ = pack_offsets([0, 0])
    under_null = b"\x02" + bytes(7) + b"".join(pack_bytes([b"hid", b"key"]))
    starts, _ = pack_offsets([1, 0])
    header_under_null = [starts, *pack_bytes([b"name"]), bytes(8), *pack_bytes([b"hid"])]
    return {
        "equal timestamps": body(1, stamps=struct.pack("<qq", 77, 77)),
        "keys and all are null": body(2, *pack_nullable([None, None])),
        "a key's bytes under a null": body(2, under_null),
        "headers and none has any": body(4, two, *pack_bytes([]), *pack_nullable([])),
        "a header's bytes under a null": body(4, *header_under_null),
    }


def small_logs() -> list[Made]:
    """Two logs with an odd body, a large and a small block, and a gap."""
    one = Made(7, "/a").block(encode_body([b"v"] * 20, timestamps_us=list(range(20))))
    for body in odd_bodies().values():
        one.block(body)
    one.gap(3, GapKind.HOLE)
    two = Made(9, "/b")
    two.block(encode_body([b"x"], timestamps_us=5, keys=[b"k"], headers=[[("h", None)]]))
    return [one, two]


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
times = st.integers(-(2**63), 2**63 - 1)
uint64 = st.integers(1, 2**64 - 1)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Bodies of all shapes, plain and odd, small and less small."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(sorted(odd_bodies().values())))
    count = draw(st.sampled_from([1, 1, 2, 5, 16, 17, 40]))

    def column(item: st.SearchStrategy) -> list:
        return draw(st.lists(item, min_size=count, max_size=count))

    return encode_body(
        column(st.binary(max_size=12)),
        timestamps_us=draw(times) if draw(st.booleans()) else column(times),
        keys=column(st.none() | st.binary(max_size=5)) if draw(st.booleans()) else None,
        headers=column(headers) if draw(st.booleans()) else None,
    )


@st.composite
def logs(draw: st.DrawFn) -> list[Made]:
    """Some logs with some blocks and gaps each."""
    numbers = draw(st.lists(st.integers(1, (1 << 62) - 1), min_size=1, max_size=3, unique=True))
    return [draw(_log(number)) for number in sorted(numbers)]


@st.composite
def _log(draw: st.DrawFn, number: int) -> Made:
    made = Made(number, draw(st.sampled_from(["/orders", "/a/b", "/x"])))
    made.next = make_lsn(draw(st.integers(1, 9)), draw(st.integers(1, 1 << 31)))
    for step in draw(st.lists(st.integers(0, 9), min_size=1, max_size=9)):
        if step == 0:
            made.bridge()
            made.next += draw(st.integers(0, 1)) == 0 and made.next & ESN_MAX == 0
            if made.items and made.next != _end(made.items[-1]) + 1:
                made.items[-1] = _stretched(made.items[-1], made.next - 1)
        elif step < 3:
            kind = draw(st.sampled_from([GapKind.HOLE, GapKind.TRIM, GapKind.DATA_LOSS]))
            made.gap(draw(st.integers(1, 1000)), kind)
        elif made.next & ESN_MAX:
            fields = {}
            if draw(st.booleans()):
                fields = {
                    "producer": draw(uint64),
                    "producer_epoch": draw(st.integers(0, 2**32 - 1)),
                    "producer_sequence": draw(st.integers(0, 2**63)),
                    "flags": draw(st.integers(0, 1)),
                }
            if draw(st.booleans()):
                fields["group_last"] = made.next + 5000
            made.block(draw(bodies()), draw(st.sampled_from(Codec)), **fields)
        else:
            made.gap(1, GapKind.HOLE)
    return made


def _end(item: Item) -> int:
    return int(item.last if isinstance(item, Gap) else item[0].last)


def _stretched(item: Item, last: int) -> Item:
    assert isinstance(item, Gap)
    return Gap(item.first, Lsn(last), item.kind)
