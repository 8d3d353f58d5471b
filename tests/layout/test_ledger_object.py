"""Objects of ledgers: entries come back byte for byte, and every flipped bit is found."""

from __future__ import annotations

import io

import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

from cordwood.errors import BadSetting, Corrupt, Malformed
from cordwood.layout.ledger_entry import EntrySeal
from cordwood.layout.ledger_object import (
    FinishedLedgerObject,
    LedgerObjectWriter,
    read_ledger_footer,
    read_ledger_group,
)
from cordwood.layout.manifest import (
    LedgerManifest,
    LedgerPart,
    pack_ledger_manifest,
    unpack_ledger_manifest,
)
from cordwood.layout.message_ledgers import EntryItem
from cordwood.layout.object_names import (
    ledger_manifest_name,
    ledger_object_name,
    parse_ledger_name,
)
from cordwood.ledger import LEDGER_MAX, DigestKind


def items(count: int, first: int = 0, digest: DigestKind = DigestKind.CRC32C) -> list[EntryItem]:
    seal = EntrySeal(17, digest, b"sesame")
    made, length = [], 0
    for entry in range(first, first + count):
        payload = b"entry %d" % entry if entry % 3 else b""
        length += len(payload)
        body = seal.pack(entry, entry - 1, length, payload)
        made.append(EntryItem(entry, entry - 1, length, body))
    return made


def written(some: list[EntryItem], digest: DigestKind = DigestKind.CRC32C) -> FinishedLedgerObject:
    writer = LedgerObjectWriter(17, digest, 99, some[0].entry, group_bytes=200)
    writer.add(some)
    return writer.finish()


def read(made: FinishedLedgerObject, content: bytes) -> list[EntryItem]:
    footer = read_ledger_footer(
        content[len(content) - made.footer_bytes :], made.footer_crc, len(content)
    )
    found: list[EntryItem] = []
    for number, group in enumerate(footer.index.groups):
        found += read_ledger_group(footer, number, content[group.start : group.stop])
    return found


@pytest.mark.parametrize("digest", list(DigestKind))
def test_entries_come_back_byte_for_byte(digest: DigestKind) -> None:
    some = items(100, 40, digest)
    made = written(some, digest)
    assert len(made.footer.index.groups) >= 2
    assert read(made, bytes(made.content)) == some
    for item in some:
        number = made.footer.group_of(item.entry)
        start = made.footer.starts[number]
        assert start <= item.entry < start + made.footer.index.groups[number].rows


def test_any_engine_reads_payloads_by_entry() -> None:
    rows = pq.read_table(io.BytesIO(written(items(5)).content)).to_pylist()
    assert [(row["log"], row["log_id"], row["lsn"], row["offset"]) for row in rows] == [
        ("ledger/17", 17, entry, entry) for entry in range(5)
    ]
    assert [row["value"] for row in rows][1:3] == [b"entry 1", b"entry 2"]
    assert {row["timestamp"] for row in rows} == {None}


def test_a_flipped_bit_is_found() -> None:
    made = written(items(30))
    for at in range(4, len(made.content), 7):
        content = bytearray(made.content)
        content[at] ^= 1 << at % 8
        with pytest.raises(Corrupt):
            read(made, bytes(content))


def test_entries_are_given_in_order_and_whole() -> None:
    writer = LedgerObjectWriter(17, DigestKind.CRC32C, 99, 0)
    writer.add(items(2))
    with pytest.raises(BadSetting, match="entry 3"):
        writer.add(items(1, 3))
    with pytest.raises(BadSetting):
        writer.add([EntryItem(2, 1, 0, b"abc")])  # shorter than its digest
    with pytest.raises(BadSetting, match="nothing"):
        LedgerObjectWriter(17, DigestKind.CRC32C, 99, 0).finish()


class TestNames:
    def test_names_say_ledger_and_attempt(self) -> None:
        for ledger, attempt in ((0, 1), (17, 99), (LEDGER_MAX, LEDGER_MAX)):
            manifest = ledger_manifest_name(ledger, attempt, 0xAB)
            part = ledger_object_name(ledger, attempt, 0, 7, 0xCD)
            assert parse_ledger_name(manifest) == parse_ledger_name(part) == (ledger, attempt)

    @pytest.mark.parametrize(
        "name",
        [
            "ledgers/0000000000000011/head",
            "ledgers/0000000000000011/0000000000000000/manifest-000000ab.json",
            "ledgers/ffffffffffffffff/0000000000000001/manifest-000000ab.json",
            "ledgers/0000000000000011/0000000000000001/manifest-000000ab.json.tmp",
            ledger_object_name(1, 1, 8, 7, 0),
        ],
    )
    def test_others_are_refused(self, name: str) -> None:
        with pytest.raises(Malformed):
            parse_ledger_name(name)


class TestManifest:
    WHOLE = LedgerManifest(
        17, 99, 5, 6, 9, 100, [LedgerPart(0, 4, 1, 900, 200), LedgerPart(5, 9, 2, 900, 200)]
    )

    def test_it_comes_back(self) -> None:
        packed = pack_ledger_manifest(self.WHOLE)
        assert unpack_ledger_manifest("m", packed, crc32c(packed)) == self.WHOLE
        with pytest.raises(Corrupt):
            unpack_ledger_manifest("m", packed, 0)

    @pytest.mark.parametrize(
        "parts",
        [
            WHOLE.parts[:1],
            WHOLE.parts[1:],
            [WHOLE.parts[0], LedgerPart(6, 9, 2, 900, 200)],
            [LedgerPart(0, 9, 1, 200, 200)],
        ],
    )
    def test_objects_that_do_not_cover_the_ledger_are_refused(
        self, parts: list[LedgerPart]
    ) -> None:
        packed = pack_ledger_manifest(self.WHOLE._replace(parts=parts))
        with pytest.raises(Malformed):
            unpack_ledger_manifest("m", packed, crc32c(packed))
