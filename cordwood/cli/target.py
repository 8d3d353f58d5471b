"""Finds the store of a verb: `--cluster`, $CORDWOOD_CLUSTER, or the cluster that runs in this
directory.

Source: docs/design.md §11 ("address file inside, so that the other verbs find it").
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.errors import BadSetting, Unreachable

if TYPE_CHECKING:
    from cordwood.blocking import BlockingStore
    from cordwood.settings import ClientSettings

DIRECTORY = "./.cordwood"
"""`local_cluster.USUAL_DIRECTORY`, stated again here because that module takes long to load."""

ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-c",
        envvar="CORDWOOD_CLUSTER",
        metavar="URL",
        help="cordwood://host:port,… or the directory of a local cluster or embedded store.",
        show_default=f"the cluster in {DIRECTORY}",
    ),
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@dataclass(frozen=True, slots=True)
class Target:
    """The place of a store.

    Attributes:
        url: what to connect to, `cordwood://…` or the directory of an embedded store.
        directory: where the addresses were found, "" if they were given.
    """

    url: str
    directory: str = ""


def find_target(cluster: str | None) -> Target:
    """The store that `--cluster` names; None means the cluster that runs in this directory.

    Raises:
        Unreachable: no cluster runs on the directory; the text says how to start one.
        BadSetting: neither an address nor a directory that holds a store.
    """
    from cordwood.client.address import SCHEME, is_cluster
    from cordwood.local_cluster import CLUSTER_FILE, find_address

    if cluster is None:
        return Target(find_address(DIRECTORY), DIRECTORY)
    if is_cluster(cluster):
        return Target(cluster)
    if os.path.exists(os.path.join(cluster, CLUSTER_FILE)):
        return Target(find_address(cluster), cluster)
    if os.path.exists(os.path.join(cluster, "node-1", "identity")):
        return Target(cluster)
    if ":" in cluster and not os.path.exists(cluster):
        return Target(SCHEME + cluster)
    raise BadSetting(
        f"{cluster} holds no store. `cordwood up --dir {cluster}` starts a cluster there, and "
        "cordwood.connect() in Python makes an embedded store"
    )


def open_store(cluster: str | None) -> BlockingStore:
    """Connect to the store that `--cluster` names; close it, or use it with `with`.

    Tokens of logs come from CORDWOOD_READ_TOKENS and CORDWOOD_WRITE_TOKENS, separated by commas,
    because every user of the machine can read command lines.

    Raises:
        Unreachable: no store answers there; the text says how to start it.
        BadSetting: the argument does not name a store.
        StoreInUse: another process has the embedded store open.
    """
    from cordwood import blocking

    target = find_target(cluster)
    try:
        return blocking.connect(target.url, _settings())
    except Unreachable as error:
        if not target.directory:
            raise
        raise Unreachable(
            f"the cluster on {target.directory} does not answer any more: start it again with "
            f"`cordwood up{dir_option(target.directory)}`"
        ) from error


def _settings() -> ClientSettings:
    """The settings of a verb's client.

    Raises:
        BadSetting: a token is too long.
    """
    from cordwood.settings import ClientSettings

    return ClientSettings(
        write_tokens=_tokens("WRITE"), read_tokens=_tokens("READ"), rare_collections=True
    )


def _tokens(what: str) -> tuple[str, ...]:
    tokens = os.environ.get(f"CORDWOOD_{what}_TOKENS", "").split(",")
    return tuple(token for token in tokens if token)


def dir_option(directory: str) -> str:
    """The option for `cordwood up` with this directory, "" for the usual directory."""
    return "" if _is_usual(directory) else f" --dir {directory}"


def cluster_option(directory: str) -> str:
    """The option for all other verbs with this directory, "" for the usual directory."""
    return "" if _is_usual(directory) else f" --cluster {directory}"


def _is_usual(directory: str) -> bool:
    return os.path.abspath(directory) == os.path.abspath(DIRECTORY)
