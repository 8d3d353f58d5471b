"""What a session sets for the processes that Spark starts."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from swaps import swap

from cordwood.errors import BadSetting
from cordwood.spark import session
from cordwood.spark.session import WORKER_PYTHON


def started(pythonpath: str) -> str:
    """PYTHONPATH as a worker sees it."""
    done = subprocess.run(
        [str(WORKER_PYTHON), "-c", "import os; print(os.environ['PYTHONPATH'])"],
        env={**os.environ, "PYTHONPATH": pythonpath, "CORDWOOD_SPARK_PYTHON": sys.executable},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.rstrip("\n")


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("", ""),
        ("/a dir:/b", "/a dir:/b"),
        ("/s/python/lib/pyspark.zip:/s/python/lib/py4j-0.10.9.9-src.zip:/s/x.jar", "/s/x.jar"),
        ("/mine:/s/python/lib/pyspark.zip:/own/pyspark.zip", "/mine:/own/pyspark.zip"),
        ("/s/python/lib/pyspark.zip", ""),
    ],
)  # fmt: skip
def test_a_worker_has_all_of_the_path_but_sparks_zips(given: str, left: str):
    assert started(given) == left


def test_workers_do_not_end_by_ctrl_c():
    text = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    done = subprocess.run(
        [str(WORKER_PYTHON), "-c", text], capture_output=True, text=True, check=True,
        env={**os.environ, "CORDWOOD_SPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    ("first", "then", "is_told"),
    [
        (KeyboardInterrupt, BrokenPipeError, False),
        (BrokenPipeError, KeyboardInterrupt, False),
        (OSError, BrokenPipeError, True),
    ],
)
def test_an_interrupt_is_no_error_to_log(first, then, is_told: bool):
    error = then()
    error.__context__ = first()
    told = (type(error), error, None)
    record = logging.LogRecord("py4j", logging.ERROR, "", 0, "", (), told)
    assert session._is_no_interrupt(record) == is_told


class TestEnvironment:
    @pytest.fixture(autouse=True)
    def clean(self, monkeypatch: pytest.MonkeyPatch):
        swap(monkeypatch, session.ensure_java, lambda: None, within=session)
        for name in ("PYSPARK_PYTHON", "CORDWOOD_SPARK_PYTHON"):
            # Set first, so that what the session sets is taken back, too.
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)

    def test_local_workers_are_this_python_by_way_of_the_script(self):
        session._prepare_environment(is_local=True)
        assert os.environ["PYSPARK_PYTHON"] == str(WORKER_PYTHON)
        assert os.environ["CORDWOOD_SPARK_PYTHON"] == sys.executable

    def test_others_are_this_python_also_after_a_local_session(self):
        session._prepare_environment(is_local=True)
        session._prepare_environment(is_local=False)
        assert os.environ["PYSPARK_PYTHON"] == sys.executable

    def test_what_the_user_says_stands(self, monkeypatch: pytest.MonkeyPatch):
        swap(monkeypatch, session.check_worker_python, lambda _: None)
        monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3.11")
        for is_local in (True, False):
            session._prepare_environment(is_local=is_local)
            assert os.environ["PYSPARK_PYTHON"] == "/usr/bin/python3.11"

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'cordwood'\" >&2; exit 1",
             "No module named 'cordwood'"),
            ("#!/bin/sh\nexit 3", "it ends with 3"),
            ("", "No such file"),
        ],
    )  # fmt: skip
    def test_a_python_without_this_package_is_told_before_spark_starts(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, why: str
    ):
        """Each query failed, and where the source is looked up nothing said why."""
        python = tmp_path / "python"
        if text:
            python.write_text(text)
            python.chmod(0o755)
        monkeypatch.setenv("PYSPARK_PYTHON", str(python))
        with pytest.raises(BadSetting, match=f"{why}.*PYSPARK_PYTHON={sys.executable}"):
            session._prepare_environment(is_local=True)
        session._prepare_environment(is_local=False)  # it is a path of other machines

    def test_where_pyspark_is_no_installed_package_the_zip_is_left(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        swap(monkeypatch, session._has_pyspark, lambda: False)
        session._prepare_environment(is_local=True)
        assert os.environ["PYSPARK_PYTHON"] == sys.executable

    @pytest.mark.parametrize(
        ("given", "left"),
        [
            ({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, "C.UTF-8"),
            ({"LC_CTYPE": "C", "LANG": "de_DE.UTF-8"}, "C.UTF-8"),
            ({}, "C.UTF-8"),
            ({"LANG": "de_DE.utf8"}, None),
            ({"LC_ALL": "", "LC_CTYPE": "C.UTF-8"}, None),
        ],
    )
    def test_a_jvm_can_name_files_with_all_letters(
        self, monkeypatch: pytest.MonkeyPatch, given, left: str | None
    ):
        for name in ("LC_ALL", "LC_CTYPE", "LANG"):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        session._prepare_environment(is_local=True)
        assert os.environ.get("LC_ALL") == (given.get("LC_ALL") if left is None else left)
