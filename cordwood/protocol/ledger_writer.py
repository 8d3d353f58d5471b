"""The writer of a ledger: which entry goes where, when it is acknowledged, and what ends it.

The writer numbers entries, sends each to its write set, and acknowledges them in their order, each
once Qa members of the *current* ensemble have it. A member that fails an entry is replaced: the
writer asks for other nodes, and writes to the metadata store that a new fragment begins at LAC+1.
Until that is written nothing is acknowledged. A recovery reads the metadata to know which nodes to
fence, so an entry that only new nodes have would be lost (BookKeeper #1591).

Three things can end a writer: its close, by compare-and-set, at the LAC; a fence, of which a node
or the metadata tells; and a failure (too few nodes, a quorum that does not answer in time), after
which it closes the ledger itself. An entry without an acknowledgement then has one of two outcomes.
If the writer's own close won, the entry is not in the ledger and never will be. In every other case
the outcome is unknown: a recovery may have kept the entry.

With *deferred sync* nodes acknowledge before the entry is on their disks. The LAC then moves only
with a force, which all E nodes answer, and an ensemble cannot change. A node that starts again may
have lost entries that it acknowledged, and answers the next force all the same, because it does not
know of them. So each answer tells the *run* of the node, and a node with two runs ends the writer.

A rule: events in, effects out. Each event returns its effects, in the order in which they are done.

Source: docs/sources/bookkeeper.md (a), (b); docs/design.md §3.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cordwood.ledger import (
    NO_ENTRY,
    LedgerMetadata,
    LedgerState,
    Versioned,
    fragments_max,
    has_last_nodes,
    is_only_repaired,
)
from cordwood.protocol.ledger_effects import FATAL as FATAL
from cordwood.protocol.ledger_effects import Acked as Acked
from cordwood.protocol.ledger_effects import Effect as Effect
from cordwood.protocol.ledger_effects import End as End
from cordwood.protocol.ledger_effects import Ended as Ended
from cordwood.protocol.ledger_effects import Failed as Failed
from cordwood.protocol.ledger_effects import Forced as Forced
from cordwood.protocol.ledger_effects import Outcome as Outcome
from cordwood.protocol.ledger_effects import PickNodes as PickNodes
from cordwood.protocol.ledger_effects import Refusal as Refusal
from cordwood.protocol.ledger_effects import SendEntries as SendEntries
from cordwood.protocol.ledger_effects import SendEntry as SendEntry
from cordwood.protocol.ledger_effects import SendForce as SendForce
from cordwood.protocol.ledger_effects import SendLac as SendLac
from cordwood.protocol.ledger_effects import WriteMetadata as WriteMetadata
from cordwood.quorum.ensemble import bits_of, write_set, write_sets


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Bounds of a writer.

    Attributes:
        entries_max, bytes_max: of entries that some node has not answered, those that are
            acknowledged already included: with Qw > Qa a slow node leaves them behind.
        quorum_timeout_s: an entry may wait so long for Qa nodes; None for ever.
        changes_max: of the ensemble; None for any number.
        delays_change: a node is replaced only when an entry cannot get Qa otherwise, or when it
            is read-only or lost while another node can take its place.
        defers_sync: see the module.
    """

    entries_max: int = 5000
    bytes_max: int = 64 << 20
    quorum_timeout_s: float | None = None
    changes_max: int | None = None
    delays_change: bool = False
    defers_sync: bool = False


class Phase(enum.Enum):
    """What the writer waits for."""

    WRITING = "entries"
    PICKING = "nodes for a new ensemble"
    CHANGING = "the metadata of a new ensemble"
    CLOSING = "the metadata of the close"
    ENDED = "nothing"


_CLOSING, _ENDED = Phase.CLOSING, Phase.ENDED


@dataclass(slots=True)
class _Add:
    """An entry. Sets of places are bits, 1 for the first: thousands of entries are on their way,
    and three sets for each took more time than all else here."""

    size: int
    length: int
    lac: int
    began: float
    waits: int
    """Places that it was sent to and that have not answered."""
    stored: int = 0
    failed: int = 0


@dataclass(slots=True)
class _Force:
    through: int
    length: int
    waits: set[int]


class LedgerWriter:
    """See the module.

    Attributes:
        lac: the highest entry that is confirmed, with all below it.
        head: the highest entry that is acknowledged; above the LAC only under deferred sync.
        pushed: the highest entry that was added.
        length: bytes of all payloads up to the LAC.
    """

    def __init__(self, held: Versioned, limits: WriterLimits) -> None:
        assert held.metadata.state is LedgerState.OPEN, "a ledger is written as it is created"
        self.lac = self.head = self.pushed = NO_ENTRY
        self.length = 0
        self.phase = Phase.WRITING
        self._held = held
        self._limits = limits
        self._striping = held.metadata.striping
        # By the remainder of an entry's id by E.
        self._write_sets = write_sets(self._striping)
        self._head_length = self._pushed_length = 0
        # The ensemble as it was looked up last, and the place of each node in it.
        self._placed: tuple[tuple[int, ...], dict[int, int]] = ((), {})
        self._adds: dict[int, _Add] = {}
        self._slow: dict[int, _Add] = {}
        self._bytes = 0
        self._failed: dict[int, int] = {}
        self._late: dict[int, int] = {}
        self._asked: set[int] = set()
        self._kept: set[int] = set()
        self._changes = 0
        self._proposed = held.metadata
        self._asked_to_end: End | None = None
        self._forces: dict[int, _Force] = {}
        self._force_count = 0
        # By place, the run of the node there, as its first answer told it.
        self._runs: dict[int, int] = {}
        self._told_lac = self._lac_at_tick = NO_ENTRY
        # Nodes that were told this LAC in vain.
        self._untold: set[int] = set()

    @property
    def metadata(self) -> LedgerMetadata:
        """As the writer last wrote or read it."""
        return self._held.metadata

    @property
    def ensemble(self) -> tuple[int, ...]:
        """The nodes of the newest fragment, in their places."""
        return self._held.metadata.newest.nodes

    @property
    def is_open(self) -> bool:
        """Whether entries are taken: not after the end, nor when it has been decided."""
        phase = self.phase
        return self._asked_to_end is None and phase is not _CLOSING and phase is not _ENDED

    @property
    def has_room(self) -> bool:
        """Whether another entry may be added; a single entry may always be on its way."""
        return self.has_room_behind(0, 0)

    def has_room_behind(self, count: int, size: int) -> bool:
        """As `has_room`, once `count` entries of `size` bytes in all will have been added."""
        entries, held = self.room
        return count < entries and size < held

    @property
    def room(self) -> tuple[int, int]:
        """The entries and the bytes that still fit. Another entry needs both above 0."""
        count, limits = len(self._adds) + len(self._slow), self._limits
        if not count:
            return max(1, limits.entries_max), max(1, limits.bytes_max)
        return limits.entries_max - count, limits.bytes_max - self._bytes

    # Entries.

    def on_add(self, sizes: Sequence[int], now: float) -> list[Effect]:
        """Entries of these sizes are added, the ids of which follow `pushed`; there is room for the
        last of them."""
        assert self.is_open, "the writer has ended, or is about to"
        assert self.has_room_behind(len(sizes) - 1, sum(sizes[:-1])), (
            "too many entries are on their way"
        )
        adds, lac, length, sets = self._adds, self.lac, self._pushed_length, self._write_sets
        first, count = self.pushed + 1, len(sets)
        for entry, size in enumerate(sizes, first):
            length += size
            adds[entry] = _Add(size, length, lac, now, sets[entry % count])
        self.pushed += len(sizes)
        self._bytes += length - self._pushed_length
        self._pushed_length = length
        if lac > self._told_lac:
            self._told_lac = lac
            self._untold.clear()
        effects: list[Effect] = []
        is_of_all = self._striping.write == self._striping.ensemble
        added = range(first, self.pushed + 1)
        for place in self._places_from(first):
            entries = added if is_of_all else self._written_to(place, added)
            if entries:
                effects.append(SendEntries(entries, self.ensemble[place], lac))
        # A node that failed an entry after its ack is dealt with when there is a new entry.
        self._failed |= self._late
        self._late.clear()
        return effects + self._go_on()

    def on_stored(self, node: int, *entries: int, run: int = 0) -> list[Effect]:
        """A node confirmed entries, in this run of it. A node that is no member any more counts
        for nothing."""
        place = self._place(node)
        if place is None or self.phase is Phase.ENDED:
            return []
        if not self._is_same_run(place, run):
            return self._close(End.WRITE_FAILED)
        adds, sets, bit = self._adds, self._write_sets, 1 << place
        count = len(sets)
        for entry in entries:
            add = adds.get(entry)
            # It is acknowledged already: with Qw > Qa the last node answers late.
            if add is None:
                self._answered_late(entry, bit)
            elif sets[entry % count] & bit:
                add.waits &= ~bit
                add.failed &= ~bit
                add.stored |= bit
        return self._complete()

    def _places_from(self, entry: int) -> Iterator[int]:
        """All places, those first that an entry goes to, in the order of the ring."""
        count = self._striping.ensemble
        return ((entry + k) % count for k in range(count))

    def _written_to(self, place: int, entries: Sequence[int]) -> Sequence[int]:
        """Those of some entries that go to a place."""
        sets, bit, count = self._write_sets, 1 << place, self._striping.ensemble
        return [entry for entry in entries if sets[entry % count] & bit]

    def on_failed(self, entry: int, node: int, refusal: Refusal) -> list[Effect]:
        """A node did not store an entry, or did not say so in time."""
        if self.phase in (Phase.CLOSING, Phase.ENDED):
            # The metadata decides now, and says more than a node could.
            return []
        if refusal in FATAL:
            # Also where an old member says so: a fence is a fence.
            return self._end(End.FENCED if refusal is Refusal.FENCED else End.DENIED)
        place = self._place(node)
        if place is None:
            return []
        if refusal is Refusal.TOO_LARGE:
            # Without this, other nodes would be asked in turn, for ever. The entry has no quorum.
            return self._close(End.TOO_LARGE)
        # Under deferred sync no copy is known to be on a disk, so a lost member cannot be replaced
        # from the others.
        if self._limits.defers_sync:
            return self._close(End.WRITE_FAILED)
        add, bit = self._adds.get(entry), 1 << place
        is_replaced = refusal is Refusal.READ_ONLY or not self._limits.delays_change
        if add is None:
            if self._answered_late(entry, bit) and is_replaced:
                self._late[place] = node
            return []
        if not add.waits & bit:
            return []
        add.waits &= ~bit
        add.failed |= bit
        spare = self._striping.write - self._striping.ack
        if is_replaced or add.failed.bit_count() > spare:
            for each in range(self._striping.ensemble):
                if add.failed & 1 << each:
                    self._failed[each] = self.ensemble[each]
        return self._go_on()

    def on_time(self, now: float) -> list[Effect]:
        """Time has passed: an entry may have waited too long for its quorum."""
        timeout = self._limits.quorum_timeout_s
        oldest = next(iter(self._adds.values()), None)
        if timeout is None or oldest is None or not self.is_open or now - oldest.began < timeout:
            return []
        return self._close(End.TIMED_OUT)

    def _send_again(self, entry: int, add: _Add, places: int) -> list[Effect]:
        """Send an entry to those of these places that are of its write set and lack it."""
        effects: list[Effect] = []
        lacking = places & ~(add.stored | add.waits)
        for place in write_set(entry, self._striping) if lacking else ():
            bit = 1 << place
            if lacking & bit:
                add.waits |= bit
                add.failed &= ~bit
                effects.append(SendEntry(entry, self.ensemble[place], add.lac))
        return effects

    def _place(self, node: int) -> int | None:
        nodes = self.ensemble
        if nodes is not self._placed[0]:
            self._placed = nodes, {each: place for place, each in enumerate(nodes)}
        return self._placed[1].get(node)

    def _answered_late(self, entry: int, bit: int) -> bool:
        """A member answered for an entry that is acknowledged; whether it was waited for."""
        add = self._slow.get(entry)
        if add is None or not add.waits & bit:
            return False
        add.waits &= ~bit
        self._forget_if_answered(entry, add)
        return True

    def _forget_if_answered(self, entry: int, add: _Add) -> None:
        if not add.waits:
            del self._slow[entry]
            self._bytes -= add.size

    def _is_same_run(self, place: int, run: int) -> bool:
        """Whether the node at a place has not started anew since its first answer."""
        return not self._limits.defers_sync or self._runs.setdefault(place, run) == run

    # Acks.

    def _may_ack(self) -> bool:
        """Nothing is acknowledged while an ensemble changes, nor once the end is decided."""
        return self.phase is Phase.WRITING

    def _is_stored(self, entry: int, add: _Add) -> bool:
        sets = self._write_sets
        return (add.stored & sets[entry % len(sets)]).bit_count() >= self._striping.ack

    def _complete(self) -> list[Effect]:
        """Acknowledge from the oldest entry on, as far as entries are stored.

        A stored entry waits for the entries before it. Meanwhile a change of the ensemble may
        take away one of its copies, so its copies are counted here and not before.
        """
        if not self._may_ack():
            return []
        ready: list[tuple[int, _Add]] = []
        for entry, add in self._adds.items():
            # Acknowledgements follow the order of entries: the LAC covers all entries below it.
            if not self._is_stored(entry, add):
                break
            ready.append((entry, add))
        if not ready:
            return []
        for entry, add in ready:
            del self._adds[entry]
            self._slow[entry] = add
            self._forget_if_answered(entry, add)
        first, (self.head, last) = ready[0][0], ready[-1]
        self._head_length = last.length
        if not self._limits.defers_sync:
            self.lac, self.length = self.head, self._head_length
        return [Acked(first, self.head)]

    # A change of the ensemble.

    def _go_on(self) -> list[Effect]:
        """Ask for nodes where some failed and no change is under way."""
        if self.phase is not Phase.WRITING or not self._failed:
            return []
        self._asked = {*self._failed}
        if not self._may_change():
            return self._stay(End.TOO_MANY_CHANGES)
        self.phase = Phase.PICKING
        return [PickNodes(tuple(sorted(self._asked)), self.ensemble)]

    def _may_change(self) -> bool:
        """Whether another fragment is within the limits, and leaves room for the ledger's end."""
        limit = self._limits.changes_max
        is_within = limit is None or self._changes < limit
        return is_within and len(self._held.metadata.fragments) < fragments_max(self._striping)

    def on_nodes_picked(self, nodes: Mapping[int, int]) -> list[Effect]:
        """Nodes for places of the ensemble, for as many as there are.

        A place without another node keeps the node that it has, and is tried again.
        """
        if self.phase is not Phase.PICKING:
            return []
        assert nodes.keys() <= self._asked, "only a failed member is replaced"
        if not nodes:
            return self._stay(End.TOO_FEW_NODES)
        ensemble = tuple(nodes.get(place, node) for place, node in enumerate(self.ensemble))
        # A place that keeps its node is sent the entries again: its failure may have passed.
        self._kept = self._asked - nodes.keys()
        # A member that failed since the nodes were asked for has its turn after this change.
        self._failed = {p: n for p, n in self._failed.items() if p not in self._asked}
        self._changes += 1
        return self._propose(self._held, ensemble)

    def _stay(self, end: End) -> list[Effect]:
        """The ensemble cannot change: close, unless change is delayed and no entry needs it."""
        # Race: the node that was to replace a member has another place by now, or is gone.
        spare = self._striping.write - self._striping.ack
        is_at_stake = any(add.failed.bit_count() > spare for add in self._adds.values())
        if is_at_stake or not self._limits.delays_change:
            return self._close(end)
        self.phase = Phase.WRITING
        self._failed = {p: n for p, n in self._failed.items() if p not in self._asked}
        return self._complete() + self._go_on()

    def _propose(self, held: Versioned, ensemble: tuple[int, ...]) -> list[Effect]:
        """Write that a fragment of these nodes begins at LAC+1; a fragment that begins there
        already has nothing that was acknowledged, and is replaced."""
        self.phase = Phase.CHANGING
        self._proposed = held.metadata.with_ensemble(self.lac + 1, ensemble)
        return [WriteMetadata(held.version, self._proposed)]

    def _switch(self, held: Versioned) -> list[Effect]:
        """The new ensemble is written: go over to it, and send the entries that it lacks."""
        before = self.ensemble
        self._held = held
        self.phase = Phase.WRITING
        both = enumerate(zip(before, self.ensemble, strict=True))
        changed = bits_of(place for place, (a, b) in both if a != b)
        sent_to = changed | bits_of(self._kept)
        # A node that failed again, or another node, while the metadata was on its way.
        self._failed = {p: n for p, n in self._failed.items() if self.ensemble[p] == n}
        self._late = {p: n for p, n in self._late.items() if self.ensemble[p] == n}
        for entry, add in list(self._slow.items()):
            add.waits &= ~changed
            self._forget_if_answered(entry, add)
        effects: list[Effect] = []
        for entry, add in self._adds.items():
            # A copy on a node that was replaced counts no more: no reader will ask that node.
            add.stored &= ~changed
            add.waits &= ~changed
            effects += self._send_again(entry, add, sent_to)
        effects += self._complete()
        if self._asked_to_end is not None:
            return effects + self._close(self._asked_to_end)
        return effects + self._go_on()

    # Metadata.

    def on_metadata_written(self, version: int) -> list[Effect]:
        """The compare-and-set was taken."""
        held = Versioned(self._proposed, version)
        if self.phase is Phase.CHANGING:
            return self._switch(held)
        if self.phase is Phase.CLOSING:
            self._held = held
            return self._finish()
        return []

    def on_metadata_found(self, held: Versioned) -> list[Effect]:
        """The compare-and-set lost, or its answer was lost; this is the present metadata."""
        if self.phase is Phase.CHANGING:
            return self._found_while_changing(held)
        if self.phase is Phase.CLOSING:
            return self._found_while_closing(held)
        return self.on_metadata_changed(held)

    def on_metadata_changed(self, held: Versioned) -> list[Effect]:
        """Newer metadata, which this writer did not write."""
        if self.phase is Phase.ENDED or held.version <= self._held.version:
            return []
        if held.metadata.state is LedgerState.CLOSED and self.phase is not Phase.CLOSING:
            return self._end(End.CLOSED_BY_OTHER)
        if held.metadata.state is LedgerState.IN_RECOVERY and self.phase is not Phase.CLOSING:
            return self._end(End.FENCED)
        return []

    def _found_while_changing(self, held: Versioned) -> list[Effect]:
        found = held.metadata
        if found.state is LedgerState.CLOSED:
            return self._end(End.CLOSED_BY_OTHER)
        if found.state is LedgerState.IN_RECOVERY:
            return self._end(End.FENCED)
        if found.newest == self._proposed.newest:
            # This is its own write; the answer was lost.
            return self._switch(held)
        if is_only_repaired(self._held.metadata, found):
            # A repair of older fragments came between. Its new nodes stay: the change begins from
            # what was found.
            return self._propose(held, self._proposed.newest.nodes)
        return self._end(End.FENCED)

    def _found_while_closing(self, held: Versioned) -> list[Effect]:
        found = held.metadata
        if found.state is LedgerState.CLOSED:
            # Our own close, of which the answer was lost; or a recovery that found the same end.
            if (found.last, found.length) == (self.lac, self.length):
                self._held = held
                return self._finish()
            return self._end(End.CLOSED_BY_OTHER)
        if not has_last_nodes(self._held.metadata, found, self.lac):
            return self._end(End.FENCED)
        # A recovery that has begun takes over the end that it finds, so the writer may set it: it
        # acknowledges nothing any more.
        return self._write_close(held)

    # The end.

    def on_close(self) -> list[Effect]:
        """Close the ledger at its LAC; entries without an acknowledgement are left out."""
        return self._close(End.CLOSED) if self.is_open else []

    def _close(self, end: End) -> list[Effect]:
        """Close the ledger for this reason. A change under way comes to its end first: two
        writes of one version would leave open which of them counts."""
        if self._asked_to_end is None:
            self._asked_to_end = end
        if self.phase in (Phase.WRITING, Phase.PICKING):
            return self._write_close(self._held)
        return []

    def _write_close(self, held: Versioned) -> list[Effect]:
        self.phase = Phase.CLOSING
        # At the LAC, and not at the last entry sent: entries above it were never acknowledged.
        self._proposed = held.metadata.closed(self.lac, self.length)
        return [WriteMetadata(held.version, self._proposed)]

    def _finish(self) -> list[Effect]:
        """The ledger is closed at the LAC, by this writer."""
        assert self._asked_to_end is not None
        return self._stop(self._asked_to_end, Outcome.NOT_STORED)

    def _end(self, end: End) -> list[Effect]:
        """Another client decides where the ledger ends."""
        return self._stop(end, Outcome.UNKNOWN)

    def _stop(self, end: End, outcome: Outcome) -> list[Effect]:
        self.phase = Phase.ENDED
        # Every entry gets an outcome, and only one.
        effects: list[Effect] = [Failed(entry, outcome) for entry in self._adds]
        self._adds.clear()
        self._slow.clear()
        self._forces.clear()
        self._bytes = 0
        return [*effects, Ended(end, self.lac, self.length)]

    # The LAC.

    def on_lac_tick(self) -> list[Effect]:
        """Tell the LAC to the nodes where no entry has told it since the last tick."""
        is_quiet = self.lac == self._lac_at_tick
        self._lac_at_tick = self.lac
        if not is_quiet or self.phase is Phase.ENDED:
            return []
        if self.lac > self._told_lac:
            self._told_lac, self._untold = self.lac, {*self.ensemble}
        untold, self._untold = self._untold, set()
        return [SendLac(node, self._told_lac) for node in self.ensemble if node in untold]

    def on_lac_failed(self, node: int, lac: int) -> None:
        """A node did not take a LAC: it is told again. Of a quiet ledger nothing else says how
        far it is confirmed, so readers would wait for its last entries until its end."""
        if lac == self._told_lac:
            self._untold.add(node)

    def on_force(self) -> list[Effect]:
        """Have all acknowledged entries on the disks. Without deferred sync they are there."""
        assert self.is_open, "the writer has ended, or is about to"
        self._force_count += 1
        force = self._force_count
        if self.head <= self.lac:
            return [Forced(force, self.lac)]
        everybody = {*range(self._striping.ensemble)}
        self._forces[force] = _Force(self.head, self._head_length, everybody)
        return [SendForce(force, node) for node in self.ensemble]

    def on_forced(self, force: int, node: int, run: int = 0) -> list[Effect]:
        """A node answered a force, in this run of it."""
        found, place = self._forces.get(force), self._place(node)
        if found is None or place is None or not self.is_open:
            return []
        if not self._is_same_run(place, run):
            return self._close(End.WRITE_FAILED)
        found.waits.discard(place)
        if found.waits:
            return []
        if found.through > self.lac:
            self.lac, self.length = found.through, found.length
        # Race: a later force overtook earlier ones. It has confirmed what they wait for, and a
        # close that follows it would end them with an error.
        done = [number for number, each in self._forces.items() if each.through <= self.lac]
        return [Forced(number, self._forces.pop(number).through) for number in done]

    def on_force_failed(self, force: int, refusal: Refusal) -> list[Effect]:
        """A node did not answer a force. It may have lost entries that it confirmed, so the writer
        ends."""
        if force not in self._forces or not self.is_open:
            return []
        if refusal in FATAL:
            return self._end(End.FENCED if refusal is Refusal.FENCED else End.DENIED)
        return self._close(End.WRITE_FAILED)
