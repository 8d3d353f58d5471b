"""`cordwood ledgers repair`: make new copies of lost nodes' entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.each_ledger import Report, each_ledger
from cordwood.cli.ledgers_tier import ledger_password
from cordwood.cli.target import ClusterOption, JsonOption
from cordwood.errors import Corrupt, Rejected, Retryable

if TYPE_CHECKING:
    from cordwood.client.blocking.blocking_store import BlockingStore


def repair(
    ledgers: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="[LEDGER]...", help="Ids of ledgers; the default is all closed ledgers."
        ),
    ] = None,
    nodes: Annotated[
        list[int] | None, typer.Option("--node", min=1, help="A node that is permanently lost.")
    ] = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Make new copies of the entries of closed ledgers that lost nodes held.

    A node is lost if it is not a member, if its data is declared gone (`nodes status`), or if
    --node names it.
    """

    def work(store: BlockingStore, ledger: int) -> Report | None:
        moved = store.ledgers.repair(ledger, ledger_password(), nodes=nodes or ())
        if not moved:
            return None
        if not as_json:
            words = ", ".join(f"node {b} for node {a}" for a, b in moved.items())
            typer.echo(f"ledger {ledger}: {words}")
        return {"ledger": ledger, "moved": {str(a): b for a, b in moved.items()}}

    each_ledger(
        ledgers,
        work,
        refusals=(Corrupt, Rejected, Retryable),
        failed=" is not repaired",
        nothing="Nothing to repair: no ledger has a lost node.",
        as_json=as_json,
        cluster=cluster,
    )
