"""`cordwood verify`: a recorded history against every promise of the store."""

from __future__ import annotations

from typing import Annotated

import typer

from cordwood.cli.proof import need_testing
from cordwood.cli.target import JsonOption


def verify(
    history: Annotated[
        str,
        typer.Argument(
            metavar="HISTORY",
            help="A history as JSON lines, from `cordwood.testing.Recording` or a failed "
            "simulation. - is standard input.",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Check a recorded history: nothing lost, nothing twice, nothing out of order.

    The exit code is 1 if a promise was broken, or if the file is no history.
    """
    need_testing("cordwood verify")
    from cordwood.sim.verify import show

    raise typer.Exit(show(history, as_json=as_json))
