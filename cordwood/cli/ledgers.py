"""`cordwood ledgers`: make, write, read, follow, list, recover, fence, check, repair, delete."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cordwood.cli.ledger_words import (
    ledger_document,
    ledger_state,
    payload_document,
    striping_words,
)
from cordwood.cli.ledgers_repair import repair
from cordwood.cli.ledgers_tier import ledger_password, tier
from cordwood.cli.tables import show_table
from cordwood.cli.target import ClusterOption, JsonOption, open_store
from cordwood.cli.wording import bytes_words, utc_words
from cordwood.errors import AccessDenied, BadSetting, Corrupt, Retryable, UnknownLedger

if TYPE_CHECKING:
    from cordwood.client.blocking.blocking_ledgers import BlockingWritableLedger
    from cordwood.client.blocking.blocking_store import BlockingStore
    from cordwood.client.ledgers.readable_ledger import LedgerEntry
    from cordwood.ledger import LedgerMetadata
    from cordwood.protocol.ledger_check import LedgerCheck

app = typer.Typer(
    help="Ledgers: logs that one client writes and closes, as Apache BookKeeper has them.\n\n"
    "A ledger's password comes from CORDWOOD_LEDGER_PASSWORD.",
    no_args_is_help=False,
)

IN_FLIGHT = 1000
"""Entries that `append` has on their way."""

PROGRESS_S = 2.0
"""The time between two progress lines of a long check: short enough to show that it goes on."""

LedgerArgument = Annotated[
    int, typer.Argument(metavar="LEDGER", min=0, max=(1 << 63) - 1, help="The ledger's id.")
]
EnsembleOption = Annotated[
    int, typer.Option("--ensemble", "-E", min=1, help="Nodes that keep the ledger.")
]
WriteOption = Annotated[int, typer.Option("--write", "-w", min=1, help="Nodes for each entry.")]
AckOption = Annotated[
    int, typer.Option("--ack", "-a", min=1, help="Nodes that have an entry when it is printed.")
]
TierOption = Annotated[
    bool,
    typer.Option("--tier", help="Have nodes move it to main storage once it is closed."),
]
DigestOption = Annotated[
    str,
    typer.Option("--digest", help="The checksum of each entry: crc32c, crc32, hmac_sha1 or dummy."),
]
CustomOption = Annotated[
    list[str] | None,
    typer.Option(
        "--custom", metavar="NAME=VALUE", help="A value to keep in the ledger's metadata."
    ),
]
NodeOption = Annotated[
    int | None, typer.Option("--node", min=1, help="List only ledgers that name this node.")
]
IdOption = Annotated[
    int | None,
    typer.Option("--id", min=0, help="An id of your choice; the default is the next free id."),
]


@app.command()
def create(
    ensemble: EnsembleOption = 3,
    write: WriteOption = 2,
    ack: AckOption = 2,
    digest: DigestOption = "crc32c",
    custom: CustomOption = None,
    ledger_id: IdOption = None,
    tier: TierOption = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Make an empty ledger and leave it open.

    Only the client that makes a ledger writes it, and this client ends here: `ledgers append` makes
    a ledger and writes it.
    """
    with open_store(cluster) as store:
        made = _create(store, ensemble, write, ack, digest, custom, ledger_id, tier=tier)
        metadata = made.metadata
        made.abandon()
    if as_json:
        typer.echo(json.dumps(ledger_document(metadata)))
    else:
        typer.echo(f"Ledger {metadata.ledger} is made; `cordwood ledgers recover` closes it")


@app.command()
def append(
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VALUE]...",
            help="Entries. Without any, each line of standard input is an entry.",
        ),
    ] = None,
    ensemble: EnsembleOption = 3,
    write: WriteOption = 2,
    ack: AckOption = 2,
    digest: DigestOption = "crc32c",
    custom: CustomOption = None,
    ledger_id: IdOption = None,
    tier: TierOption = False,
    defer_sync: Annotated[
        bool,
        typer.Option(
            "--defer-sync",
            help="Sync many entries at once, and print their ids after the sync.",
        ),
    ] = False,
    leave_open: Annotated[
        bool, typer.Option("--leave-open", help="Do not close the ledger at the end.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only the ledger's id.")
    ] = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Make a ledger, append entries, and close it; each id is printed once its entry is stored."""
    with open_store(cluster) as store:
        made = _create(
            store, ensemble, write, ack, digest, custom, ledger_id, tier=tier,
            defers_sync=defer_sync,
        )  # fmt: skip
        if not as_json:
            # Before the first entry: a user who kills this knows which ledger to recover.
            typer.echo(f"ledger {made.ledger_id}")
        stored = 0
        try:
            for some in _portions(values):
                entries = made.append_many(some)
                if defer_sync:
                    made.force()
                for entry in entries:
                    stored += 1
                    if not (quiet or as_json):
                        sys.stdout.write(f"{entry}\n")
                sys.stdout.flush()
            if leave_open:
                made.abandon()
            else:
                made.close()
        finally:
            # Also after a failure: a script must know which ledger to recover.
            if as_json:
                typer.echo(json.dumps({**ledger_document(made.metadata), "stored": stored}))


def _create(
    store: BlockingStore,
    ensemble: int,
    write: int,
    ack: int,
    digest: str,
    custom: list[str] | None,
    ledger_id: int | None,
    *,
    tier: bool = False,
    defers_sync: bool = False,
) -> BlockingWritableLedger:
    from cordwood.protocol.ledger_writer import WriterLimits

    return store.ledgers.create(
        ensemble=ensemble,
        write=write,
        ack=ack,
        digest=digest,
        password=ledger_password(),
        custom=_custom(custom or []),
        ledger=ledger_id,
        limits=WriterLimits(defers_sync=defers_sync),
        tier=tier,
    )


def _custom(pairs: list[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise BadSetting(f"--custom {pair}: say NAME=VALUE")
        found[name] = os.fsencode(value)
    return found


def _portions(values: list[str] | None) -> Iterator[list[bytes]]:
    if values:
        yield [os.fsencode(value) for value in values]
        return
    from cordwood.cli.lines import read_lines
    from cordwood.layout.ledger_entry import ENTRY_BYTES_MAX

    for lines in read_lines(sys.stdin.fileno(), ENTRY_BYTES_MAX):
        for at in range(0, len(lines), IN_FLIGHT):
            yield lines[at : at + IN_FLIGHT]


@app.command()
def read(
    ledger: LedgerArgument,
    first: Annotated[int, typer.Option("--from", min=0, help="The first entry.")] = 0,
    last: Annotated[
        int | None,
        typer.Option(
            "--to", min=0, help="The last entry; the default is the last confirmed entry."
        ),
    ] = None,
    recovery: Annotated[
        bool,
        typer.Option("--recovery", help="Close the ledger first, even while a writer has it open."),
    ] = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Print the confirmed entries of a ledger, a line each."""
    with open_store(cluster) as store:
        opened = store.ledgers.open(ledger, ledger_password(), recovery=recovery)
        # Ask even if the end is given: before this call, no entry of the newest fragment of an open
        # ledger is known to be confirmed.
        confirmed = opened.read_last_add_confirmed()
        end = confirmed if last is None else last
        for start in range(first, end + 1, IN_FLIGHT):
            for each in opened.read(start, min(end, start + IN_FLIGHT - 1)):
                _print_entry(each, as_json)


@app.command()
def tail(
    ledger: LedgerArgument,
    first: Annotated[int, typer.Option("--from", min=0, help="The first entry.")] = 0,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Print the entries of a ledger as they are confirmed, until it is closed."""
    with open_store(cluster) as store:
        for batch in store.ledgers.open(ledger, ledger_password()).batches(first):
            for each in batch:
                _print_entry(each, as_json)
            sys.stdout.flush()


def _print_entry(each: LedgerEntry, as_json: bool) -> None:
    if not as_json:
        sys.stdout.buffer.write(each.payload + b"\n")
        sys.stdout.buffer.flush()
        return
    document = {"ledger": each.ledger, "entry": each.entry, **payload_document(each.payload)}
    sys.stdout.write(json.dumps(document) + "\n")


@app.command("list")
def list_ledgers(
    after: Annotated[
        int, typer.Option("--after", min=-1, help="List only ids above this id.")
    ] = -1,
    limit: Annotated[int, typer.Option("--limit", min=1, help="List at most this many.")] = 1000,
    node: NodeOption = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """List ledgers by id; exit with 1 if the metadata of one cannot be read."""
    from cordwood.protocol.ledger_autorecovery import named

    with open_store(cluster) as store:
        found: list[LedgerMetadata] = []
        unread: dict[int, str] = {}
        for ledger in store.ledgers.list(after):
            if len(found) + len(unread) == limit:
                break
            try:
                metadata = store.ledgers.metadata(ledger)
            except UnknownLedger:
                continue  # race: it was deleted after it was listed
            except Corrupt as error:
                unread[ledger] = str(error)
            else:
                found += [metadata] if node in {None, *named(metadata)} else []
        # Order matters, as in `rebuild.count_ledgers`: marks are read last.
        listed = {each.ledger for each in found} | unread.keys()
        for marked in store.ledgers.under_replicated() if node is not None else ():
            if node in marked.nodes and marked.ledger > after and marked.ledger not in listed:
                # Its metadata was read just now, and does not name the node.
                with contextlib.suppress(UnknownLedger):
                    found.append(store.ledgers.metadata(marked.ledger))
        found = sorted(found, key=lambda each: each.ledger)[:limit]
    if as_json:
        told: list[dict[str, Any]] = [ledger_document(each) for each in found]
        told += [{"ledger": ledger, "trouble": words} for ledger, words in unread.items()]
        typer.echo(json.dumps(told))
    elif not found and not unread:
        typer.echo("There are no ledgers." if node is None else f"No ledger names node {node}.")
    else:
        show_table(
            ["ledger>", "state", "last>", "size>", "E/Qw/Qa", "nodes"],
            [
                (
                    each.ledger, ledger_state(each),
                    each.last if each.state == "closed" else "",
                    bytes_words(each.length) if each.state == "closed" else "",
                    striping_words(each), ", ".join(map(str, each.newest.nodes)),
                )
                for each in found
            ],
        )  # fmt: skip
    if unread:
        for words in unread.values():
            typer.echo(words, err=True)
        raise typer.Exit(1)


@app.command()
def show(
    ledger: LedgerArgument, as_json: JsonOption = False, cluster: ClusterOption = None
) -> None:
    """Show a ledger: its state, the nodes of its entries, and its custom metadata."""
    with open_store(cluster) as store:
        found = store.ledgers.metadata(ledger)
    if as_json:
        typer.echo(json.dumps(ledger_document(found)))
        return
    typer.echo(
        f"Ledger {ledger} is {ledger_state(found)}; "
        f"E/Qw/Qa {striping_words(found)}, {found.digest.name}"
    )
    typer.echo(f"  made {utc_words(found.created_us)}")
    if found.state == "closed":
        typer.echo(f"  ends at entry {found.last}, with {bytes_words(found.length)}")
    if found.tier is not None and found.tier.is_committed:
        since = utc_words(found.tier.since_us)
        typer.echo(f"  in main storage since {since}, by attempt {found.tier.attempt:016x}")
    for name, value in found.custom.items():
        typer.echo(f"  {name} = {value.decode(errors='replace')}")
    show_table(
        ["from entry>", "nodes"],
        [(each.first, ", ".join(map(str, each.nodes))) for each in found.fragments],
    )


@app.command()
def recover(
    ledger: LedgerArgument, as_json: JsonOption = False, cluster: ClusterOption = None
) -> None:
    """Close a ledger after its writer is gone; a writer that still runs is shut out."""
    with open_store(cluster) as store:
        found = store.ledgers.recover(ledger, ledger_password())
    if as_json:
        typer.echo(json.dumps(ledger_document(found)))
    else:
        typer.echo(f"Ledger {ledger} is closed: it ends at entry {found.last}")


app.command()(repair)
app.command()(tier)


@app.command()
def check(
    ledgers: Annotated[
        list[int] | None,
        typer.Argument(metavar="[LEDGER]...", help="Ids of ledgers; the default is all ledgers."),
    ] = None,
    sample: Annotated[
        float | None,
        typer.Option(
            "--sample",
            min=0,
            max=1,
            metavar="SHARE",
            help="Check the entries at the ends of each fragment, and this share of the others.",
        ),
    ] = None,
    fill: Annotated[
        bool,
        typer.Option(
            "--fill",
            help="Store missing copies again, except in the last fragment of an open ledger.",
        ),
    ] = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Ask nodes for their copies of each entry; exit with 1 if a ledger lacks copies.

    Each copy is read and compared with its digest. `ledgers repair` replaces nodes that are lost.
    """  # fmt: skip
    share = 1.0 if sample is None else sample
    checks: list[LedgerCheck] = []
    unread: dict[int, str] = {}
    with open_store(cluster) as store:
        for ledger in ledgers or store.ledgers.list():
            progress = _progress(ledger)
            try:
                checks.append(
                    store.ledgers.check(
                        ledger, ledger_password(), share=share, fills=fill, on_progress=progress
                    )
                )
            except (AccessDenied, Corrupt, Retryable) as error:
                unread[ledger] = str(error)
            except UnknownLedger:
                if ledgers:
                    raise
                # Race: it was deleted after it was listed.
    if as_json:
        told = [_check_document(each) for each in checks]
        told += [{"ledger": ledger, "trouble": words} for ledger, words in unread.items()]
        typer.echo(json.dumps(told))
    else:
        _show_checks(checks, unread)
    if unread or not all(each.is_whole for each in checks):
        raise typer.Exit(1)


def _progress(ledger: int) -> Callable[[int], None]:
    """Report the progress of a long check every few seconds."""
    told_s = time.monotonic()

    def tell(entries: int) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= PROGRESS_S:
            told_s = time.monotonic()
            typer.echo(f"ledger {ledger}: {entries:,} entries so far", err=True)

    return tell


def _check_document(each: LedgerCheck) -> dict[str, Any]:
    return {
        "ledger": each.ledger,
        "whole": each.is_whole,
        "closed": each.is_closed,
        "last": each.last,
        "entries": each.entries,
        "copies": each.copies,
        "wanted": each.wanted,
        "short": each.short,
        "first_short": each.first_short,
        "lost": each.lost,
        "first_lost": each.first_lost,
        "unread": each.unread,
        "damaged": each.damaged,
        "lacking": {str(node): count for node, count in sorted(each.lacking.items())},
        "silent": sorted(each.silent),
        "narrow": each.narrow,
        "filled": each.filled,
        "tiered": each.is_tiered,
    }


def _show_checks(checks: list[LedgerCheck], unread: dict[int, str]) -> None:
    if not checks and not unread:
        typer.echo("There are no ledgers.")
    if checks:
        show_table(
            ["ledger>", "entries>", "copies>", "short>", "lost>", "damaged>", "filled>", "state"],
            [
                (
                    each.ledger, f"{each.entries:,}", f"{each.copies:,}", each.short, each.lost,
                    each.damaged, each.filled, "; ".join(_check_words(each)) or "whole",
                )
                for each in checks
            ],
        )  # fmt: skip
    for ledger, words in unread.items():
        typer.echo(f"ledger {ledger} was not looked at: {words}", err=True)


def _check_words(each: LedgerCheck) -> Iterator[str]:
    if each.lost:
        yield f"entries are lost, from {each.first_lost} on"
    elif each.short:
        yield f"copies are missing, from entry {each.first_short} on"
    for node, count in sorted(each.lacking.items()):
        yield f"node {node} lacks {count:,}"
    if each.is_tiered and not each.short:
        yield "in main storage"
    if each.silent:
        yield f"no answer of nodes {', '.join(map(str, sorted(each.silent)))}"
    if each.narrow:
        yield "entries in one failure domain, from " + ", ".join(map(str, each.narrow[:3])) + " on"


@app.command()
def autorecovery(
    switch: Annotated[
        str | None,
        typer.Argument(
            metavar="[on|off]", help="The new setting; without it, show the present one."
        ),
    ] = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Show, or set, whether nodes repair ledgers that lack copies by themselves."""
    if switch not in (None, "on", "off"):
        raise BadSetting(f"auto-recovery is switched `on` or `off`, and not {switch!r}")
    with open_store(cluster) as store:
        if switch is not None:
            store.ledgers.switch_autorecovery(on=switch == "on")
        found = store.ledgers.autorecovery()
    if as_json:
        told = {"on": found.on, "auditor": found.auditor or None, "is_lacking": found.is_lacking}
        typer.echo(json.dumps(told))
        return
    words = "repaired by themselves" if found.on else "not repaired: auto-recovery is off"
    typer.echo(f"Ledgers that lack copies are {words}.")
    typer.echo(f"  looked for by {found.auditor or 'no node yet'}")
    if found.is_lacking:
        typer.echo("  Some lack copies now: `cordwood ledgers under-replicated`.")


@app.command(name="under-replicated")
def under_replicated(
    limit: Annotated[int, typer.Option("--limit", min=1, help="List at most this many.")] = 100,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """List ledgers that lack copies, with the lost nodes that they name."""
    with open_store(cluster) as store:
        found = list(islice(store.ledgers.under_replicated(), limit))
        is_on = store.ledgers.autorecovery().on
    if not is_on:
        words = "Auto-recovery is off: no node looks for ledgers that lack copies, or repairs them."
        typer.echo(f"{words} `cordwood ledgers autorecovery on` switches it on.", err=True)
    if as_json:
        told = [
            {"ledger": each.ledger, "nodes": [*each.nodes], "since_us": each.since_us}
            for each in found
        ]
        typer.echo(json.dumps(told))
    elif not found:
        typer.echo("No ledger is known to lack copies.")
    else:
        rows = [(e.ledger, ", ".join(map(str, e.nodes)), utc_words(e.since_us)) for e in found]
        show_table(["ledger>", "lost nodes", "known since"], rows)


@app.command()
def fence(
    ledger: LedgerArgument, as_json: JsonOption = False, cluster: ClusterOption = None
) -> None:
    """Shut the writer of a ledger out; `ledgers recover` closes it."""
    with open_store(cluster) as store:
        told = store.ledgers.fence(ledger, ledger_password())
    if as_json:
        typer.echo(
            json.dumps({"ledger": ledger, "fenced": {str(n): is_ for n, is_ in told.items()}})
        )
        return
    for node, is_fenced in told.items():
        typer.echo(f"node {node}: {'fenced' if is_fenced else 'does not answer'}")


@app.command()
def delete(
    ledger: LedgerArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Delete a ledger and all its entries, for good."""
    if not yes:
        typer.confirm(f"Delete ledger {ledger} for good?", abort=True)
    with open_store(cluster) as store:
        store.ledgers.delete(ledger)
    typer.echo(json.dumps({"ledger": ledger, "deleted": True}) if as_json else "Deleted.")
