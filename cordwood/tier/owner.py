"""Keeps two clusters apart that were given the same object store.

A log that is not in the tree was deleted, so its objects are deleted after a day. In a store of
another cluster this rule would delete that cluster's logs, and its nodes may have no copy any more.
So a store names the cluster that owns it. A node of another cluster uploads nothing there, deletes
nothing there, and drops no records because they are there.

An empty store may be the mount point of a store that is unmounted. So only the first node that
needs main storage marks it, and the cluster's metadata note that it did (`metadata.main_storage`).
Later nobody but an operator marks a store that names nobody (`cordwood tier mark`).

A store from before there were owners gets its owner from the origins of its logs (`tier.origin`),
but only when no log in it may belong to another cluster. Until then uploads continue, and deleted
logs stay.

Source: docs/objects.md, "Names".
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping

from cordwood.errors import (
    BadSetting,
    Corrupt,
    NoObject,
    ObjectChanged,
    OutcomeUnknown,
    Rejected,
    Retryable,
    Unreachable,
)
from cordwood.layout.manifest import pack_owner, unpack_head, unpack_owner
from cordwood.layout.object_names import OWNER, head_name
from cordwood.metadata.main_storage import MainStorageNote, MainStorageNotes
from cordwood.nodes import NodeId
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.origin import check_origin
from cordwood.tier.repair import find_logs

CALL_S = 60.0
"""One call to the store, with all its tries."""

ReadMade = Callable[[], Awaitable[Mapping[int, int]]]
"""Reads the creation time of each log of the cluster, by number: a call for all logs."""


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


async def mark_owner(store: ObjectStore, cluster: str, read_made: ReadMade | None = None) -> bool:
    """Note this cluster as the store's owner; False if the store may belong to another cluster.

    Args:
        read_made: called only if the store names nobody; None if the caller knows no logs.
    Raises:
        BadSetting, Corrupt: see also `check_owner`.
        OutcomeUnknown, Retryable: the store does not answer; it may be asked again.
    """
    if await check_owner(store, cluster):
        return True
    if not await _is_ours(store, {} if read_made is None else await read_made()):
        return False
    return await _put_mark(store, cluster)


async def _put_mark(store: ObjectStore, cluster: str) -> bool:
    try:
        await store.put_if(OWNER, pack_owner(cluster), None, timeout_s=CALL_S)
    except ObjectChanged:
        return await check_owner(store, cluster)
    return True


class OwnerMark:
    """A cluster's mark of its main storage, as one of its nodes keeps it.

    Args:
        node: this node.
        read_cluster: reads the identity of the cluster.
        read_made: called only if the store names nobody.
    """

    def __init__(
        self,
        notes: MainStorageNotes,
        node: NodeId,
        read_cluster: Callable[[], Awaitable[str]],
        read_made: ReadMade,
    ) -> None:
        self._notes = notes
        self._node = node
        self._read_cluster = read_cluster
        self._read_made = read_made
        self._is_noted = False  # that the store has its mark

    async def keep(self, store: ObjectStore, has_named_us: bool) -> bool:
        """Whether the store names this cluster as its owner; a new store is marked first. False
        if it may belong to another cluster.

        The metadata are read only until the note about the mark is there, and where the mark is
        missing.

        Args:
            has_named_us: the store named this cluster before, as the caller saw.
        Raises:
            BadSetting: the store names nobody, and was marked before, or another store was.
            BadSetting, Corrupt: see also `check_owner`.
            OutcomeUnknown, Retryable: the store does not answer, nor do the metadata, or another
                node marks it just now; it may be asked again.
        """
        cluster = await self._read_cluster()
        if await check_owner(store, cluster):
            # Order matters: nothing is moved into the store before the note says that it has a
            # mark. A store of an older version has a mark and no note.
            await self._note()
            return True
        if has_named_us:
            raise BadSetting(_NAMES_NOBODY)
        # A store with logs of this cluster alone is no mount point: it lost its mark, or had none.
        is_empty = not await find_logs(store)
        if is_empty:
            self._check_free(await self._notes.read())
        if not await _is_ours(store, await self._read_made()):
            return False
        # Race: another node needs main storage at the same time, and one of the two has it
        # unmounted. The first note decides whose is marked.
        note = await self._notes.begin()
        if is_empty:
            self._check_free(note)
        try:
            is_ours = await _put_mark(store, cluster)
        except Rejected:
            # Another node may have the right to write there. This one goes on if it is asked again.
            # Order matters: only after a refusal. A mark whose answer is lost may be there, and the
            # next node would mark the store that it sees, which may be an empty mount point.
            with contextlib.suppress(Retryable, OutcomeUnknown):
                await self._notes.withdraw()
            raise
        if is_ours:
            await self._note()
        return is_ours

    async def _note(self) -> None:
        if not self._is_noted:
            await self._notes.finish()
            self._is_noted = True

    def _check_free(self, note: MainStorageNote | None) -> None:
        """Check that this node may mark a store that names nobody.

        Raises:
            BadSetting: main storage was marked before.
            Unreachable: another node marks it just now.
        """
        if note is None:
            return
        if note.is_marked:
            raise BadSetting(f"{_NAMES_NOBODY}. Node {note.node} saw it marked at {note.address}")
        if note.node != self._node:
            raise Unreachable(
                f"node {note.node} marks main storage at {note.address} just now. If that node is "
                "gone for good, `cordwood tier mark` marks the store"
            )


_NAMES_NOBODY = (
    "main storage of this cluster was marked before, and this store names nobody: is it unmounted, "
    "was it emptied, or is its address another one than before? Mount it, or restore its object "
    "`cluster`. If it is empty on purpose, `cordwood tier mark --store ADDRESS` begins anew with it"
)


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
                others += 1  # it may also be a deleted log of this cluster, or older than origins
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
