"""`cordwood nodes status`: show and set the status of the data of a node that is down. `cordwood
nodes storage`: show and set whether a node stores records.

Source: `quorum.authority`; docs/sources/logdevice.md 2.7 (4), 2.9.
"""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.if_lost import silent_of, total_of, words_of
from cordwood.cli.target import ClusterOption, JsonOption, open_store
from cordwood.errors import BadSetting

if TYPE_CHECKING:
    from cordwood.blocking import BlockingStore


class Status(enum.StrEnum):
    """As `nodes.Authority`, which is loaded only when it is needed."""

    FULLY_AUTHORITATIVE = "fully-authoritative"
    UNAVAILABLE = "unavailable"
    UNDER_REPLICATED = "under-replicated"
    AUTHORITATIVE_EMPTY = "authoritative-empty"


MEANING = {
    Status.FULLY_AUTHORITATIVE: "readers wait for it where others cannot say that nothing is lost",
    Status.UNAVAILABLE: "its data is there and will be back: readers wait for it",
    Status.UNDER_REPLICATED: "its data is gone: readers tell as lost what no other node has",
    Status.AUTHORITATIVE_EMPTY: "its data lies on other nodes, on as many as it should: readers "
    "do without it",
}


def node_status(
    node: Annotated[int, typer.Argument(metavar="NODE", help="The node's number.")],
    status: Annotated[
        Status | None, typer.Argument(help="The new status; without it, show the present one.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
    unchecked: Annotated[
        bool,
        typer.Option(
            "--unchecked",
            help="Report authoritative-empty without a look at the other nodes' copies.",
        ),
    ] = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Show or set what became of a node's data: its authoritative status.

    Readers use it to decide whether a record that no node sends is lost. Set it only for a node
    that is down: a wrong status makes readers report losses that did not happen. The status
    authoritative-empty says that other nodes have the node's data: the command asks them first. A
    node that starts again resets its status.
    """
    from cordwood.nodes import Authority

    with open_store(cluster) as store:
        said = {int(number): authority for number, authority in store.authorities().items()}
        if node not in said:
            known = ", ".join(map(str, said))
            raise BadSetting(f"there is no node {node}; there are {known}")
        before = said[node]
        if status is not None:
            if status is Status.AUTHORITATIVE_EMPTY and before.value != status.value:
                if not unchecked:
                    _check_empty(store, node)
            elif status is Status.UNDER_REPLICATED and not yes:
                answers = store.if_lost([node])
                typer.echo(words_of(total_of(answers), len(silent_of(answers))))
            if not yes:
                typer.echo(f"node {node} is {before.value}; {status.value}: {MEANING[status]}.")
                typer.confirm("Go on?", abort=True)
            store.set_authority(node, Authority(status.value), before)
            before = Authority(status.value)
    if as_json:
        typer.echo(json.dumps({"node": node, "status": before.value}))
    else:
        typer.echo(f"node {node} is {before.value}: {MEANING[Status(before.value)]}")


def _check_empty(store: BlockingStore, node: int) -> None:
    """Ask the other nodes whether any block counts on this node.

    Raises:
        BadSetting: a block does, or a node did not answer.
    """
    answers = store.if_lost([node])
    total = total_of(answers)
    silent = [other for other in silent_of(answers) if other != node]
    if silent:
        raise BadSetting(
            f"node {silent[0]} does not answer, so it is not known what counts on node {node}: "
            "start it first, or say --unchecked"
        )
    counting = total["blocks"] + total["stuck"] + total["gone"]
    if counting or total["unknown"]:
        raise BadSetting(
            f"{counting} blocks count on node {node}, and {total['unknown']} more could not be "
            f"judged: its data does not lie on other nodes. If it is gone, say under-replicated; "
            "--unchecked says it all the same"
        )


class Storage(enum.StrEnum):
    """Whether a node stores new records."""

    READ_WRITE = "read-write"
    READ_ONLY = "read-only"


STORES = {
    Storage.READ_WRITE: "it stores records",
    Storage.READ_ONLY: "it stores nothing, and is sealed and read as ever",
}


def node_storage(
    node: Annotated[int, typer.Argument(metavar="NODE", help="The node's number.")],
    storage: Annotated[
        Storage | None, typer.Argument(help="The new setting; without it, show the present one.")
    ] = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Show or set whether a node stores records: its storage state.

    A read-only node sends its records to readers and recoveries, and takes no new records; new
    epochs leave it out. It stays read-only over its restarts, until it is made writable again.
    """
    from cordwood.nodes import NodeId

    with open_store(cluster) as store:
        if storage is not None:
            store.set_storage(node, read_only=storage is Storage.READ_ONLY)
        said = store.read_only()
        if node not in said:
            known = ", ".join(map(str, said))
            raise BadSetting(f"there is no node {node}; there are {known}")
    now = Storage.READ_ONLY if said[NodeId(node)] else Storage.READ_WRITE
    if as_json:
        typer.echo(json.dumps({"node": node, "storage": now.value}))
    else:
        typer.echo(f"node {node} is {now.value}: {STORES[now]}")
