"""Carries out a command on ledgers one by one, so that an error of one ledger does not stop the
work on the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from cordwood.cli.target import open_store
from cordwood.errors import CordwoodError, UnknownLedger

if TYPE_CHECKING:
    from cordwood.client.blocking.blocking_store import BlockingStore

Report = dict[str, Any]
"""The report of a ledger, as JSON."""


def each_ledger(
    named: Sequence[int] | None,
    work: Callable[[BlockingStore, int], Report | None],
    *,
    refusals: tuple[type[CordwoodError], ...],
    failed: str,
    nothing: str,
    as_json: bool,
    cluster: str | None,
) -> None:
    """Work on the named ledgers, or on each closed one, and tell how it went.

    Args:
        work: returns None if there was nothing to do, and prints its own line unless `as_json`.
        refusals: errors after which the work goes on with the other ledgers.
        failed: words between a ledger and its error.
        nothing: the line to print if there was nothing to do for any ledger.
    Raises:
        UnknownLedger: a named ledger does not exist.
        typer.Exit: with code 1, if a ledger had trouble.
    """
    told: list[Report] = []
    trouble: dict[int, str] = {}
    with open_store(cluster) as store:
        for ledger in named or store.ledgers.list():
            try:
                if not named and store.ledgers.metadata(ledger).state != "closed":
                    continue
                report = work(store, ledger)
            except UnknownLedger:
                if named:
                    raise
                continue  # Race: it was deleted after it was listed.
            except refusals as error:
                trouble[ledger] = str(error)
                continue
            if report is not None:
                told.append(report)
    if as_json:
        told += [{"ledger": ledger, "trouble": words} for ledger, words in trouble.items()]
        typer.echo(json.dumps(told))
    else:
        for ledger, words in trouble.items():
            typer.echo(f"ledger {ledger}{failed}: {words}", err=True)
        if not (told or trouble):
            typer.echo(nothing)
    if trouble:
        raise typer.Exit(1)
