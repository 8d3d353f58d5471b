"""Makes new copies of lost nodes' entries of a ledger, and names the new nodes.

The entries of a lost node are read from the other nodes, each copy is checked, and written to a
replacing node. Only then does a fragment name that node, by compare-and-set, so that readers find
the entries there. Before the first copy the metadata says that the node joins: if it loses its disk
before it is named, it marks the ledger when it starts with an empty disk. A repair that was cut
short begins again, and writes the entries once more.

Entries without a readable copy are passed over (`protocol.ledger_repair.unreadable`). The caller
hears of them before the new node is named. A copy of them may come back with the lost node: readers
look for it there, too (`stray_copies`).

Source: docs/protocol/ledgers.md; docs/sources/bookkeeper.md (d).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

from cordwood.client.cluster import Cluster
from cordwood.client.ledgers.copy_states import CopyStates
from cordwood.client.ledgers.entry_calls import add_again, one_run
from cordwood.client.ledgers.ledger_metadata_calls import LedgerMetadataCalls
from cordwood.client.ledgers.readable_ledger import ReadableLedger
from cordwood.client.ledgers.stray_copies import stray_entries
from cordwood.errors import Overloaded, Rejected, Retryable, TooFewNodes, Unreachable
from cordwood.layout.ledger_entry import EntrySeal, ledger_key_of
from cordwood.layout.message_ledgers import AddRefusal, EntryItem
from cordwood.ledger import LedgerMetadata, LedgerState, Versioned
from cordwood.nodes import Member, NodeId
from cordwood.protocol import ledger_repair as rule
from cordwood.protocol.ledger_check import MISSING_MAX, Copy
from cordwood.protocol.ledger_repair import LostPlace
from cordwood.quorum.ensemble import write_set
from cordwood.quorum.ensemble_choice import placement_of, windows_in_one

READ_AT_ONCE = 256

ADD_BYTES = 1 << 20
"""Bodies of one call; a larger entry goes alone."""

ADD_S = 10.0

CHANGES_MAX = 64
"""Changes of other clients that one change of a repair outlasts. Each of them is another fragment
of the writer, or a change of another repair."""

NAMED_MAX = 10
"""Entries that an error or a warning names."""

OnUnreadable = Callable[[Sequence[int], Collection[int]], Awaitable[object]]
"""Called with entries that a repair passes over, and lost nodes that may still have them."""

OnProgress = Callable[[int], object]
"""Called with the number of finished entries."""


class LedgerRepair:
    """See the module; of one ledger.

    Attributes:
        copied: number of entries that were written to other nodes.
        passed_over: the first entries without a readable copy, of places that got all others; at
            most MISSING_MAX.
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
        avoids: Collection[int] = (),
        on_unreadable: OnUnreadable | None = None,
    ) -> None:
        """
        Args:
            avoids: nodes that take no copies, but for those of `refills` in their own places.
            on_unreadable: see `Ledgers.repair`.
            on_progress: called with the number of copies that were made so far.
            refills: lost nodes that may be back with empty disks. If no other node takes entries of
                such a node, they are written to the node itself again.
            older: whether a ledger that is not closed is repaired, too: all fragments before its
                last one.
        """
        self._refills = refills
        self._avoids = avoids
        self._on_progress = on_progress
        self._on_unreadable = on_unreadable
        self._states = CopyStates(opened, cluster)
        self._silent: set[int] = set()
        self.passed_over: list[int] = []
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
            TooFewNodes: no other node takes the entries of a place: the other places are filled.
            Unreachable: an entry may have a copy on a node that does not answer: the other places
                are filled. Or entries have no readable copy, and nobody keeps a note of them: a
                place to which they belong gets no other node.
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
        failed: Retryable | None = None
        for place in rule.lost_places(metadata, self._is_lost):
            try:
                await self._repair(place)
            except (TooFewNodes, Unreachable) as error:
                failed = failed or error
        if failed is not None:
            raise failed
        after = await self._end()
        if not rule.is_finished(metadata, after.metadata, self._filled, self._is_lost):
            raise self._overtaken()
        if self.passed_over and self._on_unreadable is None:
            raise Unreachable(
                f"ledger {self._opened.ledger_id}: {entry_words(self.passed_over)} no readable "
                "copy; all other entries were copied"
            )

    async def _repair(self, place: LostPlace) -> None:
        """Replace a lost node in a fragment."""
        node, held = await self._joined(place)
        copying = _Copying(self._cluster, held.metadata, node)
        passed_over = await self._copy(place, held.metadata, copying)
        if passed_over and self._on_unreadable is not None:
            # Before the node is named: afterwards nothing would tell of these entries.
            await self._on_unreadable(passed_over, sorted(self._silent))
        if node != place.lost:
            await self._name(held, place, node, copying)
        self.passed_over = sorted({*self.passed_over, *passed_over})[:MISSING_MAX]
        self.moved[place.lost] = node
        self._filled.add(place._replace(lost=node))

    async def _joined(self, place: LostPlace) -> tuple[int, Versioned]:
        """The node that replaces a lost node in a fragment, and the metadata in which it joins."""
        held, known = self._opened.held, self.moved.get(place.lost)
        while True:
            fragment = rule.fragment_of(held.metadata, place)
            if fragment is None:
                raise self._overtaken()
            nodes = fragment.nodes
            if known is not None and self._may_take(known, place.place, nodes, held.metadata):
                node = known
            else:
                node = await self._choose(place.place, nodes, held.metadata)
            if node == place.lost:
                return node, held
            self._used.add(node)
            if node not in held.metadata.joining:
                held = await self._announce(held, place, node)
            if await self._calls.takes_copies(node):
                return node, held
            known = None

    async def _copy(
        self, place: LostPlace, metadata: LedgerMetadata, copying: _Copying
    ) -> list[int]:
        """Copy the entries of a place. Returns those without a readable copy, the first MISSING_MAX
        of them: a node that was empty may lack millions."""
        entries = rule.entries_of(place, metadata.striping)
        passed_over: list[int] = []
        at = 0
        while at < len(entries):
            wanted = entries[at : at + READ_AT_ONCE]
            bare: frozenset[int] = frozenset()
            try:
                # Where an entry was unreadable there may be thousands: do not wait for each.
                copies = await self._opened.copies(wanted, timeout_s=0 if passed_over else None)
            except Unreachable:
                bare = await self._unreadable(wanted)
                if bare and not rule.may_pass_over(
                    is_noted=self._on_unreadable is not None, is_refill=copying.node == place.lost
                ):
                    raise self._not_noted(sorted(bare)) from None
                copies = await self._opened.copies([each for each in wanted if each not in bare])
            await copying.write(copies)
            self.copied += len(copies)
            if self._on_progress is not None:
                self._on_progress(self.copied)
            # An entry that did not fit, and all after it, are read next.
            copied = {each.entry for each in copies} | bare
            done = next((n for n, each in enumerate(wanted) if each not in copied), len(wanted))
            passed_over += [each for each in wanted[:done] if each in bare]
            del passed_over[MISSING_MAX:]
            at += done
        return passed_over

    def _not_noted(self, entries: Sequence[int]) -> Unreachable:
        silent = ", ".join(map(str, sorted(self._silent)))
        may_have = f"; of lost nodes, {silent} may have one" if silent else ""
        return Unreachable(
            f"ledger {self._opened.ledger_id}: {entry_words(entries)} no readable copy{may_have}. "
            "This repair names no other nodes for the fragment, because nothing would tell then "
            "which nodes may have copies. Auto-recovery copies all other entries and notes these: "
            "see that it is on (`cordwood ledgers autorecovery on`)"
        )

    async def _unreadable(self, entries: Sequence[int]) -> frozenset[int]:
        """Those of some entries that the repair passes over.

        Raises:
            Unreachable: a node that may have one of them does not answer.
        """
        metadata = await self._opened.refresh()
        nodes = {
            entry: [metadata.nodes_at(entry)[each] for each in write_set(entry, metadata.striping)]
            for entry in entries
        }
        told = await self._states.ask_all(nodes, set())
        found = rule.unreadable(told, self._calls.is_lost)
        if found is None:
            # A node may have been silent because it has just started, or its disk is busy.
            await self._opened.copies(entries)
            return frozenset()
        # Trap: `copies` gives none of its entries if one of them is nowhere.
        found -= await stray_entries(self._cluster, metadata, sorted(found))
        for entry in found:
            self._silent |= {node for node, each in told[entry].items() if each is Copy.SILENT}
        return found

    async def _announce(self, held: Versioned, place: LostPlace, node: int) -> Versioned:
        """Say that a node gets copies, before the first one; the metadata then."""

        def joining(found: LedgerMetadata) -> LedgerMetadata:
            return found if node in found.joining else found.with_joining(node)

        async def may_join(found: LedgerMetadata) -> bool:
            return rule.may_join(found, place, node, was_closed=self._was_closed)

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
            may = rule.may_go_on(found, place, node, was_closed=self._was_closed)
            return may and await copying.is_kept()

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
        that client wrote: the writer may change its ensemble all the time. Of a closed ledger this
        holds for attempts at moving it to main storage alone.

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
            if is_written or rule.is_only_claimed(wanted, found.metadata):
                return found
            if self._was_closed and not rule.is_only_claimed(held.metadata, found.metadata):
                break
            if not await may_go_on(found.metadata):
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
        left_out = {*self._avoids}
        try:
            chosen = await self._calls.choose_soon(
                ring, write, taken={*taken, *left_out}, placement=placement
            )
        except TooFewNodes:
            if taken[place] not in self._refills:
                raise
            left_out.discard(taken[place])
            chosen = await self._calls.choose(ring, write, taken=left_out, placement=placement)
        return chosen[place]


def entry_words(entries: Sequence[int]) -> str:
    """Some entries, for a sentence that says what they have not. If there are MISSING_MAX of them,
    there may be more."""
    named = ", ".join(map(str, entries[:NAMED_MAX]))
    count = f"{len(entries) - NAMED_MAX} more" if len(entries) > NAMED_MAX else ""
    least = "at least " if len(entries) >= MISSING_MAX else ""
    more = f" and {least}{count}" if count else ""
    return f"entry {named} has" if len(entries) == 1 else f"entries {named}{more} have"


class _Copying:
    """Copies of a lost place that a node gets, and the runs of the node that took them."""

    def __init__(self, cluster: Cluster, metadata: LedgerMetadata, node: int) -> None:
        self._cluster = cluster
        self._metadata = metadata
        self.node = node
        self._runs: set[int] = set()
        self._last: Sequence[EntryItem] = ()

    async def write(self, copies: Sequence[EntryItem]) -> None:
        """Add copies to the node. Raises as `write_copies`."""
        # Trap: a batch may have no readable entry, and a call without copies tells no run. It would
        # count as a second one, and the repair of an open ledger would begin anew for ever.
        if not copies:
            return
        self._runs.add(await write_copies(self._cluster, self._metadata, self.node, copies))
        self._last = copies[-1:]

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
