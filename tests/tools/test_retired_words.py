"""Retired words: found wherever they stand, and left alone where they are right."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import retired_words  # noqa: E402


@pytest.mark.slow
def test_no_retired_word_is_in_the_tree(capsys: pytest.CaptureFixture[str]) -> None:
    assert retired_words.main() == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "self._shard.store()",
        "class ShardRecord:",
        "the node's shards",
        "read_shard_record(data)",
        "owner.heir",
        "_heirs = {}",
        "CRASH_ZOO",
        "a bug of the zoo",
        "hunt=grounds.TRIMS",
        "class Batch:",
        "class Wish(NamedTuple):",
        "JoinGroup(1)",
        "in one turn of the loop",
        "SEAT_BYTES_MAX",
    ],
)
def test_a_retired_word_is_told_with_its_line(text: str) -> None:
    told = retired_words.found_in("cordwood/x.py", f"\n{text}\n")
    assert told
    assert told[0].startswith("cordwood/x.py:2: ")
    assert ": write " in told[0]


@pytest.mark.parametrize(
    "text",
    [
        "ZooKeeper", "kazoo", "theirs", "THEIR", "sharding", "background", "is misleading",
        "hunter2", "in turn", "PublishBatch", "a batch",
    ],
)  # fmt: skip
def test_words_that_only_look_alike_are_left_alone(text: str) -> None:
    assert retired_words.found_in("cordwood/x.py", text) == []


def test_a_word_is_right_where_the_table_says_so() -> None:
    stored = 'successor: str = msgspec.field(default="", name="heir")'
    assert retired_words.found_in("cordwood/metadata/consumers.py", stored) == []
    assert retired_words.found_in("cordwood/metadata/lease.py", stored) != []


def test_a_file_name_counts_too() -> None:
    assert retired_words.found_in("cordwood/sim/zoo/wal.py", "") != []
