"""Tells at the end of a run what its schedules came to."""

from __future__ import annotations

from tally import COPIES, LANDINGS


def pytest_terminal_summary(terminalreporter) -> None:
    """A line for each kind of query that was killed."""
    for tally in (LANDINGS, COPIES):
        if tally.digests:
            terminalreporter.write_line(tally.line())
