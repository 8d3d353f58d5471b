"""Planted bugs of the auto-recovery of ledgers, caught by lost disks or by scenes."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from cordwood.admin import ledger_autorecovery as role
from cordwood.admin import ledger_filling
from cordwood.admin.ledger_autorecovery import LedgerAutorecovery
from cordwood.client.ledgers import (
    entry_calls,
    entry_reading,
    ledger_check,
    ledger_recovering,
    ledger_repair,
)
from cordwood.client.ledgers.copy_states import CopyStates
from cordwood.client.ledgers.ledger_check import LedgerChecking
from cordwood.client.ledgers.ledger_metadata_calls import LedgerMetadataCalls
from cordwood.client.ledgers.ledger_repair import LedgerRepair, write_copies
from cordwood.client.ledgers.ledgers import Ledgers
from cordwood.client.ledgers.readable_ledger import ReadableLedger
from cordwood.client.ledgers.stray_copies import is_stray, stray_copies, stray_entries
from cordwood.ledger import LedgerMetadata, LedgerState, Striping, Versioned, has_last_nodes
from cordwood.metadata import ledger_marks
from cordwood.metadata.ledger_marks import LedgerMarks, _key
from cordwood.metadata.ledgers import LedgerMetadataStore
from cordwood.protocol import ledger_autorecovery as rule
from cordwood.protocol import ledger_check as check_rule
from cordwood.protocol import ledger_recovery as recovery_rule
from cordwood.protocol import ledger_repair as repair_rule
from cordwood.protocol import ledger_writer
from cordwood.protocol.ledger_autorecovery import Mark, Step
from cordwood.protocol.ledger_check import Copy
from cordwood.protocol.ledger_fills import Fills, Look, Seen, back_in_place
from cordwood.protocol.ledger_repair import LostPlace
from cordwood.protocol.ledger_writer import LedgerWriter, Phase, WriteMetadata
from cordwood.quorum.ensemble_choice import ANYWHERE, Placement, placement_of
from cordwood.sim.planted.bug import Plant, PlantedBug, at, together, value
from cordwood.sim.planted.rebuilding_scenarios import LEDGERS_LOST, LEDGERS_STAY_OPEN
from cordwood.storage.engine import StorageEngine
from cordwood.storage.ledgers.ledger_cut import LedgerCut
from cordwood.storage.ledgers.ledger_store import LedgerStore
from cordwood.storage.log_cache import FlushSet
from cordwood.storage.logs_db.log_drops import drop_logs
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.rebuild import kept_ledgers

SCENE = "tests/storage/test_ledger_autorecovery_bugs.py"

UNREADABLE = "tests/storage/test_ledger_unreadable_entries.py"

SPARES = "tests/storage/test_ledger_drained_spares.py"

UPLOADS = "tests/storage/test_ledger_repair_uploads.py"

STUCK = "tests/storage/test_ledger_stuck_recovery.py"

STRAYS = "tests/storage/test_ledger_strays.py"

SWITCHES = "tests/client/ledgers/test_late_switches.py"

DAMAGE = "tests/client/ledgers/test_ledger_damage.py"


def _looks_at_the_last_fragment(metadata: LedgerMetadata) -> frozenset[int]:
    return frozenset(metadata.newest.nodes)


async def _marks_nothing(self: LedgerAutorecovery, metadata: LedgerMetadata) -> None:
    return None


async def _takes_any_version_away(self: LedgerMarks, ledger: int, version: int) -> bool:
    found = await self._store.get(_key(ledger))
    return found is not None and bool(
        await self._store.compare_and_set(_key(ledger), None, found.version)
    )


def _shuts_writers_out(
    right: Any,
    metadata: LedgerMetadata | None,
    mark: Mark,
    now_us: int,
    fenced: Set[int] = frozenset(),
    seen_us: int = 0,
) -> Any:
    found = right(metadata, mark, now_us, fenced, seen_us)
    is_open = metadata is not None and metadata.state is LedgerState.OPEN
    return Step.RECOVER if is_open and found in (Step.WAIT, Step.REPAIR_OLDER) else found


def _leaves_open_ledgers(
    right: Any,
    metadata: LedgerMetadata | None,
    mark: Mark,
    now_us: int,
    fenced: Set[int] = frozenset(),
    seen_us: int = 0,
) -> Any:
    found = right(metadata, mark, now_us, fenced, seen_us)
    return Step.WAIT if found is Step.REPAIR_OLDER else found


def _sees_no_more_settled(right: Any, self: Fills, mark: Mark, seen: Seen) -> Look:
    found = self._found.get(mark.ledger)
    is_same = found is not None and found[0][:2] == seen[:2]
    return found[1] if found is not None and is_same else right(self, mark, seen)


def _proposes_what_it_knew(self: LedgerWriter, held: Versioned, ensemble: tuple[int, ...]) -> Any:
    self.phase = Phase.CHANGING
    self._proposed = self._held.metadata.with_ensemble(self.lac + 1, ensemble)
    return [WriteMetadata(held.version, self._proposed)]


def _leaves_the_last_out(right: Any, place: LostPlace, striping: Striping) -> Any:
    return right(place, striping)[:-1]


def _marks_only_lost(
    right: Any,
    metadata: LedgerMetadata,
    lost: Set[int],
    now_us: int,
    leaving: Set[int] = frozenset(),
) -> Mark | None:
    found: Mark | None = right(metadata, lost, now_us)
    return found


async def _copies_nothing(cluster: Any, metadata: LedgerMetadata, node: int, copies: Any) -> int:
    return 0


async def _believes_the_copies(self: ledger_repair._Copying) -> bool:
    return True


async def _says_nothing_before(
    self: LedgerRepair, held: Versioned, place: LostPlace, node: int
) -> Versioned:
    return held


def _joins_what_is_not_closed(
    found: LedgerMetadata, place: LostPlace, node: int, *, was_closed: bool = False
) -> bool:
    return was_closed or found.state is not LedgerState.CLOSED


def _takes_no_change(before: LedgerMetadata, found: LedgerMetadata) -> bool:
    return found == before


async def _says_nothing_of_a_spare(self: ledger_recovering._Attempt, node: int) -> None:
    return None


async def _takes_as_chosen(self: LedgerMetadataCalls, node: int) -> bool:
    return True


def _forgets_the_first(right: Any, before: Mark | None, found: Mark) -> Any:
    return right(None, found)


def _takes_it_anywhere(
    self: LedgerRepair, node: int, place: int, nodes: Any, metadata: LedgerMetadata
) -> bool:
    return node not in nodes


def _leaves_it(patience: Any) -> None:
    return None


def _anywhere(metadata: LedgerMetadata) -> Placement:
    return ANYWHERE


def _is_believed(right: Any, self: CopyStates, source: str, answer: Any) -> Copy:
    return Copy.WHOLE


async def _knows_the_metadata(self: LedgerChecking) -> tuple[LedgerMetadata, int]:
    last = await self._opened.read_last_add_confirmed()
    return self._opened.metadata, last


async def _ends_alone(
    right: Any,
    /,
    self: Ledgers,
    ledger: int,
    password: bytes = b"",
    *,
    share: float = 1.0,
    fills: bool = False,
    settled: bool = False,
    entries: Any = None,
    turn: Any = None,
    on_progress: Any = None,
) -> Any:
    return await right(
        self, ledger, password, share=0, fills=fills, settled=settled, entries=entries,
        turn=turn, on_progress=on_progress,
    )  # fmt: skip


async def _finds_it_damaged(self: LedgerStore, ledger: int, held: Any, entry: int) -> Any:
    (kept,) = await self._find(ledger, held, [entry])
    return kept


def _is_another_in_any_case(item: Any, answer: Any, seal: Any) -> bool:
    return True


def _keeps_only_what_is_flushed(batch: FlushSet) -> LedgerCut:
    return LedgerCut()


async def _drops_no_logs(store: LogsStore) -> None:
    return


def _is_no_member(metadata: LedgerMetadata, entry: int, node: int) -> bool:
    return node not in metadata.nodes_at(entry)


def _passes_over_in_any_case(*, is_noted: bool, is_refill: bool) -> bool:
    return True


def _believes_silence(whole: int, wanted: int) -> bool:
    return not whole


async def _finds_no_strays(cluster: Any, metadata: LedgerMetadata, entries: Any) -> Any:
    return []


async def _hears_of_no_strays(cluster: Any, metadata: LedgerMetadata, entries: Any) -> Any:
    return frozenset()


async def _takes_one_reply(cluster: Any, metadata: LedgerMetadata, entries: Any) -> Any:
    return frozenset(each.entry for each in await stray_copies(cluster, metadata, entries))


def _bug(name: str, story: str, plant: Plant) -> PlantedBug:
    return PlantedBug(f"ledger-repair-{name}", story, plant, scenario=LEDGERS_LOST)


async def _switches_any_version(
    right: Any, self: LedgerMarks, *, on: bool, if_version: int | None = None
) -> None:
    await right(self, on=on)


async def _switches_if_it_differs(
    right: Any, self: LedgerMarks, *, on: bool, if_version: int | None = None
) -> None:
    if await self.is_on() is not on:
        await right(self, on=on, if_version=if_version)


async def _asks_for_marks(right: Any, self: LedgerMetadataCalls, *, on: bool) -> None:
    await self.autorecovery(-1, 1)
    await right(self, on=on)


def _open(name: str, story: str, plant: Plant) -> PlantedBug:
    return PlantedBug(f"ledger-{name}", story, plant, scenario=LEDGERS_STAY_OPEN)


def _scene(name: str, story: str, plant: Plant) -> PlantedBug:
    return PlantedBug(f"ledger-repair-{name}", story, plant, scene=SCENE)


def _check(name: str, story: str, plant: Plant) -> PlantedBug:
    return PlantedBug(f"ledger-check-{name}", story, plant, scene=SCENE)


BUGS = (
    _bug("last-fragment", "only the last fragment of a ledger is checked for lost nodes",
         together(at(rule.named).instead(_looks_at_the_last_fragment),
                  at(rule.named, within=role).instead(_looks_at_the_last_fragment))),
    _bug("unmarked", "a node with a new disk does not mark the ledgers that name it",
         at(LedgerAutorecovery.note_anew).instead(_marks_nothing)),
    _scene("grown-mark", "a mark is deleted although it grew during the repair of its ledger",
         at(LedgerMarks.finish).instead(_takes_any_version_away)),
    _scene("shuts-out", "a ledger is recovered although its writer went on with other nodes",
         at(rule.step, within=role).around(_shuts_writers_out)),
    _bug("names-first", "a repair names a node that has no copies",
         at(write_copies, within=ledger_repair).instead(_copies_nothing)),
    _open("repair-older-waits", "older fragments of a ledger wait for their copies until it is closed",
          at(rule.step, within=role).around(_leaves_open_ledgers)),
    _open("writer-forgets-repair", "a writer's change names the nodes again that a repair replaced",
          at(LedgerWriter._propose).instead(_proposes_what_it_knew)),
    _open("repair-one-short", "a repair leaves out the last entry of a fragment",
          at(repair_rule.entries_of).around(_leaves_the_last_out)),
    _scene("forgets", "the mark of another loss replaces an existing mark",
         at(rule.merged, within=ledger_marks).around(_forgets_the_first)),
    _scene("anywhere", "a repair does not use the writer's placement policy",
           at(placement_of, within=ledger_repair).instead(_anywhere)),
    _scene("same-node", "the node that replaces a lost node in one fragment replaces it in each",
           at(LedgerRepair._may_take).instead(_takes_it_anywhere)),
    _scene("waits-for-no-flush", "a repair gives up at a node that is full until its next flush, "
           "and begins anew, and the node asks for no flush",
           together(value(lambda: entry_calls.FULL_AGAIN_S, 3600.0),
                    at(StorageEngine.ask_for_flush).instead(lambda self: None))),
    _scene("drained-stays", "a drained node takes a writer's entries, until a recovery shuts it out",
           at(LedgerStore._takes_no_writers).instead(lambda self: bool(self._engine.read_only))),
    PlantedBug("ledger-spare-drained-meanwhile",
               "a recovery or a repair gives copies to a node that was drained after it was chosen",
               at(LedgerMetadataCalls.takes_copies).instead(_takes_as_chosen), scene=SPARES),
    PlantedBug("ledger-drained-takes-strangers",
               "a drained node takes re-adds of ledgers that it does not know",
               at(LedgerStore._takes_no_strangers).instead(lambda self: False), scene=SPARES),
    _scene("drain-unmarked", "ledgers are marked only once a drained node is empty, and may be stopped",
           at(rule.mark_of, within=role).around(_marks_only_lost)),
    _scene("copies-first", "a node gets copies before the metadata says so",
           at(LedgerRepair._announce).instead(_says_nothing_before)),
    _scene("of-another-run", "a repair names a node that restarted after its copies, in a ledger that "
           "another client changed", at(ledger_repair._Copying.is_kept).instead(_believes_the_copies)),
    _scene("named-twice", "a node gets copies for a place of a fragment that another repair has changed",
           at(repair_rule.may_join).instead(_joins_what_is_not_closed)),
    PlantedBug("ledger-repair-stops-at-upload",
               "a failing upload to main storage ends each repair of its ledger",
               at(repair_rule.is_only_claimed).instead(_takes_no_change), scene=UPLOADS),
    PlantedBug("ledger-repair-waits-for-end",
               "a ledger that cannot be ended gets no copies of its older fragments",
               at(rule.step_without_end, within=role).instead(lambda metadata, mark: Step.WAIT),
               scene=STUCK),
    PlantedBug("ledger-repair-strays-wait-for-end",
               "entries that a repair passed over wait for their copies until the ledger is closed",
               at(Fills.look).instead(lambda self, mark, seen: Look(())), scene=STUCK),
    PlantedBug("ledger-repair-empty-waits-for-end",
               "without a spare, a node that is back empty gets no copies until the ledger is closed",
               at(back_in_place, within=ledger_filling).instead(
                   lambda metadata, mark, whole: frozenset()), scene=STUCK),
    PlantedBug("ledger-recovery-settles-nothing",
               "an unreadable entry at the end leaves all others of its fragment without new copies",
               at(recovery_rule.may_settle).instead(lambda lac, source, answers: False), scene=STUCK),
    PlantedBug("ledger-fills-what-was-settled",
               "entries that are settled after a look at all of a ledger wait for their copies",
               at(Fills.look).around(_sees_no_more_settled), scene=STUCK),
    PlantedBug("ledger-close-shut-out-by-settling",
               "a recovery that cannot end takes from the writer the end that only the writer knows",
               at(has_last_nodes, within=ledger_writer).instead(
                   lambda before, after, lac: after.newest == before.newest), scene=STUCK),
    _scene("misses-others", "the mark of a node goes although another repair named it meanwhile",
           at(repair_rule.is_finished).instead(lambda before, after, filled, is_lost: True)),
    _scene("forgets-fences", "a writer that a member's loss has shut out counts as going on",
           at(rule.nodes_to_ask, within=role).instead(lambda metadata, mark: frozenset())),
    _scene("mark-ahead", "the grace of a mark from a clock that is ahead ends by that clock",
           at(rule.SeenMarks.seen_us).instead(lambda self, mark, now_s: 0)),
    PlantedBug("ledger-recovery-copies-first",
               "a spare of a recovery gets copies before the metadata says so",
               at(ledger_recovering._Attempt._announce).instead(_says_nothing_of_a_spare), scene=SCENE),
    _scene("gives-up", "a repair that makes progress is cut short, and begins anew each time",
           at(role._extend).instead(_leaves_it)),
    _check("believes", "a node without an entry counts as having it",
           at(CopyStates.state).around(_is_believed)),
    _check("metadata-first", "a check uses metadata that it read before it heard the LAC",
           at(LedgerChecking._confirmed).instead(_knows_the_metadata)),
    _check("ends-alone", "only the ends of fragments are filled in a ledger that lacks entries",
           at(Ledgers.check).around(_ends_alone)),
    _check("fills-nothing", "missing entries are reported as filled and are not",
           at(write_copies, within=ledger_check).instead(_copies_nothing)),
    PlantedBug("ledger-repair-one-stops-all",
               "an entry without a readable copy leaves all others of its ledger without new copies",
               at(repair_rule.unreadable).instead(lambda told, is_gone: None), scene=UNREADABLE),
    PlantedBug("ledger-check-ends-only",
               "the nodes look at the ends of fragments, and at no entry between",
               at(check_rule.run_between).instead(lambda first, last, turn: range(0)),
               scene=UNREADABLE),
    PlantedBug("ledger-repair-hides-strays",
               "entries that come back with a replaced node are looked for on its successor only",
               together(at(stray_copies, within=entry_reading).instead(_finds_no_strays),
                        at(stray_entries, within=ledger_check).instead(_hears_of_no_strays)),
               scene=UNREADABLE),
    PlantedBug("ledger-strays-in-ensemble",
               "no one asks a member of a fragment for entries that do not belong to its place",
               # Before a repair names it, its entries would get their copies.
               together(at(is_stray).instead(_is_no_member),
                        at(Fills.look).instead(lambda self, mark, seen: Look(()))),
               scene=STRAYS),
    PlantedBug("ledger-check-one-stray-reply",
               "a check calls entries lost that did not fit into the first reply of a stray node",
               at(stray_entries, within=ledger_check).instead(_takes_one_reply), scene=STRAYS),
    PlantedBug("ledger-mark-names-all",
               "a mark goes once the entries that it names are filled, while there are more",
               at(rule.may_fill_more, within=role).instead(lambda has_more, filled, missing: False),
               scene=STRAYS),
    PlantedBug("ledger-mark-believes-silence",
               "a mark goes although a node that does not answer may lack the entries that it names",
               at(check_rule.lacks_copies).instead(_believes_silence), scene=STRAYS),
    PlantedBug("ledger-repair-notes-nothing",
               "a repair by hand passes entries over, and nothing tells which nodes may have them",
               at(repair_rule.may_pass_over).instead(_passes_over_in_any_case),
               scene=STRAYS),
    PlantedBug("ledger-settled-unconfirmed",
               "an acknowledged entry counts as unconfirmed because no asked node has told a LAC",
               at(ReadableLedger._raise_to_settled).instead(lambda self: None), scene=STRAYS),
    PlantedBug("ledger-recovery-hides-strays",
               "a recovery asks only its nodes for the last confirmed entry, which tells the length",
               at(stray_copies, within=ledger_recovering).instead(_finds_no_strays), scene=STRAYS),
    PlantedBug("ledger-unreadable-stops-all",
               "a ledger whose metadata cannot be read ends the work on those after it",
               at(LedgerMetadataStore.get_if_readable).instead(LedgerMetadataStore.get),
               scene="tests/storage/test_ledger_unreadable.py"),
    PlantedBug("ledgers-dropped-with-wal",
               "a node that joins with its ledgers drops entries that only its WAL has",
               at(kept_ledgers._ledgers_of).instead(_keeps_only_what_is_flushed),
               scene="tests/storage/test_kept_ledgers.py"),
    PlantedBug("logs-kept-with-ledgers",
               "a node that joins with its ledgers serves the blocks of logs that it had before",
               at(drop_logs, within=kept_ledgers).instead(_drops_no_logs),
               scene="tests/storage/test_kept_ledgers.py"),
    PlantedBug("ledger-switch-late",
               "a node does a switch of the auto-recovery late, and undoes a later switch",
               at(LedgerMarks.switch).around(_switches_any_version), scene=SWITCHES),
    PlantedBug("ledger-switch-unwritten",
               "a switch of the auto-recovery that changes nothing leaves an earlier order in force",
               at(LedgerMarks.switch).around(_switches_if_it_differs), scene=SWITCHES),
    PlantedBug("ledger-switch-by-marks",
               "auto-recovery cannot be switched while a mark of a newer version is there",
               at(LedgerMetadataCalls.switch_autorecovery).around(_asks_for_marks), scene=SWITCHES),
    PlantedBug("ledger-keeps-rotten",
               "a node refuses a new copy of an entry whose row fails the table's checksum",
               at(LedgerStore._find_whole).instead(_finds_it_damaged), scene=DAMAGE),
    PlantedBug("ledger-keeps-damaged",
               "a node keeps a copy that fails its digest, and refuses a whole copy",
               at(entry_calls._is_another).instead(_is_another_in_any_case), scene=DAMAGE),
)  # fmt: skip
