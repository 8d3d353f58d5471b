"""`cordwood nodes if-lost`: what would be left, and to be made anew, without some nodes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.tables import show_table
from cordwood.cli.target import ClusterOption, JsonOption, open_store
from cordwood.cli.wording import bytes_words
from cordwood.errors import CordwoodError

if TYPE_CHECKING:
    from cordwood.client.admin.nodes import IfLost


def if_lost(
    nodes: Annotated[list[int], typer.Argument(metavar="NODE...", help="Their numbers.")],
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Show what would be lost, and what each node would have to give, without some nodes.

    Nothing is changed. Every block of every log is looked at; nodes of which it is said already
    that their data is gone count as lost too. Ends with 1 where a block would be left without a
    copy, or not every node could say.
    """
    with open_store(cluster) as store:
        answers = store.if_lost(nodes)
    found = {n: each for n, each in answers.items() if not isinstance(each, CordwoodError)}
    failed = {n: each for n, each in answers.items() if isinstance(each, CordwoodError)}
    total = {
        name: sum(asdict(each)[name] for each in found.values())
        for name in ("blocks", "bytes", "stuck", "last", "gone", "unknown")
    }
    # A node that is to be lost need not answer; what it alone knows is what would be gone.
    silent = sorted(failed.keys() - set(nodes))
    if as_json:
        rows = [{"node": n, **asdict(each)} for n, each in found.items()]
        errors = [{"node": n, "error": str(each)} for n, each in failed.items()]
        typer.echo(json.dumps({"nodes": rows + errors, "total": total}))
    else:
        show_table(
            ["node>", "gives blocks>", "sends>", "no place for>"],
            [_row(node, answers[node]) for node in answers],
        )
        typer.echo(_words(total, len(failed)))
    if total["gone"] or total["unknown"] or silent:
        raise typer.Exit(1)


def _row(node: int, answer: IfLost | CordwoodError) -> tuple[object, ...]:
    if isinstance(answer, CordwoodError):
        return (node, "does not answer", "-", "-")
    return (node, answer.blocks, bytes_words(answer.bytes), answer.stuck or "-")


def _words(total: dict[str, int], failed: int) -> str:
    said = [
        f"{total['blocks']} blocks would get new copies, {bytes_words(total['bytes'])} in all",
        f"{total['last']} blocks would have one copy left",
    ]
    if total["stuck"]:
        said.append(f"for {total['stuck']} too few nodes are left: they keep fewer copies")
    if total["unknown"]:
        said.append(f"{total['unknown']} blocks or ranges could not be judged")
    if failed:
        said.append(f"{failed} nodes did not answer, and what they would give is missing here")
    said.append(f"{total['gone']} blocks would be lost" if total["gone"] else "none would be lost")
    return "; ".join(said) + "."
