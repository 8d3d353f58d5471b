"""Makes new copies of lost nodes' entries of a ledger, and names the new nodes.

The entries of a lost node are read from the other nodes, each copy is checked, and written to a
replacing node. Only then does a fragment name that node, by compare-and-set, so that readers find
the entries there. Before the first copy the metadata says that the node joins: if it loses its disk
before it is named, it marks the ledger when it starts with an empty disk. A repair that was cut
short begins again, and writes the entries once more.

Source: docs/protocol/ledgers.md; docs/sources/bookkeeper.md (d).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

from cordwood.client.cluster import Cluster
from cordwood.client.ledgers.entry_calls import add_again, one_run
from cordwood.client.ledgers.ledger_metadata_calls import LedgerMetadataCalls
from cordwood.client.ledgers.readable_ledger import ReadableLedger
from cordwood.errors import Overloaded, Rejected, TooFewNodes
from cordwood.layout.ledger_entry import EntrySeal, ledger_key_of
from cordwood.layout.message_ledgers import AddRefusal, EntryItem
from cordwood.ledger import LedgerMetadata, LedgerState, Versioned
from cordwood.nodes import Member, NodeId
from cordwood.protocol import ledger_repair as rule
from cordwood.protocol.ledger_repair import LostPlace
from cordwood.quorum.ensemble_choice import placement_of, windows_in_one

READ_AT_ONCE = 256

ADD_BYTES = 1 << 20
"""Bodies of one call; a larger entry goes alone."""

ADD_S = 10.0

CHANGES_MAX = 64
"""Changes of other clients that one change of a repair outlasts. Each of them is another fragment
of the writer, or a change of another repair."""

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
        is_lost: rule.IsLost,
        refills: Collection[int] = (),
        on_progress: OnProgress | None = None,
        *,
        older: bool = False,
    ) -> None:
        """
        Args:
            on_progress: called with the number of copies that were made so far.
            refills: lost nodes that may be back with empty disks. If no other node takes entries of
                such a node, they are written to the node itself again.
            older: whether a ledger that is not closed is repaired, too: all fragments before its
                last one.
        """
        self._refills = refills
        self._on_progress = on_progress
        self.copied = 0
        self.moved: dict[int, int] = {}
        self._opened = opened
        self._calls = calls
        self._cluster = cluster
        self._is_lost = is_lost
        self._older = older
        self._was_closed = opened.metadata.state is LedgerState.CLOSED
        self._used: set[int] = set()
        self._filled: set[LostPlace] = set()

    async def run(self) -> None:
        """Repair every fragment, or those before the last of a ledger that is not closed.

        Raises:
            Rejected: the ledger is not closed, or another client changed it meanwhile in a way that
                the repair cannot go on with.
            TooFewNodes: no other node takes entries.
            Unreachable: an entry has no readable copy, or a node does not answer.
        """
        metadata = self._opened.metadata
        if not (self._was_closed or self._older):
            raise Rejected(
                f"ledger {self._opened.ledger_id} is not closed: recover it first, which shuts its "
                "writer out"
            )
        if metadata.is_tiered:
            return  # main storage has the whole ledger, and nodes let go of it
        # An entry that no node has is then reported as unreadable, and not as one that may never
        # have been confirmed.
        self._opened._raise_to(metadata.settled_last)
        for place in rule.lost_places(metadata, self._is_lost):
            await self._repair(place)
        after = await self._end()
        if not rule.is_finished(metadata, after.metadata, self._filled, self._is_lost):
            raise self._overtaken()

    async def _repair(self, place: LostPlace) -> None:
        """Replace a lost node in a fragment."""
        held = self._opened.held
        fragment = rule.fragment_of(held.metadata, place)
        if fragment is None:
            raise self._overtaken()
        known = self.moved.get(place.lost)
        if known is not None and self._may_take(known, place.place, fragment.nodes, held.metadata):
            node = known
        else:
            node = await self._choose(place.place, fragment.nodes, held.metadata)
        if node != place.lost:
            self._used.add(node)
            if node not in held.metadata.joining:
                held = await self._announce(held, place, node)
        copying = _Copying(self._cluster, held.metadata, node)
        entries = rule.entries_of(place, held.metadata.striping)
        at = 0
        while at < len(entries):
            copies = await self._opened.copies(entries[at : at + READ_AT_ONCE])
            await copying.write(copies)
            self.copied += len(copies)
            if self._on_progress is not None:
                self._on_progress(self.copied)
            at += len(copies)
        if node != place.lost:
            await self._name(held, place, node, copying)
        self.moved[place.lost] = node
        self._filled.add(place._replace(lost=node))

    async def _announce(self, held: Versioned, place: LostPlace, node: int) -> Versioned:
        """Say that a node gets copies, before the first one; the metadata then."""

        def joining(found: LedgerMetadata) -> LedgerMetadata:
            return found if node in found.joining else found.with_joining(node)

        async def may_join(found: LedgerMetadata) -> bool:
            return rule.may_join(found, place, node)

        return await self._change(held, joining, may_join)

    async def _name(self, held: Versioned, place: LostPlace, node: int, copying: _Copying) -> None:
        """Name the replacing node, which has all its copies.

        Args:
            held: the metadata from before the first copy, in which the node joins.
        """

        def named(found: LedgerMetadata) -> LedgerMetadata:
            if rule.is_named(found, place, node):
                return found
            return found.with_node(place.first, place.place, node)

        async def may_go_on(found: LedgerMetadata) -> bool:
            if rule.is_named(found, place, node):
                return True
            # Race: between the two versions of the metadata the node may have joined no more, lost
            # its disk without a mark, and joined again. The present version says that it joins, and
            # the node says after that version was read that it runs on. So it loses its disk later
            # than this, if at all, and is looked for then.
            return rule.may_go_on(found, place, node) and await copying.is_kept()

        await self._change(held, named, may_go_on)

    async def _end(self) -> Versioned:
        def ended(found: LedgerMetadata) -> LedgerMetadata:
            return rule.ended(found, self._used, self._is_lost, was_closed=self._was_closed)

        async def always(_: LedgerMetadata) -> bool:
            return True

        return await self._change(self._opened.held, ended, always)

    async def _change(
        self,
        held: Versioned,
        changed: Callable[[LedgerMetadata], LedgerMetadata],
        may_go_on: Callable[[LedgerMetadata], Awaitable[bool]],
    ) -> Versioned:
        """Change the ledger as it was read. Returns the metadata then.

        If another client has changed a ledger that was not closed, the change is applied to what
        that client wrote: the writer may change its ensemble all the time.

        Args:
            may_go_on: whether the change still stands with the metadata that was found.
        Raises:
            Rejected: another client has changed it, and the change does not stand.
        """
        for _ in range(CHANGES_MAX):
            wanted = changed(held.metadata)
            if wanted == held.metadata:
                return held
            found, is_written = await self._calls.set(held.version, wanted)
            await self._opened.refresh()
            # If the answer was lost, the write is recognised by its value.
            if is_written or found.metadata == wanted:
                return found
            if self._was_closed or not await may_go_on(found.metadata):
                break
            held = found
        raise self._overtaken()

    def _overtaken(self) -> Rejected:
        return Rejected(
            f"another client changed ledger {self._opened.ledger_id} meanwhile: repair it once more"
        )

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


class _Copying:
    """Copies of a lost place that a node gets, and the runs of the node that took them."""

    def __init__(self, cluster: Cluster, metadata: LedgerMetadata, node: int) -> None:
        self._cluster = cluster
        self._metadata = metadata
        self._node = node
        self._runs: set[int] = set()
        self._last: Sequence[EntryItem] = ()

    async def write(self, copies: Sequence[EntryItem]) -> None:
        """Add copies to the node. Raises as `write_copies`."""
        self._runs.add(await write_copies(self._cluster, self._metadata, self._node, copies))
        self._last = copies[-1:] or self._last

    async def is_kept(self) -> bool:
        """Whether the node has not started anew since the first copy: it answers a repeat of the
        last one in the same run. A node of an older version tells no run, and has to be filled
        again."""
        if not self._last:
            return True
        await self.write(self._last)
        return one_run(self._runs) != 0


async def write_copies(
    cluster: Cluster, metadata: LedgerMetadata, node: int, copies: Sequence[EntryItem]
) -> int:
    """Add entries of a ledger to a node as a recovery does: whole copies, which even a fenced node
    takes. Returns the run of the node, 0 if it is not known or if there were two.

    Raises:
        Overloaded: the node refuses them.
        Unreachable: it does not answer in time.
    """
    some: list[EntryItem] = []
    size = 0
    runs: set[int] = set()
    for copy in copies:
        if some and size + len(copy.body) > ADD_BYTES:
            runs.add(await _add(cluster, metadata, node, some))
            some, size = [], 0
        some.append(copy)
        size += len(copy.body)
    if some:
        runs.add(await _add(cluster, metadata, node, some))
    return one_run(runs)


async def _add(
    cluster: Cluster, metadata: LedgerMetadata, node: int, items: list[EntryItem]
) -> int:
    seal = EntrySeal(metadata.ledger, metadata.digest, metadata.password)
    key = ledger_key_of(metadata.password)
    added = await add_again(cluster, node, metadata.ledger, key, seal, items, timeout_s=ADD_S)
    if added.refusal is not AddRefusal.NONE:
        raise Overloaded(f"node {node} does not take entries: {added.refusal}")
    return added.run
