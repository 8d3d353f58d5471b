"""`cordwood readers` and `cordwood groups`: read streams and consumers, and their lag."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.ending import tell_error
from cordwood.cli.readable_logs import readable_logs
from cordwood.cli.tables import show_table
from cordwood.cli.target import ClusterOption, JsonOption, open_store
from cordwood.cli.wording import bytes_words
from cordwood.errors import CordwoodError
from cordwood.lsn import LSN_MAX, format_lsn

if TYPE_CHECKING:
    from cordwood.blocking import BlockingStore
    from cordwood.layout.message_consumers import ConsumerReply

Row = dict[str, object]

SHOWN = ("member", "next", "tail", "lag")
"""The fields of a consumer's line that may be missing."""


def readers(as_json: JsonOption = False, cluster: ClusterOption = None) -> None:
    """Show the nodes' live read streams: the reader, its log, and what the stream waits for."""
    with open_store(cluster) as store:
        names: dict[int, str] = {log.log_id: log.name for log in readable_logs(store)}
        answers = store.streams()
    rows: list[Row] = []
    for node, answer in answers.items():
        if isinstance(answer, CordwoodError):
            typer.echo(f"node {node} does not answer: {answer}", err=True)
            continue
        for each in answer.streams:
            rows.append(
                {
                    "log": names.get(each.log, f"log {each.log}"),
                    "node": node,
                    "reader": each.reader,
                    "next": format_lsn(each.next),
                    "until": "" if each.until >= LSN_MAX else format_lsn(each.until),
                    "sent_bytes": each.sent_bytes,
                    "copies": "one" if each.single_copy else "all",
                    "known_down": each.known_down,
                    "waits": each.waits,
                }
            )
    if as_json:
        typer.echo(json.dumps(rows))
    elif not rows:
        typer.echo("Nobody reads just now.")
    else:
        _show_readers(rows)


def _show_readers(rows: list[Row]) -> None:
    show_table(
        ["log", "node>", "reader", "next", "sent>", "copies", "known down", "waits for"],
        [
            (
                row["log"],
                row["node"],
                row["reader"],
                row["next"],
                bytes_words(int(str(row["sent_bytes"]))),
                row["copies"],
                " ".join(map(str, _numbers(row["known_down"]))) or "-",
                row["waits"] or "new records",
            )
            for row in sorted(rows, key=lambda row: (str(row["log"]), str(row["node"])))
        ],
    )


def _numbers(value: object) -> list[int]:
    return value if isinstance(value, list) else []


def groups(
    consumer: Annotated[
        str,
        typer.Argument(metavar="[CONSUMER]", help="Show only this consumer; the default is all."),
    ] = "",
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Show consumers: their positions in each log, the members that read it, and the lag."""
    with open_store(cluster) as store:
        unread: list[str] = []
        found = store.consumers(consumer, unread=unread)
        rows = [row for group in found for row in _group_rows(store, group)]
    for why in unread:
        tell_error(why)
    for row in rows:
        if row["error"]:
            tell_error(f"{row['log']}: {row['error']}")
    if as_json:
        typer.echo(json.dumps(rows))
    elif not rows:
        typer.echo(f"No consumer{f' {consumer}' if consumer else ''} has a position or a member.")
    else:
        show_table(
            ["consumer", "log", "member", "next", "tail", "behind>"],
            [(r["consumer"], r["log"], *(r[name] or "-" for name in SHOWN)) for r in rows],
        )


def _group_rows(store: BlockingStore, group: ConsumerReply) -> list[Row]:
    """A line for each log that a consumer has a position in or a member for."""
    rows: list[Row] = []
    for log, found in store.lag(group.consumer).items():
        position = group.positions.get(log)
        lag = None if isinstance(found, CordwoodError) else found
        rows.append(
            {
                "consumer": group.consumer,
                "generation": group.generation,
                "log": log if log.startswith("/") else f"log {log}",
                "member": group.owners.get(log, ""),
                "next": "" if position is None else format_lsn(position),
                "tail": "" if lag is None else format_lsn(lag.tail),
                "lag": "" if lag is None else str(lag),
                "lag_records": None if lag is None else lag.records,
                "error": str(found) if isinstance(found, CordwoodError) else "",
            }
        )
    return rows
