"""`cordwood tier mark`: an operator says that a store is the cluster's main storage.

Nodes mark an empty store once. Later an empty store may be one that is unmounted, which only an
operator can tell.

Source: docs/objects.md, "Names".
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from cordwood.cli.target import ClusterOption, find_target
from cordwood.cli.tier_options import OptionsOption, StoreOption, run_on_store
from cordwood.errors import BadSetting

if TYPE_CHECKING:
    from cordwood.client.store import Store
    from cordwood.host.seams import Host
    from cordwood.tier.patient_store import PatientStore


def mark(
    store: StoreOption,
    option: OptionsOption = None,
    cluster: ClusterOption = None,
) -> None:
    """Mark an empty store, or one that lost its object `cluster`, as the cluster's main storage.

    Nodes mark only the first store, because a store that is empty later may be unmounted. Look
    first that it is mounted: records that are in another store are not found from here.
    """
    url = find_target(cluster).url

    async def act(host: Host, objects: PatientStore) -> None:
        from cordwood import aio
        from cordwood.tier.owner import mark_owner

        async with aio.connect(url) as client:

            async def read_made() -> dict[int, int]:
                infos = await client.logs(unread=[])
                return {int(info.log_id): info.created_us for info in infos if info.created_us}

            if not await mark_owner(objects, client.cluster_id, read_made):
                raise BadSetting(
                    f"{store} holds records of logs that may be another cluster's: it stays as it "
                    "is. `cordwood tier status` shows the logs"
                )
            typer.echo(f"{store} is main storage of cluster {client.cluster_id}")

    run_on_store(store, option, act)


async def mark_for_upload(client: Store, objects: PatientStore, address: str) -> bool:
    """Mark a store that an operator uploads into. Returns whether it counts as main storage.

    Trap: if this is the nodes' main storage, it may be unmounted on this machine. Nodes know
    whether it was marked before, so they mark it.

    Trap: one store may have several addresses. So each store that names this cluster counts as the
    nodes' main storage, and its manifests are compared with what nodes let go of.

    Raises:
        BadSetting: the nodes have it with a mark, and there is none here; or it is another
            cluster's.
        CordwoodError: the store does not answer, or no node opens it.
    """
    from cordwood.client.main_storage import nodes_address, open_at_nodes
    from cordwood.tier.owner import check_owner, mark_owner

    if await check_owner(objects, client.cluster_id):
        return True
    if not _is_same(address, nodes_address(client)):
        await mark_owner(objects, client.cluster_id)
        return False
    await open_at_nodes(client)
    if not await check_owner(objects, client.cluster_id):
        raise BadSetting(
            f"{address} is main storage of the nodes, which find their mark there, and here it has "
            "none: is it unmounted on this machine?"
        )
    return True


def _is_same(address: str, other: str) -> bool:
    # A directory has two addresses: its path, and `file://` before it.
    address, other = address.removeprefix("file://"), other.removeprefix("file://")
    if "://" in address or "://" in other:
        return address.rstrip("/") == other.rstrip("/")
    return bool(other) and os.path.realpath(address) == os.path.realpath(other)
