"""`cordwood check-impact`: shows what stops without some nodes, and the first remedy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.tables import show_table
from cordwood.cli.target import ClusterOption, JsonOption, open_store
from cordwood.nodes import Replication

if TYPE_CHECKING:
    from cordwood.layout.message_impact import ImpactFinding, ImpactLog, ImpactReply

NAMES_SHOWN = 3


def check_impact(
    nodes: Annotated[
        list[int] | None, typer.Argument(metavar="[NODE]...", help="Numbers of the nodes.")
    ] = None,
    rack: Annotated[
        list[str] | None,
        typer.Option("--rack", help="All nodes of a rack, by its location: eu.row1.rack2."),
    ] = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Show what would stop if nodes were absent: writes, reads, rebuilding, capacity.

    Nothing is changed. The check covers every epoch that may hold records, of every log. Nodes that
    are down count as absent too. The exit code is 1 if something would stop.
    """
    with open_store(cluster) as store:
        found = store.check_impact(nodes or [], rack or [])
    if as_json:
        import msgspec

        document = {**msgspec.to_builtins(found), "safe": not found.findings}
        document.pop("type", None)
        typer.echo(json.dumps(document))
    else:
        show_impact(found)
    if found.findings:
        raise typer.Exit(1)


def show_impact(found: ImpactReply) -> None:
    """A report for people."""
    absent = ", ".join(map(str, found.absent))
    if found.down:
        typer.echo(f"Nodes {', '.join(map(str, found.down))} are down, or may be by a request.")
    if not found.findings:
        typer.echo(f"Nothing would stop without nodes {absent}: {found.logs} logs were judged.")
        return
    show_table(
        ["stops", "logs>", "of nodes", "copies", "such as", "do first"],
        [_row(each) for each in found.findings],
    )
    if found.more:
        typer.echo(f"{found.more} more findings are not shown.")
    typer.echo(f"Without nodes {absent} something would stop: {found.logs} logs were judged.")


def _row(finding: ImpactFinding) -> tuple[object, ...]:
    across = finding.replicate_across
    names = ", ".join(_name(each) for each in finding.examples[:NAMES_SHOWN])
    return (
        f"{finding.stops} (already)" if finding.already else finding.stops,
        finding.logs,
        ", ".join(map(str, finding.nodes)) or "all",
        str(Replication.across(across)) if across else "-",
        names or "-",
        finding.first,
    )


def _name(each: ImpactLog) -> str:
    name = each.name or f"number {each.log}"
    if not each.last:
        return f"{name} from epoch {each.first}"
    return f"{name} epochs {each.first} to {each.last}"
