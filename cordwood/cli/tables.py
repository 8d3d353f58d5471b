"""Tables on standard output: as wide as the terminal, or as wide as they need in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE_COLUMNS = 200
"""A program that reads a table must not get it wrapped at 80 columns."""


def console() -> Console:
    """Standard output, for rich."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console()
    return Console(file=sys.stdout, width=PIPE_COLUMNS)


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = ""
) -> None:
    """Print a table; a column with a name that ends in `>` is aligned to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(
            column.removesuffix(">"), justify="right" if column.endswith(">") else "left"
        )
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    console().print(table)
