"""A SQLite file that is moved, replaced or put back while stores have it open."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from metadata_play import run_on_sqlite

from cordwood.errors import Unreachable
from cordwood.metadata.epoch_store import EpochStore
from cordwood.metadata.store import MetadataStore, Versioned
from cordwood.nodes import NodeId, Replication


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


def copy(source: Path, target: Path) -> None:
    """SQLite's own backup. It may read a file that others have open, and write into one."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def move(source: Path, target: Path) -> None:
    """Rename a database, with the files that belong to it."""
    for suffix in ("", "-wal", "-shm"):
        if os.path.exists(f"{source}{suffix}"):
            os.rename(f"{source}{suffix}", f"{target}{suffix}")


async def take(store: MetadataStore) -> int:
    return (await EpochStore(store).take_epoch(1))[0]


def test_no_epoch_is_taken_from_two_files(path: Path):
    """An epoch was handed out twice: by the new file, and by the old one to those that had it."""
    old, backup = path.with_name("old"), path.with_name("backup")

    async def act(store: MetadataStore) -> None:
        await EpochStore(store).create(1, (NodeId(1),), Replication(1))
        assert await take(store) == 1
        copy(path, backup)
        move(path, old)
        move(backup, path)
        assert await asyncio.to_thread(run_on_sqlite, path, take) == 2
        for _ in range(2):
            with pytest.raises(Unreachable, match="replaced while it was open"):
                await take(store)
        with pytest.raises(Unreachable, match="replaced while it was open"):
            await store.get("a")
        # The file that it had is back.
        move(old, path)
        assert await take(store) == 2

    run_on_sqlite(path, act)


def test_a_file_that_is_gone_is_not_made_anew(path: Path):
    async def act(store: MetadataStore) -> None:
        assert await store.compare_and_set("a", b"1", 0)
        os.unlink(path)
        for _ in range(2):
            with pytest.raises(Unreachable, match="removed or replaced while it was open"):
                await store.compare_and_set("b", b"1", 0)

    run_on_sqlite(path, act)


def test_a_backup_that_is_put_back_into_an_open_file_is_noticed(path: Path):
    backup = path.with_name("backup")

    async def act(store: MetadataStore) -> None:
        first = await store.compare_and_set("a", b"1", 0)
        assert first
        copy(path, backup)
        second = await store.compare_and_set("a", b"2", first)
        assert second
        assert await store.get("a") == Versioned(b"2", second)
        copy(backup, path)
        for _ in range(2):
            with pytest.raises(Unreachable, match="older copy: its newest version is 1"):
                await store.compare_and_set("a", b"3", first)
            with pytest.raises(Unreachable, match="older copy"):
                await store.get("a")

    run_on_sqlite(path, act)


def test_versions_of_others_are_no_sign_of_a_replaced_file(path: Path):
    async def write(store: MetadataStore) -> int | None:
        return await store.compare_and_set("b", b"1", 0)

    async def act(store: MetadataStore) -> None:
        first = await store.compare_and_set("a", b"1", 0)
        second = await asyncio.to_thread(run_on_sqlite, path, write)
        assert first
        assert second
        assert await store.get("b") == Versioned(b"1", second)
        third = await store.compare_and_set("a", b"2", first)
        assert third
        assert third > second > first

    run_on_sqlite(path, act)
