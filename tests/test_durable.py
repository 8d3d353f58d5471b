"""`cordwood.durable`: bytes before names, nobody else's files, no links."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from swaps import swap

from cordwood import durable
from cordwood.errors import Corrupt

STEPS = ("write_new", "sync_file", "sync_directory", "rename", "unlink", "make_directory")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """What was done, in order, as (step, names below the test's directory)."""
    seen = []

    def watched(name):
        step = getattr(durable, name)

        def run(*arguments):
            places = [os.path.relpath(each, tmp_path) for each in arguments[:2]
                      if isinstance(each, str | os.PathLike)]  # fmt: skip
            seen.append((name, *places))
            return step(*arguments)

        return run

    for name in STEPS:
        monkeypatch.setattr(durable, name, watched(name))
    return seen


class TestWriteWhole:
    def test_bytes_are_durable_before_the_name_and_the_name_before_the_return(
        self, tmp_path: Path, steps
    ):
        durable.write_whole(tmp_path / "note", b"new")
        assert (tmp_path / "note").read_bytes() == b"new"
        assert steps[1:] == [
            ("write_new", ".note.partial"),
            ("sync_file", ".note.partial"),
            ("rename", ".note.partial", "note"),
            ("sync_directory", "."),
        ]

    def test_directories_that_it_makes_are_synced_into_those_above(self, tmp_path: Path, steps):
        durable.write_whole(tmp_path / "a" / "b" / "note", b"new")
        assert steps[:4] == [
            ("make_directory", "a"),
            ("sync_directory", "."),
            ("make_directory", "a/b"),
            ("sync_directory", "a"),
        ]

    def test_the_file_is_its_owner_s_alone(self, tmp_path: Path):
        durable.write_whole(tmp_path / "note", b"secret")
        assert stat.S_IMODE((tmp_path / "note").stat().st_mode) == 0o600

    def test_a_link_is_replaced_and_what_it_leads_to_stays(self, tmp_path: Path):
        (tmp_path / "precious").write_bytes(b"theirs")
        for name in ("note", ".note.partial"):
            (tmp_path / name).symlink_to(tmp_path / "precious")
        durable.write_whole(tmp_path / "note", b"ours")
        assert (tmp_path / "precious").read_bytes() == b"theirs"
        assert not (tmp_path / "note").is_symlink()
        assert (tmp_path / "note").read_bytes() == b"ours"

    def test_a_write_that_fails_leaves_the_old_file_and_no_rest(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        durable.write_whole(tmp_path / "note", b"old")

        def full(path):
            raise OSError(errno.ENOSPC, "full", path)

        swap(monkeypatch, durable.sync_file, full)
        with pytest.raises(OSError, match="full"):
            durable.write_whole(tmp_path / "note", b"new")
        assert os.listdir(tmp_path) == ["note"]
        assert (tmp_path / "note").read_bytes() == b"old"


def test_what_is_opened_for_writing_is_no_link(tmp_path: Path):
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic link") as told:
        durable.open_private(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    assert told.value.errno == errno.ELOOP
    assert not (tmp_path / "precious").exists()


def test_files_are_synced_before_their_directories_and_those_up_to_the_root(tmp_path: Path, steps):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "f").write_bytes(b"1")
    (tmp_path / "a" / "g").write_bytes(b"1")
    durable.sync_files([tmp_path / "a" / "b" / "f", tmp_path / "a" / "g"], tmp_path)
    assert [each[1] for each in steps] == ["a/b/f", "a/g", "a/b", "a", "."]
    steps.clear()
    durable.sync_tree(tmp_path / "a")
    assert [each[1] for each in steps] == ["a/g", "a/b/f", "a/b", "a"]


def test_published_files_are_renamed_into_durable_directories_and_synced(tmp_path: Path, steps):
    (tmp_path / "staged").write_bytes(b"1")
    moves = [(tmp_path / "staged", tmp_path / "day=1" / "f")]
    durable.publish(moves)
    assert steps == [
        ("make_directory", "day=1"),
        ("sync_directory", "."),
        ("rename", "staged", "day=1/f"),
        ("sync_directory", "day=1"),
    ]
    durable.publish(moves)  # rolled forward once more
    assert (tmp_path / "day=1" / "f").read_bytes() == b"1"


def test_removed_files_are_gone_durably(tmp_path: Path, steps):
    (tmp_path / "f").write_bytes(b"1")
    durable.remove([tmp_path / "f", tmp_path / "never"])
    assert steps[-1] == ("sync_directory", ".")
    assert os.listdir(tmp_path) == []


class TestCheckFile:
    def test_a_whole_one_passes(self, tmp_path: Path):
        (tmp_path / "f").write_bytes(b"123")
        durable.check_file(tmp_path / "f", 3, "the note")

    @pytest.mark.parametrize(
        ("left", "told"), [(None, "gone"), (b"", "0 bytes"), (b"1234", "4 bytes")]
    )
    def test_what_a_power_cut_left_is_told(self, tmp_path: Path, left: bytes | None, told: str):
        if left is not None:
            (tmp_path / "f").write_bytes(left)
        with pytest.raises(Corrupt, match=told):
            durable.check_file(tmp_path / "f", 3, "the note")
