"""The library alone puts and gets the same bytes, and syncs where it is asked to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from scenarios import run_on_uvloop

from cordwood import durable
from cordwood.bench.obstore_alone import open_alone
from cordwood.errors import BadSetting
from cordwood.host.real import real_host

pytest.importorskip("obstore")


def test_a_synced_put_syncs_the_file_and_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = durable._sync

    def recorded(path: durable.Place, flags: int) -> None:
        sync(path, flags)
        synced.append(os.path.relpath(path, tmp_path))

    monkeypatch.setattr(durable, "_sync", recorded)

    async def measure() -> tuple[float, float]:
        async with real_host() as host:
            alone = open_alone(host, f"file://{tmp_path}")
            assert alone.is_directory
            unsynced = await alone.puts([10], is_synced=False)
            assert synced == []
            await alone.puts([20, 30], is_synced=True)
            return unsynced, await alone.gets([("alone-synced/1", 30)])

    assert all(seconds > 0 for seconds in run_on_uvloop(measure()))
    assert synced == ["alone-synced/0", "alone-synced", "alone-synced/1", "alone-synced"]
    assert [(tmp_path / "alone-synced" / str(each)).stat().st_size for each in (0, 1)] == [20, 30]


def test_an_address_of_no_store_is_refused() -> None:
    async def measure() -> None:
        async with real_host() as host:
            open_alone(host, "ftp://somewhere")

    with pytest.raises(BadSetting, match="an object store's address"):
        run_on_uvloop(measure())
