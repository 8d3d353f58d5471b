"""Links between documents lead somewhere, and documents name files that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "cordwood"
DOCS = ROOT / "docs"

PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *PACKAGE.rglob("*.md")])


def anchors(page: Path) -> set[str]:
    """What a link to a part of a page may name: GitHub's anchors of headings, and explicit ones."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = set(re.findall(r'<a id="([^"]+)"', text))
    for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"[`*]|\]\([^)]*\)|\[", "", title).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Each relative link: the file that it names ("" for the page itself), and the anchor."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if "://" not in target:
            yield target, anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    broken = []
    for target, anchor in links(page):
        file = (page.parent / target) if target else page
        if not file.exists():
            broken.append(target)
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            broken.append(f"{target}#{anchor}")
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_are_there(page: Path) -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+[\w.]+\.(?:py|txt|md|json))`", page.read_text()))
    # Pages about other systems name files of theirs.
    theirs = page.parent.name == "sources"
    missing = [
        name
        for name in sorted(named)
        if not theirs and not any((base / name).exists() for base in (ROOT, PACKAGE))
    ]
    assert missing == []


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_a_reader_finds_each_page(page: Path) -> None:
    """From the README, by links alone."""
    seen, to_see = set(), [ROOT / "README.md"]
    while to_see:
        at = to_see.pop()
        if at in seen or at.suffix != ".md":
            continue
        seen.add(at)
        to_see += [(at.parent / target).resolve() for target, _ in links(at) if target]
    assert page in seen


def test_the_site_lists_each_page() -> None:
    """`make site` fails where one is missing; this fails sooner."""
    listed = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_functions_of_the_reading_order_are_there() -> None:
    """Rows that name a file and then functions of it."""
    page = (DOCS / "reading-order.md").read_text()
    rows = re.findall(r"`(cordwood/[\w/]+\.py)` \| ([^|]+) \|$", page, re.MULTILINE)
    named = [(file, name) for file, cell in rows for name in re.findall(r"`(\w+)`", cell)]
    assert len(named) > 15
    missing = [
        f"{file}: {name}"
        for file, name in named
        if not re.search(
            rf"\b(?:def|class) {name}\b|^    {name}:|def {name}\(", (ROOT / file).read_text(), re.M
        )
    ]
    assert missing == []
