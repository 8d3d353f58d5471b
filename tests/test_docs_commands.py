"""Command lines that documents show are real: the verbs and options exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from cordwood.cli.app import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
VERBS = typer.main.get_command(app)
ENDS = {"|", ">", "<", ">>", "&&", ";", "&", "||"}
"""What follows in a shell's line is not the command's."""


def shown(page: Path) -> Iterator[str]:
    """Each command line of a page that begins with `cordwood`, in a block or in a sentence."""
    text = page.read_text()
    for language, block in re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        if language in ("", "console", "sh"):
            yield from re.findall(
                r"^ *(?:\$ )?(?:\w+=\S+ )*(cordwood [a-z].*)$", block, re.MULTILINE
            )
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`(cordwood [a-z][^`]*)`", prose)


def faults(line: str) -> list[str]:
    """What is wrong with a command line: no such verb, no such option."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>&;")
    lexer.whitespace_split = True
    words = list(lexer)[1:]
    at = VERBS
    for word in words:
        if word in ENDS or not isinstance(at, TyperGroup):
            break
        if word.startswith("-"):
            continue
        verb = at.commands.get(word)
        if verb is None:
            return [f"{at.name} has no verb {word}"]
        at = verb
    known = {name for each in at.params for name in (*each.opts, *each.secondary_opts)}
    wrong = []
    for word in words[: next((n for n, word in enumerate(words) if word in ENDS), None)]:
        option = re.match(r"\[?(--[a-z][a-z-]*)", word)
        if option and option[1] not in {*known, "--help"}:
            wrong.append(f"{at.name} has no option {option[1]}")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_command_lines_of_a_page_exist(page: Path) -> None:
    wrong = {line: found for line in shown(page) if (found := faults(line))}
    assert wrong == {}


def test_the_page_for_administrators_shows_every_verb_of_theirs() -> None:
    """Every verb about nodes, maintenance and rebuilding."""
    page = ROOT / "docs" / "operating.md"
    text = "\n".join(shown(page))
    assert isinstance(VERBS, TyperGroup)
    missing = []
    for group in ("nodes", "maintenance", "rebuild"):
        verbs = VERBS.commands[group]
        assert isinstance(verbs, TyperGroup)
        missing += [f"{group} {v}" for v in verbs.commands if f"cordwood {group} {v}" not in text]
    assert missing == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("cordwood nodes list --json", ""),
        ("cordwood append demo < lines.txt --no-such", ""),
        ("cordwood nodes vanish 3", "nodes has no verb vanish"),
        ("cordwood rebuild start 3 --softly", "start has no option --softly"),
        ("cordwood nodes rebalance [NODE ...] [--dry-run]", ""),
    ],
)
def test_how_a_command_line_is_judged(line: str, fault: str) -> None:
    assert faults(line) == ([fault] if fault else [])
