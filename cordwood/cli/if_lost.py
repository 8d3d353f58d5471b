"""`cordwood nodes if-lost`: the copies that would be left without some nodes, and the copies that
would be made anew."""

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
    from collections.abc import Mapping

    from cordwood.client.admin.nodes import IfLost
    from cordwood.nodes import NodeId

    Answers = Mapping[NodeId, IfLost | CordwoodError]


def if_lost(
    nodes: Annotated[list[int], typer.Argument(metavar="NODE...", help="Numbers of the nodes.")],
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Show the blocks that would be lost without some nodes, and those that nodes would copy.

    Nothing is changed. Every block of every log is looked at. A node counts as lost too if its data
    is already reported as gone. Ends with 1 if a block would be left without a copy, or if a node
    did not answer.
    """
    with open_store(cluster) as store:
        answers = store.if_lost(nodes)
    total = total_of(answers)
    silent = silent_of(answers)
    if as_json:
        found = {n: e for n, e in answers.items() if not isinstance(e, CordwoodError)}
        rows = [{"node": n, **asdict(each)} for n, each in found.items()]
        errors = [{"node": n, "error": str(answers[n])} for n in silent]
        typer.echo(json.dumps({"nodes": rows + errors, "total": total}))
    else:
        show_table(
            ["node>", "gives blocks>", "sends>", "no place for>"],
            [_row(node, answers[node]) for node in answers],
        )
        typer.echo(words_of(total, len(silent)))
    # A node that is assumed lost need not answer.
    if total["gone"] or total["unknown"] or set(silent) - set(nodes):
        raise typer.Exit(1)


def total_of(answers: Answers) -> dict[str, int]:
    """The sum of all answers, by name."""
    found = [asdict(each) for each in answers.values() if not isinstance(each, CordwoodError)]
    names = ("blocks", "bytes", "stuck", "last", "gone", "unknown")
    return {name: sum(each[name] for each in found) for name in names}


def silent_of(answers: Answers) -> list[NodeId]:
    """The nodes that did not answer."""
    return [node for node, each in answers.items() if isinstance(each, CordwoodError)]


def _row(node: int, answer: IfLost | CordwoodError) -> tuple[object, ...]:
    if isinstance(answer, CordwoodError):
        return (node, "does not answer", "-", "-")
    return (node, answer.blocks, bytes_words(answer.bytes), answer.stuck or "-")


def words_of(total: Mapping[str, int], silent: int) -> str:
    """A sum in a sentence."""
    said = [
        f"{total['blocks']} blocks would get new copies, {bytes_words(total['bytes'])} in all",
        f"{total['last']} blocks would have one copy left",
    ]
    if total["stuck"]:
        said.append(f"for {total['stuck']} too few nodes are left: they keep fewer copies")
    if total["unknown"]:
        said.append(f"{total['unknown']} blocks or ranges could not be judged")
    if silent:
        said.append(f"{silent} nodes did not answer, and what they alone know is missing here")
    if total["gone"]:
        said.append(f"{total['gone']} blocks would be lost")
    else:
        said.append("of the blocks that were checked, none would be lost")
    return "; ".join(said) + "."
