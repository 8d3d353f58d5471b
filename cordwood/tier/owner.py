"""Keeps two clusters apart that were given one object store.

A log that is not in the tree was deleted, so its objects are deleted after a day. In a store of
another cluster this rule would delete that cluster's logs, and its nodes may have no copy any more.
So a store names the cluster that owns it. A node of another cluster uploads nothing there, deletes
nothing there, and drops no records because they are there.

A store from before there were owners gets its owner from the origins of its logs (`tier.origin`),
but only when no log in it may belong to another cluster. Until then uploads continue, and deleted
logs stay.

Source: docs/objects.md, "Names".
"""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.errors import BadSetting, Corrupt, NoObject, ObjectChanged
from cordwood.layout.manifest import pack_owner, unpack_head, unpack_owner
from cordwood.layout.object_names import OWNER, head_name
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.origin import check_origin
from cordwood.tier.repair import find_logs

CALL_S = 60.0
"""One call to the store, with all its tries."""


async def check_owner(store: ObjectStore, cluster: str) -> bool:
    """Whether the store names its owner.

    Args:
        cluster: the identity of this cluster.
    Raises:
        BadSetting: it is another cluster's.
        Corrupt: the stored mark cannot be read.
    """
    try:
        data, _ = await store.read(OWNER, timeout_s=CALL_S)
    except NoObject:
        return False
    if (owner := unpack_owner(data)) != cluster:
        raise BadSetting(
            f"this store belongs to cluster {owner}, not to cluster {cluster}: give every cluster "
            "a store, or a prefix, of its own"
        )
    return True


async def keep_owner(store: ObjectStore, cluster: str, made: Mapping[int, int]) -> bool:
    """Note this cluster as the store's owner; False if the store may belong to another cluster.

    Args:
        made: the creation time of each log of the cluster, by number.
    Raises:
        BadSetting, Corrupt: see `check_owner`.
        OutcomeUnknown, Retryable: the store does not answer; it may be asked again.
    """
    if await check_owner(store, cluster):
        return True
    if not await _is_ours(store, made):
        return False
    try:
        await store.put_if(OWNER, pack_owner(cluster), None, timeout_s=CALL_S)
    except ObjectChanged:
        return await check_owner(store, cluster)
    return True


async def _is_ours(store: ObjectStore, made: Mapping[int, int]) -> bool:
    """Whether a store without an owner is empty, or has only logs of this cluster.

    Raises:
        BadSetting: each log in it with a number of this cluster is another cluster's log.
    """
    found = await find_logs(store)
    ours = others = 0
    differs: BadSetting | None = None
    for log in found:
        try:
            if log in made and await check_origin(store, log, made[log]):
                ours += 1
            elif await _keeps_any(store, log):
                others += 1  # or a deleted log of this cluster, or from before there were origins
        except BadSetting as error:
            differs = error
        except Corrupt:
            others += 1
    if differs is not None and not ours:
        raise differs
    return not found or (ours > 0 and not others and differs is None)


async def _keeps_any(store: ObjectStore, log: int) -> bool:
    """Whether a log may still have records in a store; a retired log has only a head.

    Raises:
        Corrupt: its head cannot be read.
    """
    try:
        data, _ = await store.read(head_name(log), timeout_s=CALL_S)
    except NoObject:
        return True  # a repair may write its head
    head = unpack_head(data)
    return head.start < head.end
