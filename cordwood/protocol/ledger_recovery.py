"""Recovery of a ledger that its writer did not close: the questions to its nodes, and its end.

::

    CLAIM    the state becomes "in recovery", so the writer cannot change its ensemble any more
    FENCE    every member of the last ensemble is fenced and says its LAC, until they cover it
    READ     the entry after the LAC is read from its write set
    RE-ADD   it was found: it is written once more to its write set, as the writer would have
    MEASURE  nothing was found after the LAC: its own entry says how long the ledger is. If it is of
             a fragment before, and no node of it gives it, all other nodes are asked
    SETTLE   a damaged copy keeps the end from being found: a new fragment of the same nodes begins
             after the LAC, so that the entries before it can be repaired
    CLOSE    the state becomes "closed", with the last entry that was re-added

One copy that passes its check makes an entry part of the ledger. It is always re-added: the copy
that was seen may be the only one, and a later reader must find Qa. The recovery stops at the
first entry that (Qw-Qa)+1 members of the write set *say* they do not have. If there is neither a
copy nor this number of denials, it fails and may be tried again; the state stays as it is.

A read fences its node like a question for the LAC does. Else a node that was not needed for
coverage, and that has just denied an entry, could take that entry from the writer afterwards, and
the writer would acknowledge an entry past the end (BookKeeper #2614).

Members that fail a re-add are replaced in the recovery's own view. The others learn of it with the
close, in one write. Before, the new fragment would hide the copies of the old (BOOKKEEPER-355):
entries are read from the ensemble that the writer wrote to.

A recovery that fails at a damaged copy may fail for ever, and the entries of the last fragment
would be without repair. All up to the LAC were acknowledged. So a new fragment begins after it,
with the same nodes: the same nodes are fenced and read by the next recovery, and nothing is said
about the end. The damaged copy shows that the LAC is no number that somebody made up.

Several recoveries may run at once. They read and re-add the same, and the first close counts for
all: the others take over the end that they find.

A rule: events in, effects out.

Source: docs/sources/bookkeeper.md (b); BookKeeper #1067, #2615, #2908.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from cordwood.ledger import (
    ENTRY_MAX,
    NO_ENTRY,
    Fragment,
    LedgerMetadata,
    LedgerState,
    Versioned,
)
from cordwood.quorum.ensemble import (
    Answer,
    covers,
    is_acknowledged,
    proves_absence,
    write_set,
)


class AskFence(NamedTuple):
    """Fence a node, and ask for the highest LAC that it was told. It answers once the fence is
    durable, also for a ledger that it never saw."""

    node: int


class ReadEntry(NamedTuple):
    """Read an entry from a node, which is fenced before it answers."""

    entry: int
    node: int


class ReadStrays(NamedTuple):
    """Read an entry of a settled fragment from the nodes outside its write set: a repair may have
    passed it over, and a replaced node may be back with it."""

    entry: int


class ReAdd(NamedTuple):
    """Write an entry once more, as it was read. A node that is fenced takes it."""

    entry: int
    node: int


class PickSpare(NamedTuple):
    """Choose a node for this place of the ensemble, none of those taken."""

    entry: int
    place: int
    taken: tuple[int, ...]


class ClaimOrClose(NamedTuple):
    """Write `metadata` if the stored version is still `version`. The answer is
    `on_metadata_written`, or `on_metadata_found` with the stored value, also if the store's answer
    was lost. Each write gets one of the two, once: the shell drops a later answer."""

    version: int
    metadata: LedgerMetadata


class Recovered(NamedTuple):
    """The ledger is closed, by this recovery or by another client."""

    last: int
    length: int


class Failure(enum.Enum):
    """The reasons why a recovery failed; each allows another try."""

    NOT_COVERED = "too few members were fenced"
    UNDECIDED = "an entry has neither a copy nor enough denials"
    NO_LENGTH = "no readable copy of its last confirmed entry says how long it is"
    NOT_READDED = "too few members took an entry"
    DENIED = "another password"
    OVERTAKEN = "the ledger has a fragment that this recovery does not know"


class RecoveryFailed(NamedTuple):
    """This attempt is over."""

    failure: Failure
    entry: int


Effect = (
    AskFence
    | ReadEntry
    | ReadStrays
    | ReAdd
    | PickSpare
    | ClaimOrClose
    | Recovered
    | RecoveryFailed
)


class Stage(enum.Enum):
    """See the module."""

    NEW = "not begun"
    CLAIM = "claim"
    FENCE = "fence"
    READ = "read"
    RE_ADD = "re-add"
    MEASURE = "measure"
    SETTLE = "settle"
    CLOSE = "close"
    DONE = "done"
    FAILED = "failed"


OVER = frozenset({Stage.DONE, Stage.FAILED})
"""This attempt does nothing any more."""


@dataclass(slots=True)
class _Poll:
    """Answers to one question."""

    waits: set[int]
    answers: dict[int, Answer] = field(default_factory=dict)

    def take(self, place: int, answer: Answer) -> bool:
        """Whether the answer was waited for."""
        if place not in self.waits:
            return False
        self.waits.discard(place)
        self.answers[place] = answer
        return True

    @property
    def negative(self) -> set[int]:
        return {place for place, answer in self.answers.items() if answer.is_negative}

    @property
    def known(self) -> set[int]:
        return {place for place, answer in self.answers.items() if answer.is_known}


class LedgerRecovery:
    """See the module.

    Attributes:
        last: the last entry that the ledger has for certain, as far as this recovery came.
        length: bytes of all payloads up to it, once an entry told.
    """

    def __init__(self, held: Versioned) -> None:
        self.stage = Stage.NEW
        self.last = NO_ENTRY
        self.length: int | None = None
        self._held = held
        self._proposed = held.metadata
        self._striping = held.metadata.striping
        self._source = held.metadata.newest
        self._spared: list[Fragment] = []
        self._poll = _Poll(set())
        self._stored: set[int] = set()
        self._unspared: set[int] = set()
        self._length_read = 0
        self._lac = NO_ENTRY
        self._failure = RecoveryFailed(Failure.OVERTAKEN, NO_ENTRY)

    @property
    def write(self) -> int:
        """Qw."""
        return self._striping.write

    @property
    def ensemble(self) -> tuple[int, ...]:
        """The nodes that entries are re-added to, in their places."""
        return self._spared[-1].nodes if self._spared else self._source.nodes

    @property
    def source_nodes(self) -> tuple[int, ...]:
        """The nodes that the writer wrote to last, in their places: entries are read from them."""
        return self._source.nodes

    # Claim.

    def start(self) -> list[Effect]:
        """Begin, with the metadata that was read."""
        assert self.stage is Stage.NEW, "an attempt is begun once"
        return self._claim(self._held)

    def _claim(self, held: Versioned) -> list[Effect]:
        found = held.metadata
        self._held = held
        if found.state is LedgerState.CLOSED:
            return self._adopt(found)
        if found.state is LedgerState.IN_RECOVERY:
            return self._fence()
        self.stage = Stage.CLAIM
        self._proposed = found.recovering()
        return [ClaimOrClose(held.version, self._proposed)]

    # Fence.

    def _fence(self) -> list[Effect]:
        self.stage = Stage.FENCE
        self._source = self._held.metadata.newest
        # The answers may all be of fragments before: an entry of the last one tells the LAC as it
        # was when the entry was added. Nothing below its first entry can be open (#2615).
        self.last = self._source.first - 1
        # All members, also those that the last entries did not go to: each could still take an
        # entry.
        self._poll = _Poll({*range(self._striping.ensemble)})
        return [AskFence(node) for node in self._source.nodes]

    def on_fenced(self, node: int, answer: Answer, lac: int = NO_ENTRY) -> list[Effect]:
        """A member was fenced and says its LAC; or it did not answer, or lost data."""
        place = self._source_place(node)
        if self.stage is not Stage.FENCE or place is None or not self._poll.take(place, answer):
            return []
        if answer is Answer.REFUSED:
            return self._fail(Failure.DENIED, self.last)
        if answer is Answer.FOUND:
            # Trap: nobody adds 2^63 entries, and no entry comes after the last number. Such an
            # answer of a faulty peer ended the program; now the recovery finds no copy there.
            self.last = max(self.last, min(lac, ENTRY_MAX - 1))
        if covers(self._counted_for_coverage(), self._striping):
            self._lac = self.last
            return self._read()
        if not self._poll.waits:
            return self._fail(Failure.NOT_COVERED, self.last)
        return []

    def _counted_for_coverage(self) -> set[int]:
        return self._poll.known

    # Read.

    def _read(self) -> list[Effect]:
        """Read the entry after the last."""
        self.stage = Stage.READ
        entry = self.last + 1
        places = write_set(entry, self._striping)
        self._poll = _Poll({*places})
        return [ReadEntry(entry, self._source.nodes[place]) for place in places]

    def on_read(
        self, entry: int, node: int, answer: Answer, size: int = 0, length: int = 0
    ) -> list[Effect]:
        """A member answered a read.

        Args:
            answer: FOUND only for a copy that passed its check.
            size, length: of the copy, the bytes of its payload and of all payloads up to it.
        """
        if self.stage is Stage.MEASURE:
            return self._on_measured(entry, node, answer, length)
        place = self._source_place(node)
        if self.stage is not Stage.READ or place is None or entry != self.last + 1:
            return []
        if not self._poll.take(place, answer):
            return []
        if answer is Answer.REFUSED:
            return self._fail(Failure.DENIED, entry)
        if answer is Answer.FOUND:
            if self.length is None:
                self.length = length - size
            self._length_read = length
            return self._re_add()
        # Enough members of every possible quorum say that they do not have it. Silence does not
        # count as this answer.
        if proves_absence(self._denials(), entry, self._striping):
            return self._measure()
        if not self._poll.waits:
            return self._settle(Failure.UNDECIDED, entry)
        return []

    def _denials(self) -> set[int]:
        return self._poll.negative

    def _source_place(self, node: int) -> int | None:
        nodes = self._source.nodes
        return nodes.index(node) if node in nodes else None

    # Re-add.

    def _re_add(self) -> list[Effect]:
        self.stage = Stage.RE_ADD
        entry = self.last + 1
        places = write_set(entry, self._striping)
        self._poll = _Poll({*places})
        self._stored = set()
        self._unspared = set()
        return [ReAdd(entry, self.ensemble[place]) for place in places]

    def on_readded(self, entry: int, node: int, stored: bool) -> list[Effect]:
        """A member took an entry once more, or did not."""
        place = self.ensemble.index(node) if node in self.ensemble else None
        if self.stage is not Stage.RE_ADD or place is None or entry != self.last + 1:
            return []
        if place not in self._poll.waits:
            return []
        self._poll.waits.discard(place)
        if not stored:
            self._unspared.add(place)
            # The place stays open meanwhile: without it the quorum may still come together.
            return [PickSpare(entry, place, self.ensemble)]
        self._stored.add(place)
        if not is_acknowledged(self._stored, entry, self._striping):
            return self._check_quorum()
        # Always re-added, also an entry that had its quorum: whether it had one cannot be seen from
        # here.
        self.last, self.length = entry, self._length_read
        return self._read()

    def on_spare_picked(self, entry: int, place: int, node: int | None) -> list[Effect]:
        """A node for a place that failed a re-add of an entry; None where there is none."""
        if self.stage is not Stage.RE_ADD or entry != self.last + 1 or place not in self._unspared:
            return []
        if node in self.ensemble:
            # Two places asked at once, and the other has it.
            return [PickSpare(entry, place, self.ensemble)]
        self._unspared.discard(place)
        if node is None:
            return self._check_quorum()
        ensemble = [*self.ensemble]
        ensemble[place] = node
        self._spared = [each for each in self._spared if each.first < entry]
        self._spared.append(Fragment(entry, tuple(ensemble)))
        self._poll.waits.add(place)
        return [ReAdd(entry, node)]

    def _check_quorum(self) -> list[Effect]:
        possible = self._stored | self._poll.waits | self._unspared
        if is_acknowledged(possible, self.last + 1, self._striping):
            return []
        return self._fail(Failure.NOT_READDED, self.last + 1)

    # Measure.

    def _measure(self) -> list[Effect]:
        """Close; before, learn the length from the last entry where nothing was read after it."""
        if self.last == NO_ENTRY:
            self.length = 0
        if self.length is not None:
            return self._close(self._held)
        self.stage = Stage.MEASURE
        nodes = self._held.metadata.nodes_at(self.last)
        places = write_set(self.last, self._striping)
        self._poll = _Poll({*places})
        return [ReadEntry(self.last, nodes[place]) for place in places]

    def _on_measured(self, entry: int, node: int, answer: Answer, length: int) -> list[Effect]:
        nodes = self._held.metadata.nodes_at(self.last)
        if entry != self.last or node not in nodes:
            return []
        if not self._poll.take(nodes.index(node), answer):
            return []
        if answer is Answer.FOUND:
            self.length = length
            return self._close(self._held)
        if self._poll.waits:
            return []
        if entry < self._source.first:
            return [ReadStrays(entry)]
        return self._settle(Failure.NO_LENGTH, entry)

    def on_strays(self, entry: int, length: int | None) -> list[Effect]:
        """The nodes outside an entry's write set were asked.

        Args:
            length: bytes of all payloads up to it, by a copy that passed its check; None if they
                gave none.
        """
        if self.stage is not Stage.MEASURE or entry != self.last:
            return []
        if length is None:
            return self._fail(Failure.NO_LENGTH, entry)
        self.length = length
        return self._close(self._held)

    # Settle.

    def _settle(self, failure: Failure, entry: int) -> list[Effect]:
        """This attempt fails, as all nodes of an entry have answered or are silent. If one of them
        has a damaged copy, write down first that the entries up to the LAC are settled.

        Entries that were re-added in this attempt are above the LAC, and may be on spares that the
        metadata does not name: they stay in the last fragment.
        """
        if not may_settle(self._lac, self._source, self._poll.answers.values()):
            return self._fail(failure, entry)
        self.stage = Stage.SETTLE
        self._failure = RecoveryFailed(failure, entry)
        self._proposed = self._held.metadata.with_ensemble(self._lac + 1, self._source.nodes)
        return [ClaimOrClose(self._held.version, self._proposed)]

    # Close.

    def _close(self, held: Versioned) -> list[Effect]:
        self.stage = Stage.CLOSE
        self._held = held
        assert self.length is not None, "the length was learned before"
        metadata = held.metadata
        for each in self._spared:
            metadata = metadata.with_ensemble(each.first, each.nodes)
        self._proposed = metadata.closed(self.last, self.length)
        return [ClaimOrClose(held.version, self._proposed)]

    def on_metadata_written(self, version: int) -> list[Effect]:
        """The compare-and-set was taken."""
        held = Versioned(self._proposed, version)
        if self.stage is Stage.CLAIM:
            return self._claim(held)
        if self.stage is Stage.CLOSE:
            return self._adopt(held.metadata)
        return self._fail(*self._failure) if self.stage is Stage.SETTLE else []

    def on_metadata_found(self, held: Versioned) -> list[Effect]:
        """The compare-and-set lost, or its answer was lost; this is the present metadata."""
        found = held.metadata
        if self.stage is Stage.CLAIM:
            return self._claim(held)
        if self.stage is Stage.SETTLE:
            is_closed = found.state is LedgerState.CLOSED
            return self._adopt(found) if is_closed else self._fail(*self._failure)
        if self.stage is not Stage.CLOSE:
            return []
        if found.state is LedgerState.CLOSED:
            return self._adopt(found)
        if found.state is LedgerState.IN_RECOVERY and found.newest == self._source:
            # A repair of older fragments came between; it is kept.
            return self._close(held)
        return self._fail(Failure.OVERTAKEN, self.last)

    # The end.

    def _adopt(self, found: LedgerMetadata) -> list[Effect]:
        self.stage = Stage.DONE
        self.last, self.length = found.last, found.length
        return [Recovered(found.last, found.length)]

    def _fail(self, failure: Failure, entry: int) -> list[Effect]:
        self.stage = Stage.FAILED
        return [RecoveryFailed(failure, entry)]


def may_settle(lac: int, source: Fragment, answers: Iterable[Answer]) -> bool:
    """Whether a recovery that fails begins a new fragment after the LAC.

    Not without a damaged copy. A node that is away or busy comes back, and the next attempt ends
    the ledger. And where a client told a LAC that is too high, nodes say that they do not have its
    entry: a fragment up to there would have more entries than anybody can look for.

    Args:
        answers: of all members of the write set of the entry at which the recovery fails.
    """
    return lac >= source.first and Answer.DAMAGED in answers
