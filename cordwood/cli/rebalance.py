"""`cordwood nodes rebalance`: old data moves to nodes that hold too little of it.

Source: docs/protocol/rebuilding.md ("A rebalance").
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.tables import show_table
from cordwood.cli.target import ClusterOption, JsonOption, open_store
from cordwood.cli.wording import bytes_words, duration_words
from cordwood.errors import CordwoodError
from cordwood.nodes import NodeId

if TYPE_CHECKING:
    from cordwood.client.admin.nodes import Rebuilding
    from cordwood.client.admin.rebalance import RebalancePlan
    from cordwood.client.blocking.blocking_store import BlockingStore
    from cordwood.rebuilding import Rebalancing

WATCH_S = 1.0


def rebalance(
    nodes: Annotated[
        list[int] | None,
        typer.Argument(metavar="[NODE ...]", help="The only nodes that receive data."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the moves, and do nothing.")
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop the running rebalance where it is.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Show the progress until the end.")
    ] = True,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Move old data to nodes that are emptier than their weight asks for.

    Copies move within the nodeset of their epoch, in the same way and as slowly as rebuilding moves
    them. If a rebalance is already running, the command follows it. If you stop the command, the
    rebalance goes on.
    """
    with open_store(cluster) as store:
        if stop:
            store.rebalance(())
            typer.echo("The rebalance ends: what was given stays where it is.")
            return
        known = store.rebuilding().rebalancing
        plan = None
        if known is None or not known.left or dry_run:
            plan = store.rebalance_plan(nodes or ())
            if not as_json:
                _show_plan(plan)
            if dry_run or not plan.shares:
                if as_json:
                    typer.echo(json.dumps({**_plan_json(plan), "is_begun": False}))
                return
            store.rebalance(plan.shares)
        elif not as_json:
            typer.echo("A rebalance is under way already.")
        found = _follow(store, quiet=as_json) if wait else store.rebuilding()
        said = found.rebalancing
        assert said is not None, "it was begun"
        if as_json:
            begun = {**_plan_json(plan), "is_begun": True} if plan is not None else {}
            typer.echo(json.dumps({**begun, **report_json(said)}))
        elif wait:
            _show_report(said)
        else:
            typer.echo("It has begun: `cordwood nodes rebalance` follows it.")


def _follow(store: BlockingStore, *, quiet: bool) -> Rebuilding:
    """Show the progress of the rebalance each second, until it is over."""
    told = ""
    while True:
        found = store.rebuilding()
        if found.rebalancing is None or not found.rebalancing.left:
            return found
        line = progress_words(found, found.rebalancing)
        if not quiet and line != told:
            typer.echo(line, err=True)
        told = line
        time.sleep(WATCH_S)


def progress_words(found: Rebuilding, known: Rebalancing) -> str:
    """The progress of the donors, and the estimated time that is left, in words."""
    states = {}
    silent = []
    for node in known.left:
        each = found.donors.get(NodeId(node))
        if each is None or isinstance(each, CordwoodError):
            silent.append(f"node {node} does not answer")
        else:
            states[node] = each
    done = sum(e.bytes for e in known.gave) + sum(e.bytes_done for e in states.values())
    left = sum(each.bytes_left for each in states.values())
    rate = sum(each.bytes_s for each in states.values() if each.bytes_left)
    is_looking = any(each.is_looking or not each.version for each in states.values())
    to_do = "…" if is_looking else bytes_words(left)
    words = f"{bytes_words(done)} moved, {to_do} to do"
    if rate and not is_looking:
        words += f", {bytes_words(rate)}/s, {duration_words(left / rate)} left"
    waits = silent + [f"node {n}: {each.blocked}" for n, each in states.items() if each.blocked]
    return f"{words}; waits: {'; '.join(waits)}" if waits else words


def report_json(known: Rebalancing) -> dict[str, object]:
    """The progress of a rebalance so far."""
    return {
        "is_over": not known.left,
        "is_stopped": known.is_stopped,
        "donors_left": list(known.left),
        "gave": [
            {
                "node": each.donor, "blocks": each.blocks, "bytes": each.bytes,
                "kept": each.kept, "kept_bytes": each.kept_bytes,
            }
            for each in known.gave
        ],
    }  # fmt: skip


def _plan_json(plan: RebalancePlan) -> dict[str, object]:
    return {
        "held": {str(node): size for node, size in plan.held.items()},
        "moves": [
            {"source": source, "target": target, "bytes": size}
            for (source, target), size in plan.moves.items()
        ],
        "silent": {str(node): why for node, why in plan.silent.items()},
    }


def _show_plan(plan: RebalancePlan) -> None:
    for node, why in plan.silent.items():
        typer.echo(f"Node {node} takes no part: {why}.")
    if not plan.shares:
        typer.echo("Each node holds about what its weight asks for: nothing is to be moved.")
        return
    gets = dict.fromkeys(plan.held, 0)
    for (source, target), size in plan.moves.items():
        gets[source] -= size
        gets[target] += size
    show_table(
        ["node>", "holds>", "gets>", "gives>"],
        [
            (
                node, bytes_words(size),
                bytes_words(gets[node]) if gets[node] > 0 else "-",
                bytes_words(-gets[node]) if gets[node] < 0 else "-",
            )
            for node, size in plan.held.items()
        ],
    )  # fmt: skip


def _show_report(known: Rebalancing) -> None:
    show_table(
        ["node>", "gave blocks>", "bytes>", "chosen, and stays>"],
        [
            (each.donor, each.blocks, bytes_words(each.bytes), bytes_words(each.kept_bytes))
            for each in known.gave
        ],
    )
    total = sum(each.bytes for each in known.gave)
    words = "The rebalance was stopped" if known.is_stopped else "The rebalance is over"
    typer.echo(
        f"{words}: {bytes_words(total)} moved. The space of moved copies is free once all records "
        "of their time are trimmed."
    )
