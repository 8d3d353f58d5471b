"""`cordwood spark land | stats | audit | replay | backfill | compact`: jobs on Spark."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.tables import show_table
from cordwood.cli.target import ClusterOption, JsonOption, find_target
from cordwood.cli.tier_options import StoreOption
from cordwood.cli.wording import bytes_words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cordwood.spark.jobs.backfill import Copied
    from cordwood.spark.jobs.landing import Planned

app = typer.Typer(help="Jobs on Spark, from and to logs.", no_args_is_help=True)

LogsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[LOG]...", help="Names of logs.", show_default=False)
]
PatternOption = Annotated[
    str,
    typer.Option(
        "--pattern", help="Regular expression: all logs whose whole name matches, in place of LOG."
    ),
]
MasterOption = Annotated[
    str, typer.Option("--master", help="Any Spark master: local[2], spark://…, sc://….")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only show what the job would do; start no Spark.")
]
ReadTokensOption = Annotated[
    str,
    typer.Option(
        "--read-tokens",
        metavar="PLACE",
        help="Read tokens for logs that ask for one: env:NAME or file:PATH.",
        show_default="env:CORDWOOD_READ_TOKENS",
    ),
]
StartOption = Annotated[
    str,
    typer.Option("--start", help="Where the first run begins: earliest, latest or JSON."),
]
RecordsOption = Annotated[
    int,
    typer.Option("--max-records", min=0, help="The most records of a micro-batch; 0 is no limit."),
]
BytesOption = Annotated[
    str, typer.Option("--max-bytes", help="About the most bytes of a micro-batch; '' is no limit.")
]

LossesOption = Annotated[
    bool,
    typer.Option(
        "--pass-over-losses",
        help="Go on where records are gone: trimmed, lost, or of a deleted log. The result lacks "
        "them.",
    ),
]


def source_options(
    cluster: str | None,
    logs: list[str] | None,
    pattern: str,
    *,
    start: str = "",
    max_records: int = 0,
    max_bytes: str = "",
    read_tokens: str = "",
    pass_over_losses: bool = False,
) -> dict[str, str]:
    """Options of the source, from a verb's options; the source itself checks them."""
    from cordwood.errors import BadSetting
    from cordwood.spark.options import READ_TOKENS, SERVERS

    if not logs and not pattern:
        raise BadSetting("which logs? name them, or give --pattern")
    options = {SERVERS: find_target(cluster).url}
    if logs:
        options["subscribe"] = ",".join(logs)
    if pattern:
        options["subscribePattern"] = pattern
    if start:
        options["startingOffsets"] = start
    if max_records:
        options["maxRecordsPerTrigger"] = str(max_records)
    if max_bytes:
        options["maxBytesPerTrigger"] = max_bytes
    if pass_over_losses:
        options["failOnDataLoss"] = "false"
    return options | _tokens(READ_TOKENS, "--read-tokens", read_tokens)


def _tokens(option: str, name: str, place: str) -> dict[str, str]:
    """An option with tokens: from the given place, or otherwise from the variable that all verbs
    use."""
    from cordwood.spark.secrets import ENVIRONMENT, tokens_at

    variable = "CORDWOOD_" + name.removeprefix("--").upper().replace("-", "_")
    if not place and os.environ.get(variable):
        place = ENVIRONMENT + variable
    return {option: tokens_at(name, place)} if place else {}


def session(name: str, master: str) -> SparkSession:
    """A session for a job.

    Raises:
        BadSetting: Spark is not installed.
    """
    from cordwood.errors import BadSetting

    try:
        from pyspark.sql import SparkSession as _  # noqa: F401

        from cordwood.spark.session import open_session, take_interrupts
    except ImportError as error:
        raise BadSetting(f"Spark is not installed: pip install 'cordwood[spark]' ({error})") \
            from error  # fmt: skip
    typer.echo(f"starting Spark on {master}", err=True)
    opened = open_session(f"cordwood {name}", master)
    take_interrupts()
    return opened


@app.command()
def land(
    logs: LogsArgument = None,
    table: Annotated[str, typer.Option("--table", metavar="DIR", help="Where the table is.")] = "",
    pattern: PatternOption = "",
    format_: Annotated[
        str, typer.Option("--format", help="parquet, delta or iceberg.")
    ] = "parquet",
    partition_by: Annotated[
        str, typer.Option("--partition-by", help="Columns, separated by commas; '' for none.")
    ] = "event_date",
    decode: Annotated[
        str,
        typer.Option("--decode", help="json, or your function on frames as package.module:name."),
    ] = "",
    schema: Annotated[
        str,
        typer.Option(
            "--schema",
            help="The JSON fields, as 'id BIGINT, name STRING'; without it, Spark finds them.",
        ),
    ] = "",
    start: StartOption = "earliest",
    max_records: RecordsOption = 0,
    max_bytes: BytesOption = "1g",
    headers: Annotated[bool, typer.Option("--headers", help="Land the headers too.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until stopped.")] = False,
    trigger: Annotated[
        float, typer.Option("--trigger", min=0.1, help="Seconds between batches when following.")
    ] = 60.0,
    compact: Annotated[
        bool, typer.Option("--compact", help="Join small files at the end (Parquet, Delta).")
    ] = False,
    pass_over_losses: LossesOption = False,
    read_tokens: ReadTokensOption = "",
    master: MasterOption = "local[*]",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Land logs in a table of Parquet, Delta or Iceberg, each record once.

    Started again after any interruption, it goes on where the table ends.
    """
    from cordwood.errors import BadSetting
    from cordwood.spark.jobs import land as job
    from cordwood.spark.jobs.landing import Landing
    from cordwood.spark.jobs.landing import dry_run as plan

    if not table:
        raise BadSetting("where to? give --table DIR")
    source = source_options(
        cluster, logs, pattern, start=start, max_records=max_records, max_bytes=max_bytes,
        read_tokens=read_tokens, pass_over_losses=pass_over_losses,
    )  # fmt: skip
    if headers:
        source["includeHeaders"] = "true"
    by = tuple(name.strip() for name in partition_by.split(",") if name.strip())
    landing = Landing(source, table, format_, by, decode, schema, follow, trigger, compact)
    if dry_run:
        _show_planned(plan(landing), as_json)
        return
    landed = job.land(session("land", master), landing, _say)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(landed)))
        return
    for line in job.describe(landed):
        typer.echo(line)


@app.command()
def stats(
    logs: LogsArgument = None,
    pattern: PatternOption = "",
    start: StartOption = "earliest",
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint", metavar="DIR", help="The checkpoint of a query, to show its lag too."
        ),
    ] = "",
    progress: Annotated[
        str,
        typer.Option(
            "--progress",
            metavar="DIR",
            help="Directory in which the job records its progress, to go on after a stop.",
        ),
    ] = "",
    read_tokens: ReadTokensOption = "",
    master: MasterOption = "local[*]",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Records, bytes and rate by log and hour, and missing records.

    With --progress, a run that is started again goes on where the last run stopped.
    """
    from cordwood.lsn import format_lsn
    from cordwood.spark.jobs.landing import planned_batch
    from cordwood.spark.jobs.stats import stats as job

    source = source_options(cluster, logs, pattern, start=start, read_tokens=read_tokens)
    if dry_run:
        _show_planned(planned_batch(source), as_json)
        return
    spark = session("stats", master)
    found = job(spark, source, checkpoint, progress=progress, say=_say)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found)))
        return
    show_table(
        ["log", "hour (UTC)", "records>", "bytes>", "per s>"],
        [
            (each.log, each.hour, f"{each.records:,}", bytes_words(each.bytes), f"{each.per_s:g}")
            for each in found.hours
        ],
    )
    for gap in found.gaps:
        if gap.is_loss:
            typer.echo(
                f"{gap.log} lacks records: {gap.ranges} ranges ({gap.kind}) between "
                f"{format_lsn(gap.first_lsn)} and {format_lsn(gap.last_lsn)}"
            )
    for lag in found.lags:
        typer.echo(f"{lag.log}: the query is {lag.records:,} records behind")


@app.command()
def audit(
    logs: LogsArgument = None,
    pattern: PatternOption = "",
    read_tokens: ReadTokensOption = "",
    master: MasterOption = "local[*]",
    table: Annotated[
        str,
        typer.Option(
            "--table", metavar="DIR", help="Write the findings there, as Parquet, step by step."
        ),
    ] = "",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Compare every copy of every block on every node; exit code 1 if one is wrong.

    With --table, a run that is started again goes on where the last run stopped.
    """
    from cordwood.lsn import format_lsn
    from cordwood.spark.jobs import audit as job
    from cordwood.spark.jobs.landing import planned_batch
    from cordwood.spark.jobs.replica_rule import HARMLESS

    source = source_options(cluster, logs, pattern, read_tokens=read_tokens)
    if dry_run:
        _show_planned(planned_batch(source), as_json)
        return
    spark = session("audit", master)
    rows = (
        [row.asDict() for row in job.audit_into(spark, source, table, _say).collect()]
        if table
        else list(job.audit(spark, source, _say))
    )
    bad = [row for row in rows if row["finding"] not in HARMLESS]
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        for row in rows:
            where = f"{format_lsn(row['first_lsn'])} to {format_lsn(row['last_lsn'])}"
            typer.echo(
                f"{row['log']} {where} on node {row['node']}: {row['finding']}, {row['text']}"
            )
        typer.echo(f"{len(bad)} copies are wrong, {len(rows) - len(bad)} harmless findings")
    if bad:
        raise typer.Exit(1)


CheckpointOption = Annotated[
    str,
    typer.Option(
        "--checkpoint", metavar="DIR", help="Directory in which the job records its progress."
    ),
]
TokensOption = Annotated[
    str,
    typer.Option(
        "--write-tokens",
        metavar="PLACE",
        help="Write tokens for logs that ask for one: env:NAME or file:PATH.",
        show_default="env:CORDWOOD_WRITE_TOKENS",
    ),
]
OrderedOption = Annotated[
    bool, typer.Option("--ordered", help="Keep the order: one task writes all records.")
]


@app.command()
def replay(
    logs: LogsArgument = None,
    to: Annotated[
        str, typer.Option("--to", help="The target log; '' for logs of the same names.")
    ] = "",
    checkpoint: CheckpointOption = "",
    pattern: PatternOption = "",
    start: StartOption = "earliest",
    end: Annotated[str, typer.Option("--end", help="latest, or JSON by log; exclusive.")] = "",
    to_cluster: Annotated[
        str, typer.Option("--to-cluster", metavar="URL", help="Another cluster than --cluster.")
    ] = "",
    max_bytes: Annotated[
        str,
        typer.Option(
            "--max-bytes", help="About the most bytes of a micro-batch; a group holds 64 MiB."
        ),
    ] = "32m",
    ordered: OrderedOption = False,
    pass_over_losses: LossesOption = False,
    write_tokens: TokensOption = "",
    read_tokens: ReadTokensOption = "",
    master: MasterOption = "local[*]",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Copy a range of logs to a log, each record once; started again, it goes on."""
    from cordwood.errors import BadSetting
    from cordwood.spark.jobs.backfill import replay as job
    from cordwood.spark.jobs.landing import planned_reads

    if not checkpoint:
        raise BadSetting("give --checkpoint DIR, so that a run that dies can be taken up again")
    source = source_options(
        cluster, logs, pattern, start=start, max_bytes=max_bytes, read_tokens=read_tokens,
        pass_over_losses=pass_over_losses,
    )  # fmt: skip
    if end:
        source["endingOffsets"] = end
    sink = _sink(to_cluster or cluster, to, write_tokens)
    if not to and not to_cluster:
        raise BadSetting("to where? give --to LOG, or --to-cluster URL for logs of the same name")
    if dry_run:
        _show_planned(planned_reads(source, checkpoint), as_json)
        return
    copied = job(session("replay", master), source, sink, checkpoint, ordered=ordered, say=_say)
    _show_copied(copied, as_json)


@app.command()
def backfill(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Directory of a table.")],
    to: Annotated[str, typer.Option("--to", help="The log; '' if a column `log` names it.")] = "",
    progress: Annotated[
        str,
        typer.Option(
            "--progress", metavar="DIR", help="Directory in which the job records its progress."
        ),
    ] = "",
    format_: Annotated[
        str, typer.Option("--format", help="parquet, delta or iceberg.")
    ] = "parquet",
    ordered: OrderedOption = False,
    write_tokens: TokensOption = "",
    master: MasterOption = "local[*]",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Write the rows of a table to a log, at least once; started again, it goes on."""
    from cordwood.errors import BadSetting
    from cordwood.spark.jobs import backfill as job

    if not progress:
        raise BadSetting("give --progress DIR, so that a run that dies can be taken up again")
    if dry_run:
        planned = job.planned_backfill(table, progress, to, format_, ordered=ordered)
        if as_json:
            typer.echo(json.dumps(dataclasses.asdict(planned)))
            return
        before = f"; {planned.done} files were written before" if planned.done else ""
        typer.echo(
            f"{planned.files} files, {bytes_words(planned.bytes)}, in {planned.steps} steps{before}"
        )
        return
    copied = job.backfill(
        session("backfill", master),
        table,
        _sink(cluster, to, write_tokens),
        progress,
        format_=format_,
        ordered=ordered,
        say=_say,
    )
    _show_copied(copied, as_json)


@app.command()
def compact(
    store: StoreOption,
    logs: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="[LOG]...", help="Numbers of logs; the default is all logs.", show_default=False
        ),
    ] = None,
    object_mib: Annotated[
        int,
        typer.Option("--object-mib", min=1, max=512, help="MiB of bodies in an object, at most."),
    ] = 256,
    master: MasterOption = "local[*]",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Merge small objects of main storage, and those of several logs, into large ones of one log.

    The job may be stopped at any time, and plans anew when it is started again. It needs no node.
    """
    from cordwood.spark.jobs import compact as job

    if dry_run:
        planned = job.plan(store, logs or (), object_mib)
        rows = [(each.log, each.objects, f"{each.records:,}", each.body_bytes) for each in planned]
        if as_json:
            names = ("log", "objects", "records", "bytes")
            shown = [(each.log, each.objects, each.records, each.body_bytes) for each in planned]
            typer.echo(json.dumps([dict(zip(names, row, strict=True)) for row in shown]))
        elif rows:
            show_table(["log>", "objects>", "records>", "bodies>"],
                       [(*row[:3], bytes_words(row[3])) for row in rows])  # fmt: skip
        else:
            typer.echo("There is nothing to merge.")
        return
    done = job.compact(session("compact", master), store, logs or (), object_mib, _say)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(done)))
    else:
        typer.echo(
            f"{done.replaced} objects are {done.merged} now, with {done.records:,} records, "
            f"{bytes_words(done.bytes)} of bodies"
        )
        for line in done.left:
            typer.echo(line, err=True)
    if done.left:
        raise typer.Exit(1)


def _sink(cluster: str | None, to: str, write_tokens: str) -> dict[str, str]:
    from cordwood.spark.options import SERVERS
    from cordwood.spark.sink_options import WRITE_TOKENS

    sink = {SERVERS: find_target(cluster).url}
    if to:
        sink["log"] = to
    return sink | _tokens(WRITE_TOKENS, "--write-tokens", write_tokens)


def _show_copied(copied: Copied, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(copied)))
        return
    skipped = f"; {copied.skipped} were done before" if copied.skipped else ""
    typer.echo(
        f"{copied.records:,} records in {copied.steps} steps, {copied.seconds:.1f} s{skipped}"
    )


def _show_planned(planned: list[Planned], as_json: bool) -> None:
    from cordwood.lsn import format_lsn

    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(each) for each in planned]))
    elif planned:
        show_table(
            ["log", "from", "up to", "records>"],
            [
                (each.log, format_lsn(each.first), format_lsn(each.stop), f"{each.records:,}")
                for each in planned
            ],
        )
    else:
        typer.echo("There is nothing new.")


def _say(text: str) -> None:
    typer.echo(text, err=True)
