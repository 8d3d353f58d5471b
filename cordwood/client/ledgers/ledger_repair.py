"""Makes new copies of lost nodes' entries of a closed ledger, and names the new nodes.

The entries of a lost node are read from the other nodes, each copy is checked, and written to a
replacing node. Only then does a fragment name that node, by compare-and-set, so that readers find
the entries there. Before the first copy the metadata says that the node joins: if it loses its disk
before it is named, it marks the ledger when it starts with an empty disk. A repair that was cut
short begins again, and writes the entries once more.

Source: docs/protocol/ledgers.md; docs/sources/bookkeeper.md (d).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from cordwood.client.cluster import Cluster
from cordwood.client.ledgers.entry_calls import add_again
from cordwood.client.ledgers.ledger_metadata_calls import LedgerMetadataCalls
from cordwood.client.ledgers.readable_ledger import ReadableLedger
from cordwood.errors import Overloaded, Rejected, TooFewNodes
from cordwood.layout.ledger_entry import EntrySeal, ledger_key_of
from cordwood.layout.message_ledgers import AddRefusal, EntryItem
from cordwood.ledger import LedgerMetadata, LedgerState, Versioned
from cordwood.nodes import Member, NodeId
from cordwood.quorum.ensemble import is_written_to
from cordwood.quorum.ensemble_choice import placement_of, windows_in_one

READ_AT_ONCE = 256

ADD_BYTES = 1 << 20
"""Bodies of one call; a larger entry goes alone."""

ADD_S = 10.0

OnProgress = Callable[[int], object]
"""Called with the number of finished entries."""


class LedgerRepair:
    """See the module; of one ledger.

    Attributes:
        copied: number of entries that were written to other nodes.
        moved: by lost node, the replacing node, over all fragments; the node itself if it was
            refilled.
    """

    def __init__(
        self,
        opened: ReadableLedger,
        calls: LedgerMetadataCalls,
        cluster: Cluster,
        is_lost: Callable[[int], bool],
        refills: Collection[int] = (),
        on_progress: OnProgress | None = None,
    ) -> None:
        """
        Args:
            on_progress: called with the number of copies that were made so far.
            refills: lost nodes that may be back with empty disks. If no other node takes entries of
                such a node, they are written to the node itself again.
        """
        self._refills = refills
        self._on_progress = on_progress
        self.copied = 0
        self.moved: dict[int, int] = {}
        self._opened = opened
        self._calls = calls
        self._cluster = cluster
        self._is_lost = is_lost

    async def run(self) -> None:
        """Repair every fragment.

        Raises:
            Rejected: the ledger is not closed, or another client changed it meanwhile.
            TooFewNodes: no other node takes entries.
            Unreachable: an entry has no readable copy, or a node does not answer.
        """
        if self._opened.metadata.state is not LedgerState.CLOSED:
            raise Rejected(
                f"ledger {self._opened.ledger_id} is not closed: recover it first, which shuts its "
                "writer out"
            )
        if self._opened.metadata.is_tiered:
            return  # main storage has the whole ledger, and nodes let go of it
        for number in range(len(self._opened.metadata.fragments)):
            for place in range(self._opened.metadata.striping.ensemble):
                if self._is_lost(self._opened.metadata.fragments[number].nodes[place]):
                    await self._repair(number, place)
        if self._opened.metadata.joining:
            await self._set(self._opened.held, self._opened.metadata.joined())

    async def _repair(self, number: int, place: int) -> None:
        """Replace a lost node."""
        held = self._opened.held
        metadata = held.metadata
        fragment = metadata.fragments[number]
        lost = fragment.nodes[place]
        known = self.moved.get(lost)
        if known is not None and self._may_take(known, place, fragment.nodes, metadata):
            node = known
        else:
            node = await self._choose(place, fragment.nodes, metadata)
        if node != lost and node not in metadata.joining:
            held = await self._announce(held, node)
            metadata = held.metadata
        later = metadata.fragments[number + 1 :]
        end = later[0].first - 1 if later else metadata.last
        entries = [
            entry
            for entry in range(fragment.first, end + 1)
            if is_written_to(place, entry, metadata.striping)
        ]
        at = 0
        while at < len(entries):
            copies = await self._opened.copies(entries[at : at + READ_AT_ONCE])
            await write_copies(self._cluster, self._opened.metadata, node, copies)
            self.copied += len(copies)
            if self._on_progress is not None:
                self._on_progress(self.copied)
            at += len(copies)
        if node == lost:
            self.moved[lost] = node
            return
        nodes = tuple(node if each == lost else each for each in fragment.nodes)
        fragments = [*metadata.fragments]
        fragments[number] = replace(fragment, nodes=nodes)
        await self._set(held, replace(metadata, fragments=tuple(fragments)))
        self.moved[lost] = node

    async def _announce(self, held: Versioned, node: int) -> Versioned:
        """Say that a node gets copies, before the first one; the metadata then."""
        return await self._set(held, held.metadata.with_joining(node))

    async def _set(self, held: Versioned, metadata: LedgerMetadata) -> Versioned:
        """Change the ledger as it was read.

        Raises:
            Rejected: another client has changed it.
        """
        found, is_written = await self._calls.set(held.version, metadata)
        await self._opened.refresh()
        # If the answer was lost, the write is recognised by its value.
        if not is_written and found.metadata != metadata:
            raise Rejected(
                f"another client changed ledger {metadata.ledger} meanwhile: repair it once more"
            )
        return found

    def _may_take(
        self, node: int, place: int, nodes: Sequence[int], metadata: LedgerMetadata
    ) -> bool:
        """Whether the node that replaced a lost node in another fragment may replace it here. This
        fragment has other members, and one of them may share its rack."""
        if node in nodes:
            return False
        members = self._cluster.members
        ring = [node if at == place else each for at, each in enumerate(nodes)]
        placed = [members.get(NodeId(each)) or Member(NodeId(each), "") for each in ring]
        return not windows_in_one(placed, metadata.striping.write, metadata.scope)

    async def _choose(self, place: int, taken: Sequence[int], metadata: LedgerMetadata) -> int:
        ring = [None if at == place else node for at, node in enumerate(taken)]
        write, placement = metadata.striping.write, placement_of(metadata)
        try:
            return (await self._calls.choose_soon(ring, write, taken=taken, placement=placement))[
                place
            ]
        except TooFewNodes:
            if taken[place] not in self._refills:
                raise
        return (await self._calls.choose(ring, write, placement=placement))[place]


async def write_copies(
    cluster: Cluster, metadata: LedgerMetadata, node: int, copies: Sequence[EntryItem]
) -> None:
    """Add entries of a ledger to a node as a recovery does: whole copies, which even a fenced node
    takes.

    Raises:
        Overloaded: the node refuses them.
        Unreachable: it does not answer in time.
    """
    some: list[EntryItem] = []
    size = 0
    for copy in copies:
        if some and size + len(copy.body) > ADD_BYTES:
            await _add(cluster, metadata, node, some)
            some, size = [], 0
        some.append(copy)
        size += len(copy.body)
    if some:
        await _add(cluster, metadata, node, some)


async def _add(
    cluster: Cluster, metadata: LedgerMetadata, node: int, items: list[EntryItem]
) -> None:
    seal = EntrySeal(metadata.ledger, metadata.digest, metadata.password)
    key = ledger_key_of(metadata.password)
    refusal = await add_again(cluster, node, metadata.ledger, key, seal, items, timeout_s=ADD_S)
    if refusal is not AddRefusal.NONE:
        raise Overloaded(f"node {node} does not take entries: {refusal}")
