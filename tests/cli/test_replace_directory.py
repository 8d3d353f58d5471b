"""The directory that `cordwood nodes replace` is given: new, or begun by the same command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cordwood import durable
from cordwood.cli.replace import (
    DONE,
    IDENTITY,
    PLACED,
    claim,
    put_in_place,
    says,
    write_marker,
)
from cordwood.errors import BadSetting


def test_a_new_directory_is_made_and_may_be_given_again(tmp_path: Path) -> None:
    new = tmp_path / "new"
    claim(str(new), 3)
    claim(str(new), 3)
    assert not says(str(new), PLACED)
    write_marker(str(new), 3, PLACED)
    (new / "identity").write_text("of the node that runs there by now")
    claim(str(new), 3)
    assert says(str(new), PLACED)


def test_a_directory_of_an_earlier_replacement_is_refused(tmp_path: Path) -> None:
    """The command told of the node that it runs there, and of the disk that it ran on, that nobody
    wants it."""
    first = tmp_path / "first"
    claim(str(first), 3)
    write_marker(str(first), 3, DONE)
    with pytest.raises(BadSetting, match="was brought to"):
        claim(str(first), 3)


def test_the_name_of_a_nodes_directory_tells_whether_it_runs_there(tmp_path: Path) -> None:
    """On a cluster of this machine, also where the command was stopped before it was done."""
    first = tmp_path / "first"
    claim(str(first), 3, is_linked=False)
    (first / IDENTITY).write_text("of the node that runs there by now")
    claim(str(first), 3, is_linked=True)
    write_marker(str(first), 3, DONE)
    claim(str(first), 3, is_linked=True)  # given again, and nothing is to be done
    for state in (DONE, ""):
        write_marker(str(first), 3, state)
        with pytest.raises(BadSetting, match="was brought to"):
            claim(str(first), 3, is_linked=False)


def test_a_used_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("something")
    with pytest.raises(BadSetting, match="is used"):
        claim(str(tmp_path), 3)
    assert [each.name for each in tmp_path.iterdir()] == ["data"]


def test_a_directory_for_another_node_is_refused(tmp_path: Path) -> None:
    claim(str(tmp_path), 4)
    with pytest.raises(BadSetting, match="another node"):
        claim(str(tmp_path), 3)


def test_the_old_directory_stays_beside_the_link(tmp_path: Path) -> None:
    old, new = tmp_path / "node-3", tmp_path / "new"
    for _ in range(2):
        old.mkdir()
        (old / "wal").write_text("old")
        new.mkdir(exist_ok=True)
        put_in_place(str(old), str(new))
        assert old.resolve() == new.resolve()
        old.unlink()
    assert (tmp_path / "node-3.replaced" / "wal").read_text() == "old"
    assert (tmp_path / "node-3.replaced-" / "wal").read_text() == "old"


@pytest.mark.parametrize("step", ["write_new", "sync_file", "rename"])
def test_a_kill_while_the_marker_is_written_leaves_the_command_to_be_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The marker was empty then, and the directory was said to be for another node."""

    def kill(*_: object) -> None:
        raise SystemExit

    def is_killed(write: Callable[[], None]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(durable, step, kill)
            with pytest.raises(SystemExit):
                write()

    new = str(tmp_path / "new")
    is_killed(lambda: claim(new, 3))
    claim(new, 3)
    is_killed(lambda: write_marker(new, 3, PLACED))
    claim(new, 3)
    assert not says(new, PLACED)
    write_marker(new, 3, PLACED)
    assert says(new, PLACED)
