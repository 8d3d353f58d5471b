"""`cordwood tier mark | upload | status | verify | repair | export | compact | collect | iceberg`.

All but `upload` and `mark` need the object store alone: no node, no metadata store. Logs are named
by their numbers there, since names are kept by the cluster.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.tables import show_table
from cordwood.cli.target import ClusterOption, JsonOption, find_target
from cordwood.cli.tier_heads import Heads
from cordwood.cli.tier_ledgers import ledger_attempts, ledger_rows, show_ledgers
from cordwood.cli.tier_mark import mark, mark_for_upload
from cordwood.cli.tier_options import (
    LedgersOption,
    LogArgument,
    LogsArgument,
    OptionsOption,
    StoreOption,
    run_on_store,
    store_options,
)
from cordwood.cli.wording import bytes_words
from cordwood.errors import BadSetting
from cordwood.lsn import OLDEST, format_lsn, parse_lsn

if TYPE_CHECKING:
    from cordwood.host.seams import Host
    from cordwood.tier.patient_store import PatientStore

MIB = 1 << 20

app = typer.Typer(help="Keep history in an object store, and look after it.", no_args_is_help=True)


app.command()(mark)


@app.command()
def upload(
    log: Annotated[str, typer.Argument(metavar="LOG", help="The log's path.")],
    store: StoreOption,
    object_mib: Annotated[
        int, typer.Option("--object-mib", min=1, max=512, help="MiB of bodies in an object.")
    ] = 64,
    option: OptionsOption = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Upload a log's readable records that are not uploaded yet.

    The exit code is 1 if records are lost, or no node sends them: the upload stops before them.
    """
    url = find_target(cluster).url

    async def act(host: Host, objects: PatientStore) -> None:
        from cordwood import aio
        from cordwood.tier.log_manifest import LogManifest
        from cordwood.tier.uploader import LogUploader
        from cordwood.uploading.log_source import LogSource

        async with aio.connect(url) as client:
            info = await client.log(log)
            is_main = await mark_for_upload(client, objects, store)
            manifest = LogManifest(objects, info.log_id, host, "cordwood tier upload")
            uploader = LogUploader(
                objects, manifest, host, info.log_id, info.name,
                created_us=info.created_us, object_bytes=object_mib * MIB,
            )  # fmt: skip
            next_lsn = await uploader.next_lsn()
            read_end = uploader.next_lsn if is_main else None
            async with LogSource(client, info.log_id, next_lsn, read_end=read_end) as source:
                done = await uploader.run(source.items(), source.first)
        if as_json:
            shown = {
                "log": info.log_id, "end": format_lsn(done.end), "objects": done.objects,
                "records": done.rows, "bytes": done.stored,
                "blocked": format_lsn(done.blocked) if done.blocked else None,
            }  # fmt: skip
            typer.echo(json.dumps(shown))
        else:
            typer.echo(
                f"log {info.log_id} ({info.name}): {done.objects} objects, {done.rows} records, "
                f"{bytes_words(done.stored)}; main storage has it up to {format_lsn(done.end)}"
            )
        if done.blocked:
            typer.echo(f"records are lost from {format_lsn(done.blocked)} on", err=True)
            raise typer.Exit(1)
        if source.silent is not None:
            typer.echo(
                f"no node sends {format_lsn(source.silent)}: run it again when its nodes are up",
                err=True,
            )
            raise typer.Exit(1)

    run_on_store(store, option, act)


@app.command()
def status(
    store: StoreOption,
    logs: LogsArgument = None,
    ledger: LedgersOption = None,
    option: OptionsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what an object store holds of each log, and of each ledger.

    A ledger may have objects of several attempts: its metadata names the attempt that counts.
    """

    async def act(host: Host, objects: PatientStore) -> tuple[list[dict[str, object]], Heads]:
        from cordwood.protocol.manifest import in_order, totals

        rows: list[dict[str, object]] = []
        heads = Heads(host, objects, logs, ledger)
        async for number, head in heads.each():
            summed = totals(in_order(head))
            rows.append({
                "log": number, "start": format_lsn(head.start), "end": format_lsn(head.end),
                "objects": summed.objects, "records": summed.rows, "bytes": summed.stored,
                "body_bytes": summed.bytes, "turn": head.fence, "holder": head.holder,
            })  # fmt: skip
        async for found in ledger_attempts(objects, logs, ledger):
            rows += await ledger_rows(objects, found)
        return rows, heads

    given, heads = run_on_store(store, option, act)
    if as_json:
        typer.echo(json.dumps(given))
    else:
        _show_status(given)
    heads.tell()


def _show_status(given: list[dict[str, object]]) -> None:
    ledgers = [row for row in given if "ledger" in row]
    rows = [row for row in given if "log" in row]
    if ledgers:
        show_ledgers(ledgers)
    if ledgers and not rows:
        return
    show_table(
        ["log>", "from", "to, not included", "objects>", "records>", "stored>", "bodies>", "turn>"],
        [
            (
                row["log"], row["start"], row["end"], row["objects"], row["records"],
                bytes_words(int(str(row["bytes"]))), bytes_words(int(str(row["body_bytes"]))),
                row["turn"],
            )
            for row in rows
        ],
    )  # fmt: skip


@app.command()
def iceberg(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="namespace.table; created if it does not exist.")
    ],
    store: StoreOption,
    catalog: Annotated[
        str,
        typer.Option("--catalog", metavar="NAME", help="Name of the catalog in .pyiceberg.yaml."),
    ] = "default",
    catalog_property: Annotated[
        list[str] | None,
        typer.Option(
            "--property", metavar="NAME=VALUE", help="A property of the catalog: uri=…, warehouse=…"
        ),
    ] = None,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget",
            help="Drop the note of a table that is gone: its objects may then be deleted. "
            "TABLE may be its UUID.",
        ),
    ] = False,
    option: OptionsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make an Iceberg table of all committed objects, without copying them.

    Trimmed and merged objects leave the table, and are deleted some time later.
    """
    from cordwood.tier.iceberg import (
        named_objects,
        open_catalog,
        part_shared,
        sync_table,
        table_uuid,
        whole_objects,
    )  # fmt: skip
    from cordwood.tier.table_notes import forget_table, note_present, note_table

    if forget:
        dropped = run_on_store(store, option, lambda host, objects: forget_table(objects, table))
        typer.echo(f"{table}: {'forgotten' if dropped else 'no record of it'}")
        return
    with contextlib.closing(open_catalog(catalog, store_options(catalog_property or []))) as opened:
        uuid = table_uuid(opened, table)

        async def before(host: Host, objects: PatientStore) -> tuple[set[str], set[str]]:
            await part_shared(objects, host)
            whole, left_out = await whole_objects(objects, host)
            while left_out and await part_shared(objects, host):
                # A merge took another log's share between the two.
                whole, left_out = await whole_objects(objects, host)
            await note_table(objects, host, uuid, table, whole)
            return whole, left_out

        whole, left_out = run_on_store(store, option, before)
        done = sync_table(opened, table, store, whole)

        def present() -> set[str]:
            return named_objects(opened, table, store)

        run_on_store(
            store, option, lambda host, objects: note_present(objects, host, uuid, table, present)
        )
    if as_json:
        shown = {
            "table": table, "uuid": uuid, "added": done.added, "removed": done.removed,
            "kept": done.kept, "left_out": sorted(left_out),
        }  # fmt: skip
        typer.echo(json.dumps(shown))
        return
    typer.echo(f"{table}: {done.added} objects added, {done.removed} removed, {done.kept} kept")
    if left_out:
        typer.echo(f"{len(left_out)} are left out: parts of them are in other objects", err=True)


@app.command()
def verify(
    store: StoreOption,
    logs: LogsArgument = None,
    ledger: LedgersOption = None,
    option: OptionsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read everything and compare all checksums, of logs and of ledgers.

    The exit code is 1 if an object is damaged or missing, or a range is lost.
    """

    async def act(host: Host, objects: PatientStore) -> list[dict[str, object]]:
        from cordwood.layout.object_names import head_name
        from cordwood.tier.ledger_verify import verify_ledger
        from cordwood.tier.log_manifest import LogManifest
        from cordwood.tier.verify import verify_log

        rows: list[dict[str, object]] = []
        heads = Heads(host, objects, logs, ledger)
        async for number, _ in heads.each():
            manifest = LogManifest(objects, number, host, "cordwood tier verify")
            done = await heads.reached(number, verify_log(objects, manifest, host, number))
            if done is None:
                continue
            rows.append({
                "log": number, "objects": done.objects, "records": done.rows, "bytes": done.bytes,
                "lost": [[format_lsn(a), format_lsn(b)] for a, b in done.lost],
                "faults": [{"object": name, "why": why} for name, why in done.faults],
            })  # fmt: skip
        rows += [
            {
                "log": number, "objects": 0, "records": 0, "bytes": 0, "lost": [],
                "faults": [{"object": head_name(number), "why": why}],
            }
            for number, why in heads.unread.items()
        ]  # fmt: skip
        async for found in ledger_attempts(objects, logs, ledger):
            for name in found.manifests:
                read = await verify_ledger(objects, host, name)
                if not read.is_gone:
                    rows.append({
                        "ledger": found.ledger, "attempt": f"{found.attempt:016x}",
                        "objects": read.objects, "entries": read.entries, "bytes": read.bytes,
                        "lost": [],
                        "faults": [{"object": at, "why": why} for at, why in read.faults],
                    })  # fmt: skip
        return rows

    rows = run_on_store(store, option, act)
    is_sound = not any(row["lost"] or row["faults"] for row in rows)
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        for row in rows:
            if "ledger" in row:
                counted = f"{row['objects']} objects with {row['entries']} entries"
                typer.echo(f"ledger {row['ledger']}: {counted} are sound")
            else:
                counted = f"{row['objects']} objects with {row['records']} records"
                typer.echo(f"log {row['log']}: {counted} are sound")
            for first, last in row["lost"]:  # type: ignore[attr-defined]
                typer.echo(f"  lost: {first} to {last}")
            for fault in row["faults"]:  # type: ignore[attr-defined]
                typer.echo(f"  damaged: {fault['object']}: {fault['why']}")
    if not is_sound:
        raise typer.Exit(1)


@app.command()
def repair(
    log: LogArgument,
    store: StoreOption,
    start: Annotated[
        str | None,
        typer.Option("--start", metavar="LSN", help="Where the log begins, if it was trimmed."),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--end",
            metavar="LSN",
            help="The LSN up to which nodes deleted their copies, if the newest objects are lost. "
            "Errors of readers name it.",
        ),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Go on even if ranges are lost; readers get DATA_LOSS for them."
        ),
    ] = False,
    option: OptionsOption = None,
) -> None:
    """Write a log's manifest anew from its objects, if it is gone, cannot be read, names objects
    that are gone, or calls records lost of which the object was put back.

    With --end, continue a manifest that ends too early, or take back an accepted loss that goes too
    far.
    """
    # Objects do not show whether records missing before the first object were trimmed.
    first = int(parse_lsn(start) if start else OLDEST)

    async def act(host: Host, objects: PatientStore) -> None:
        from cordwood.tier.log_manifest import LogManifest
        from cordwood.tier.repair import repair_log

        manifest = LogManifest(objects, log, host, "cordwood tier repair")
        upto = int(parse_lsn(end)) if end else 0
        found = await repair_log(objects, manifest, log, start=first, end=upto, accept=accept_loss)
        if found.entries:
            typer.echo(
                f"log {log}: {len(found.entries)} objects, from "
                f"{format_lsn(found.entries[0].first)} to {format_lsn(found.entries[-1].last)}"
            )
        elif not found.holes:
            typer.echo(f"log {log}: its manifest ends at {format_lsn(upto)} again")
        for name, why in found.damaged:
            typer.echo(f"  left out: {name}: {why}")
        for hole_first, hole_last in found.holes:
            typer.echo(f"  lost: {format_lsn(hole_first)} to {format_lsn(hole_last)}")

    run_on_store(store, option, act)


@app.command()
def export(
    log: LogArgument,
    directory: Annotated[str, typer.Argument(metavar="DIRECTORY", help="Where to put the files.")],
    store: StoreOption,
    option: OptionsOption = None,
) -> None:
    """Copy a log's objects into a directory, as verified Parquet files."""

    async def act(host: Host, objects: PatientStore) -> None:
        from cordwood.tier.export import export_log
        from cordwood.tier.log_manifest import LogManifest

        manifest = LogManifest(objects, log, host, "cordwood tier export")
        if await manifest.load() is None:
            raise BadSetting(f"{store} holds nothing of log {log}: see `cordwood tier status`")
        done = await export_log(objects, manifest, host, log, directory)
        typer.echo(f"log {log}: {done.files} files, {done.rows} records in {directory}")
        if done.lost:
            typer.echo(f"{done.lost} ranges are lost", err=True)
            raise typer.Exit(1)

    run_on_store(store, option, act)


@app.command()
def compact(
    store: StoreOption,
    logs: LogsArgument = None,
    object_mib: Annotated[
        int,
        typer.Option("--object-mib", min=1, max=512, help="MiB of bodies in an object, at most."),
    ] = 64,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be merged.")
    ] = False,
    option: OptionsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Merge small objects, and shares of objects of several logs, into large objects of one log.

    The command may be stopped at any time, and may run beside nodes. Merged objects stay until
    their grace is over. The exit code is 1 if objects are damaged; these stay as they are.
    """
    from cordwood.protocol.merge_plan import MergePolicy

    policy = MergePolicy(object_bytes=object_mib * MIB)

    async def act(host: Host, objects: PatientStore) -> tuple[list[dict[str, object]], Heads]:
        from cordwood.tier.compact import Compacted, compact_log, plan_log
        from cordwood.tier.log_manifest import LogManifest

        rows: list[dict[str, object]] = []
        heads = Heads(host, objects, logs)
        async for number, _ in heads.each():
            manifest = LogManifest(objects, number, host, "cordwood tier compact")
            if dry_run:
                planned = plan_log(manifest, policy, everything=True)
                if (runs := await heads.reached(number, planned)) is None:
                    continue
                done = Compacted(
                    len(runs), sum(map(len, runs)), sum(e.rows for run in runs for e in run),
                    sum(e.bytes for run in runs for e in run),
                )  # fmt: skip
            else:
                work = compact_log(objects, manifest, host, number, policy)
                if (merged := await heads.reached(number, work)) is None:
                    continue
                done = merged
            rows.append({
                "log": number, "merged": done.merged, "replaced": done.replaced,
                "records": done.rows, "body_bytes": done.bytes, "left": done.left,
                "damaged": done.damaged,
            })  # fmt: skip
        return rows, heads

    rows, heads = run_on_store(store, option, act)
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        for row in rows:
            if row["replaced"]:
                words = "would become" if dry_run else "are now"
                typer.echo(
                    f"log {row['log']}: {row['replaced']} objects {words} {row['merged']}, with "
                    f"{row['records']} records"
                )
            for kind, why in (("left", "others changed them meanwhile"), ("damaged", "see verify")):
                if row[kind]:
                    typer.echo(f"log {row['log']}: {row[kind]} runs stay as they are: {why}")
        if not any(row["replaced"] for row in rows):
            typer.echo("There is nothing to merge.")
    heads.tell()
    if any(row["damaged"] for row in rows):
        raise typer.Exit(1)


@app.command()
def collect(
    store: StoreOption,
    logs: LogsArgument = None,
    grace_s: Annotated[
        float,
        typer.Option(
            "--grace",
            min=0,
            help="Seconds for which readers may still use trimmed and merged objects.",
        ),
    ] = 3600.0,
    option: OptionsOption = None,
) -> None:
    """Delete objects that no manifest names: trimmed, merged, or never committed."""

    async def act(host: Host, objects: PatientStore) -> Heads:
        from cordwood.tier.collect import collect_log, collect_shared
        from cordwood.tier.log_manifest import LogManifest
        from cordwood.tier.read_leases import drop_ended_leases

        def manifest_of(number: int) -> LogManifest:
            return LogManifest(objects, number, host, "cordwood tier collect")

        now_us = host.clock.now_us()
        deleted = size = waiting = kept = 0
        heads = Heads(host, objects, logs)
        async for number, _ in heads.each():
            work = collect_log(objects, manifest_of(number), number, now_us, grace_s)
            if (done := await heads.reached(number, work)) is None:
                continue
            deleted, size = deleted + done.deleted, size + done.deleted_bytes
            waiting, kept = waiting + done.waiting, kept + done.kept
        if not logs:
            done = await collect_shared(objects, manifest_of, now_us, grace_s)
            await drop_ended_leases(objects, now_us)
            deleted, size = deleted + done.deleted, size + done.deleted_bytes
            waiting, kept = waiting + done.waiting, kept + done.kept
            if done.damaged:
                typer.echo(
                    f"{done.damaged} objects of several logs are damaged: they stay", err=True
                )
        typer.echo(f"{deleted} objects deleted, {bytes_words(size)}; {waiting} are in their grace")
        if kept:
            typer.echo(
                f"{kept} stay: manifests name objects that are gone in their place, or call their "
                "records lost. `cordwood tier repair LOG` writes such a manifest anew",
                err=True,
            )
        return heads

    run_on_store(store, option, act).tell()
