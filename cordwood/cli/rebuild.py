"""`cordwood rebuild`: the lost nodes, and the other nodes' progress in making their data anew.

Source: docs/protocol/rebuilding.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.tables import show_table
from cordwood.cli.target import ClusterOption, JsonOption, open_store
from cordwood.cli.wording import bytes_words, duration_words
from cordwood.errors import CordwoodError, Corrupt, Rejected, UnknownLedger, Unreachable
from cordwood.nodes import NodeId

if TYPE_CHECKING:
    from cordwood.client.admin.nodes import Rebuilding
    from cordwood.client.blocking.blocking_ledgers import BlockingLedgers
    from cordwood.client.blocking.blocking_store import BlockingStore
    from cordwood.layout.message_rebuilding import HealState
    from cordwood.rebuilding import LostNode

app = typer.Typer(help="Show and steer the rebuilding of lost nodes.", no_args_is_help=False)

WATCH_S = 1.0

NodeArgument = Annotated[int, typer.Argument(metavar="NODE", help="The node's number.")]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Start even if many nodes are being rebuilt already.")
]


@app.callback(invoke_without_command=True)
def rebuild(
    context: typer.Context,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on until nothing is left to do.")
    ] = False,
    ledgers: Annotated[
        bool,
        typer.Option("--ledgers", help="Count the ledgers that name each node."),
    ] = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Show which nodes are lost or drained, and how far their data is made anew on other nodes.

    A node in service is shown too if its WAL lost records, while it gets these back. *Empty* tells
    of logs alone: --ledgers counts the ledgers that still name a node.
    """
    if context.invoked_subcommand is not None:
        return
    with open_store(cluster) as store:
        while True:
            found = store.rebuilding()
            nodes = [each.node for each in found.lost]
            named = count_ledgers(store.ledgers, nodes) if ledgers and nodes else {}
            rows = [row_of(each, found, named.get(each.node)) for each in found.lost]
            _show(rows, found, as_json=as_json)
            if not watch or not (found.heals or any(row["donors_left"] for row in rows)):
                return
            time.sleep(WATCH_S)


def count_ledgers(ledgers: BlockingLedgers, nodes: Sequence[int]) -> dict[int, int]:
    """By node, the ledgers that name it. A ledger with unreadable metadata may name any."""
    from cordwood.protocol.ledger_autorecovery import named

    naming: dict[int, set[int]] = {node: set() for node in nodes}
    for ledger in ledgers.list():
        try:
            names = named(ledgers.metadata(ledger))
        except UnknownLedger:
            continue  # race: it was deleted after it was listed
        except Corrupt:
            names = frozenset(nodes)
        for node in names & naming.keys():
            naming[node].add(ledger)
    # A repair may pass over an entry that only a lost node may have: the mark alone names that node
    # then. Order matters: the repair writes the mark first, and takes the node out of the metadata
    # after that. So marks are read last.
    for each in ledgers.under_replicated():
        for node in naming.keys() & {*each.nodes}:
            naming[node].add(each.ledger)
    return {node: len(some) for node, some in naming.items()}


def row_of(lost: LostNode, found: Rebuilding, ledgers: int | None = None) -> dict[str, object]:
    """One node that is lost, and the sum of its donors.

    Args:
        ledgers: the ledgers that name it; None if they were not counted.
    """
    unknown = Unreachable("it is no member")
    donors = {node: found.donors.get(NodeId(node), unknown) for node in lost.donors}
    states = {n: each for n, each in donors.items() if not isinstance(each, CordwoodError)}
    left = sum(each.bytes_left for each in states.values())
    rate = sum(each.bytes_s for each in states.values() if each.bytes_left)
    silent = [n for n in donors if n not in states and n not in lost.done]
    waits = [f"node {node} does not answer" for node in silent]
    waits += [f"node {node}: {each.blocked}" for node, each in states.items() if each.blocked]
    return {
        "node": lost.node,
        "kind": "drain" if lost.relocates else "restore",
        "state": state_words(lost),
        "is_empty": lost.is_empty,
        "ledgers": ledgers,
        "recoverable": lost.is_recoverable,
        "donors": list(lost.donors),
        "donors_left": sorted(set(lost.donors) - set(lost.done)),
        "bytes_done": sum(each.bytes_done for each in states.values()),
        "bytes_left": left,
        "bytes_s": round(rate),
        "left_s": round(left / rate) if rate else None,
        "is_looking": any(each.is_looking for each in states.values()),
        "blocked": waits,
    }


def state_words(lost: LostNode) -> str:
    """The state of a node, in words."""
    if lost.is_empty:
        return "empty: its logs lie on other nodes"
    if lost.is_done:
        return "done, but for data that may come back with other lost nodes"
    return "drained" if lost.relocates else "rebuilt"


def _show(rows: list[dict[str, object]], found: Rebuilding, *, as_json: bool) -> None:
    if as_json:
        import msgspec

        donors = {
            str(node): {"error": str(each)}
            if isinstance(each, CordwoodError)
            else msgspec.to_builtins(each)
            for node, each in found.donors.items()
        }
        heals = {str(node): msgspec.to_builtins(each) for node, each in found.heals.items()}
        typer.echo(json.dumps({"lost": rows, "donors": donors, "heals": heals}))
        return
    if not rows and not found.heals:
        typer.echo("No node is lost or drained, and none lost records.")
        return
    show_table(
        [
            "node>",
            "is",
            "ledgers>",
            "donors done>",
            "bytes done>",
            "to do>",
            "rate>",
            "left>",
            "waits for",
        ],
        [*map(_cells, rows), *(_heal_cells(*each) for each in found.heals.items())],
    )
    for row in rows:
        if row["is_empty"] and row["ledgers"] != 0:
            typer.echo(
                f"Ledgers may still need node {row['node']} and its directory: see "
                f"`cordwood ledgers list --node {row['node']}`."
            )


def _heal_cells(node: NodeId, heal: HealState) -> tuple[object, ...]:
    """The row of a node that is in service and gets back the records that its WAL lost."""
    to_do = f"{heal.logs_left} of {heal.logs} logs" if heal.logs else "…"
    return (
        node, "healed: its WAL lost records", "-", "-", bytes_words(heal.bytes), to_do, "-", "-",
        heal.waits or "-",
    )  # fmt: skip


def _cells(row: dict[str, object]) -> tuple[object, ...]:
    donors, left = row["donors"], row["donors_left"]
    assert isinstance(donors, list), "node numbers"
    assert isinstance(left, list), "node numbers"
    waits, rate, left_s = row["blocked"], row["bytes_s"], row["left_s"]
    assert isinstance(waits, list), "sentences"
    to_do = "…" if row["is_looking"] else bytes_words(_number(row["bytes_left"]))
    return (
        row["node"], row["state"], "not counted" if row["ledgers"] is None else row["ledgers"],
        f"{len(donors) - len(left)} of {len(donors)}",
        bytes_words(_number(row["bytes_done"])), to_do,
        f"{bytes_words(_number(rate))}/s" if rate else "-",
        duration_words(_number(left_s)) if left_s is not None else "-",
        "; ".join(waits) or "-",
    )  # fmt: skip


def _number(value: object) -> float:
    assert isinstance(value, int | float), "a number"
    return float(value)


@app.command()
def start(node: NodeArgument, force: ForceOption = False, cluster: ClusterOption = None) -> None:
    """Rebuild the data of a node that is down on the other nodes, now.

    If the node comes back with its data before the end, it keeps its data.
    """
    _say(cluster, node, "start", forced=force)
    typer.echo(f"The data of node {node} is made anew on other nodes: see `cordwood rebuild`.")


@app.command()
def abort(node: NodeArgument, cluster: ClusterOption = None) -> None:
    """Stop the rebuilding of a node's data: the node will come back with it."""
    _say(cluster, node, "abort")
    typer.echo(f"The data of node {node} is waited for again.")


@app.command()
def gone(
    node: NodeArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
    cluster: ClusterOption = None,
) -> None:
    """Say that the data of a lost node never comes back.

    No node or reader waits for the data any more: readers get DATA_LOSS gaps for records that no
    other node has.
    """
    if not yes:
        typer.echo(f"What only node {node} had is then lost for readers.")
        typer.confirm("Go on?", abort=True)
    _say(cluster, node, "gone")
    typer.echo(f"The data of node {node} is given up.")


def drain(node: NodeArgument, force: ForceOption = False, cluster: ClusterOption = None) -> None:
    """Have a node give all its copies to other nodes, so that it can be taken out of service.

    It serves readers until that is done, and takes no new records. See `cordwood rebuild`. The
    order is refused if the other nodes cannot take all copies, unless it is forced. Stop the node
    only when `cordwood ledgers list --node NODE` says that no ledger names it.
    """
    _say(cluster, node, "drain", forced=force)
    typer.echo(
        f"Node {node} gives its copies away: see `cordwood rebuild`, and for ledgers "
        f"`cordwood ledgers list --node {node}`."
    )


def undrain(
    node: NodeArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Also if ledgers name the empty node.")
    ] = False,
    cluster: ClusterOption = None,
) -> None:
    """Let a node that was drained, or is being drained, take records again.

    If the node is empty by then, it stops: move its directory away, and start it again. While
    ledgers name the empty node, the order is refused, unless it is forced: their only copies may be
    there. Then give `cordwood nodes keep-ledgers DIR` in place of moving the directory.
    """
    with open_store(cluster) as store:
        is_empty = force or _is_empty(store, node)
        # A node that becomes empty meanwhile stays drained: nobody looked for its ledgers.
        store.say_rebuild(node, "undrain", unless_empty=not is_empty)
    typer.echo(f"Node {node} is not drained any more.")


def _is_empty(store: BlockingStore, node: int) -> bool:
    """Whether a drained node is empty, and no ledger names it.

    Raises:
        Rejected: the node is empty, so it would stop, and ledgers name it.
    """
    lost = store.rebuilding(donors=False).lost
    if not any(each.node == node and each.is_empty for each in lost):
        return False
    count = count_ledgers(store.ledgers, [node])[node]
    if count:
        raise Rejected(
            f"node {node} is empty, and would stop, but {count:,} ledgers name it and may have "
            f"their only copies there (`cordwood ledgers list --node {node}`): wait until none does"
        )
    return True


def _say(cluster: str | None, node: int, order: str, *, forced: bool = False) -> None:
    with open_store(cluster) as store:
        store.say_rebuild(node, order, forced=forced)
