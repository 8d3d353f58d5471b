"""`cordwood tier status | verify` of ledgers: what a store has of them, by each attempt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from verbs_at_hand import run_verb

from cordwood.host.real import real_host
from cordwood.layout.ledger_entry import DIGEST_BYTES
from cordwood.layout.message_ledgers import EntryItem
from cordwood.ledger import (
    DigestKind,
    Fragment,
    LedgerMetadata,
    LedgerState,
    LedgerTier,
    Striping,
)
from cordwood.tier import ledger_upload
from cordwood.tier.addresses import open_object_store

COUNT = 90
PAYLOAD = b"an entry"


def run(*arguments, ends_with: int = 0) -> str:
    done = run_verb(["tier", *map(str, arguments)])
    assert done.exit_code == ends_with, done.output
    return done.output


def listed(verb: str, store: Path, *options, ends_with: int = 0) -> list[dict]:
    return json.loads(run(verb, "--store", store, "--json", *options, ends_with=ends_with))


def upload(store: Path, ledger: int, attempt: int, count: int = COUNT) -> None:
    """Put a closed ledger of `count` entries, as one attempt."""
    digest = bytes(DIGEST_BYTES[DigestKind.CRC32C])
    metadata = LedgerMetadata(
        ledger, Striping(3, 3, 2), (Fragment(0, (1, 2, 3)),), LedgerState.CLOSED, count - 1,
        count * len(PAYLOAD), created_us=5, creator=6, tier=LedgerTier(attempt),
    )  # fmt: skip

    async def entries() -> AsyncIterator[list[EntryItem]]:
        for entry in range(count):
            length = (entry + 1) * len(PAYLOAD)
            yield [EntryItem(entry, entry - 1, length, digest + PAYLOAD)]

    async def main() -> None:
        async with real_host() as host:
            objects = await open_object_store(host, str(store))
            await ledger_upload.upload_ledger(objects, host, metadata, entries())
            await objects.close()

    asyncio.run(main())


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two ledgers, of three objects and of none; the second one in two attempts."""
    monkeypatch.setattr(ledger_upload, "OBJECT_BYTES", 30 * (len(PAYLOAD) + 4))
    upload(tmp_path / "store", 17, 0xA1)
    upload(tmp_path / "store", 4000, 0xB2, count=0)
    upload(tmp_path / "store", 4000, 0xC3, count=0)
    return tmp_path / "store"


def objects_of(store: Path, ledger: int) -> list[Path]:
    return sorted((store / f"ledgers/{ledger:016x}").rglob("*.parquet"))


def manifest_of(store: Path, ledger: int) -> Path:
    return next((store / f"ledgers/{ledger:016x}").rglob("manifest-*"))


def test_every_ledger_is_shown_and_read(store: Path) -> None:
    assert [
        (row["ledger"], row["attempt"], row["objects"], row["last"], row["length"], row["missing"])
        for row in listed("status", store)
    ] == [
        (17, f"{0xA1:016x}", 3, COUNT - 1, COUNT * len(PAYLOAD), 0),
        (4000, f"{0xB2:016x}", 0, -1, 0, 0),
        (4000, f"{0xC3:016x}", 0, -1, 0, 0),
    ]
    rows = listed("verify", store)
    assert [(row["ledger"], row["objects"], row["entries"]) for row in rows] == [
        (17, 3, COUNT), (4000, 0, 0), (4000, 0, 0),
    ]  # fmt: skip
    assert rows[0]["bytes"] == COUNT * (len(PAYLOAD) + DIGEST_BYTES[DigestKind.CRC32C])
    assert "ledger 17: 3 objects with 90 entries are sound" in run("verify", "--store", store)
    assert "whole" in run("status", "--store", store)


def test_some_ledgers_may_be_named(store: Path) -> None:
    assert {row["ledger"] for row in listed("verify", store, "--ledger", 4000)} == {4000}
    assert {row["ledger"] for row in listed("status", store, "--ledger", 17)} == {17}
    assert "nothing of ledger 5" in run("verify", "--store", store, "--ledger", 5, ends_with=1)


@pytest.mark.parametrize("at", [0, 10, -9, -40])
def test_a_bit_that_turned_is_found_and_the_rest_is_read(store: Path, at: int) -> None:
    damaged = objects_of(store, 17)[1]
    content = bytearray(damaged.read_bytes())
    # The four bytes at the start are Parquet's, and no entry is read with them.
    content[max(at, 4) if at >= 0 else at] ^= 4
    damaged.chmod(0o600)
    damaged.write_bytes(content)
    row = listed("verify", store, ends_with=1)[0]
    assert (row["objects"], row["entries"]) == (2, 60)
    assert [fault["object"] for fault in row["faults"]] == [str(damaged.relative_to(store))]
    assert "damaged: ledgers/" in run("verify", "--store", store, ends_with=1)


def test_an_object_that_is_gone_is_told(store: Path) -> None:
    objects_of(store, 17)[2].unlink()
    assert listed("status", store)[0]["missing"] == 1
    assert "1 objects are missing" in run("status", "--store", store)
    row = listed("verify", store, "--ledger", 17, ends_with=1)[0]
    assert (row["objects"], len(row["faults"])) == (2, 1)


def test_a_damaged_manifest_is_told(store: Path) -> None:
    damaged = manifest_of(store, 17)
    damaged.chmod(0o600)
    damaged.write_bytes(damaged.read_bytes().replace(b"17", b"18"))
    assert "checksum" in listed("status", store)[0]["fault"]
    row = listed("verify", store, "--ledger", 17, ends_with=1)[0]
    assert (row["objects"], row["faults"][0]["object"]) == (0, str(damaged.relative_to(store)))


def test_an_attempt_without_a_manifest_is_shown_and_not_judged(store: Path) -> None:
    manifest_of(store, 17).unlink()
    row = listed("status", store)[0]
    assert (row["ledger"], row["manifest"], row["objects"]) == (17, False, 3)
    assert "given up" in run("status", "--store", store)
    assert {row["ledger"] for row in listed("verify", store)} == {4000}
