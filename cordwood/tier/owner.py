"""Keeps two clusters apart that were given one object store.

A log that the tree lacks was deleted, so its objects go after a day. In a store of another cluster
that would take that cluster's logs, of which its nodes may hold nothing any more. So a store says
whose it is, and no node of another cluster uploads there, deletes there, or drops what is there.

A store from before there were owners gets one from the cluster whose logs it holds, by their
origins (`tier.origin`): only once no log in it may be another cluster's. Until then uploads go on,
and deleted logs stay.

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
    """Whether the store says whose it is.

    Args:
        cluster: the identity of ours.
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
            f"this store belongs to cluster {owner}, and this one is {cluster}: give every cluster "
            "a store, or a prefix, of its own"
        )
    return True


async def keep_owner(store: ObjectStore, cluster: str, made: Mapping[int, int]) -> bool:
    """Have the store say that it is this cluster's; False where it may be another's.

    Args:
        made: when each of the cluster's logs was made, by number.
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
    """Whether a store without an owner is empty, or all that it keeps are logs of ours.

    Raises:
        BadSetting: all of its logs that have the number of one of ours are others.
    """
    found = await find_logs(store)
    ours = others = 0
    differs: BadSetting | None = None
    for log in found:
        try:
            if log in made and await check_origin(store, log, made[log]):
                ours += 1
            elif await _keeps_any(store, log):
                others += 1  # or a deleted one of ours, or from before there were origins
        except BadSetting as error:
            differs = error
        except Corrupt:
            others += 1
    if differs is not None and not ours:
        raise differs
    return not found or (ours > 0 and not others and differs is None)


async def _keeps_any(store: ObjectStore, log: int) -> bool:
    """Whether a log may still have records in a store; a retired one has a head alone.

    Raises:
        Corrupt: its head cannot be read.
    """
    try:
        data, _ = await store.read(head_name(log), timeout_s=CALL_S)
    except NoObject:
        return True  # a repair may write its head
    head = unpack_head(data)
    return head.start < head.end
