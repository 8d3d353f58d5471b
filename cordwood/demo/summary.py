"""The summary of the demo, in words and figures for a person.

Nothing is decided here: everything comes from the report.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from cordwood.demo.checks import Check
from cordwood.demo.epoch_rows import EpochRow
from cordwood.demo.flights import carrier_names
from cordwood.demo.report import Ingested, Killed, Report, Stored
from cordwood.demo.spark_messages import Answered, Row
from cordwood.lsn import format_lsn

BAR_WIDTH = 20
ROWS_MAX = 24
"""Most rows shown: all 16 carriers, or the files with the most lines."""


def print_summary(console: Console, report: Report) -> None:
    """Print how it went."""
    console.print()
    verdict = "every check held" if report.held else "this is not as it should be"
    style = "green" if report.held else "red"
    console.print(Rule(f"[bold {style}]{verdict}[/] in {report.seconds:.1f} s", style=style))
    for part in _parts(report):
        console.print()
        console.print(part)
    console.print()
    # Not folded: a command that is copied must stay one line.
    console.print(_where(report), soft_wrap=True, highlight=False, markup=False)
    console.print()


def _parts(report: Report) -> Iterator[RenderableType]:
    if report.failure:
        yield Text(f"Failed: {report.failure}", "bold red")
    if report.ingested is not None and report.stored is not None:
        yield _writing(report.title, report.ingested, report.stored)
        if report.killed is not None:
            yield _kill(report.ingested, report.stored, report.killed)
            if report.beheaded is not None:
                yield _beheading(report, report.ingested, report.beheaded)
            yield _nodes(report, report.stored, report.killed)
    if report.epochs:
        yield _epochs(report.epochs)
    if report.landed is not None and report.answered is not None:
        yield Text.from_markup(
            f"[bold]Spark[/] landed {report.landed.records:,} rows in Parquet in "
            f"{report.landed.seconds:.1f} s and answered in {report.answered.seconds:.1f} s:"
        )
        yield Padding(_answer(report.query, report.answered), (0, 0, 0, 2))
    if report.checks.all:
        yield _checks(report.checks.all)


def _writing(title: str, ingested: Ingested, stored: Stored) -> Text:
    seconds = max(ingested.seconds, 0.001)
    return Text.from_markup(
        f"[bold]{ingested.records:,}[/] {_plural(ingested.records, 'record')} "
        f"({escape(title)}), {_mb(ingested.bytes)}, in "
        f"[bold]{ingested.seconds:.1f} s[/]: {ingested.records / seconds:,.0f} a second, "
        f"{ingested.bytes / seconds / 1e6:.1f} MB/s, each on stable storage on "
        f"[bold]{stored.copies} nodes[/] in {stored.racks} racks or more before it was "
        f"acknowledged. Compressed they are {_mb(stored.bytes)}, in {stored.blocks:,} blocks."
    )


def _kill(ingested: Ingested, stored: Stored, killed: Killed) -> Text:
    victim = killed.victim
    again = (
        f"{stored.retried:,} {_plural(stored.retried, 'block')} on the way to it went out again, "
        "to other nodes"
        if stored.retried
        else "No block was on the way to it at that moment"
    )
    after = ingested.records - killed.at_kill
    return Text.from_markup(
        f"[bold]Node {victim.node}[/] in {killed.rack} got SIGKILL after {killed.at_kill:,} "
        f"acknowledged {_plural(killed.at_kill, 'record')}; it held copies of {victim.blocks:,} "
        f"{_plural(victim.blocks, 'block')}. {again}. Until the next kill no client waited longer "
        f"than [bold]{_ms(killed.ack_pause_s)}[/] for an acknowledgement, nor the tail longer than "
        f"[bold]{_ms(killed.read_pause_s)}[/] for a record, and "
        f"{after:,} more {_plural(after, 'record')} came through."
    )


def _beheading(report: Report, ingested: Ingested, beheaded: Killed) -> Text:
    node, newest = beheaded.victim.node, report.epochs[-1] if report.epochs else None
    headless = (
        f"As its clients saw it, the log was [bold]{_ms(beheaded.ack_pause_s)}[/] without a "
        "sequencer: from then on no client waited longer for an acknowledgement."
        if ingested.records > beheaded.at_kill
        else "Nothing was left to append."
    )
    went_on = (
        f" Node {newest.sequencer} recovered it and numbers it on in epoch {newest.epoch}."
        if newest is not None and newest.epoch > beheaded.victim.epoch
        else ""
    )
    back = (
        f" Both nodes were started again, and had caught up after [bold]{report.rejoin_s:.1f} s[/]."
        if report.rejoined
        else ""
    )
    return Text.from_markup(
        f"[bold]Node {node}[/] in {beheaded.rack}, which numbered the log, got SIGKILL too, after "
        f"{beheaded.at_kill:,} acknowledged {_plural(beheaded.at_kill, 'record')}, with the "
        f"other still down. {headless}{went_on}{back}"
    )


def _epochs(epochs: list[EpochRow]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("epoch", "sequencer", "first", "last", "records", "then"):
        table.add_column(name, justify="right" if name == "records" else "left")
    for row in epochs:
        read, bridge = row.read, row.bridge
        table.add_row(
            str(row.epoch),
            "?" if row.sequencer is None else f"node {row.sequencer}",
            str(read.first) if read else "",
            str(read.last) if read else "",
            f"{read.records:,}" if read else "0",
            f"bridge {bridge.first} to {bridge.last}" if bridge else "",
        )
    return Padding(table, (0, 0, 0, 2))


def _nodes(report: Report, stored: Stored, killed: Killed) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("node", "rack", "blocks"):
        table.add_column(name, justify="right" if name == "blocks" else "left")
    table.add_column("")
    back = {int(each.node): each for each in report.rejoined}
    for node, rack in report.nodes.items():
        roles = [f"numbered epoch {each.epoch}" for each in report.epochs if each.sequencer == node]
        if any(each and each.victim.node == node for each in (killed, report.beheaded)):
            roles.append("[red]killed[/]")
        if node in back:
            sealed = f"sealed by epoch {back[node].sealed}, " if back[node].sealed else ""
            roles.append(f"back: {sealed}readable up to {format_lsn(back[node].readable)}")
        role = ", ".join(roles)
        table.add_row(str(node), rack, f"{stored.by_node.get(node, 0):,}", role)
    return Padding(table, (0, 0, 0, 2))


def _answer(query: str, answered: Answered) -> Table:
    return _delays(answered.rows) if query == "flights" else _lines(answered.rows)


def _delays(rows: list[Row]) -> Table:
    names = carrier_names()
    table = _table(("carrier", "flights", "arrived", "mean delay"))
    means = {row.key: row.total / row.units for row in rows if row.units}
    longest = max(map(abs, means.values()), default=1.0) or 1.0
    for row in sorted(rows, key=lambda row: -means.get(row.key, 0.0)):
        code = row.key.decode(errors="replace")
        mean = means.get(row.key)
        bar = "█" * round(abs(mean or 0.0) / longest * BAR_WIDTH)
        late = "yellow" if (mean or 0.0) > 0 else "green"
        table.add_row(
            Text(f"{code}  {names.get(code, '')}"),
            f"{row.records:,}",
            f"{row.units:,}",
            "" if mean is None else f"{mean:+.1f} min",
            Text(bar, late),
        )
    return table


def _lines(rows: list[Row]) -> Table:
    table = _table(("file", "lines", "bytes in lines", "mean length"))
    table.columns[0].no_wrap = False
    table.columns[0].overflow = "fold"
    most = max((row.units for row in rows), default=1) or 1
    ordered = sorted(rows, key=lambda row: (-row.units, row.key))
    for row in ordered[:ROWS_MAX]:
        table.add_row(
            Text(_shown(row.key)),
            f"{row.units:,}",
            f"{row.total:,}",
            f"{row.total / row.units:.1f}" if row.units else "",
            Text("█" * round(row.units / most * BAR_WIDTH), "cyan"),
        )
    if len(ordered) > ROWS_MAX:
        table.add_row(f"and {len(ordered) - ROWS_MAX} more")
    return table


def _table(titles: tuple[str, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for at, title in enumerate(titles):
        table.add_column(title, justify="right" if at else "left", no_wrap=True)
    table.add_column("", min_width=BAR_WIDTH)
    return table


def _checks(checks: list[Check]) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for check in checks:
        mark = Text("✓", "bold green") if check.holds else Text("✗", "bold red")
        table.add_row(mark, Text(check.claim), Text(check.found, "dim" if check.holds else "red"))
    return Group(Text("Checked", "bold"), table)


def _where(report: Report) -> str:
    lines = []
    if report.landed is not None:
        lines.append(f"The Parquet lies in {report.parquet}")
    if not report.held:
        lines.append(f"Everything is left in {report.where}: cluster/node-*/log and spark/log in")
        lines.append("it say more. Remove it when you have seen enough.")
    elif report.landed is not None:
        lines += ["Try next:", *(f"  {line}" for line in _next(report))]
    return "\n".join(lines)


def _next(report: Report) -> Iterator[str]:
    python, cordwood = _programs()
    yield f"{python} -c \"import pandas; print(pandas.read_parquet('{report.parquet}'))\""
    if report.kept:
        cluster = shlex.quote(str(report.where / "cluster"))
        yield f"{cordwood} up --dir {cluster}     # the same cluster, all {len(report.nodes)} nodes"
        yield f"{cordwood} tail {report.query} --cluster {cluster} -n 5     # in another shell"
    else:
        yield f"{cordwood} demo --keep     # leaves the cluster's data too, to start it again"
    yield f"{cordwood} demo --seed 2     # kills another storage node"
    if report.query == "flights":
        yield f"{cordwood} demo a.log b.log     # your own files, rebuilt byte for byte"
    yield f"rm -r {shlex.quote(str(report.where))}"


def _programs() -> tuple[str, str]:
    """Python and cordwood as a user types them here: by name if PATH finds exactly these."""
    typed = []
    for path in (Path(sys.executable), Path(sys.executable).with_name("cordwood")):
        found = shutil.which(path.name)
        same = found is not None and Path(found).parent == path.parent
        near = path.is_relative_to(Path.cwd())
        typed.append(
            path.name if same else str(path.relative_to(Path.cwd())) if near else str(path)
        )
    return typed[0], typed[1]


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"


def _shown(name: bytes) -> str:
    """A file's name as text, also if its bytes are not UTF-8."""
    return name.decode(errors="replace")
