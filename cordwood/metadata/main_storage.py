"""Notes that main storage was marked as this cluster's, so that nobody marks it a second time.

An empty store looks like the mount point of a store that is unmounted. The mark in the store
(`tier.owner`) says that it is the right one, and this note says that there must be a mark: a node
that starts while the store is unmounted knows it from here.

A node begins the note before it puts the mark, and finishes it after. So of two nodes that need
main storage first, and of which one has the store unmounted, one marks what it sees. If that node
dies between the two writes, it goes on when it is back.

Source: docs/objects.md, "Names".
"""

from __future__ import annotations

import msgspec

from cordwood.layout.json_text import read_json
from cordwood.metadata.change import change_repeatably
from cordwood.metadata.store import MetadataStore
from cordwood.nodes import NodeId

_KEY = "main_storage"


class MainStorageNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`main_storage`.

    Attributes:
        node: the node that marked main storage, or began to.
        address: where, for people: the store may move to another address with its mark.
        is_marked: the mark was put, or was there.
    """

    node: NodeId
    address: str
    is_marked: bool


class MainStorageNotes:
    """See the module; the note of one node's cluster.

    Every call may raise Unreachable or Overloaded (ask again), and Malformed (a newer version
    wrote the note).
    """

    def __init__(self, store: MetadataStore, node: NodeId, address: str) -> None:
        self._store = store
        self._node = node
        self._address = address

    async def read(self) -> MainStorageNote | None:
        """The note, None if main storage was never marked."""
        found = await self._store.get(_KEY)
        return None if found is None else _decode(found.value)

    async def begin(self) -> MainStorageNote:
        """Note that this node marks main storage, unless there is a note; the note that stands."""
        mine = self._encoded(is_marked=False)
        stored = await change_repeatably(
            self._store, _KEY, lambda found: mine if found is None else None
        )
        assert stored is not None, "a note is written or was there"
        return _decode(stored)

    async def finish(self) -> None:
        """Note that main storage has its mark."""

        def decide(found: bytes | None) -> bytes | None:
            is_noted = found is not None and _decode(found).is_marked
            return None if is_noted else self._encoded(is_marked=True)

        await change_repeatably(self._store, _KEY, decide)

    async def withdraw(self) -> None:
        """Take back what this node began: it cannot mark main storage, and another node may."""
        found = await self._store.get(_KEY)
        if found is None:
            return
        note = _decode(found.value)
        if note.node == self._node and not note.is_marked:
            await self._store.compare_and_set(_KEY, None, found.version)

    def _encoded(self, *, is_marked: bool) -> bytes:
        return msgspec.json.encode(MainStorageNote(self._node, self._address, is_marked))


def _decode(stored: bytes) -> MainStorageNote:
    return read_json(stored, MainStorageNote, "the note about main storage")
