"""`cordwood ledgers tier`: move closed ledgers to main storage."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.each_ledger import Report, each_ledger
from cordwood.cli.target import ClusterOption, JsonOption
from cordwood.cli.wording import bytes_words
from cordwood.errors import (
    AccessDenied,
    BadSetting,
    Corrupt,
    Fenced,
    OutcomeUnknown,
    Retryable,
)

if TYPE_CHECKING:
    from cordwood.client.blocking.blocking_store import BlockingStore


def tier(
    ledgers: Annotated[
        list[int] | None, typer.Argument(metavar="[LEDGER]...", help="Closed ledgers.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Move all closed ledgers.")] = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Move closed ledgers to main storage; those that are there stay as they are.

    Nodes delete their copies later. Readers see no difference.
    """
    if bool(ledgers) == everything:
        raise BadSetting("name ledgers, or say --all")

    def work(store: BlockingStore, ledger: int) -> Report:
        done = store.ledgers.tier(ledger, ledger_password())
        if not as_json:
            typer.echo(_tiered_words(ledger, done.objects, done.stored))
        return {"ledger": ledger, "objects": done.objects, "bytes": done.stored}

    each_ledger(
        ledgers,
        work,
        refusals=(AccessDenied, Corrupt, Fenced, OutcomeUnknown, Retryable),
        failed="",
        nothing="No ledger is closed.",
        as_json=as_json,
        cluster=cluster,
    )


def _tiered_words(ledger: int, objects: int, stored: int) -> str:
    if not objects:
        return f"ledger {ledger} is in main storage"
    return f"ledger {ledger}: {objects} objects, {bytes_words(stored)}"


def ledger_password() -> bytes:
    """From the environment, because every user of the machine can read command lines."""
    return os.fsencode(os.environ.get("CORDWOOD_LEDGER_PASSWORD", ""))
