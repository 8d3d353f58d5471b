"""`cordwood maintenance apply | show | remove`: takes nodes out of service, and back.

Source: docs/protocol/maintenance.md.
"""

from __future__ import annotations

import getpass
import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.tables import show_table
from cordwood.cli.target import ClusterOption, JsonOption, open_store
from cordwood.cli.times import duration_s
from cordwood.cli.wording import utc_words
from cordwood.errors import Unreachable

if TYPE_CHECKING:
    from cordwood.layout.message_maintenance import MaintenanceRequest

app = typer.Typer(help="Take nodes out of service once it is safe.", no_args_is_help=True)

BLOCKED = "BLOCKED_UNTIL_SAFE"
LOOK_S = 1.0


@app.command()
def apply(
    nodes: Annotated[
        list[int] | None, typer.Argument(metavar="[NODE]...", help="Numbers of the nodes.")
    ] = None,
    rack: Annotated[
        list[str] | None,
        typer.Option("--rack", help="All nodes of a rack, by its location: eu.row1.rack2."),
    ] = None,
    drain: Annotated[
        bool,
        typer.Option(
            "--drain",
            help="Ask for DRAINED: the nodes give their copies away. The default is MAY_DISAPPEAR.",
        ),
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="The reason, for other operators.")] = "",
    user: Annotated[
        str,
        typer.Option(
            "--user", help="The name of the operator who asks.", show_default="the login name"
        ),
    ] = "",
    ttl: Annotated[
        str, typer.Option("--ttl", help="The request ends by itself after this time, such as 2h.")
    ] = "",
    wait_s: Annotated[
        float,
        typer.Option("--wait", min=0, help="Wait up to this many seconds until it is granted."),
    ] = 0,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Ask for nodes to be taken out of service. Exit code 1 if the request is blocked.

    A blocked request stays, and is granted once it is safe.
    """
    with open_store(cluster) as store:
        made = store.apply_maintenance(
            nodes or [], rack or [], wanted="DRAINED" if drain else "MAY_DISAPPEAR",
            reason=reason, user=user or getpass.getuser(),
            ttl_s=round(duration_s(ttl)) if ttl else 0,
        )  # fmt: skip
        ends_s = time.monotonic() + wait_s
        while made.state == BLOCKED and time.monotonic() < ends_s:
            time.sleep(LOOK_S)
            found = [each for each in store.maintenance() if each.number == made.number]
            if not found:
                raise Unreachable(f"request {made.number} is gone: it was removed, or its TTL")
            made = found[0]
    _show([made], as_json=as_json)
    if made.state == BLOCKED:
        raise typer.Exit(1)


@app.command()
def show(as_json: JsonOption = False, cluster: ClusterOption = None) -> None:
    """Show all requests, and why blocked requests are blocked."""
    with open_store(cluster) as store:
        found = store.maintenance()
    _show(found, as_json=as_json)


@app.command()
def remove(
    number: Annotated[int, typer.Argument(metavar="REQUEST", min=1, help="The request's number.")],
    cluster: ClusterOption = None,
) -> None:
    """Take a request back: its nodes are in service again, unless another request names them."""
    with open_store(cluster) as store:
        store.remove_maintenance(number)
    typer.echo(f"Request {number} is gone.")


def _show(found: list[MaintenanceRequest], *, as_json: bool) -> None:
    if as_json:
        import msgspec

        typer.echo(json.dumps(msgspec.to_builtins(found)))
        return
    if not found:
        typer.echo("No node is to be taken out of service.")
        return
    show_table(
        ["request>", "nodes", "wanted", "state", "by", "reason", "ends", "waits for"],
        [
            (
                each.number, ", ".join(map(str, each.nodes)), each.wanted, each.state, each.user,
                each.reason, utc_words(each.ends_us) if each.ends_us else "-", each.blocked or "-",
            )
            for each in found
        ],
    )  # fmt: skip
