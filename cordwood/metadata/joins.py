"""How far each node knew the event log as it joined the cluster, for donors.

A node takes no block whose copyset names a node of the rebuilding set. So a node that knew the
entry of a lost node before it first registered has no block that names the lost node, and no
rebuilding has to wait for it, even if it is dead by now.

A node writes `joined/<node>` once, before its first registration, and only if its set had an entry.
A node that wrote nothing may have any block.

Source: docs/protocol/rebuilding.md, rule 4.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from cordwood.errors import Malformed
from cordwood.layout.json_text import read_json
from cordwood.metadata.change import change_repeatably
from cordwood.metadata.store import MetadataStore
from cordwood.nodes import NodeId
from cordwood.rebuilding import RebuildingSet

_PREFIX = "joined/"


class _Joined(msgspec.Struct, frozen=True):
    """`joined/<node>`; a later version may add fields."""

    through: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Joins:
    """See the module. Every call may raise Unreachable or Overloaded (ask again)."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def note(self, node: NodeId, known: RebuildingSet) -> None:
        """Note the set of a node that has not registered yet. An earlier note stays: the node may
        have begun to join before, and knew less then.

        Args:
            known: with all events from before the call.
        """
        if not known.lost:
            return
        said = msgspec.json.encode(_Joined(known.through))
        await change_repeatably(
            self._store, f"{_PREFIX}{node}", lambda found: said if found is None else None
        )

    async def read(self) -> dict[int, int]:
        """By node: the LSN up to which it knew the event log as it joined.

        Raises:
            Malformed: what a node noted cannot be read.
        """
        return {
            _node_of(key): read_json(found.value, _Joined, key).through
            for key, found in await self._store.list(_PREFIX)
        }


def _node_of(key: str) -> int:
    digits = key.removeprefix(_PREFIX)
    if not (digits.isascii() and digits.isdigit()):
        raise Malformed(f"{key} in the metadata store is no node's entry")
    return int(digits)
