"""Set up a clone: virtual environment, locked packages, the project, a Java for Spark.

`make` runs this before every target, so the usual answer, "everything is installed", must come at
once and offline: a stamp in the environment has a digest of all inputs. Otherwise each step prints
its work, and a failed step names the missing part and the command that mends it. Standard library
only: it runs before anything is installed.

The steps, and why they are these:

1. `.venv`, with the Python that runs this.
2. requirements-build.lock: pip itself and the build tools, so that the next two steps
   behave alike everywhere and build nothing with an unpinned tool.
3. requirements.lock, every file checked against its hash.
4. The project, editable.
5. Java 17 or newer: the machine's, else requirements-jre.lock (see cordwood/spark/java.py).
6. For the tests, which start Spark two dozen times: PyPI's Java beside the machine's, and an
   archive of Spark's classes (see cordwood/spark/class_archive.py).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FREE_BYTES_MIN = 3_400_000_000
"""The measured peak was 3.0 GB: 2.6 in .venv while Spark is built and 0.4 in pip's cache. The
packages for ZooKeeper, lake tables and LogsDB came later: .venv shrinks to 1.3 GB now, 0.2 more
than at that time."""

PIP_RETRIES = 3
"""Enough for a flaky line; with none at all, pip gives up after some seconds."""

PROGRESS_BYTES = 50_000_000

OUTPUT_LINES_SHOWN = 15

ARCHIVE_TIMEOUT_S = 300
"""It takes one minute on two slow cores."""

INPUTS = (
    "pyproject.toml",
    "requirements-build.lock",
    "requirements.lock",
    "requirements-jre.lock",
    "tools/setup.py",
)
"""The files of the stamp's digest: after a change in any of these the next `make` sets up again."""


class SetUpFailed(Exception):
    """A step failed.

    Attributes:
        what: the missing part, or the error.
        mend: the command that mends it.
    """

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(what)
        self.what = what
        self.mend = mend


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"cordwood set-up: {text}", flush=True)


# ------------------------------------------------------------------ what is installed already


@dataclass(frozen=True)
class Place:
    """One clone and its environment.

    Attributes:
        environment: the directory's name; CI keeps a second one, of the newest Python.
    """

    root: Path
    environment: str = ".venv"

    @property
    def venv(self) -> Path:
        return self.root / self.environment

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def stamp(self) -> Path:
        return self.venv / "cordwood-setup.json"

    @property
    def log(self) -> Path:
        return self.venv / "cordwood-setup.log"

    def digest(self) -> str:
        """The digest of all inputs of the environment. Its path counts too, because scripts in it
        name it."""
        summed = hashlib.sha256(str(self.root).encode())
        for name in INPUTS:
            summed.update((self.root / name).read_bytes())
        return summed.hexdigest()

    def read_stamp(self) -> dict[str, str]:
        """The finished steps of earlier runs; empty if these had other inputs."""
        try:
            stamp = json.loads(self.stamp.read_text())
        except (OSError, ValueError):
            return {}
        if not isinstance(stamp, dict) or stamp.get("digest") != self.digest():
            return {}
        return stamp

    def write_stamp(self, stamp: dict[str, str]) -> None:
        """Record the finished steps. An interrupted run leaves the last true record."""
        unfinished = self.stamp.with_suffix(".new")
        unfinished.write_text(json.dumps({**stamp, "digest": self.digest()}, indent=1) + "\n")
        unfinished.replace(self.stamp)


def is_done(place: Place, *, with_jre: bool) -> bool:
    """Whether nothing is left to do, judged from files alone."""
    stamp = place.read_stamp()
    return (
        stamp.get("packages") == "installed"
        and os.access(place.python, os.X_OK)
        and os.access(Path(stamp.get("java_home", ""), "bin", "java"), os.X_OK)
        and (not with_jre or (stamp.get("jre") == "installed" and "classes" in stamp))
    )


# ------------------------------------------------------------------------ what can fail


def check_venv_modules() -> None:
    """Check for the modules of a virtual environment, because Debian ships `python3` without them.

    Raises:
        SetUpFailed: `venv` or `ensurepip` is missing.
    """
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if not missing:
        return
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    what = f"{sys.executable} (Python {version}) has no module {' and no '.join(missing)}"
    if shutil.which("apt-get"):
        raise SetUpFailed(what, f"{as_root()}apt-get install python{version}-venv")
    raise SetUpFailed(
        what,
        f"install the venv and ensurepip modules of Python {version}, or "
        "choose another: make PYTHON=/path/to/python3",
    )


def check_space(place: Place) -> None:
    """Raises SetUpFailed if the disk of the clone has less than FREE_BYTES_MIN free."""
    free = shutil.disk_usage(place.root).free
    if free < FREE_BYTES_MIN:
        raise no_space(place, f"{free / 1e9:.1f} GB are free there")


def no_space(place: Place, seen: str) -> SetUpFailed:
    """The failure for a full disk."""
    return SetUpFailed(
        f"set-up needs {FREE_BYTES_MIN / 1e9:.1f} GB of disk for {place.root}, and {seen}",
        "free some space (df -h . shows the disk, `python3 -m pip cache purge` empties pip's "
        "cache), or clone to a larger disk",
    )


def as_root() -> str:
    """`sudo ` where it takes that."""
    return "" if os.geteuid() == 0 else "sudo "


NO_SPACE = re.compile(r"No space left on device|Errno 28|Disk quota exceeded", re.IGNORECASE)
NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|Failed to establish a new connection|"
    r"Temporary failure in name resolution|Network is unreachable|ConnectTimeoutError|"
    r"ReadTimeoutError|ProxyError|Connection refused|Connection reset|Max retries exceeded",
    re.IGNORECASE,
)
BAD_CERTIFICATE = re.compile(r"CERTIFICATE_VERIFY_FAILED", re.IGNORECASE)
BAD_HASH = re.compile(r"DO NOT MATCH THE HASHES", re.IGNORECASE)
NO_WHEEL = re.compile(r"No matching distribution found for (\S+)|Failed to build (\S+)")


def explain_pip(output: str, command: Sequence[str], place: Place) -> SetUpFailed:
    """Find the missing part, and the mending command, from pip's output.

    The order matters: a pip without a network also says "No matching distribution".
    """
    if NO_SPACE.search(output):
        return no_space(place, "the disk filled up")
    if BAD_CERTIFICATE.search(output):
        return SetUpFailed(
            "the package index was reached, but its certificate was not trusted (a proxy of "
            "your network may replace it)",
            "PIP_CERT=/path/to/your/ca-bundle.pem make setup",
        )
    if NO_NETWORK.search(output):
        return SetUpFailed(
            "the package index was not reached: no network, or a proxy is needed",
            "connect and run `make setup` again; behind a proxy: "
            "HTTPS_PROXY=http://proxy:port make setup; with an index of your own: "
            "PIP_INDEX_URL=... make setup",
        )
    if BAD_HASH.search(output):
        return SetUpFailed(
            "a downloaded package is not the one that was locked (a broken download, or an "
            "index that serves other files)",
            "python3 -m pip cache purge && make setup",
        )
    if match := NO_WHEEL.search(output):
        return SetUpFailed(
            f"no build of {match[1] or match[2]} for Python {sys.version.split()[0]} on "
            f"{os.uname().sysname} {os.uname().machine}",
            "use a Python from 3.11 to 3.14 on Linux or macOS: make PYTHON=/path/to/python3.12",
        )
    return SetUpFailed("pip failed", shlex.join(command))


# ----------------------------------------------------------------------------- the steps


def run_pip(place: Place, *arguments: str) -> None:
    """Run the environment's pip, its output in the log and its progress on the screen.

    Raises:
        SetUpFailed: pip failed.
    """
    command = [str(place.python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    command += ["install", "--retries", str(PIP_RETRIES), *arguments]
    lines: list[str] = []
    screen = PipScreen()
    scratch = place.venv / "tmp"
    scratch.mkdir(exist_ok=True)
    with place.log.open("a") as log:
        print("$", shlex.join(command), file=log)
        with subprocess.Popen(
            command,
            cwd=place.root,
            env=pip_environment(scratch),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as pip:
            assert pip.stdout is not None
            for line in pip.stdout:
                screen.on_line(line)
                if not line.startswith("Progress "):
                    log.write(line)
                    lines.append(line)
    shutil.rmtree(scratch, ignore_errors=True)
    if pip.returncode != 0:
        tail = "".join(lines[-OUTPUT_LINES_SHOWN:])
        print(tail, end="" if tail.endswith("\n") else "\n")
        raise explain_pip("".join(lines), command, place)


def pip_environment(scratch: Path) -> dict[str, str]:
    """This environment without variables that let pip install elsewhere, and with its own scratch
    directory.

    Spark is built from a 455 MB archive, and many a /tmp is a small one in memory.
    """
    elsewhere = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONHOME", "PYTHONPATH")
    kept = {name: text for name, text in os.environ.items() if name not in elsewhere}
    return {**kept, "TMPDIR": str(scratch)}


class PipScreen:
    """Shows the few lines of pip that tell its progress; the log has all lines."""

    def __init__(self) -> None:
        self._shown_bytes = 0

    def on_line(self, line: str) -> None:
        """Take one line that pip printed."""
        if match := re.match(r"Progress (\d+) of (\d+)", line):
            self._on_progress(int(match[1]), int(match[2]))
        elif match := re.match(r"\s+Downloading (\S+) \((\d+)(?:\.\d+)? MB\)", line):
            self._shown_bytes = 0
            if int(match[2]) >= 10:
                say(f"  downloading {match[1].split('-py')[0].split('-cp')[0]} ({match[2]} MB)")
        elif line.startswith("Installing collected packages:"):
            count = line.count(",") + 1
            say(f"  unpacking {count} package{'s' if count > 1 else ''}")

    def _on_progress(self, done: int, total: int) -> None:
        """Print every PROGRESS_BYTES, so that a slow line does not look like a hung one."""
        if done - self._shown_bytes >= PROGRESS_BYTES:
            self._shown_bytes = done
            say(f"    {done // 1_000_000} of {total // 1_000_000} MB")


def make_venv(place: Place) -> None:
    """Make `.venv`, or keep one that works with this very Python.

    Raises:
        SetUpFailed: Python could not make it.
    """
    version = sys.version.split()[0]
    if venv_version(place) == version:
        return
    say(f"making {place.environment} with Python {version}")
    command = [sys.executable, "-m", "venv", "--clear", str(place.venv)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        told = done.stdout + done.stderr
        print(told)
        if NO_SPACE.search(told):
            raise no_space(place, "the disk filled up")
        raise SetUpFailed("Python could not make a virtual environment", shlex.join(command))


def venv_version(place: Place) -> str | None:
    """The Python of a `.venv` whose pip runs; None if there is none."""
    code = "import pip, sys; print(sys.version.split()[0])"
    try:
        done = subprocess.run(
            [place.python, "-c", code], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def install_packages(place: Place) -> None:
    """Install the build tools, all locked packages, and the project, editable."""
    say("installing pip and the build tools")
    run_pip(place, "--require-hashes", "-r", "requirements-build.lock")
    say("installing the locked packages (1.3 GB, most of it Spark; some minutes on a slow line)")
    # Raw progress is lines, not a bar; only pip 24.1 and newer, as just installed, has it.
    run_pip(
        place,
        "--progress-bar=raw",
        "--require-hashes",
        "--no-build-isolation",
        "-r",
        "requirements.lock",
    )
    say("installing cordwood itself")
    run_pip(place, "--no-deps", "--no-build-isolation", "--editable", ".")


def install_jre(place: Place) -> None:
    """Install PyPI's Java runtime."""
    run_pip(place, "--require-hashes", "-r", "requirements-jre.lock")


def ensure_java_home(place: Place) -> str:
    """The home of a Java that boots Spark, installed into `.venv` if the machine has none.

    Raises:
        SetUpFailed: there is none, and PyPI's would not install or run.
    """
    home, _ = ask_java_home(place)
    if home is None:
        say("no Java 17 or newer on this machine: installing a runtime into .venv (110 MB)")
        install_jre(place)
        home, told = ask_java_home(place)
        if home is None:
            raise SetUpFailed(told, f"{as_root()}apt-get install openjdk-17-jre-headless")
    return home


def ask_java_home(place: Place) -> tuple[str | None, str]:
    """Ask `cordwood.spark.java` for a Java. Returns its home, or the reason why there is none."""
    command = [str(place.python), "-m", "cordwood.spark.java", "--home"]
    done = subprocess.run(command, cwd=place.root, capture_output=True, text=True, check=False)
    return (done.stdout.strip() if done.returncode == 0 else None), done.stderr.strip()


def archive_classes(place: Place) -> str:
    """Make the archive. Returns "made", or the reason why there is none; without it Spark only
    starts slower."""
    command = [str(place.python), "-m", "cordwood.spark.class_archive"]
    try:
        done = subprocess.run(
            command,
            cwd=place.root,
            capture_output=True,
            text=True,
            check=False,
            timeout=ARCHIVE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        told = f"it took longer than {ARCHIVE_TIMEOUT_S} s"
    else:
        if done.returncode == 0:
            return "made"
        told = done.stderr.strip().rpartition("\n")[2]
    say(f"left out ({told}); Spark starts without")
    return told


@contextmanager
def only_one(place: Place) -> Iterator[None]:
    """Hold the clone's directory, so that two `make`s do not install over one another."""
    directory = os.open(place.root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up of this clone is running: waiting for it")
            fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def set_up(place: Place, *, with_jre: bool) -> None:
    """Do the remaining steps.

    Args:
        with_jre: install PyPI's Java runtime even where the machine has one. The tests want
            it. If it cannot be installed, this is reported, and is a failure only if
            CORDWOOD_REQUIRE has `jre`.
    Raises:
        SetUpFailed: what is missing, and the command that mends it.
    """
    stamp = place.read_stamp()
    if stamp.get("packages") != "installed" or venv_version(place) is None:
        check_venv_modules()
        if venv_version(place) is None:
            check_space(place)
        make_venv(place)
        place.log.write_text("")
        install_packages(place)
        stamp = {"packages": "installed"}
        place.write_stamp(stamp)
    stamp["java_home"] = ensure_java_home(place)
    place.write_stamp(stamp)
    if with_jre and stamp.get("jre") != "installed":
        say("installing PyPI's Java runtime, for the test that hides the machine's")
        try:
            install_jre(place)
        except SetUpFailed as failed:
            if "jre" in os.environ.get("CORDWOOD_REQUIRE", ""):
                raise
            say(f"left out ({failed.what}); that test will be skipped")
            return
        stamp["jre"] = "installed"
        place.write_stamp(stamp)
    if with_jre and "classes" not in stamp:
        say(
            "archiving Spark's classes, so that each of the tests' sessions starts in half the time"
        )
        stamp["classes"] = archive_classes(place)
        place.write_stamp(stamp)


def main(arguments: Sequence[str] | None = None) -> int:
    """Set up the clone; 1 if that failed, with the reason printed."""
    parser = argparse.ArgumentParser(description="Set up this clone (see the module's docstring).")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--venv", default=".venv", help="the environment's directory in the clone")
    parser.add_argument("--with-jre", action="store_true", help="install PyPI's Java as well")
    options = parser.parse_args(arguments)
    place = Place(options.root.resolve(), options.venv)
    if is_done(place, with_jre=options.with_jre):
        return 0
    try:
        with only_one(place):
            set_up(place, with_jre=options.with_jre)
    except SetUpFailed as failed:
        print(f"\ncordwood: set-up failed: {failed.what}", file=sys.stderr)
        print(f"To mend it:  {failed.mend}", file=sys.stderr)
        if place.log.exists():
            print(f"All that pip said:  {place.log}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ncordwood: set-up was interrupted; make goes on where it stopped", file=sys.stderr)
        return 130
    say("done; from now on make starts at once, offline too")
    return 0


if __name__ == "__main__":
    sys.exit(main())
