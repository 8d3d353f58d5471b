"""The archive of Spark's classes: used where it is, and never in the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from swaps import swap_value

from cordwood.spark import class_archive
from cordwood.spark.session import JAVA_FLAGS, local_settings


def flags_with(archive: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    swap_value(monkeypatch, lambda: class_archive.ARCHIVE, archive)
    return local_settings()[JAVA_FLAGS]


def test_it_is_used_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "classes.jsa"
    assert "SharedArchive" not in flags_with(archive, monkeypatch)
    archive.write_bytes(b"not one")
    assert f"-XX:SharedArchiveFile={archive} " in flags_with(archive, monkeypatch)


def test_a_path_that_spark_would_cut_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "my classes.jsa"
    archive.write_bytes(b"not one")
    assert "SharedArchive" not in flags_with(archive, monkeypatch)
