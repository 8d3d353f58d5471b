"""Cordwood's verbs, run in this process: what each printed and how it ended.

typer builds its command tree anew for each call of its own runner, which takes longer than most
verbs; here it is built once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from typer.main import get_command
from typer.testing import CliRunner

from cordwood.cli.app import app

_COMMAND = get_command(app)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a verb ended.

    Attributes:
        output: both streams, as a terminal shows them.
    """

    exit_code: int
    stdout: str
    stderr: str
    output: str
    stdout_bytes: bytes
    stderr_bytes: bytes


def run_verb(
    arguments: Sequence[str], *, stdin: str = "", env: Mapping[str, str] | None = None
) -> Outcome:
    """Run `cordwood ARGUMENTS`."""
    code: object = 0
    with CliRunner().isolation(input=stdin, env=env) as (stdout, stderr, output):
        try:
            _COMMAND.main(args=list(arguments), prog_name="cordwood")
        except SystemExit as done:
            code = done.code
        sys.stdout.flush()
        sys.stderr.flush()
        told = [each.getvalue() for each in (stdout, stderr, output)]
    assert isinstance(code, int | None)
    texts = [each.decode(errors="replace") for each in told]
    return Outcome(code or 0, texts[0], texts[1], texts[2], told[0], told[1])
