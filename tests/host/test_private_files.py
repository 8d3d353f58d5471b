"""Files of a data directory: no link is followed, nobody else writes there or reads them."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from pathlib import Path

import pytest

from cordwood.client.aio import open_store
from cordwood.embedded import embedded_store
from cordwood.errors import BadSetting
from cordwood.host.private_directory import check_private
from cordwood.host.process_log import LINES_MAX, OLDER, WINDOW_S, RareLines, turn_over
from cordwood.host.real_disk import RealDisk
from cordwood.local_cluster import local_cluster
from cordwood.settings import MIB, ClientSettings


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_once(directory: Path) -> None:
    async def scenario() -> None:
        store = await open_store(embedded_store(str(directory), ClientSettings(), 8 * MIB))
        await store.append("log", b"value")
        await store.close()

    asyncio.run(scenario())


class TestLinks:
    @pytest.mark.parametrize("name", ["lock", "metadata.sqlite", "node-1/identity", "node-1/wal"])
    def test_a_store_writes_through_none(self, tmp_path: Path, name: str) -> None:
        precious = tmp_path / "precious"
        precious.write_bytes(b"precious" * 1000)
        directory = tmp_path / "store"
        (directory / "node-1").mkdir(parents=True)
        (directory / name).symlink_to(precious)
        with pytest.raises((OSError, BadSetting), match="symbolic link"):
            open_once(directory)
        assert precious.read_bytes() == b"precious" * 1000

    def test_a_file_is_replaced_and_not_written_through_a_link(self, tmp_path: Path) -> None:
        precious = tmp_path / "precious"
        precious.write_bytes(b"precious")
        for name in ("file", "file.cordwood-new"):
            (tmp_path / name).symlink_to(precious)

        async def scenario() -> None:
            disk = RealDisk()
            await disk.write_file(str(tmp_path / "file"), b"ours")
            await disk.close()

        asyncio.run(scenario())
        assert (precious.read_bytes(), (tmp_path / "file").read_bytes()) == (b"precious", b"ours")


class TestModes:
    def test_a_directory_of_0755_is_closed_and_its_files_are_the_owner_s(
        self, tmp_path: Path
    ) -> None:
        directory = tmp_path / "store"
        directory.mkdir(mode=0o755)
        os.chmod(directory, 0o755)
        open_once(directory)
        (directory / "metadata.sqlite").chmod(0o644)
        open_once(directory)
        assert mode(directory) == 0o700
        for path in directory.rglob("*"):
            if path.parent.name != "partitions" and "logsdb" not in path.parts:
                assert not mode(path) & 0o077, path

    def test_a_directory_with_files_of_others_in_it_keeps_its_mode(self, tmp_path: Path) -> None:
        (tmp_path / "index.html").write_text("hello")
        os.chmod(tmp_path, 0o755)
        check_private(str(tmp_path))
        assert mode(tmp_path) == 0o755

    @pytest.mark.parametrize("bits", [0o775, 0o777, 0o1777])
    def test_one_that_others_may_write_is_refused(self, tmp_path: Path, bits: int) -> None:
        (tmp_path / "index.html").write_text("hello")
        os.chmod(tmp_path, bits)
        with pytest.raises(BadSetting, match="others may write"):
            check_private(str(tmp_path))
        os.chmod(tmp_path, 0o700)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories away")
    def test_one_of_another_user_is_refused(self, tmp_path: Path) -> None:
        os.chown(tmp_path, 12345, 12345)
        with pytest.raises(BadSetting, match="another user"):
            check_private(str(tmp_path))


class TestLog:
    def test_a_full_file_is_turned_over_and_one_older_is_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for number in range(50):
            turn_over(fd, 100)
            os.write(fd, b"line %04d of ten.\n" % number)
        os.close(fd)
        assert sorted(each.name for each in tmp_path.iterdir()) == ["log", "log" + OLDER]
        assert path.stat().st_size < 200
        assert b"line 0049" in path.read_bytes()

    def test_what_is_no_file_is_left_alone(self) -> None:
        read, write = os.pipe()
        assert not turn_over(write, 0)
        os.close(read)
        os.close(write)

    def test_lines_of_one_kind_are_rare_and_counted(self) -> None:
        now = 0.0
        rare = RareLines(lambda: now)

        def passes(text: str, level: int = logging.WARNING) -> logging.LogRecord | None:
            record = logging.LogRecord("name", level, "", 0, text, (1,), None)
            return record if rare.filter(record) else None

        assert sum(passes("closed: %d") is not None for _ in range(100)) == LINES_MAX
        assert passes("something else: %d") is not None
        assert passes("closed: %d", logging.INFO) is not None
        now = WINDOW_S
        after = passes("closed: %d")
        assert after is not None
        assert "(80 lines like earlier ones left out)" in after.getMessage()


def test_a_wal_that_does_not_fit_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage())
    with pytest.raises(BadSetting, match=r"a WAL of 8 MiB does not fit: .* wal_mib=16"):
        open_once(tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b'{"x":1}', b"{}", b'{"nodes": 3, "ports": [1, 2]}'])
def test_a_cluster_file_without_its_fields_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "cluster.json").write_bytes(content)

    async def scenario() -> None:
        async with local_cluster(str(tmp_path)):
            pytest.fail("it starts")

    with pytest.raises(BadSetting, match=r"cluster\.json"):
        asyncio.run(scenario())


class Usage:
    free = 15 * MIB
