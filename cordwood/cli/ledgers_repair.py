"""`cordwood ledgers repair`: make new copies of lost nodes' entries."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from cordwood.cli.ledgers_tier import ledger_password
from cordwood.cli.target import ClusterOption, JsonOption, open_store
from cordwood.errors import Rejected, Retryable, UnknownLedger


def repair(
    ledgers: Annotated[
        list[int] | None, typer.Argument(metavar="[LEDGER]...", help="Without, all closed ones.")
    ] = None,
    nodes: Annotated[
        list[int] | None, typer.Option("--node", min=1, help="A node that is permanently lost.")
    ] = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Make new copies of what lost nodes held of closed ledgers.

    A node is lost if it is not a member, if its data is declared gone (`nodes status`), or if
    --node names it.
    """
    told: list[dict[str, Any]] = []
    trouble: dict[int, str] = {}
    with open_store(cluster) as store:
        for ledger in ledgers or store.ledgers.list():
            try:
                if not ledgers and store.ledgers.metadata(ledger).state != "closed":
                    continue
                moved = store.ledgers.repair(ledger, ledger_password(), nodes=nodes or ())
            except UnknownLedger:
                if ledgers:
                    raise
                continue  # race: it was deleted after it was listed
            except (Rejected, Retryable) as error:
                # The ledgers after it lack copies all the same.
                trouble[ledger] = str(error)
                continue
            if moved:
                told.append({"ledger": ledger, "moved": {str(a): b for a, b in moved.items()}})
                if not as_json:
                    words = ", ".join(f"node {b} for node {a}" for a, b in moved.items())
                    typer.echo(f"ledger {ledger}: {words}")
    if as_json:
        told += [{"ledger": ledger, "trouble": words} for ledger, words in trouble.items()]
        typer.echo(json.dumps(told))
    else:
        for ledger, words in trouble.items():
            typer.echo(f"ledger {ledger} is not repaired: {words}", err=True)
        if not (told or trouble):
            typer.echo("Nothing to repair: no ledger has a lost node.")
    if trouble:
        raise typer.Exit(1)
