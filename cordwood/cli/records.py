"""`cordwood append` and `cordwood tail`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.ending import FAILED, finish, tell_error, terminated
from cordwood.cli.form import Form
from cordwood.cli.target import ClusterOption, JsonOption, open_store
from cordwood.cli.times import time_of
from cordwood.errors import BadSetting, Closed, CordwoodError, OutcomeUnknown
from cordwood.lsn import Lsn, parse_lsn

if TYPE_CHECKING:
    from cordwood.blocking import BlockingStore
    from cordwood.cli.line_appends import LineAppends
    from cordwood.client.admin.position_calls import Position
    from cordwood.client.blocking.blocking_readers import BlockingReader

STDIN = "-"


LogArgument = Annotated[
    str, typer.Argument(metavar="LOG", help="The log's path: orders/eu is /orders/eu.")
]


def append(
    log: LogArgument,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VALUE]...",
            help="Records to append. Without any, or with -, each line of standard input is one.",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="A key for every record.")] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the number of records, not their LSNs.")
    ] = False,
    token: Annotated[
        int | None, typer.Option("--token", min=0, help="The fencing token to append under.")
    ] = None,
    resume: Annotated[
        int | None,
        typer.Option(
            "--resume",
            metavar="ID",
            help="The ID that a stopped run printed: go on there. Give it the same input.",
        ),
    ] = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Append records; each LSN is printed once the record is stored on every copy.

    Lines of standard input are appended as a producer: each is stored once and in order, also
    while nodes fail. A record has 1 MiB at most.
    """
    if resume is not None and values and values != [STDIN]:
        raise BadSetting("--resume goes on with standard input: give no values")
    with open_store(cluster) as store:
        if token is not None:
            store.use_fencing_token(log, token)
        printer = _AppendPrinter(quiet=quiet, as_json=as_json)
        try:
            keys = None if key is None else os.fsencode(key)
            runs = list(_runs(values or [STDIN]))
            for at, value in enumerate(runs, 1):
                if value == STDIN:
                    is_last = at == len(runs)
                    _append_lines(store, log, keys, resume, printer, is_last=is_last)
                    continue
                each = None if keys is None else [keys] * len(value)
                printer.print(store.append_many(log, list(map(os.fsencode, value)), keys=each))
        finally:
            # Also after a failure: a script must know how far it came.
            printer.finish()


class _AppendPrinter:
    """Prints each record's LSN; with --quiet only their number; with --json both."""

    def __init__(self, *, quiet: bool, as_json: bool) -> None:
        self._quiet = quiet
        self._as_json = as_json
        self._stored = 0
        self._ends: list[str] = []
        self._lines: dict[str, int] = {}

    def print(self, lsns: Sequence[Lsn]) -> None:
        """Report stored records, in order."""
        if not lsns:
            return
        self._stored += len(lsns)
        self._ends = [*self._ends[:1], str(lsns[-1])] if self._ends else [
            str(lsns[0]), str(lsns[-1])
        ]  # fmt: skip
        if not (self._quiet or self._as_json):
            sys.stdout.write("".join(f"{lsn}\n" for lsn in lsns))
            sys.stdout.flush()

    def note_lines(self, lines: LineAppends) -> None:
        """Remember what a script needs to resume."""
        self._lines = {
            "producer": lines.producer,
            "lines": lines.stored,
            "skipped": lines.skipped,
        }

    def finish(self) -> None:
        """Print the count, or the JSON document."""
        if self._as_json:
            first, last = self._ends or (None, None)
            document = {"stored": self._stored, "first": first, "last": last, **self._lines}
            typer.echo(json.dumps(document))
        elif self._quiet:
            typer.echo(self._stored)


def _append_lines(
    store: BlockingStore,
    log: str,
    key: bytes | None,
    resume: int | None,
    printer: _AppendPrinter,
    *,
    is_last: bool,
) -> None:
    """Append standard input, one record for each line. If this fails, report the number of stored
    lines.

    Args:
        is_last: nothing more is appended after it.
    """
    from cordwood.cli.line_appends import LineAppends
    from cordwood.cli.lines import read_lines
    from cordwood.settings import ClientSettings

    if sys.stdin.isatty():
        typer.echo("Each line becomes a record; Ctrl-D ends.", err=True)
    appends = LineAppends(store, log, key, resume, lambda text: typer.echo(text, err=True))
    appends.find_place()
    if appends.skipped:
        typer.echo(f"{appends.skipped} lines are in {log} already and are skipped", err=True)
    try:
        with terminated():
            for lines in read_lines(sys.stdin.fileno(), ClientSettings().block_bytes):
                printer.print(appends.append(lines))
            if is_last:
                # All lines are stored. A signal during the client's close would leave its sender
                # with neither a success nor a number for `--resume`.
                finish()
    except CordwoodError as error:
        tell_error(appends.how_far(error))
        raise
    except OSError as error:
        # Standard input cannot be read, or the LSNs not printed: their reader is gone, or the disk
        # is full. No lines are in flight.
        tell_error(appends.how_far(Closed(str(error))))
        raise
    except BaseException:
        tell_error(appends.how_far(OutcomeUnknown("stopped")))
        raise
    finally:
        printer.note_lines(appends)


def _runs(values: Sequence[str]) -> Iterator[Sequence[str] | str]:
    """The parts to append, in order: runs of arguments, and STDIN for standard input."""
    given: list[str] = []
    for value in values:
        if value != STDIN:
            given.append(value)
            continue
        if given:
            yield given
            given = []
        yield STDIN
    if given:
        yield given


def tail(
    log: LogArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for further records, until Ctrl-C.")
    ] = False,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="oldest|tail|LSN|TIME",
            help="Where to begin; a time as 2026-01-31T12:00Z, or 90min for 90 minutes ago.",
        ),
    ] = "oldest",
    until: Annotated[
        str | None, typer.Option("--until", metavar="LSN", help="The last LSN to print.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=0, help="Stop after this many records.")
    ] = None,
    form: Annotated[
        Form, typer.Option("--format", help="Unchanged payloads, whole records, or a dump.")
    ] = Form.RAW,
    gaps: Annotated[
        bool,
        typer.Option("--gaps/--no-gaps", help="Report gaps. Lost records are always reported."),
    ] = True,
    stats: Annotated[
        bool, typer.Option("--stats", help="At the end, print a table of the nodes that sent data.")
    ] = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Print a log's records, one a line, oldest first.

    Payloads are written unchanged. Gaps are told on standard error, and with --json (or --format
    json) in their place among the records. The exit code is 1 if records were lost, or may not be
    read.
    """
    from cordwood.cli.record_output import Printer, portions

    with open_store(cluster) as store:
        # Look the log up first, because following a missing log might create it.
        # Race: from here on by number, since a position is none in a log that gets the name.
        log_id = store.log(log).log_id
        if start == "tail" and not follow:
            typer.echo("Nothing comes after the tail yet; --follow waits for it.", err=True)
        if (time_us := time_of(start)) is not None:
            start = str(store.find_time(log_id, time_us).lsn)
        elif start not in ("oldest", "tail"):
            start = _lsn_of(start)
        with store.read(log_id, start, _last(store, log_id, follow, until)) as reader:
            printer = Printer(sys.stdout.buffer, Form.JSON if as_json else form, gaps=gaps)
            try:
                printer.print_all(portions(reader), count)
            finally:
                if stats:
                    _tell_senders(reader)
    if printer.lost:
        tell_error(f"{printer.lost} range(s) of {log} are lost")
        raise typer.Exit(FAILED)
    if printer.is_denied:
        tell_error(
            f"{log} asks for a read token that this command does not have: give it in the "
            "environment, as CORDWOOD_READ_TOKENS"
        )
        raise typer.Exit(FAILED)


def _last(store: BlockingStore, log: int, follow: bool, until: str | None) -> Position | None:
    """The end of the read: without --follow never past the records readable now."""
    if until is None:
        return None if follow else "tail"
    last = parse_lsn(until)
    return last if follow else min(last, store.tail(log))


def _lsn_of(start: str) -> str:
    """The LSN of --from, if it is one.

    Raises:
        BadSetting: it is nothing that --from takes.
    """
    try:
        parse_lsn(start)
    except BadSetting:
        raise BadSetting(
            f"--from {start}: it takes oldest, tail, an LSN as e7n123, a time as "
            "2026-01-31T12:00Z, or 90min for so long ago"
        ) from None
    return start


def _tell_senders(reader: BlockingReader) -> None:
    """Report on standard error how much each node sent."""
    typer.echo(f"\n{'node':>5} {'blocks':>9} {'window':>9}  state", err=True)
    for each in reader.senders():
        window = "-" if each.window_s is None else f"{each.window_s * 1000:.0f} ms"
        state = each.doubt or ("sending" if each.is_connected else "not connected")
        typer.echo(f"{each.node:>5} {each.blocks:>9} {window:>9}  {state}", err=True)
    typer.echo(f"asked anew {reader.rewinds} times", err=True)
