"""Planted bugs of ledgers: of their quorums, fences, recoveries, ends, and of entries on nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from cordwood.admin.ledger_calls import LedgerCalls
from cordwood.client.ledgers import ledger_nodes, readable_ledger, run_reading
from cordwood.client.ledgers.ledger_following import Following, LedgerBatches
from cordwood.client.ledgers.ledger_metadata_calls import LedgerMetadataCalls
from cordwood.client.ledgers.ledger_recovering import Patience
from cordwood.client.ledgers.readable_ledger import LedgerEntry, ReadableLedger
from cordwood.client.ledgers.run_reading import Opened
from cordwood.client.ledgers.writable_ledger import WritableLedger
from cordwood.layout.ledger_metadata import pack_ledger, read_ledger
from cordwood.layout.ledger_records import LedgerEntries, LedgerFlag, unpack_entries
from cordwood.layout.message_ledgers import (
    AddEntries,
    AddRefusal,
    AddReply,
    CreateLedger,
    ForceEntries,
    LedgerReply,
    SetLedger,
)
from cordwood.ledger import LedgerMetadata, LedgerState, Versioned
from cordwood.log_attributes import LogAttributes
from cordwood.metadata import ledgers as ledger_metadata
from cordwood.metadata.ledgers import LedgerMetadataStore
from cordwood.protocol.ledger_recovery import LedgerRecovery
from cordwood.protocol.ledger_writer import (
    Acked,
    Effect,
    Forced,
    LedgerWriter,
    Phase,
    Refusal,
    SendEntries,
    WriteMetadata,
)
from cordwood.quorum.ensemble import Answer
from cordwood.settings import StorageSettings
from cordwood.sim import fault_kinds, ledger_clients
from cordwood.sim.fault_plan import Damage
from cordwood.sim.options import RunOptions
from cordwood.sim.planted.bug import Plant, PlantedBug, at, together, value
from cordwood.sim.planted.scenarios import Scenario, both, cluster_of, scenario
from cordwood.storage.ledgers.ledger_cut import LedgerCut
from cordwood.storage.ledgers.ledger_index import LedgerIndex
from cordwood.storage.ledgers.ledger_store import LedgerStore


def _of_ledgers(options: RunOptions) -> RunOptions:
    """Clients use mostly ledgers, so runs are short."""
    storage = StorageSettings(flush_age_s=1.0, disk_look_s=0.5, scrub_bytes_s=0)
    cluster = replace(options.cluster, storage=storage, attributes=LogAttributes(), weights={})
    work = replace(
        options.workload, scribes=3, producers=1, readers=1, publishers=0, holders=0, members=0,
        outsiders=0, callers=0, browsers=0, crowds=0, sorters=0, read_only=(), given_up=(),
    )  # fmt: skip
    faults = replace(options.faults, damage=Damage.NONE)
    return replace(
        options, cluster=cluster, workload=work, faults=faults, fills=False, accepts=False
    )


LEDGERS = scenario(
    "crash", "pause", "link_cut", "slow_links", "partition", "client_crash",
    every_s=1.0, length_s=25.0, shape=both(cluster_of(5, 3), _of_ledgers),
)  # fmt: skip
"""Nodes and writers die while ledgers are written and recovered."""

TWO_COPIES: tuple[tuple[int, int, int], ...] = ((5, 2, 2), (4, 2, 2))

FEW_COPIES: tuple[tuple[int, int, int], ...] = ((2, 2, 1), (1, 1, 1))
"""One crash loses entries that only memory has."""

WIDE_COPIES: tuple[tuple[int, int, int], ...] = ((4, 1, 1), (3, 1, 1))
"""Most nodes that answer a force have none of its entries."""

CHANGES = scenario(
    "crash", "metadata_slow", "pause",
    every_s=0.6, length_s=30.0, shape=both(cluster_of(6, 3), _of_ledgers),
)  # fmt: skip
"""Ensembles change all the time, and slowly."""

IMPATIENT = scenario(
    "crash", "slow_links", "link_cut",
    every_s=0.7, length_s=30.0, shape=both(cluster_of(5, 3), _of_ledgers),
)  # fmt: skip
"""Some nodes are away, and the others answer late."""


DEFERRED = scenario(
    "crash", "slow_disk", "pause", "client_crash",
    every_s=0.4, length_s=25.0, shape=both(cluster_of(5, 3), _of_ledgers),
)  # fmt: skip
"""Nodes leave and come back while their disks are behind."""


def _deferred(*plants: Plant) -> Plant:
    """Ledgers of one or two copies, on disks that take a second: a crash between an ack and the
    disk is likely, and so is a force there."""
    return together(
        value(lambda: fault_kinds.SLOW_DISK_FACTOR, 4_000.0),
        value(lambda: ledger_clients.DEFERS, 1.0),
        value(lambda: ledger_clients.SHAPES, FEW_COPIES),
        value(lambda: ledger_clients.ADD_S, 0.5),
        *plants,  # if a constant has several values, the last one counts
    )


async def _acks_from_memory(self: LedgerStore, call: AddEntries) -> AddReply:
    refusal = self._refusal(call)
    if not refusal:
        kept = unpack_entries(call.packed, call.count)
        self.index.apply(LedgerEntries(call.ledger, call.key, kept))
        self._wake(call.ledger)
    return AddReply(refusal)


def _tells_what_it_added(right: Any, self: LedgerWriter, sizes: Sequence[int], now: float) -> Any:
    before = self.pushed
    effects = right(self, sizes, now)
    self._told_lac = self.pushed
    return [
        each._replace(lac=before) if isinstance(each, SendEntries) else each for each in effects
    ]


def _begins_behind_what_was_added(
    self: LedgerWriter, held: Versioned, ensemble: tuple[int, ...]
) -> Any:
    self.phase = Phase.CHANGING
    self._proposed = held.metadata.with_ensemble(self.pushed + 1, ensemble)
    return [WriteMetadata(held.version, self._proposed)]


def _acks_in_any_order(right: Any, self: LedgerWriter) -> Any:
    ready = {entry: add for entry, add in self._adds.items() if self._is_stored(entry, add)}
    self._adds = {**ready, **self._adds}
    acked = right(self)
    return [Acked(entry, entry) for entry in ready] if acked else []


def _goes_on_when_fenced(
    right: Any, self: LedgerWriter, entry: int, node: int, refusal: Refusal
) -> Any:
    if refusal is Refusal.FENCED:
        return []  # Another node may still take the entry.
    return right(self, entry, node, refusal)


def _ends_behind_what_was_added(self: LedgerWriter, held: Versioned) -> Any:
    self.phase = Phase.CLOSING
    self.lac, self.length = self.pushed, self._pushed_length
    self._proposed = held.metadata.closed(self.lac, self.length)
    return [WriteMetadata(held.version, self._proposed)]


async def _closes_over_a_close(right: Any, self: LedgerMetadataStore, call: SetLedger) -> Any:
    found = await self.get(call.ledger)
    if found is not None and found.metadata.state is LedgerState.CLOSED:
        await self._store.compare_and_set(_key_of(call.ledger), call.value, found.version)
    return await right(self, call)


def _key_of(ledger: int) -> str:
    return ledger_metadata._key(ledger)


async def _makes_over_another(
    right: Any, self: LedgerMetadataStore, metadata: LedgerMetadata
) -> Any:
    found = await self.get(metadata.ledger)
    if found is not None:
        key = _key_of(metadata.ledger)
        await self._store.compare_and_set(key, None, found.version)
    return await right(self, metadata)


async def _allots_nothing(self: LedgerMetadataCalls, *, timeout_s: float) -> int:
    return -1


async def _allots_while_it_makes(
    right: Any, self: LedgerMetadataCalls, ledger: int, metadata: LedgerMetadata,
    *, timeout_s: float,
) -> Any:  # fmt: skip
    if ledger >= 0:
        return await right(self, ledger, metadata, timeout_s=timeout_s)
    reply = await self._ask(CreateLedger(ledger, pack_ledger(metadata)), timeout_s)
    assert isinstance(reply, LedgerReply), "CreateLedger is answered so"
    return Versioned(read_ledger(reply.value), reply.version)


async def _remembers_no_deletion(self: LedgerMetadataStore, ledger: int) -> bool:
    return False


def _stops_at_the_lac(self: LedgerRecovery) -> Any:
    return self._measure()


def _counts_silence(self: LedgerRecovery) -> Any:
    silent = (Answer.SILENT, Answer.FAILED)
    return self._poll.negative | {p for p, each in self._poll.answers.items() if each in silent}


def _takes_one_denial(self: LedgerRecovery) -> Any:
    return {*range(self._striping.ensemble)} if self._poll.negative else set()


def _measures_one(
    right: Any,
    self: LedgerRecovery,
    entry: int,
    node: int,
    answer: Answer,
    size: int = 0,
    length: int = 0,
) -> Any:
    return right(self, entry, node, answer, size, size)


def _confirms_what_is_acknowledged(right: Any, self: LedgerWriter) -> Any:
    self.lac, self.length = self.head, self._head_length
    return right(self)


def _counts_any_run(self: LedgerWriter, place: int, run: int) -> bool:
    return True


async def _forces_from_memory(self: LedgerStore, call: ForceEntries) -> AddReply:
    return AddReply(run=self._run())


def _confirms_what_came_since(
    right: Any, self: LedgerWriter, force: int, node: int, run: int = 0
) -> Any:
    found = self._forces.get(force)
    if found is not None:
        found.through, found.length = self.head, self._head_length
    return right(self, force, node, run)


def _ends_one_force(
    right: Any, self: LedgerWriter, force: int, node: int, run: int = 0
) -> list[Effect]:
    before = dict(self._forces)
    effects: list[Effect] = right(self, force, node, run)
    overtaken = [each for each in effects if isinstance(each, Forced) and each.force != force]
    self._forces.update({each.force: before[each.force] for each in overtaken})
    return [each for each in effects if each not in overtaken]


def _forced_by_one(right: Any, self: LedgerWriter, force: int, node: int, run: int = 0) -> Any:
    found = self._forces.get(force)
    if found is not None:
        found.waits &= {self._place(node)}
    return right(self, force, node, run)


def _flushes_states_only(right: Any, self: LedgerIndex) -> Any:
    return replace(right(self), added={})


def _believes_the_rule(self: WritableLedger) -> bool:
    return self._writer.is_open


def _asks_for_nothing(self: LedgerStore) -> AddRefusal:
    return AddRefusal.FULL


def _flushes_as_it_was(right: Any, self: LedgerIndex) -> Any:
    return replace(right(self), is_empty=lambda _: False)


def _forgets_fences(right: Any) -> Any:
    def cut(self: Any) -> Any:
        flags = {ledger: held.flags for ledger, held in self.held.items()}
        for held in self.held.values():
            held.flags &= ~LedgerFlag.FENCED
        rows = right(self)
        for ledger, was in flags.items():
            self.held[ledger].flags = was
        return rows

    return cut


def _evicts_all(right: Any, self: LedgerIndex, cut: LedgerCut) -> None:
    right(self, cut)
    for held in self.held.values():
        held.entries.clear()
        held.runs.clear()


async def _deletes_what_is_there(
    right: Callable[[LedgerMetadataStore, int], Awaitable[None]],
    self: LedgerMetadataStore,
    ledger: int,
) -> None:
    if await self.get(ledger) is not None:
        await right(self, ledger)


async def _takes_all_for_deleted(self: LedgerCalls, ledger: int) -> bool:
    return True


def _forgets_progress(self: Patience, last: int) -> None:
    """All attempts have one deadline."""


async def _waits_anew(self: LedgerBatches) -> None:
    await self._ledger._wait_more()


def _tells_once(self: LedgerWriter, node: int, lac: int) -> None:
    """The node is forgotten."""


async def _ends_with_its_step(right: Any, self: Following[Any]) -> Any:
    try:
        return await right(self)
    except BaseException:
        await self.aclose()
        raise


async def _keeps_what_it_knows(self: ReadableLedger) -> LedgerMetadata:
    return self.metadata


async def _learns_only_the_end(self: ReadableLedger) -> LedgerMetadata:
    self._held = await self._calls.get(self.ledger_id)
    if self.is_closed:
        self.last_add_confirmed = self.metadata.last
    return self.metadata


async def _reads_on(self: ReadableLedger, first: int, last: int) -> list[LedgerEntry]:
    self._check_range(first, last)
    return await self._read_range(first, last)


def _closes_up(parts: Sequence[Opened], step: int, count: int) -> Opened:
    rows = zip_longest(*(zip(*part, strict=True) for part in parts))
    some = [each for row in rows for each in row if each is not None]
    return Opened([each[0] for each in some], [each[1] for each in some])


def _sees_nobody(self: WritableLedger) -> bool:
    return False


def _takes_any_end(self: WritableLedger) -> None:
    """It is closed."""


def _may_always_change(self: LedgerWriter) -> bool:
    return True


def _bug(name: str, story: str, plant: Plant, where: Scenario = LEDGERS) -> PlantedBug:
    return PlantedBug(f"ledger-{name}", story, plant, scenario=where)


BUGS = (
    _bug("acks-one", "an entry is acknowledged when a single node has it",
         at(LedgerWriter._is_stored).instead(lambda self, entry, add: bool(add.stored))),
    _bug("acks-in-any-order", "an entry is acknowledged before lower entries",
         at(LedgerWriter._complete).around(_acks_in_any_order)),
    _bug("acks-in-change", "entries are acknowledged while an ensemble changes",
         together(at(LedgerWriter._may_ack).instead(lambda self: self.phase is not Phase.ENDED),
                  # Two copies of each entry, and recoveries while a node with one is away.
                  value(lambda: ledger_clients.SHAPES, TWO_COPIES),
                  value(lambda: ledger_clients.SALVAGE_S, 0.7)), CHANGES),
    _bug("change-above", "a new fragment begins behind the last added entry, not behind the LAC",
         at(LedgerWriter._propose).instead(_begins_behind_what_was_added)),
    _bug("lac-ahead", "an entry reports all earlier entries as confirmed",
         at(LedgerWriter.on_add).around(_tells_what_it_added)),
    _bug("close-above", "a writer closes behind the last added entry even if it is not "
                        "acknowledged",
         at(LedgerWriter._write_close).instead(_ends_behind_what_was_added)),
    _bug("writes-on", "a fenced node still takes the writer's entries",
         together(at(LedgerStore._is_fenced).instead(lambda self, ledger, held: False),
                        at(LedgerWriter.on_failed).around(_goes_on_when_fenced))),
    _bug("acks-from-memory", "a node answers before an entry is on its disk",
         at(LedgerStore.add).instead(_acks_from_memory)),
    _bug("entries-not-flushed", "a flush takes ledger states and no entries",
         at(LedgerIndex.cut).around(_flushes_states_only)),
    _bug("evicts-all", "a flush drops entries that arrived after it began",
         at(LedgerIndex.evict).around(_evicts_all)),
    _bug("stops-at-lac", "a recovery reads nothing behind the LAC",
         at(LedgerRecovery._read).instead(_stops_at_the_lac)),
    _bug("silence-denies", "a recovery treats a missing answer as \"no such entry\"",
         together(at(LedgerRecovery._denials).instead(_counts_silence),
                        value(lambda: ledger_nodes.CONNECT_S, 0.001)), IMPATIENT),
    _bug("one-denial", "a recovery stops when the first node does not have an entry",
         at(LedgerRecovery._denials).instead(_takes_one_denial)),
    _bug("length-of-one", "a recovery uses the size of an entry as the length of the ledger",
         at(LedgerRecovery.on_read).around(_measures_one)),
    _bug("closed-twice", "the metadata store replaces the end of a closed ledger",
         at(LedgerMetadataStore._set).around(_closes_over_a_close)),
    _bug("id-again", "a ledger gets the id of one that was deleted",
         at(LedgerMetadataStore.was_deleted).instead(_remembers_no_deletion)),
    PlantedBug("ledger-deleted-in-vain",
               "the deletion of a ledger that is not there leaves its id free",
               at(LedgerMetadataStore.delete).around(_deletes_what_is_there),
               scene="tests/client/ledgers/test_late_deletions.py"),
    _bug("made-twice", "a new ledger with a chosen id replaces an existing ledger",
         at(LedgerMetadataStore._create).around(_makes_over_another)),
    _bug("force-asks-nobody", "with deferred sync an acknowledged entry counts as confirmed",
         _deferred(at(LedgerWriter.on_force).around(_confirms_what_is_acknowledged)), DEFERRED),
    _bug("force-from-memory", "a node answers a force before its disk has the entries",
         _deferred(at(LedgerStore.force).instead(_forces_from_memory)), DEFERRED),
    _bug("force-of-later", "a force also confirms entries that were acknowledged after its call",
         _deferred(at(LedgerWriter.on_forced).around(_confirms_what_came_since)), DEFERRED),
    _bug("forced-by-one", "a force is done when one node has answered it",
         _deferred(at(LedgerWriter.on_forced).around(_forced_by_one),
                   value(lambda: ledger_clients.SHAPES, WIDE_COPIES)), DEFERRED),
    _bug("close-hides-loss", "a close is done although unforced entries are not in the ledger",
         _deferred(at(WritableLedger._check_end).instead(_takes_any_end)), DEFERRED),
    PlantedBug("ledger-force-of-another-run",
               "a force counts for a node that restarted after its acks",
               at(LedgerWriter._is_same_run).instead(_counts_any_run),
               scene="tests/client/ledgers/test_ledger_forces.py"),
    PlantedBug("ledger-force-overtaken",
               "a force waits for its own answers although a later force has confirmed its entries",
               at(LedgerWriter.on_forced).around(_ends_one_force),
               scene="tests/client/ledgers/test_ledger_forces.py"),
    PlantedBug("ledger-fragments-unbounded",
               "a writer adds so many fragments that the metadata cannot take the ledger's end",
               at(LedgerWriter._may_change).instead(_may_always_change),
               scene="tests/client/ledgers/test_ledger_bounds.py"),
    PlantedBug("ledger-made-with-its-id",
               "one call allots an id and makes the ledger, so a repeat makes another ledger",
               together(at(LedgerMetadataCalls.allot).instead(_allots_nothing),
                        at(LedgerMetadataCalls.create).around(_allots_while_it_makes)),
               scene="tests/client/ledgers/test_ledger_creation.py"),
    PlantedBug("ledger-sweeps-strangers",
               "nodes drop ledgers that the metadata store lacks although no client deleted them",
               at(LedgerCalls._was_deleted).instead(_takes_all_for_deleted),
               scene="tests/client/ledgers/test_ledger_strangers.py"),
    PlantedBug("ledger-recovery-begins-again",
               "a recovery that takes longer than the client's timeout begins again for ever",
               at(Patience.note).instead(_forgets_progress),
               scene="tests/client/ledgers/test_ledger_bounds.py"),
    PlantedBug("ledger-flush-refills",
               "a flush that waited writes entries of a ledger that was deleted meanwhile",
               at(LedgerIndex.cut).around(_flushes_as_it_was),
               scene="tests/storage/test_ledger_store.py"),
    PlantedBug("ledger-full-asks-no-flush",
               "a node without space for a large entry does not flush for it",
               at(LedgerStore._is_full).instead(_asks_for_nothing),
               scene="tests/client/ledgers/test_ledger_bounds.py"),
    PlantedBug("ledger-lac-told-once",
               "a LAC is not sent again to a node that did not take it",
               at(LedgerWriter.on_lac_failed).instead(_tells_once),
               scene="tests/client/ledgers/test_ledger_lac.py"),
    PlantedBug("ledger-waits-anew",
               "a reader begins its wait anew with each step, and never reads the metadata",
               at(LedgerBatches._wait_more).instead(_waits_anew),
               scene="tests/client/ledgers/test_ledger_following.py"),
    PlantedBug("ledger-ends-with-a-step",
               "a reader whose step failed or was cancelled says that the ledger ends there",
               at(Following.fill).around(_ends_with_its_step),
               scene="tests/client/ledgers/test_ledger_following.py"),
    PlantedBug("ledger-run-closes-up",
               "a reader of a striped ledger gives a missing entry's number to the next entry",
               at(run_reading.interleaved).instead(_closes_up),
               scene="tests/client/ledgers/test_ledger_runs.py"),
    PlantedBug("ledger-jumps-the-queue",
               "an entry overtakes entries of calls that wait for free space",
               at(WritableLedger._has_waiting).instead(_sees_nobody),
               scene="tests/client/ledgers/test_ledger_order.py"),
    PlantedBug("ledger-full-after-its-end",
               "calls wait for free space of a writer that was given up",
               at(WritableLedger._takes_entries).instead(_believes_the_rule),
               scene="tests/client/ledgers/test_ledger_order.py"),
    PlantedBug("ledger-denies-by-old-nodes",
               "a reader reports an entry as missing because replaced nodes do not have it",
               at(ReadableLedger.refresh).instead(_keeps_what_it_knows),
               scene="tests/client/ledgers/test_ledger_moves.py"),
    PlantedBug("ledger-beyond-its-end",
               "a reader gets a copy behind the end of a closed ledger, which no recovery found",
               at(ReadableLedger.read_unconfirmed).instead(_reads_on),
               scene="tests/client/ledgers/test_ledger_moves.py"),
    PlantedBug("ledger-waits-for-old-nodes",
               "a reader spends its whole wait on nodes that were replaced",
               value(lambda: readable_ledger.POLL_S, 20.0),
               scene="tests/client/ledgers/test_ledger_moves.py"),
    PlantedBug("ledger-settled-at-opening",
               "a reader learns only from its first reading of the metadata what is confirmed",
               at(ReadableLedger.refresh).instead(_learns_only_the_end),
               scene="tests/client/ledgers/test_ledger_settled.py"),
)  # fmt: skip
