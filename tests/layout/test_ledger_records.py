"""What nodes keep of ledgers: golden bytes, BookKeeper's digests, round trips, damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from layout_damage import bit_flips, damaged, only_ours, truncations

from cordwood.errors import ChecksumMismatch, Malformed
from cordwood.layout.engine_record import RecordKind, read_engine_record
from cordwood.layout.entry_run import pack_run
from cordwood.layout.ledger_entry import EntrySeal, ledger_key_of
from cordwood.layout.ledger_records import (
    KeptEntry,
    LedgerChange,
    LedgerChanges,
    LedgerEntries,
    LedgerFlag,
    LedgerRow,
    entry_range,
    entry_row_key,
    pack_changes,
    pack_entries,
    pack_entry_row,
    pack_state_row,
    read_entry_row,
    read_entry_row_key,
    read_state_row,
    read_state_row_key,
    state_row_key,
)
from cordwood.ledger import ENTRY_MAX, LEDGER_MAX, DigestKind

KEY = bytes(range(20))
ENTRIES = LedgerEntries(7, KEY, (KeptEntry(0, -1, 3, b"foo"), KeptEntry(5, 4, 3, b"")))
CHANGES = LedgerChanges(
    (LedgerChange(7, KEY, LedgerFlag.FENCED | LedgerFlag.LIMBO), LedgerChange(8, KEY, lac=4))
)
RUN = pack_run(
    [(each.entry, each.lac, each.length, len(each.body)) for each in ENTRIES.entries],
    [each.body for each in ENTRIES.entries],
)
PACKED_ENTRIES = b"".join(pack_entries(RecordKind.LEDGER_ENTRIES, 7, KEY, 2, RUN))
PACKED_CHANGES = pack_changes(RecordKind.LEDGER_STATE, CHANGES)
PACKED = (PACKED_ENTRIES, PACKED_CHANGES)

# Of BookKeeper: ledger 1, entry 0, LAC -1, length 3, payload foo, password testPasswd.
DIGESTS = {
    DigestKind.CRC32: "000000006411737f",
    DigestKind.CRC32C: "bd71cbed",
    DigestKind.HMAC_SHA1: "bd3d3e9e14d7515e14772daff38553017a8412bd",
    DigestKind.DUMMY: "",
}


@pytest.mark.parametrize(("kind", "digest"), DIGESTS.items())
def test_digests_are_bookkeepers(kind: DigestKind, digest: str) -> None:
    seal = EntrySeal(1, kind, b"testPasswd")
    body = seal.pack(0, -1, 3, b"foo")
    assert body == bytes.fromhex(digest) + b"foo"
    assert seal.read(0, -1, 3, body) == b"foo"
    if kind is not DigestKind.DUMMY:
        for other in ((1, -1, 3), (0, 0, 3), (0, -1, 4)):
            with pytest.raises(ChecksumMismatch):
                seal.read(*other, body)
        for wrong in (*bit_flips(body), body[:-1], b""):
            with pytest.raises(ChecksumMismatch):
                seal.read(0, -1, 3, wrong)
        with pytest.raises(ChecksumMismatch):
            EntrySeal(2, kind, b"testPasswd").read(0, -1, 3, body)


def test_keys_are_bookkeepers() -> None:
    assert ledger_key_of(b"testPasswd").hex() == "2e2a69d870796fe05c0e77c52a29ce5e4222b758"
    assert ledger_key_of(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"


def test_records_come_back() -> None:
    found = read_engine_record(memoryview(PACKED_ENTRIES))
    assert found == ENTRIES._replace(packed=memoryview(RUN))
    assert read_engine_record(memoryview(PACKED_CHANGES)) == CHANGES


def test_golden_bytes() -> None:
    assert PACKED_ENTRIES.hex() == (
        "0a0700000000000000" + KEY.hex() + "02000000"
        "0000000000000000ffffffffffffffff030000000000000003000000"
        "0500000000000000040000000000000003000000000000000000000066"
        "6f6f"
    )
    assert PACKED_CHANGES.hex() == (
        "0b020000000700000000000000" + KEY.hex() + "05ffffffffffffffff"
        "0800000000000000" + KEY.hex() + "000400000000000000"
    )


@pytest.mark.parametrize("packed", PACKED, ids=["entries", "changes"])
def test_every_truncation_and_every_extension_is_refused(packed: bytes) -> None:
    for part in (*truncations(packed), packed + b"\0"):
        with pytest.raises(Malformed):
            read_engine_record(memoryview(part))


@given(damaged(PACKED))
def test_damage_raises_what_is_ours(data: bytes) -> None:
    only_ours(lambda some: read_engine_record(memoryview(some)), data)


def test_rows_come_back_and_sort_by_ledger_and_entry() -> None:
    row = LedgerRow(KEY, LedgerFlag.GONE, 4, 9)
    assert read_state_row(pack_state_row(row)) == row
    kept = KeptEntry(5, 4, 9, b"body")
    assert read_entry_row(5, pack_entry_row(kept)) == kept
    for ledger in (0, 300, LEDGER_MAX):
        assert read_state_row_key(state_row_key(ledger)) == ledger
        low, high = entry_range(ledger)
        keys = [entry_row_key(ledger, entry) for entry in (0, 1, 256, ENTRY_MAX)]
        assert low < keys[0] < keys[1] < keys[2] < keys[3] < high
    for data in (*truncations(pack_state_row(row)), b"x" * 37):
        with pytest.raises(Malformed):
            read_state_row(data)
    for data in (b"", b"x" * 15, b"\xff" * 16):
        with pytest.raises(Malformed):
            read_entry_row(5, data)
    assert read_entry_row_key(entry_row_key(7, 9)) == (7, 9)
    for read in (read_state_row_key, read_entry_row_key):
        with pytest.raises(Malformed):
            read(b"x" + bytes(8))
