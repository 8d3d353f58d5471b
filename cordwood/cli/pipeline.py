"""`cordwood pipeline run | validate | show`: logs to tables and logs, by one file."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.spark import MasterOption, session
from cordwood.cli.target import JsonOption, find_target
from cordwood.errors import BadSetting

app = typer.Typer(help="Run the pipeline of a pipeline.yaml.", no_args_is_help=True)

if TYPE_CHECKING:
    from cordwood.spark.pipeline.spec import Pipeline

FileArgument = Annotated[str, typer.Argument(metavar="[FILE]", help="The pipeline.")]


@app.command()
def validate(file: FileArgument = "pipeline.yaml") -> None:
    """Check a file; each mistake is told with its line."""
    pipeline = _load(file)
    typer.echo(f"{file} is a pipeline: {pipeline.name}, {len(pipeline.sinks)} sinks")


@app.command()
def show(file: FileArgument = "pipeline.yaml", as_json: JsonOption = False) -> None:
    """Draw the flow from sources to targets."""
    pipeline = _load(file)
    from cordwood.spark.pipeline.show import draw

    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(pipeline)))
        return
    for line in draw(pipeline):
        typer.echo(line)


@app.command()
def run(
    file: FileArgument = "pipeline.yaml",
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds", min=0, help="Stop after this many rounds; 0 means as the file says."
        ),
    ] = 0,
    master: MasterOption = "local[*]",
) -> None:
    """Run it: once, or until stopped, as its trigger says; a later run goes on there."""
    pipeline = _load(file)
    from cordwood.spark.pipeline.run import run as run_pipeline

    records = run_pipeline(
        session("pipeline", master),
        pipeline,
        lambda cluster: find_target(cluster).url,
        lambda text: typer.echo(text, err=True),
        rounds=rounds or None,
    )
    typer.echo(f"{pipeline.name}: {records:,} records")


def _load(file: str) -> Pipeline:
    """The pipeline; its mistakes are told a line each, as compilers do."""
    try:
        from cordwood.spark.pipeline.spec import load_pipeline
    except ImportError as error:
        raise BadSetting(f"a pipeline needs `pip install 'cordwood[spark]'` ({error})") from error
    try:
        return load_pipeline(file)
    except BadSetting as error:
        for line in str(error).splitlines():
            typer.secho(line, fg=typer.colors.RED, err=True)
        raise typer.Exit(1) from None
