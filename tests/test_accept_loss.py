"""An embedded store whose WAL rotted, as its user meets it: what it says, and the way out."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from swaps import swap
from verbs_at_hand import run_verb

import cordwood
from cordwood import durable
from cordwood.block import Gap, GapKind, Record
from cordwood.errors import NoSequencer, NotOurCluster
from cordwood.settings import ClientSettings
from cordwood.storage.identity import ACCEPTED

RECORDS = 20
ROTTEN = 8

IMPATIENT = ClientSettings(timeout_s=3.0)

FILL = """
import os, sys, cordwood
store = cordwood.connect(sys.argv[1])
for number in range(1, int(sys.argv[2]) + 1):
    store.append("log", b"record-%d." % number + bytes(50))
os._exit(0)  # as a crash: nothing is flushed, and nothing closed
"""


@pytest.fixture
def rotten(tmp_path: Path) -> Path:
    """A store, one record of which has rotted."""
    path = tmp_path / "store"
    subprocess.run([sys.executable, "-c", FILL, str(path), str(RECORDS)], check=True)
    wal = path / "node-1" / "wal"
    at = wal.read_bytes().index(b"record-%d." % ROTTEN)
    with open(wal, "r+b") as file:
        file.seek(at)
        file.write(b"ROTTEN")
    return path


def read(path: Path) -> list[Record | Gap]:
    with cordwood.connect(path, IMPATIENT) as store, store.read("log") as reader:
        return list(reader)


def accept(path: Path, *more: str) -> object:
    return run_verb(["nodes", "accept-loss", str(path), *more])


@pytest.mark.slow
def test_it_says_what_is_wrong_and_the_way_out_and_that_leads_out(rotten: Path) -> None:
    with pytest.raises(NoSequencer, match=r"it lost records.*cordwood nodes accept-loss"):
        read(rotten)
    assert accept(rotten, "--yes").exit_code == 0
    for _ in range(2):
        found = read(rotten)
        lost = [each for each in found if isinstance(each, Gap) and each.kind is GapKind.DATA_LOSS]
        numbers = [int(each.value[7:].split(b".")[0]) for each in found if isinstance(each, Record)]
        assert numbers == [n for n in range(1, RECORDS + 1) if n != ROTTEN]
        assert [(gap.first & 0xFFFFFFFF, gap.last & 0xFFFFFFFF) for gap in lost] == [(8, 8)]
    with cordwood.connect(rotten, IMPATIENT) as store:
        store.append("log", b"goes on")


def test_it_asks_before_and_changes_nothing_without_a_yes(rotten: Path) -> None:
    assert accept(rotten).exit_code == 1
    assert not (rotten / "node-1" / "accept-loss").exists()


def test_another_directory_is_refused(tmp_path: Path) -> None:
    outcome = accept(tmp_path, "--yes")
    assert outcome.exit_code == 1
    assert "is no node's directory" in outcome.stderr


class TestAnOlderCopy:
    """A snapshot of the node's directory is put back, and the metadata store knows better."""

    @pytest.fixture(params=["a log being recovered", "a log that was recovered"])
    def older(self, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
        """A store whose node has the directory of an earlier day, and has forgotten since how
        an epoch ended, if that was recovered by then."""
        path = tmp_path / "store"
        subprocess.run([sys.executable, "-c", FILL, str(path), "5"], check=True)
        shutil.copytree(path / "node-1", tmp_path / "snapshot")
        with cordwood.connect(path, IMPATIENT) as store:
            store.append("log", b"later")
            if "was" in request.param:
                assert len(list(store.read("log", start="oldest", until="tail"))) > 5
        shutil.rmtree(path / "node-1")
        (tmp_path / "snapshot").rename(path / "node-1")
        return path

    def test_it_does_not_open_and_says_the_way_out(self, older: Path) -> None:
        with pytest.raises(NotOurCluster, match=r"older copy.*cordwood nodes accept-loss"):
            cordwood.connect(older, IMPATIENT)

    def test_accepted_it_opens_with_what_it_has_and_a_loss_told(self, older: Path) -> None:
        assert accept(older, "--yes").exit_code == 0
        for _ in range(2):
            found = read(older)
            values = [each.value for each in found if isinstance(each, Record)]
            assert [value.split(b".")[0] for value in values] == [
                b"record-%d" % n for n in range(1, 6)
            ]
        with cordwood.connect(older, IMPATIENT) as store:
            store.append("log", b"goes on")

    @pytest.mark.slow
    def test_let_in_without_a_vote_it_says_so_until_the_loss_is_accepted(self, older: Path) -> None:
        told = accept(older, "--older", "--yes")
        assert (told.exit_code, "its silence proves nothing" in told.stdout) == (0, True)
        with pytest.raises(NoSequencer, match="it lost records"):
            read(older)
        assert accept(older, "--yes").exit_code == 0
        assert len([each for each in read(older) if isinstance(each, Record)]) == 5

    def test_a_copy_of_the_whole_store_is_one_state_that_nobody_contradicts(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "store"
        subprocess.run([sys.executable, "-c", FILL, str(path), "5"], check=True)
        shutil.copytree(path, tmp_path / "copy")
        with cordwood.connect(path, IMPATIENT) as store:
            store.append("log", b"later")
        assert len([each for each in read(tmp_path / "copy") if isinstance(each, Record)]) == 5


def test_its_word_outlives_a_power_cut(rotten: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the file was not synced: the node went on without a vote, or did not start."""
    synced: list[Path] = []

    def sync(place: durable.Place) -> None:
        assert (rotten / "node-1" / "accept-loss").read_bytes() == ACCEPTED
        synced.append(Path(place))

    swap(monkeypatch, durable.sync_directory, sync)
    assert accept(rotten, "--yes").exit_code == 0
    assert synced == [rotten / "node-1"]
