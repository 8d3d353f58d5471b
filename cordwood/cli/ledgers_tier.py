"""`cordwood ledgers tier`: move closed ledgers to main storage."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from cordwood.cli.target import ClusterOption, JsonOption, open_store
from cordwood.cli.wording import bytes_words
from cordwood.errors import AccessDenied, BadSetting, Fenced, Retryable, UnknownLedger


def tier(
    ledgers: Annotated[
        list[int] | None, typer.Argument(metavar="[LEDGER]...", help="Closed ledgers.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All ledgers that are closed.")] = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Move closed ledgers to main storage; those that are there stay as they are.

    Nodes let go of their copies later. Readers notice nothing.
    """
    if bool(ledgers) == everything:
        raise BadSetting("name ledgers, or say --all")
    told: list[dict[str, Any]] = []
    trouble: dict[int, str] = {}
    with open_store(cluster) as store:
        for ledger in ledgers or store.ledgers.list():
            try:
                if everything and store.ledgers.metadata(ledger).state != "closed":
                    continue
                done = store.ledgers.tier(ledger, ledger_password())
            except UnknownLedger:
                if ledgers:
                    raise
                continue  # race: it was deleted after it was listed
            except (AccessDenied, Fenced, Retryable) as error:
                trouble[ledger] = str(error)
                continue
            told.append({"ledger": ledger, "objects": done.objects, "bytes": done.stored})
            if not as_json:
                typer.echo(_tiered_words(ledger, done.objects, done.stored))
    if as_json:
        told += [{"ledger": ledger, "trouble": words} for ledger, words in trouble.items()]
        typer.echo(json.dumps(told))
    else:
        for ledger, words in trouble.items():
            typer.echo(f"ledger {ledger}: {words}", err=True)
        if not (told or trouble):
            typer.echo("No ledger is closed.")
    if trouble:
        raise typer.Exit(1)


def _tiered_words(ledger: int, objects: int, stored: int) -> str:
    if not objects:
        return f"ledger {ledger} is in main storage"
    return f"ledger {ledger}: {objects} objects, {bytes_words(stored)}"


def ledger_password() -> bytes:
    """What stands on a command line, everybody on the machine can see."""
    return os.fsencode(os.environ.get("CORDWOOD_LEDGER_PASSWORD", ""))
