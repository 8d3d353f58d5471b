"""`cordwood bench`: append, ledgers, read, node, cold, tier, rebuild, idle, sim, and more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from cordwood.cli.measuring import run_measurement, say, show_figures
from cordwood.cli.proof import need_testing
from cordwood.cli.target import JsonOption
from cordwood.errors import BadSetting

if TYPE_CHECKING:
    from cordwood.bench.figure import Figure


class _Where(TypedDict):
    """The options that every measurement of appends takes."""

    directory: str
    nodes: int
    repeats: int
    say: Callable[[str], None]


app = typer.Typer(
    help="Measure on this machine, each figure beside a reference from the same run.",
    no_args_is_help=True,
)

# Not $CORDWOOD_CLUSTER: a benchmark's appends must not fill a cluster that is only set in the
# environment.
BenchClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="URL",
        help="A running cluster; the benchmark's records stay in its log.",
        show_default="a fresh one, removed afterwards",
    ),
]
NodesOption = Annotated[int, typer.Option("--nodes", min=1, help="Nodes of a fresh cluster.")]
RepeatOption = Annotated[int, typer.Option("--repeat", min=1, help="Repeats; the median counts.")]
DirOption = Annotated[
    str, typer.Option("--dir", metavar="DIR", help="The directory whose disk is measured.")
]
SizeOption = Annotated[
    int | None,
    typer.Option("--size", min=1, help="Bytes of a record.", show_default="256, in batches 1024"),
]
RecordsOption = Annotated[
    int | None,
    typer.Option("--records", min=1, help="Records of each repeat.", show_default="by size"),
]


@app.command()
def append(
    size: SizeOption = None,
    in_flight: Annotated[
        int | None,
        typer.Option(
            "--in-flight",
            min=1,
            help="Records, or batches, not yet answered.",
            show_default="2048 records, 16 batches",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Records of one append_many.", show_default="singly"),
    ] = None,
    records: RecordsOption = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", min=0.01, help="Seconds of each repeat.", show_default="by records"
        ),
    ] = None,
    nodes: NodesOption = 5,
    repeat: RepeatOption = 3,
    logs: Annotated[
        int | None,
        typer.Option(
            "--logs",
            min=1,
            help="Append to this many logs, and to one for comparison.",
            show_default="one",
        ),
    ] = None,
    nats: Annotated[
        bool, typer.Option("--nats", help="Beside NATS JetStream, if it is installed.")
    ] = False,
    spread: Annotated[
        bool,
        typer.Option(
            "--spread", help="Measure how evenly a burst of one log spreads over the nodes."
        ),
    ] = False,
    cluster: BenchClusterOption = None,
    directory: DirOption = ".",
    as_json: JsonOption = False,
) -> None:
    """Append as fast as one client can, durably on every copy.

    Without options three profiles: 256 B records one by one with 2,048 in flight,
    64 KiB blocks with 16 in flight, and 256 B records in blocks of 128 KiB. The reference
    is the same disk writing the same copies durably, with nothing around it. --nats,
    --logs and --spread compare with another reference, and start a cluster of their own.
    """
    from cordwood.bench.append import SINGLES, STANDARD, bench_append, custom_profile
    from cordwood.bench.append_beside import bench_beside_nats, bench_logs
    from cordwood.bench.append_spread import bench_spread
    from cordwood.bench.nats import find_nats

    is_custom = any(option is not None for option in (size, in_flight, batch, records, seconds))
    custom = custom_profile(size, in_flight, batch, records, seconds) if is_custom else None
    profiles = (custom,) if custom else STANDARD
    if cluster is not None and (nats or logs or spread):
        raise BadSetting(
            "--nats, --logs and --spread start a cluster of their own: leave --cluster out"
        )
    program = find_nats() if nats else None
    if nats and program is None:
        say("nats-server is not installed; without it")

    async def measure() -> list[Figure]:
        where: _Where = {"directory": directory, "nodes": nodes, "repeats": repeat, "say": say}
        if spread:
            return [await bench_spread(**where)]
        if logs is not None:
            return [await bench_logs(custom or SINGLES, logs, **where)]
        if program is not None:
            return [await bench_beside_nats(profile, program, **where) for profile in profiles]
        return [await bench_append(profile, url=cluster, **where) for profile in profiles]

    show_figures(run_measurement(measure()), as_json)


@app.command()
def read(
    size: SizeOption = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Records of a block.", show_default="1024"),
    ] = None,
    records: RecordsOption = None,
    tail: Annotated[bool, typer.Option("--tail", help="Only readers at the tail.")] = False,
    slow: Annotated[
        bool, typer.Option("--slow-node", help="Only beside a node 100 times slower.")
    ] = False,
    cold: Annotated[
        bool, typer.Option("--cold", help="Only from the disk, beside from memory.")
    ] = False,
    once: Annotated[
        bool,
        typer.Option("--once", help="Only the bytes that disks read and nodes send for each byte."),
    ] = False,
    nats: Annotated[
        bool, typer.Option("--nats", help="Only beside NATS JetStream, if it is installed.")
    ] = False,
    nodes: NodesOption = 5,
    repeat: RepeatOption = 3,
    cluster: BenchClusterOption = None,
    directory: DirOption = ".",
    as_json: JsonOption = False,
) -> None:
    """Read a log from its oldest record to its tail as fast as one client can.

    Without options four profiles: 256 B records as objects and into Arrow, and 64 KiB blocks
    unopened, sent by one node each and by all that hold them. The reference is one loopback
    TCP connection with the same bytes. Then the lag of a reader at the tail at 10,000 records a
    second, and appends beside a hundred readers; --tail measures only these two. --slow-node,
    --cold and --once each measure one thing in a fresh cluster: a read beside a node that is a
    hundred times slower; a read from the disk; and the bytes that disks read and nodes send for
    each byte delivered, with single copies and with all copies. --nats reads records and follows
    the tail in turns with JetStream. Without options this comes last, if nats-server is installed.
    """
    from cordwood.bench.nats import find_nats
    from cordwood.bench.read import STANDARD, bench_read, custom_profile
    from cordwood.bench.read_beside import bench_read_beside_nats
    from cordwood.bench.read_cold import bench_cold
    from cordwood.bench.read_once import OnceProfile, bench_once
    from cordwood.bench.read_slow import SlowProfile, bench_slow
    from cordwood.bench.read_tail import TAIL, bench_tail

    is_custom = any(option is not None for option in (size, batch, records))
    custom = custom_profile(size, batch, records) if is_custom else None
    program = find_nats()
    if nats and program is None:
        raise BadSetting("nats-server is not installed (apt install nats-server)")

    async def beside_nats() -> list[Figure]:
        if program is None or cluster is not None:
            return []
        return await bench_read_beside_nats(
            program, directory=directory, nodes=nodes, repeats=repeat, say=say
        )

    async def measure() -> list[Figure]:
        if nats:
            return await beside_nats()
        if once:
            return await bench_once(OnceProfile(), directory=directory, repeats=repeat, say=say)
        if cold:
            return [await bench_cold(directory=directory, nodes=nodes, repeats=repeat, say=say)]
        if slow:
            return [
                await bench_slow(
                    SlowProfile(), directory=directory, nodes=nodes, repeats=repeat, say=say
                )
            ]
        figures = [
            await bench_read(
                profile, url=cluster, directory=directory, nodes=nodes, repeats=repeat, say=say
            )
            for profile in ((custom,) if custom else () if tail else STANDARD)
        ]
        if tail or not custom:
            figures += await bench_tail(
                TAIL, url=cluster, directory=directory, nodes=nodes, repeats=repeat, say=say
            )
        if not (tail or custom):
            figures += await beside_nats()
        return figures

    show_figures(run_measurement(measure()), as_json)


@app.command()
def node(
    waves: Annotated[
        int | None,
        typer.Option("--waves", min=1, help="Waves of each repeat.", show_default="by size"),
    ] = None,
    repeat: RepeatOption = 5,
    directory: DirOption = ".",
    as_json: JsonOption = False,
) -> None:
    """Store on one node alone, as a sequencer does.

    64 KiB blocks with 16 in flight, and waves of 200 blocks of 256 B, each of another log.
    The reference is fio on the same disk, if it is installed: writes of the same size, as
    many in flight.
    """
    from dataclasses import replace

    from cordwood.bench.fio import find_fio
    from cordwood.bench.node import STANDARD, bench_node

    program = find_fio()

    async def measure() -> list[Figure]:
        return [
            await bench_node(
                replace(each, waves=waves or each.waves),
                program, directory=directory, repeats=repeat, say=say,
            )
            for each in STANDARD
        ]  # fmt: skip

    show_figures(run_measurement(measure()), as_json)


@app.command()
def logsdb(
    repeat: RepeatOption = 5, directory: DirOption = ".", as_json: JsonOption = False
) -> None:
    """Read back what LogsDB holds: 64 KiB blocks, and blocks of 1 KiB, one log, one reader.

    The reference is fio reading as sequentially from the same disk, if it is installed.
    """
    from cordwood.bench.fio import find_fio
    from cordwood.bench.logsdb import STANDARD, bench_logsdb

    program = find_fio()

    async def measure() -> list[Figure]:
        return [
            await bench_logsdb(each, program, directory=directory, repeats=repeat, say=say)
            for each in STANDARD
        ]

    show_figures(run_measurement(measure()), as_json)


@app.command()
def tier(
    repeat: RepeatOption = 5,
    directory: DirOption = ".",
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="STORE",
            help="A directory, or s3://…, gs://…, az://….",
            show_default="a directory, removed afterwards",
        ),
    ] = "",
    mib: Annotated[int, typer.Option("--mib", min=1, help="MiB of payloads.")] = 256,
    spark: Annotated[
        bool,
        typer.Option("--spark", help="Only Spark over the objects, beside its own Parquet reader."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Upload a log to main storage and read it back, records of 256 B, one log, one reader.

    The reference is plain puts and gets of the same bytes in the same store. With `--spark` it is
    `spark.read.parquet` of the same files, in the same session.
    """
    from cordwood.bench.tier import TierProfile, bench_tier
    from cordwood.host.kept_memory import keep_memory
    from cordwood.settings import MIB

    keep_memory()  # as nodes and `cordwood tier` do when they upload
    profile = TierProfile(total_bytes=mib * MIB)
    if spark:
        from cordwood.bench.tier_spark import bench_tier_spark

        reading = bench_tier_spark(
            profile, store=store, directory=directory, repeats=repeat, say=say
        )
        show_figures(run_measurement(reading), as_json)
        return
    work = bench_tier(profile, store=store, directory=directory, repeats=repeat, say=say)
    show_figures(run_measurement(work), as_json)


@app.command()
def cold(
    repeat: RepeatOption = 5,
    directory: DirOption = ".",
    tier: Annotated[
        bool, typer.Option("--tier", help="Cold data lies in main storage, not on the node.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure appends to one node, and a reader at its tail, beside a reader of cold data.

    The reference is the same latency a moment before, without that reader.
    """
    from cordwood.bench.cold_reader import ColdProfile, bench_cold_reader

    work = bench_cold_reader(
        ColdProfile(is_tiered=tier), directory=directory, repeats=repeat, say=say
    )
    show_figures(run_measurement(work), as_json)


@app.command()
def ledgers(
    nodes: NodesOption = 5,
    repeat: RepeatOption = 3,
    cluster: BenchClusterOption = None,
    many: Annotated[
        int,
        typer.Option(
            "--many",
            min=0,
            help="Only list this many ledgers page by page, beside a store of 1,000.",
        ),
    ] = 0,
    part: Annotated[
        list[str] | None,
        typer.Option("--part", help="Only this part: adds, reads, made or recovery; repeatable."),
    ] = None,
    directory: DirOption = ".",
    as_json: JsonOption = False,
) -> None:
    """Write, read, make and recover ledgers of E 3, Qw 3, Qa 2, beside appends to a log.

    All of it takes a minute. `--part` measures less, in the same way.
    """
    from cordwood.bench.ledgers import Part, bench_ledgers
    from cordwood.bench.many_ledgers import bench_many_ledgers

    if many:
        listing = bench_many_ledgers(many, directory=directory, repeats=repeat, say=say)
        show_figures(run_measurement(listing), as_json)
        return
    try:
        parts = [Part(each) for each in part or Part]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--part") from None
    work = bench_ledgers(
        url=cluster, directory=directory, nodes=nodes, repeats=repeat, say=say, parts=parts
    )
    show_figures(run_measurement(work), as_json)


@app.command()
def rebuild(
    nodes: Annotated[int, typer.Option("--nodes", min=5, help="Nodes of a fresh cluster.")] = 6,
    mib: Annotated[int, typer.Option("--mib", min=1, help="MiB of payloads.")] = 256,
    plan_logs: Annotated[
        int, typer.Option("--plan-logs", min=0, help="Only plan the moves of this many logs.")
    ] = 0,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Repeats; the median counts.")] = 1,
    directory: DirOption = ".",
    as_json: JsonOption = False,
) -> None:
    """Kill a node for good and make its blocks anew; kill a second one beside small appends.

    The references are block appends before the losses, and the same small appends without one.
    `--plan-logs 100000` measures the time and the memory of one donor's plan.
    """
    from cordwood.bench.rebuild import RebuildProfile, bench_rebuild
    from cordwood.bench.rebuild_plan import bench_plan
    from cordwood.settings import MIB

    if plan_logs:
        plan = bench_plan(plan_logs, directory=directory, repeats=repeat, say=say)
        show_figures(run_measurement(plan), as_json)
        return
    profile = RebuildProfile(nodes=nodes, total_bytes=mib * MIB)
    work = bench_rebuild(profile, directory=directory, repeats=repeat, say=say)
    show_figures(run_measurement(work), as_json)


@app.command()
def idle(
    logs: Annotated[
        int, typer.Option("--logs", min=1, help="Idle logs, of one block each.")
    ] = 100_000,
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, help="Idle partitions, of one file each.")
    ] = 1_000,
    directory: DirOption = ".",
    as_json: JsonOption = False,
) -> None:
    """Measure a node's memory for an idle log and for an idle partition."""
    from cordwood.bench.idle import bench_idle

    work = bench_idle(logs=logs, partitions=partitions, directory=directory, say=say)
    show_figures(run_measurement(work), as_json)


@app.command(name="import")
def import_(repeat: RepeatOption = 5, as_json: JsonOption = False) -> None:
    """Time `import cordwood`, and what its first use loads."""
    from cordwood.bench.imports import bench_imports

    show_figures(run_measurement(bench_imports(repeats=repeat)), as_json)


@app.command()
def sim(
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.01, help="Simulated minutes of each seed.")
    ] = 1.0,
    repeat: RepeatOption = 3,
    as_json: JsonOption = False,
) -> None:
    """Measure the simulated seconds for each second of a core: 6 nodes, 3 clients, faults."""
    need_testing("cordwood bench sim")
    from cordwood.bench.sim import bench_sim

    show_figures([bench_sim(minutes=minutes, repeats=repeat, say=say)], as_json)


@app.command()
def spark(
    size: Annotated[int, typer.Option("--size", min=1, help="Bytes of a record.")] = 100,
    records: Annotated[
        int, typer.Option("--records", min=1000, help="Records of the log.")
    ] = 1_000_000,
    logs: Annotated[
        int,
        typer.Option(
            "--logs",
            min=0,
            help="Measure only a stream over this many logs; 0 measures everything else.",
        ),
    ] = 0,
    nodes: NodesOption = 5,
    repeat: RepeatOption = 3,
    cluster: BenchClusterOption = None,
    directory: DirOption = ".",
    as_json: JsonOption = False,
) -> None:
    """Read, stream, land and write a log with Spark on two cores.

    The reference is a Python source, or sink, that does nothing.
    """
    from cordwood.bench.spark import SparkBench, bench_spark

    bench = SparkBench(records, size, repeat, logs)
    work = bench_spark(bench, url=cluster, directory=directory, nodes=nodes, say=say)
    show_figures(run_measurement(work), as_json)
