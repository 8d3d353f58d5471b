"""Tokens come from the environment or a file, and no error shows one."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordwood.cli import spark as spark_verbs
from cordwood.cli.app import run
from cordwood.errors import BadSetting
from cordwood.spark.options import READ_TOKENS
from cordwood.spark.secrets import SECRET_BYTES_MAX, tokens_at
from cordwood.spark.sink_options import WRITE_TOKENS


def test_tokens_of_a_variable_and_of_a_file(tmp_path: Path):
    assert tokens_at("t", "env:X", {"X": "a, b"}) == "a,b"
    (tmp_path / "tokens").write_text("a\n\n b \nc,d\n")
    assert tokens_at("t", f"file:{tmp_path}/tokens") == "a,b,c,d"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read: No such file"),
        (b"", "holds no token"),
        (b" \n,\n", "holds no token"),
        (b"hunter2\xff", "is no text"),
        (b"hunter2" * SECRET_BYTES_MAX, "no file of tokens"),
    ],
    ids=["none", "empty", "blank", "bytes", "large"],
)
def test_files_without(tmp_path: Path, content, told: str):
    if content is not None:
        (tmp_path / "tokens").write_bytes(content)
    with pytest.raises(BadSetting, match=told) as raised:
        tokens_at("--write-tokens", f"file:{tmp_path}/tokens")
    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None or "hunter2" not in repr(raised.value.__cause__)


def test_a_variable_that_is_not_set():
    with pytest.raises(BadSetting, match="the variable X holds no token"):
        tokens_at("t", "env:X", {})


@pytest.mark.parametrize("verb", ["land", "stats", "audit", "replay"])
def test_a_verb_that_reads_refuses_a_token_too(verb: str, capfd: pytest.CaptureFixture[str]):
    more = {"land": ["--table", "t"], "replay": ["--checkpoint", "c", "--to", "b"]}
    asked = ["spark", verb, "a", *more.get(verb, []), "--cluster", "h:1"]
    assert run([*asked, "--read-tokens", "hunter2"]) == 1
    told = capfd.readouterr()
    assert "--read-tokens says where the tokens are" in told.err
    assert "hunter2" not in told.out + told.err


def test_a_verb_takes_the_variable_of_all_verbs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CORDWOOD_READ_TOKENS", "a,b")
    monkeypatch.setenv("CORDWOOD_WRITE_TOKENS", "c")
    monkeypatch.setenv("MINE", "d")
    assert spark_verbs.source_options("h:1", ["x"], "")[READ_TOKENS] == "a,b"
    assert spark_verbs._sink("h:1", "x", "")[WRITE_TOKENS] == "c"
    assert spark_verbs._sink("h:1", "x", "env:MINE")[WRITE_TOKENS] == "d"


@pytest.mark.slow
@pytest.mark.parametrize("verb", [["replay", "a", "--checkpoint", "c"], ["backfill", "t"]])
def test_a_verb_refuses_a_token_and_does_not_repeat_it(
    verb, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "notes").mkdir()
    more = ["--to", "b", "--progress", str(tmp_path)] if verb[0] == "backfill" else ["--to", "b"]
    asked = ["spark", *verb, *more, "--cluster", "h:1", "--write-tokens", "hunter2"]
    assert run(asked) == 1
    told = capfd.readouterr()
    assert "--write-tokens says where the tokens are" in told.err
    assert "hunter2" not in told.out + told.err
