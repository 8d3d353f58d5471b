"""Set-up: what is there already, and the words for each way to fail."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load_setup():
    """tools/ is no package: set-up runs before anything can be imported."""
    spec = importlib.util.spec_from_file_location("cordwood_setup", ROOT / "tools" / "setup.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["cordwood_setup"] = module
    spec.loader.exec_module(module)
    return module


setup = load_setup()


@pytest.fixture
def place(tmp_path: Path):
    """A clone as far as set-up looks at one."""
    (tmp_path / "tools").mkdir()
    for name in setup.INPUTS:
        shutil.copy(ROOT / name, tmp_path / name)
    return setup.Place(tmp_path)


@pytest.fixture
def finished(place):
    """The same, with all of set-up done."""
    java_home = place.root / "jvm"
    for executable in (place.python, java_home / "bin" / "java"):
        executable.parent.mkdir(parents=True)
        executable.write_text("#!/bin/sh\n")
        executable.chmod(0o755)
    place.write_stamp({"packages": "installed", "java_home": str(java_home)})
    return place


class TestTheStamp:
    def test_a_fresh_clone_is_not_done(self, place):
        assert not setup.is_done(place, with_jre=False)

    def test_a_finished_one_is_done_and_says_nothing(self, finished):
        done = subprocess.run(
            [sys.executable, ROOT / "tools" / "setup.py", "--root", finished.root],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    @pytest.mark.parametrize("name", setup.INPUTS)
    def test_a_change_of_any_input_undoes_it(self, finished, name):
        with (finished.root / name).open("a") as file:
            file.write("\n# changed\n")
        assert not setup.is_done(finished, with_jre=False)

    def test_moving_the_clone_undoes_it(self, finished, tmp_path_factory: pytest.TempPathFactory):
        elsewhere = tmp_path_factory.mktemp("moved") / "clone"
        finished.root.rename(elsewhere)
        assert not setup.is_done(setup.Place(elsewhere), with_jre=False)

    def test_java_that_went_away_undoes_it(self, finished):
        shutil.rmtree(finished.root / "jvm")
        assert not setup.is_done(finished, with_jre=False)

    def test_the_python_it_was_made_with_going_away_undoes_it(self, finished):
        finished.python.unlink()
        finished.python.symlink_to("/nowhere/python3.11")
        assert not setup.is_done(finished, with_jre=False)
        assert setup.venv_version(finished) is None

    def test_the_tests_want_the_runtime_of_pypi_as_well(self, finished):
        assert not setup.is_done(finished, with_jre=True)
        finished.write_stamp({**json.loads(finished.stamp.read_text()), "jre": "installed"})
        assert not setup.is_done(finished, with_jre=True)
        finished.write_stamp({**json.loads(finished.stamp.read_text()), "classes": "made"})
        assert setup.is_done(finished, with_jre=True)

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"packages": "installed"}'])
    def test_a_torn_stamp_counts_as_none(self, finished, text: str):
        finished.stamp.write_text(text)
        assert finished.read_stamp() == {}


COMMAND = ["/clone/.venv/bin/python", "-m", "pip", "install", "-r", "requirements.lock"]

REFUSED = """\
WARNING: Retrying (Retry(total=2, connect=None)) after connection broken by \
'NewConnectionError("HTTPSConnection(host='index', port=443): Failed to establish a new \
connection: [Errno -3] Temporary failure in name resolution")': /simple/hatchling/
ERROR: Could not find a version that satisfies the requirement hatchling==1.33.0
ERROR: No matching distribution found for hatchling==1.33.0
"""


@pytest.mark.parametrize(
    ("output", "what", "mend"),
    [
        (REFUSED, "index was not reached", "HTTPS_PROXY="),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on "
            "device",
            "needs 3.4 GB of disk",
            "free some space",
        ),
        (
            "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate "
            "verify failed')) Max retries exceeded",
            "certificate was not trusted",
            "PIP_CERT=",
        ),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
            "not the one that was locked",
            "pip cache purge && make setup",
        ),
        (
            "ERROR: No matching distribution found for uvloop==0.23.0",
            "no build of uvloop==0.23.0",
            "make PYTHON=",
        ),
        ("something nobody thought of", "pip failed", " ".join(COMMAND)),
    ],
)
def test_what_pip_says_becomes_what_is_missing_and_what_mends_it(place, output, what: str, mend):
    failed = setup.explain_pip(output, COMMAND, place)
    assert what in failed.what
    assert mend in failed.mend


def test_a_python_without_ensurepip_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(setup.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(setup.shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(setup.SetUpFailed) as caught:
        setup.check_venv_modules()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert "no module venv and no ensurepip" in caught.value.what
    assert caught.value.mend.endswith(f"apt-get install python{version}-venv")


def test_a_nearly_full_disk_is_told_before_anything_is_downloaded(
    place, monkeypatch: pytest.MonkeyPatch
):
    usage = shutil.disk_usage(place.root)._replace(free=300_000_000)
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(setup.SetUpFailed, match=r"needs 3\.4 GB .* 0\.3 GB are free there"):
        setup.check_space(place)


@pytest.mark.slow
def test_without_a_network_the_first_run_says_so_and_how_to_go_on(place):
    # Port 9 of loopback refuses at once, as an index behind no network does after a while.
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_FIND_LINKS": ""}
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "setup.py", "--root", place.root],
        env={**os.environ, **nowhere, "PIP_NO_CACHE_DIR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "making .venv" in done.stdout
    assert "set-up failed: the package index was not reached" in done.stderr
    assert "make setup" in done.stderr
    assert not place.stamp.exists()


class TestFindingAPython:
    def run(self, path, arguments, **environ):
        return subprocess.run(
            ["/bin/sh", str(ROOT / "tools" / "python.sh"), *arguments],
            env={"PATH": str(path), **environ},
            capture_output=True,
            text=True,
            check=False,
        )

    def old_python(self, directory: Path, name: str = "python3") -> Path:
        """A Python that says it is 3.9, and that no check of a version passes on."""
        directory.mkdir(exist_ok=True)
        executable = directory / name
        executable.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2"\nexit 1\n')
        executable.chmod(0o755)
        return executable

    def test_a_newer_one_beside_an_old_python3_is_taken(self, tmp_path: Path):
        self.old_python(tmp_path / "bin")
        (tmp_path / "bin" / "python3.12").symlink_to(sys.executable)
        done = self.run(tmp_path / "bin", ["-c", "print('ran')"])
        assert (done.returncode, done.stdout) == (0, "ran\n")

    def test_none_that_fits_is_told_with_what_was_found_and_the_lines_that_mend_it(
        self, tmp_path: Path
    ):
        self.old_python(tmp_path / "bin")
        for tool in ("tail", "sh"):
            (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
        done = self.run(tmp_path / "bin", ["-c", "print('ran')"])
        assert done.returncode == 1
        assert done.stdout == ""
        assert "python3: Python 3.9.2" in done.stderr
        assert "apt-get install python3 python3-venv" in done.stderr

    def test_the_one_that_was_named_is_the_only_one_tried(self, tmp_path: Path):
        old = self.old_python(tmp_path / "old", "python3.9")
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python3").symlink_to(sys.executable)
        (tmp_path / "bin" / "tail").symlink_to(shutil.which("tail"))
        assert self.run(tmp_path / "bin", ["-c", "print()"], PYTHON=str(old)).returncode == 1
        named = self.run(tmp_path / "old", ["-c", "print('ran')"], PYTHON=sys.executable)
        assert named.stdout == "ran\n"


@pytest.mark.parametrize(
    ("script", "told"),
    [("exit 0", "made"), ("echo first >&2; echo no Java here >&2; exit 1", "no Java here")],
)
def test_an_archive_that_cannot_be_made_costs_nothing_but_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str, told: str
):
    place = setup.Place(tmp_path)
    place.python.parent.mkdir(parents=True)
    place.python.write_text(f"#!/bin/sh\n{script}\n")
    place.python.chmod(0o755)
    assert setup.archive_classes(place) == told
    assert ("Spark starts without" in capsys.readouterr().out) == (told != "made")
