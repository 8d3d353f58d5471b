"""All verbs together, and the options and endings that they share.

Source: docs/design.md §11.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import cordwood
from cordwood.cli import (
    bench,
    chaos,
    check_impact,
    demo,
    epochs,
    ledgers,
    logs,
    maintenance,
    nodes,
    pipeline,
    readers,
    rebuild,
    records,
    sim,
    spark,
    status,
    tier,
    up,
    verify,
    wal,
)
from cordwood.cli.ending import verb_ending
from cordwood.errors import BadSetting


class Group(TyperGroup):
    """A group of verbs. Without a verb it shows the help, or does work of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show the help for an empty command line. That is not an error, so the exit code is 0."""
        if not args and not self.invoke_without_command and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)


class Verbs(Group):
    """Every verb runs through here, so that all of them end alike."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb that was asked for; see `ending.verb_ending`."""
        with verb_ending(debug=bool(ctx.params.get("debug"))):
            return super().invoke(ctx)


app = typer.Typer(
    name="cordwood",
    cls=Verbs,
    help="A replicated, append-only log store. Start one with `cordwood up`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(name="up")(up.up)
app.command(name="append")(records.append)
app.command(name="tail")(records.tail)
app.command(name="readers")(readers.readers)
app.command(name="groups")(readers.groups)
app.add_typer(logs.app, name="logs", cls=Group)
app.add_typer(ledgers.app, name="ledgers", cls=Group)
app.command(name="epochs")(epochs.epochs)
app.command(name="sequencer")(epochs.sequencer)
app.command(name="fence")(epochs.fence)
app.add_typer(nodes.app, name="nodes", cls=Group)
app.command(name="check-impact")(check_impact.check_impact)
app.add_typer(maintenance.app, name="maintenance", cls=Group)
app.add_typer(rebuild.app, name="rebuild", cls=Group)
app.command(name="status")(status.status)
app.command(name="demo")(demo.demo)
app.command(name="chaos")(chaos.chaos)
app.add_typer(sim.app, name="sim", cls=Group)
app.command(name="verify")(verify.verify)
app.add_typer(bench.app, name="bench", cls=Group)
app.add_typer(wal.app, name="wal", cls=Group)
app.add_typer(tier.app, name="tier", cls=Group)
app.add_typer(spark.app, name="spark", cls=Group)
app.add_typer(pipeline.app, name="pipeline", cls=Group)


def _tell_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def common(
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            envvar="CORDWOOD_DEBUG",
            help="Show the traceback of an error, and log the client's actions.",
        ),
    ] = False,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Set up what every verb shares."""
    logging.basicConfig(
        level=logging.DEBUG if debug else _log_level(os.environ.get("CORDWOOD_LOG", "")),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


def _log_level(name: str) -> str:
    """
    Raises:
        BadSetting: it is no level; the text lists all levels.
    """
    level = name.upper() or "WARNING"
    levels = sorted(logging.getLevelNamesMapping())
    if level not in levels:
        raise BadSetting(f"CORDWOOD_LOG is {name!r}: it takes {', '.join(levels)}")
    return level


@app.command()
def version() -> None:
    """Show the version."""
    typer.echo(f"cordwood {cordwood.__version__} (Python {sys.version.split()[0]})")


def run(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code."""
    story = logging.getLogger("cordwood.story")
    story.setLevel(logging.INFO)  # CORDWOOD_STORY asks for it, at any level of other loggers
    try:
        with ExitStack() as stack:
            try:
                if wanted := os.environ.get("CORDWOOD_STORY", ""):
                    # Sixty classes: only here, or they are a fifth of the help's time.
                    from cordwood.decisions import story_told

                    stack.enter_context(story_told(wanted, story.info))
            except BadSetting as error:
                typer.echo(f"CORDWOOD_STORY: {error}", err=True)
                return 2
            app(args=list(arguments), prog_name="cordwood")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 1 if done.code else 0
    return 0
