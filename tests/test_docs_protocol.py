"""docs/protocol/ has a page for each protocol, and names every message, rule and promise."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import msgspec
import pytest

from cordwood.layout import (
    log_questions,
    message,
    message_fields,
    message_ledgers,
    message_nodes,
    message_staging,
)
from cordwood.layout.frame import Kind
from cordwood.sim.checkers import CHECKERS, NOT_YET

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "protocol"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "README.md")
ALL = "\n".join(page.read_text() for page in FOLDER.glob("*.md"))

SECTIONS = (
    "Purpose", "States", "Messages|Records", "Rules", "Invariants", "Sources", "Modules", "Tests",
)  # fmt: skip

# Rooms whose modules decide or carry out a protocol.
ROOMS = ("protocol", "quorum", "recovery", "sequencer")

MESSAGES = (message, message_fields, message_nodes, message_staging, message_ledgers, log_questions)


def ids(page: Path) -> str:
    return page.stem


def test_the_table_of_pages_is_whole() -> None:
    listed = re.findall(r"^\| \[[^\]]+\]\(([\w-]+\.md)\)", (FOLDER / "README.md").read_text(), re.M)
    assert sorted(listed) == [page.name for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_a_page_has_its_sections(page: Path) -> None:
    titles = re.findall(r"^## (.*)$", page.read_text(), re.M)
    lacking = [part for part in SECTIONS if not any(re.fullmatch(part, each) for each in titles)]
    assert lacking == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_promises_of_a_page_are_promises(page: Path) -> None:
    part = page.read_text().partition("## Invariants")[2].partition("\n## ")[0]
    named = set(re.findall(r"\b[SLOE]\d+\b", part))
    assert named & CHECKERS.keys(), "a protocol without a promise"
    assert named - CHECKERS.keys() - NOT_YET.keys() == set()


def test_every_promise_is_of_some_protocol() -> None:
    parts = [page.read_text().partition("## Invariants")[2] for page in PAGES]
    assert CHECKERS.keys() - set(re.findall(r"\b[SLOE]\d+\b", "\n".join(parts))) == set()


def test_every_frame_and_message_is_on_a_page() -> None:
    frames = {kind.name for kind in Kind}
    assert [name for name in sorted(frames) if not re.search(rf"\b{name}\b", ALL)] == []
    tagged = {
        name
        for module in MESSAGES
        for name, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, msgspec.Struct) and kind.__struct_config__.tag is not None
    }
    assert len(tagged) > 40
    assert [name for name in sorted(tagged) if f"`{name}`" not in ALL] == []


@pytest.mark.parametrize("room", ROOMS)
def test_every_module_of_a_rule_is_on_a_page(room: str) -> None:
    modules = {f"{room}/{file.name}" for file in (ROOT / "cordwood" / room).glob("*.py")}
    modules -= {f"{room}/__init__.py"}
    assert [name for name in sorted(modules) if f"`{name}`" not in ALL] == []
