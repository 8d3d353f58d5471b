"""Docstrings and comments cite pages that a reader can open, with the section that is named.

They cite pages of `docs/` and public sources, and never a page that is somewhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "cordwood"

# Pages that a command writes, on a machine that does nothing else.
WRITTEN = {"docs/figures.md"}
CODE = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *ROOT.glob("tools/*.py")])

# Pages whose sections are cited by number: "docs/design.md §3", "docs/sources/logdevice.md 2.7".
NUMBERED = re.compile(r"docs/(?:design|sources/\w+)\.md")
SECTION = re.compile(r",? (?:§§? ?)?(\d+(?:\.\d+)?|\([a-i]\))(?![\w%])")

# Names of pages that were never in the repository, as older docstrings cited them.
CLOSED = re.compile(
    r"(?<![\w/-])(?:design|style|hotpath|spark)\.md|\bdigest on \b|\bresearch (?:digest|\"|hot|rel)"
    r"|(?:LogDevice|BookKeeper|S3Stream|s3stream|reliability|hotpath),? digest\b"
    r"|\bseed (?:on |logdevice|\"How)|\bissue text\b",
    re.IGNORECASE,
)


def sections(page: Path) -> set[str]:
    """The numbers and letters of a page's headings: "3", "2.7", "(a)"."""
    return set(re.findall(r"^#+ (\d+(?:\.\d+)?|\([a-i]\))", page.read_text(), re.MULTILINE))


def cited(text: str) -> Iterator[tuple[str, list[str]]]:
    """Pages of docs/ that a text cites, each with the sections that follow it by number."""
    # A citation may be broken over two lines, in a docstring or behind `#`.
    flat = re.sub(r"\s*\n\s*#?\s*", " ", text)
    for match in re.finditer(r"docs/[\w/-]+\.(?:md|json|svg|png)", flat):
        numbers, at = [], match.end()
        if NUMBERED.fullmatch(match[0]):
            while found := SECTION.match(flat, at):
                numbers.append(found[1])
                at = found.end()
                # What a citation says in brackets, as ("Producers"), stands between two of them.
                if aside := re.match(r" \(\"?[^()]*\)", flat[at:]):
                    at += aside.end()
        yield match[0], numbers


def test_pages_that_code_cites_are_there_with_their_sections() -> None:
    broken = []
    for file in [each for each in CODE if each != Path(__file__)]:
        for name, numbers in cited(file.read_text()):
            page = ROOT / name
            if name in WRITTEN:
                continue
            if not page.exists():
                broken.append(f"{file.relative_to(ROOT)}: {name}")
                continue
            broken += [
                f"{file.relative_to(ROOT)}: {name} {number}"
                for number in numbers
                if number not in sections(page)
            ]
    assert broken == []


def test_no_docstring_cites_a_page_that_a_reader_cannot_open() -> None:
    closed = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in CODE
        if file != Path(__file__)
        for line in file.read_text().splitlines()
        if CLOSED.search(line.replace("docs/design.md", "").replace("docs/sources/spark.md", ""))
    ]
    assert closed == []


QUOTED = re.compile(
    r"((?:docs/[\w/-]+|CONTRIBUTING)\.md)(?:,? (?:§|\d|\()[^\";]{0,40})?"
    r",? ?((?:\(?\"[^\"]+\"(?:, | and |: |\) )?)+)"
)


def plain(text: str) -> str:
    return re.sub(r"[\s*`#]+", " ", text).lower()


def quotes(text: str) -> Iterator[tuple[str, str]]:
    """Each page that a text cites, and words that it quotes of it."""
    for match in QUOTED.finditer(re.sub(r"\s*\n\s*#?\s*", " ", text)):
        for quoted in re.findall(r'"([^"]+)"', match[2]):
            yield match[1], quoted


def test_words_that_code_quotes_stand_on_the_page() -> None:
    broken = [
        f"{file.relative_to(ROOT)}: {name} has no {quoted!r}"
        for file in CODE
        if file != Path(__file__)
        for name, quoted in quotes(file.read_text())
        if (ROOT / name).exists() and plain(quoted) not in plain((ROOT / name).read_text())
    ]
    assert broken == []


def test_how_quotes_are_read() -> None:
    text = 'Source: docs/design.md §3 ("Producers",\n    "acks"); docs/x.md, "Files by name".'
    assert list(quotes(text)) == [
        ("docs/design.md", "Producers"),
        ("docs/design.md", "acks"),
        ("docs/x.md", "Files by name"),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Source: docs/design.md §2, §4.", [("docs/design.md", ["2", "4"])]),
        ('docs/design.md §3 ("Producers"), §9.', [("docs/design.md", ["3", "9"])]),
        ("docs/sources/logdevice.md 2.7, 2.13.", [("docs/sources/logdevice.md", ["2.7", "2.13"])]),
        ("docs/sources/s3stream.md (a), (c);", [("docs/sources/s3stream.md", ["(a)", "(c)"])]),
        ("docs/sources/logdevice.md\n    2.7.", [("docs/sources/logdevice.md", ["2.7"])]),
        ("docs/simulator.md, 3 of them", [("docs/simulator.md", [])]),
    ],
)
def test_how_citations_are_read(text: str, found: list[tuple[str, list[str]]]) -> None:
    assert list(cited(text)) == found
