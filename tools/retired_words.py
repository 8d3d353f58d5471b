"""Keep retired words out of the code, the tests and the pages: `make lint` runs this.

A word is retired when the field has a better word, or when it meant several things. The table says
what to write instead and where the word is still right. `docs/glossary.md` has the words to use.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LOOKED_AT = ("cordwood", "tests", "docs", "proof", "README.md")

NOT_LOOKED_AT = ("docs/sources/", "docs/glossary.md", "tests/tools/test_retired_words.py")
"""Digests quote other systems, and the glossary names their words beside ours."""

ENDINGS = (".py", ".md", ".toml", ".txt")


@dataclass(frozen=True)
class Retired:
    """A word that is not to be written.

    Attributes:
        pattern: finds it, as a word or as a part of an identifier.
        instead: what to write.
        right_in: paths, or beginnings of paths, where it is the right word.
    """

    pattern: str
    instead: str
    right_in: tuple[str, ...] = ()


_EDGE = r"(?<![A-Za-z])"


def _word(words: str) -> str:
    """A pattern of these words, alone or between underscores, in any case."""
    return rf"(?i:{_EDGE}(?:{words})(?![A-Za-z]))"


RETIRED = (
    Retired(_word("shards?") + r"|\bShard[A-Z]\w*|\bSlowShards\b", "storage engine, or node"),
    Retired(_word("reigns?|reigning"), "sequencer table, or epoch"),
    Retired(_word("rulers?"), "the log's sequencer, or owner"),
    Retired(
        _word("heirs?"),
        "successor",
        # As it is stored.
        ("cordwood/layout/message_consumers.py", "cordwood/metadata/consumers.py"),
    ),
    Retired(_word("mandates?"), "eligibility"),
    Retired(_word("cargos?"), "contents of an in-flight run"),
    Retired(_word("zoo") + r"(?!\.cfg)", "planted bugs", ("tests/zookeeper_at_hand.py",)),
    Retired(
        r"\b(?:grounds?|hunts?)(?==|\.[A-Z])|\bHunts?\b|_hunt\b|_grounds\b",
        "scenario, or search",
    ),
    Retired(_word("wardens?"), "operator"),
    Retired(_word("ordeals?"), "chaos run"),
    Retired(_word("seats?|seated"), "subscriber queue"),
    Retired(r"\bopen_lead\b", "leader stream"),
    Retired(
        r"\bclass (?:Batch|Share|Portion|Wish|Given|Turns?|Cargo|Strikes?|Cast)\b",
        "the noun of what it holds",
        ("cordwood/sim/events.py",),  # a publish batch, which is the batch that keeps the word
    ),
    Retired(
        r"\b(?:JoinGroup|BeatGroup|LeaveGroup|AskGroups|Groups?Reply|GroupCall)\b",
        "the same of Consumer: a group is an atomic group",
    ),
    Retired(r"\broom_(?:bytes|needed)\b", "free_bytes, space_needed"),
    Retired(r"\b(?:turn|turns) of the (?:event )?loop\b", "tick"),
)


def paths(root: Path) -> Iterator[str]:
    """Tracked files that are looked at."""
    listed = subprocess.run(
        ("git", "ls-files", *LOOKED_AT), cwd=root, check=True, capture_output=True, text=True
    )
    for name in listed.stdout.splitlines():
        if name.endswith(ENDINGS) and not name.startswith(NOT_LOOKED_AT):
            yield name


def found_in(name: str, text: str, retired: Sequence[Retired] = RETIRED) -> list[str]:
    """A line for each retired word in a file: where it is, and what to write instead."""
    told = []
    for each in retired:
        if each.right_in and name.startswith(each.right_in):
            continue
        for match in re.finditer(each.pattern, text):
            line = text.count("\n", 0, match.start()) + 1
            told.append(f"{name}:{line}: {match.group(0)!r} is retired: write {each.instead}")
        for match in re.finditer(each.pattern, name):
            told.append(f"{name}: the name has {match.group(0)!r}: write {each.instead}")
    return told


def main(root: Path = ROOT) -> int:
    """1 if a retired word is in a file. Prints one line for each."""
    told = []
    for name in paths(root):
        if (path := root / name).exists():
            told += found_in(name, path.read_text(encoding="utf-8"))
    for line in told:
        print(line)
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
