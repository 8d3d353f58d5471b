"""Disks lost for ever at any time of a run, and an operator replacing them by empty disks.

Never more disks are lost at once than the copies survive: a disk counts as lost until its node is
readmitted. Nodes also crash, hang and are cut off as in any run, donors and receivers among them. A
node that is away for long is reported lost too, and some of these nodes come back with their data.

A node that comes back after its data was rebuilt refuses its old disk; the operator empties it.

Source: docs/protocol/rebuilding.md; docs/sources/logdevice.md 2.9.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

from cordwood.admin.ledger_autorecovery import LEASE_S
from cordwood.layout.rebuild_events import is_base, read_base, read_set
from cordwood.nodes import NodeId
from cordwood.rebuilding import Rebalancing, RebuildingSet
from cordwood.sim.cluster import SimCluster
from cordwood.sim.end_events import (
    DiskLost,
    DisksReplaced,
    EventSetsDiffer,
    LedgersLacking,
    OlderFragmentsLacking,
    RebalanceOver,
    StaleServed,
)
from cordwood.sim.history import HistoryRecorder
from cordwood.sim.ledger_copies import (
    OlderRepairs,
    is_marked,
    lacking_ledgers,
    lacking_open_ledgers,
)
from cordwood.sim.stored_tree import StoredTree

LOOK_S = 0.3
LOSE_S = 2.5
"""Mean time from the moment when a disk may be lost to its loss."""

HEALED_S = 90.0
"""Longest time of rebuilding when all else is well (L4)."""

LEDGERS_HEALED_S = LEASE_S + HEALED_S
"""The same for ledgers: the lease of a node that died in the middle of a repair ends first."""

REFUSED_S = 3.0
"""How long a node may try to start from a disk with rebuilt data before the operator looks."""

AWAY = (0.5, 2.5)
"""For how long the metadata store is away then, in times of `rebuild_after_s`."""

SET_KEY = "rebuilding/set"


class DiskLosses:
    """See the module.

    Attributes:
        lost: disks lost so far.
    """

    def __init__(
        self,
        cluster: SimCluster,
        recorder: HistoryRecorder,
        chance: random.Random,
        until_s: float,
        *,
        loses_metadata: bool = False,
        has_long_ledgers: bool = False,
    ) -> None:
        """
        Args:
            until_s: no disk is lost after this time.
            loses_metadata: whether the metadata store goes away with a disk.
            has_long_ledgers: whether ledgers stay open for the whole run.
        """
        self._older = OlderRepairs() if has_long_ledgers else None
        self._loses_metadata = loses_metadata
        self.lost = 0
        self._cluster = cluster
        self._recorder = recorder
        self._chance = chance
        self._until_s = until_s
        self._away: set[NodeId] = set()
        # Of the event log, where that is a log: the latest set that any node had.
        self._heard = RebuildingSet()
        self._differ: set[int] = set()
        # Of nodes that were reported empty: what ran then, and the disk that must not come back.
        self._unwanted: dict[NodeId, tuple[object, StoredTree]] = {}
        self._unwanted_s: dict[NodeId, float] = {}

    @property
    def rebuilding(self) -> RebuildingSet:
        """The rebuilding set: as the metadata store has it, or as any node has heard of it."""
        found = self._cluster.metadata.data.values.get(SET_KEY)
        if found is None:
            return RebuildingSet()
        if not is_base(found.value):
            return read_set(found.value)
        heard = [node._rebuild.set for _, node in sorted(self._cluster.running.items())]
        known = [self._heard, read_base(found.value).set, *heard]
        self._heard = max(known, key=lambda each: each.through)
        return self._heard

    @property
    def rebalancing(self) -> Rebalancing | None:
        """The last rebalance."""
        return self.rebuilding.rebalancing

    async def run(self) -> None:
        """Lose disks, and empty old disks once their data is rebuilt, until cancelled."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._chance.expovariate(1 / LOSE_S)
        while True:
            await asyncio.sleep(LOOK_S)
            self._let_go()
            self._watch_stale()
            self._compare_sets()
            if self._older is not None:
                self._older.look(self._cluster)
            for node in self._refused():
                self._empty(node)
            if is_marked(self._cluster):
                continue  # the ledgers that the last lost disk held are not repaired yet
            room = self._cluster.options.replication.copies - 1 - len(self._missing())
            if due_s <= loop.time() < self._until_s and room > 0:
                due_s = loop.time() + self._chance.expovariate(1 / LOSE_S)
                whole = [n for n in self._cluster.numbers if n not in self._missing()]
                node = self._chance.choice(whole)
                self._away.add(node)
                self.lost += 1
                self._empty(node)
                if self._loses_metadata:
                    self._lose_metadata()

    def _lose_metadata(self) -> None:
        """The metadata store goes away, mostly until the loss is said."""
        metadata, loop = self._cluster.metadata, asyncio.get_running_loop()
        metadata.is_out = True

        def back() -> None:
            metadata.is_out = False

        for_s = self._cluster.options.rebuild_after_s * self._chance.uniform(*AWAY)
        loop.call_at(min(loop.time() + for_s, self._until_s), back)

    def _compare_sets(self) -> None:
        """Note nodes that made different sets of the same records."""
        made: dict[int, tuple[int, RebuildingSet]] = {}
        for number, node in sorted(self._cluster.running.items()):
            follower = node._events.replicated._follower
            if follower is None or not follower.is_whole:
                continue
            other, found = made.setdefault(follower.record, (number, follower.set))
            if found != follower.set and follower.record not in self._differ:
                self._differ.add(follower.record)
                self._recorder.add(EventSetsDiffer(self._recorder.now_us, (other, number)))

    def _missing(self) -> set[NodeId]:
        """Nodes without their data: those of lost disks, and those that will soon be reported
        lost."""
        return self._away | {NodeId(each.node) for each in self.rebuilding.lost}

    def _let_go(self) -> None:
        """Nodes that run again after their disk was lost."""
        said = {each.node for each in self.rebuilding.lost}
        self._away -= {n for n in self._away if n in self._cluster.running and n not in said}

    def _watch_stale(self) -> None:
        """Note nodes that serve from the disk that they had before they were reported empty.

        Race: a node that ran at that time hears of the report later, and ends. A node that starts
        has heard of it.
        """
        for each in self.rebuilding.lost:
            node, tree = NodeId(each.node), self._cluster.machine(NodeId(each.node)).disk.tree
            is_anew = tree.content("/node/anew") == str(each.version).encode()
            is_old = tree.content("/node/identity") is not None and not is_anew
            if each.is_empty and is_old and not each.drain and node not in self._unwanted:
                self._unwanted[node] = self._cluster.running.get(node), tree
                self._unwanted_s[node] = asyncio.get_running_loop().time()
        for node, (before, tree) in list(self._unwanted.items()):
            if self._cluster.machine(node).disk.tree is not tree:
                del self._unwanted[node]
            elif (
                (now := self._cluster.running.get(node)) is not None
                and now is not before
                and not now.engine.unsure
            ):
                self._recorder.add(StaleServed(self._recorder.now_us, node))
                del self._unwanted[node]

    def _refused(self) -> Iterator[NodeId]:
        """Nodes whose old disk must not come back, as their data was rebuilt on other nodes."""
        for each in self.rebuilding.lost:
            node = NodeId(each.node)
            if not each.is_empty or node in self._cluster.running:
                continue
            tree = self._cluster.machine(node).disk.tree
            is_anew = tree.content("/node/anew") == str(each.version).encode()
            late_s = asyncio.get_running_loop().time() - self._unwanted_s.get(node, 0.0)
            if tree.content("/node/identity") is not None and not is_anew and late_s > REFUSED_S:
                yield node

    def _empty(self, node: NodeId) -> None:
        is_up = self._cluster.machine(node).is_up
        self._cluster.give_disk(node, StoredTree(), own=True)
        self._recorder.add(DiskLost(self._recorder.now_us, node))
        if is_up:
            self._cluster.start(node)

    async def wait_given(self) -> None:
        """Wait for the end of the last rebalance, because nodes are not idle before."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + HEALED_S
        while self._left() and loop.time() < ends_s:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    async def wait_older(self) -> None:
        """Wait until the older fragments of all open ledgers are repaired, and note those that are
        not. The writers go on meanwhile."""
        if self._older is None:
            return
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + LEDGERS_HEALED_S
        lacking = await lacking_open_ledgers(self._cluster)
        while (self._is_away() or lacking) and loop.time() < ends_s:
            await asyncio.sleep(LOOK_S)
            lacking = await lacking_open_ledgers(self._cluster)
        repaired, gone_on = sorted(self._older.repaired), sorted(self._older.gone_on)
        self._recorder.add(OlderFragmentsLacking(
            self._recorder.now_us, tuple(lacking), tuple(repaired), tuple(gone_on)
        ))  # fmt: skip

    async def wait_healed(self) -> None:
        """Wait until no data is lost any more, and note what still is."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while self._is_hurt() and loop.time() < began_s + HEALED_S:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        while is_marked(self._cluster) and loop.time() < began_s + LEDGERS_HEALED_S:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        waits = tuple(sorted({*self._away, *(each.node for each in self.rebuilding.lost)}))
        self._recorder.add(DisksReplaced(self._recorder.now_us, self.lost, waits))
        if self.rebalancing is not None:
            self._recorder.add(RebalanceOver(self._recorder.now_us, self._left()))
        lacking = tuple(await lacking_ledgers(self._cluster))
        marked = is_marked(self._cluster)
        self._recorder.add(LedgersLacking(self._recorder.now_us, marked, lacking))

    def _is_hurt(self) -> bool:
        return self._is_away() or bool(self._left()) or is_marked(self._cluster)

    def _is_away(self) -> bool:
        return bool(self.rebuilding.lost or self._away)

    def _left(self) -> tuple[int, ...]:
        """Nodes that have not yet given away their part in the last rebalance."""
        return self.rebalancing.left if self.rebalancing is not None else ()
