"""docs/benchmarks.md is what the results beside it give: no line of it was changed by hand."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.page import page
from benchmarks.peers.results import load_results

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def test_the_page_is_drawn_from_its_results() -> None:
    assert (DOCS / "benchmarks.md").read_text() == page(load_results(DOCS / "benchmarks.json"))
