"""Environments beside `.venv` with another Spark: for proofs, never for daily work.

`4.2` has the oldest PySpark that Cordwood supports. `connect` has the packages that PySpark needs
for Spark Connect and Spark Declarative Pipelines (gRPC); Cordwood itself does not need them. Each
environment is small: it installs its own lock file and sees `.venv` behind it, so all other
packages are the same.

`python tools/spark_environments.py 4.2` builds the environment if necessary and prints its Python
as the last line. If the environment is not available (no network, no disk space), the command says
why and exits with 3, so that a proof can be skipped with that reason. Run it after `make setup`.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from setup import Place, SetUpFailed, only_one, run_pip, say

ENVIRONMENTS = {"4.2": "requirements-spark42.lock", "connect": "requirements-connect.lock"}
"""Their names, and the packages of each."""

UNAVAILABLE = 3
"""The exit code that means: not available here, and not because of an error in the code."""

FREE_BYTES_MIN = 2_500_000_000
"""A second Spark has 0.5 GB, and so has its archive; both are unpacked while it is built."""


@dataclass(frozen=True)
class SparkPlace(Place):
    """An environment beside the clone's."""

    name: str = ""

    @property
    def venv(self) -> Path:
        return self.root / ".venv-spark" / self.name

    @property
    def lock(self) -> Path:
        return self.root / ENVIRONMENTS[self.name]

    def digest(self) -> str:
        """The digest of the path, the Python and the packages."""
        summed = hashlib.sha256(f"{self.root} {sys.version}".encode())
        summed.update(self.lock.read_bytes())
        return summed.hexdigest()


def build(place: SparkPlace) -> None:
    """Make the environment anew.

    Raises:
        SetUpFailed: pip failed, or there is no room.
    """
    free = shutil.disk_usage(place.root).free
    if free < FREE_BYTES_MIN:
        raise SetUpFailed(f"{free / 1e9:.1f} GB are free", "free some space")
    say(f"an environment for Spark: {place.name}")
    shutil.rmtree(place.venv, ignore_errors=True)
    # Without its own pip: it sees the locked pip behind it, and the tools that build Spark's
    # archive.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place.venv)], check=True)
    look_behind(place)
    run_pip(
        place, "--require-hashes", "--no-build-isolation", "--no-deps", "--ignore-installed",
        "-r", str(place.lock),
    )  # fmt: skip
    place.write_stamp({"packages": "installed"})


def look_behind(place: SparkPlace) -> None:
    """Let the environment see the clone and `.venv` behind its own packages."""
    (own,) = (place.venv / "lib").glob("python3*/site-packages")
    (behind,) = (place.root / ".venv" / "lib").glob("python3*/site-packages")
    lines = [str(place.root), f"import site; site.addsitedir({str(behind)!r})"]
    (own / "behind.pth").write_text("\n".join(lines) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the Python of an environment, built if necessary. Returns UNAVAILABLE if it is not
    available."""
    parser = argparse.ArgumentParser(description="An environment with another Spark.")
    parser.add_argument("name", choices=ENVIRONMENTS)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    options = parser.parse_args(arguments)
    place = SparkPlace(options.root.resolve(), name=options.name)
    if place.read_stamp().get("packages") != "installed":
        place.venv.mkdir(parents=True, exist_ok=True)
        try:
            with only_one(place):
                build(place)
        except SetUpFailed as failed:
            print(f"{failed.what}; {failed.mend}", file=sys.stderr)
            return UNAVAILABLE
    print(place.python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
