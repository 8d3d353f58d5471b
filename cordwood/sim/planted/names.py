"""Planted bugs of names: code that stores, reads or remembers by a name instead of a number."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any
from zlib import crc32

import msgspec

from cordwood.admin import consumer_calls
from cordwood.client.admin import changes_again
from cordwood.client.admin import log_tree as client_tree
from cordwood.client.admin.changes_again import Change, UnansweredChanges
from cordwood.client.admin.positions import Positions
from cordwood.client.append.append_calls import AppendCalls
from cordwood.client.append.producer import Producer
from cordwood.client.cluster import Cluster
from cordwood.client.find import log_finding, running_time, tail_calls
from cordwood.client.find.known_logs import KnownLogs
from cordwood.client.find.log_finding import NO_ANSWER, STOOD_S, LogFinding
from cordwood.client.find.log_info import AnyLog, LogInfo
from cordwood.client.find.running_time import RunningTime
from cordwood.client.find.several_logs import find_now, find_several
from cordwood.client.read import cursors
from cordwood.client.read.consumer_logs import Ask, ConsumerLogs, Read
from cordwood.client.read.cursors import ByLog, Cursors, Unanswered
from cordwood.errors import Overloaded, TooFewNodes, Unreachable
from cordwood.host.delivery import Delivery
from cordwood.host.loop_thread import LoopThread, _Call
from cordwood.layout.message import Call, Reply
from cordwood.layout.message_logs import FindLog
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import LogId, Lsn
from cordwood.metadata import change, epoch_store, log_listing, log_rights
from cordwood.metadata.change import Decide, Known
from cordwood.metadata.directories import DIRECTORIES_KEY, Directories, directories_of
from cordwood.metadata.log_entries import LogEntries, LogEntry, decode, id_key, name_key
from cordwood.metadata.log_tree import LogTree
from cordwood.metadata.pages import pages
from cordwood.metadata.store import MetadataStore, Page
from cordwood.protocol import consumer_group
from cordwood.protocol.consumer_group import Group
from cordwood.sequencer.appender import LogAppender
from cordwood.sequencer.run_contents import Waiting
from cordwood.sim.planted import appending_scenarios, scenarios
from cordwood.sim.planted.bug import PlantedBug, at, together, value
from cordwood.wire.connection import Connection


def _by_name(name: str) -> str:
    return str(1 + crc32(name.encode()))


def _kept_by_name(
    right: Any, self: ConsumerLogs, infos: Iterable[LogInfo], ask: Ask, read: Read
) -> None:
    right(self, infos, ask, read)
    self._names = {_by_name(name): name for name in self.names}


async def _asked_by_name(
    right: Any, self: LogFinding, key: AnyLog, create: bool, timeout_s: float
) -> Any:
    known = self._known.get(key)
    if isinstance(key, int) and known is not None:
        key = known.name
    return await right(self, key, create, timeout_s)


async def _second_by_name(self: Positions, log: AnyLog) -> tuple[LogInfo, Lsn]:
    info = await self._fresh(log)
    tail = await self._ask_tail(info)
    return (info if tail.epoch <= info.epoch else await self._fresh(log)), tail


def _opened_by_name(right: Any, self: LogFinding, log: AnyLog, **options: Any) -> Any:
    known = self._known.get(log) if isinstance(log, int) else None
    return right(self, log if known is None else known.name, **options)


def _never_fresh(right: Any, self: LogFinding, log: AnyLog, **options: Any) -> Any:
    return right(self, log, **{**options, "fresh": False})


async def _any_version(
    right: Any,
    store: MetadataStore,
    key: str,
    decide: Decide,
    known: Known | None = None,
    version: int | None = None,
) -> Any:
    return await right(store, key, decide, known)


def _resets_unseen(
    right: Any, group: Group, positions: Mapping[str, int], *, resets: Any = None, **how: Any
) -> Group:
    saved: Group = right(group, positions, **how)
    return saved


def _tokens_unasked(right: Any, self: LogAppender, waiting: Waiting) -> None:
    asked = self.attributes
    self.attributes = msgspec.structs.replace(asked, write_token="")
    right(self, waiting)
    self.attributes = asked


async def _takes_blindly(self: LogEntries, name: str, log_id: LogId) -> None:
    """A name is removed from its log, even if the log has another name by then."""
    found = await self._store.get(name_key(name))
    if found is not None and await self.leads_to(name) == log_id:
        await self._store.compare_and_set(name_key(name), None, found.version)


async def _nothing(*rest: Any) -> None:
    pass


async def _of_two_moments(self: LogTree, log_id: LogId) -> tuple[LogEntry | None, int, Directories]:
    log, above = await asyncio.gather(
        self._store.get(id_key(log_id)), self._store.get(DIRECTORIES_KEY)
    )
    entry = decode(log.value, LogEntry, f"log number {log_id}") if log else None
    return entry, log.version if log else 0, directories_of(above)


async def _moved_left_out(
    right: Any, self: LogTree, log_id: LogId, version: int, errors: Any
) -> Any:
    info = await right(self, log_id, version, errors)
    return None if version else info


async def _all_at_once(store: MetadataStore, prefix: str) -> AsyncIterator[Page]:
    yield await store.list(prefix)


async def _given_up_blindly(self: LogEntries, name: str, log_id: LogId, log: LogEntry) -> None:
    found = await self._store.get(id_key(log_id))
    if found is not None:
        log = decode(found.value, LogEntry, name)
        gone = msgspec.json.encode(msgspec.structs.replace(log, is_deleted=True))
        await self._store.compare_and_set(id_key(log_id), gone, found.version)


async def _claims_last(
    right: Any,
    self: LogTree,
    log_id: LogId,
    name: str,
    new_name: str | None,
    check: Any,
    version: int | None,
) -> None:
    twin: Any = type(self)(self._store, self._defaults)
    twin._entries.claim = _nothing
    await right(twin, log_id, name, new_name, check, version)
    if new_name is not None:
        await self._entries.claim(new_name, log_id)


async def _of_any_version(
    right: Any, self: LogTree, log_id: LogId, name: str, new_name: Any, check: Any, version: Any
) -> None:
    await right(self, log_id, name, new_name, check, None)


def _of_any_moment(self: KnownLogs, logs: Iterable[AnyLog]) -> dict[AnyLog, LogInfo] | None:
    found = {log: self.get(log) for log in logs}
    return {log: info for log, info in found.items() if info} if all(found.values()) else None


async def _kept_claim(
    right: Any, self: LogEntries, log_id: LogId, new_name: str | None, *, may_be_done: bool
) -> Any:
    return await right(self, log_id, None, may_be_done=may_be_done)


def _put_once(right: Any, self: UnansweredChanges, change: Change, number: int) -> None:
    self._numbers.pop(change, None)
    right(self, change, number)


def _put_over(right: Any, self: UnansweredChanges, change: Change, number: int) -> None:
    right(self, change, number)
    while len(self) > changes_again.UNANSWERED_MAX:
        self._numbers.pop(next(iter(self._numbers)))


def _put_if_room(right: Any, self: UnansweredChanges, change: Change, number: int) -> None:
    if len(self) < changes_again.UNANSWERED_MAX:
        right(self, change, number)


def _put_back_alone(self: UnansweredChanges, change: Change, number: int) -> None:
    self.put(change, number)
    self.answered(change, number)


def _taken_away(right: Any, self: UnansweredChanges, change: Change) -> Any:
    is_left = any(each.waiting for each in self._numbers.get(change, ()))
    return right(self, change) if is_left else None


def _take_or_refuse(right: Any, self: UnansweredChanges, change: Change) -> Any:
    if change not in self._numbers and not self.has_room():
        raise Overloaded("too many had no answer")
    return right(self, change)


def _unless_it_ended_with_an_error(right: Any, self: LoopThread, call: _Call[Any]) -> None:
    if not (call.is_done and call.error is not None):
        right(self, call)


def _marks_of_one(right: Any, self: Cursors, claim: bytes) -> Any:
    marks = right(self, claim)
    self._unanswered.pop(claim, None)
    return marks


def _none_under_way(right: Any, self: Unanswered) -> Unanswered:
    taken: Unanswered = right(self)
    return dataclasses.replace(taken, asked=taken.asked if taken.calls else {})


def _of_the_last_text(right: Any, self: Unanswered, later: Unanswered) -> Any:
    return dataclasses.replace(right(self, later), asked=later.asked)


def _as_spelt(positions: ByLog) -> list[tuple[bool, str, int]]:
    return sorted((isinstance(log, str), str(log), at) for log, at in positions.items())


def _room_of_the_oldest(self: Cursors, most: int) -> None:
    while len(self._unanswered) > most:
        self._unanswered.pop(next(iter(self._unanswered)))


def _room_of_those_under_way(right: Any, self: Cursors, most: int) -> None:
    for claim, each in [*self._unanswered.items()]:
        if len(self._unanswered) > most and not each.asked:
            del self._unanswered[claim]
    right(self, most)


async def _made_here(
    right: Any,
    self: client_tree.LogTree,
    log: str,
    copies: int,
    racks: int,
    attributes: LogAttributes,
) -> Any:
    info = await right(self, log, copies, racks, attributes)
    numbers = self._cluster.unanswered._numbers
    for key in [each for each in numbers if each[1] == info.name]:
        del numbers[key]
    return info


async def _from_memory(
    finding: LogFinding,
    logs: Iterable[AnyLog],
    *,
    create: bool,
    timeout_s: float,
    may_remember: bool,
) -> dict[AnyLog, LogInfo]:
    return {log: await finding.find_log(log, create=create, timeout_s=timeout_s) for log in logs}


async def _asked_anew(self: LogFinding, call: FindLog, timeout_s: float) -> Reply:
    ran_s = 0.0
    while True:
        time = RunningTime()
        try:
            return await self._ask_nodes(call, timeout_s)
        except NO_ANSWER:
            ran_s += time.ran_s
            if time.stood_s < STOOD_S or ran_s > timeout_s - STOOD_S:
                raise
        finally:
            time.end()


async def _of_one_node(self: LogFinding, call: FindLog, timeout_s: float) -> Reply:
    return await self.ask_any(call, timeout_s=timeout_s, asked=[])


async def _as_silence(right: Any, self: LogFinding, call: FindLog, timeout_s: float) -> Any:
    try:
        return await right(self, call, timeout_s)
    except TooFewNodes as error:
        raise Unreachable(str(error)) from error


def _heard_for_good(right: Any, self: KnownLogs, count: int, asked_s: float) -> Any:
    is_news = right(self, count, asked_s)
    self.heard_until_s = float("inf")
    return is_news


def _waits_each_time(self: LogFinding, key: AnyLog, create: bool) -> bool:
    return self._known.must_ask(key)


def _for_old_numbers(right: Any, self: KnownLogs, log: AnyLog) -> bool:
    return bool(right(self, log)) or self.is_old(log)


async def _asked_again(
    right: Any, self: Cluster, message: Call, *, timeout_s: float, asked: list[Connection]
) -> Any:
    return await right(self, message, timeout_s=timeout_s, asked=[])


async def _remembered(
    right: Any,
    finding: LogFinding,
    logs: Iterable[AnyLog],
    *,
    create: bool,
    timeout_s: float,
    may_remember: bool,
) -> Any:
    return await right(finding, logs, create=create, timeout_s=timeout_s, may_remember=True)


async def _of_one_look(
    finding: LogFinding,
    logs: Iterable[AnyLog],
    *,
    create: bool,
    timeout_s: float,
    may_remember: bool,
) -> dict[AnyLog, LogInfo]:
    return {
        log: (await find_now(finding, log, create=create, timeout_s=timeout_s))[0] for log in logs
    }


BUGS = (
    PlantedBug("tokens-unasked", "a sequencer takes appends of clients without the log's token",
               at(LogAppender.enqueue).around(_tokens_unasked),
               scene="tests/client/append/test_write_tokens.py"),
    PlantedBug("resets-unseen", "a consumer without members saves over a reset",
               at(consumer_group.save, within=consumer_calls).around(_resets_unseen),
               scene="tests/client/read/test_consumer.py"),
    PlantedBug("any-version", "attributes are set over a change that the caller did not see",
               at(change.change).around(_any_version),
               scene="tests/client/admin/test_late_changes.py"),
    PlantedBug("position-by-name", "a consumer's position is kept by the name of its log",
               together(at(ConsumerLogs.__init__).around(_kept_by_name),
                        at(ConsumerLogs.key_of).instead(lambda self, log: _by_name(log))), scenario=scenarios.NAMES),
    PlantedBug("read-by-name", "a call by a log's number looks the log up by its name",
               together(at(LogFinding.ask_log).around(_asked_by_name),
                        at(LogFinding.find_log).around(_opened_by_name)), scenario=scenarios.NAMES),
    PlantedBug("second-by-name", "a trim looks its log up a second time by name",
               at(Positions.opened).instead(_second_by_name), scene="tests/test_trim.py"),
    PlantedBug("cached-number-kept", "a client believes a name for as long as it runs",
               together(at(LogFinding.find_log).around(_never_fresh),
                        at(KnownLogs.has_changed).instead(lambda self, log: False),
                        at(KnownLogs.is_old).instead(lambda self, log, age_s=0.0: False)), scenario=scenarios.NAMES),
    PlantedBug("names-from-memory", "two names of one call lead to one log, because one of them is "
                                    "remembered, and another log is left out",
               at(find_several, within=tail_calls).instead(_from_memory),
               scene="tests/client/find/test_several_names.py"),
    PlantedBug("names-of-one-node", "one node that does not answer stands for all: the client goes "
                                    "on with a name that moved long ago",
               at(LogFinding._ask_nodes).instead(_of_one_node),
               scene="tests/client/find/test_silent_nodes.py"),
    PlantedBug("names-of-one-node-thrice", "a look-up asks the node that does not answer again, and no "
                                           "other, if it has the fewest calls of the client",
               at(Cluster.ask_any).around(_asked_again),
               scene="tests/client/find/test_silent_nodes.py"),
    PlantedBug("answers-as-silence", "a client goes on with a log that lost its name long ago, because nodes "
                                     "answer that they cannot make the name anew",
               at(LogFinding._ask_nodes).around(_as_silence),
               scene="tests/client/find/test_silent_nodes.py"),
    PlantedBug("names-of-the-stopped", "a client that was stopped goes on with a name that moved meanwhile",
               at(KnownLogs.note_changes).around(_heard_for_good),
               scene="tests/client/find/test_stopped_clients.py"),
    PlantedBug("own-stop-as-silence", "a client that stood while it asked for a name takes the name from memory",
               value(lambda: log_finding.STOOD_S, float("inf")),
               scene="tests/client/find/test_stopped_clients.py"),
    PlantedBug("short-stop-as-silence", "a client that stood for just as long as it waits for a name takes the "
                                        "name from memory",
               value(lambda: running_time.TURN_S, 1.0),
               scene="tests/client/find/test_stopped_clients.py"),
    PlantedBug("look-up-begins-anew", "a client that stood for a moment while no node answered begins its "
                                      "look-up anew with all its time: a call takes twice its timeout",
               at(LogFinding._ask_while_running).instead(_asked_anew),
               scene="tests/client/find/test_stopped_clients.py"),
    PlantedBug("sent-after-its-deadline", "an append that found its log after its deadline is sent, and its "
                                          "caller is told that it may be stored",
               at(AppendCalls._check_in_time).instead(lambda self, left_s: None),
               scene="tests/client/find/test_stopped_clients.py"),
    PlantedBug("old-names-at-once", "an old name is used at once, and looked up in the background only",
               at(KnownLogs.must_ask).instead(lambda self, log: self.has_changed(log)),
               scene="tests/client/find/test_stopped_clients.py"),
    PlantedBug("waits-of-each-log", "while the metadata store is away, a client waits for the name of each "
                                    "log that it uses",
               at(LogFinding._must_wait).instead(_waits_each_time),
               scene="tests/client/find/test_stopped_clients.py"),
    PlantedBug("waits-for-old-numbers", "a client waits for a log that it names by number, because it "
                                        "learnt the number long ago",
               at(KnownLogs.must_ask).around(_for_old_numbers),
               scene="tests/client/find/test_stopped_clients.py"),
    PlantedBug("consumer-from-memory", "a consumer stays with the log that had its name before",
               at(find_several, within=tail_calls).around(_remembered),
               scene="tests/client/find/test_silent_nodes.py"),
    PlantedBug("names-of-two-moments", "logs are renamed while the names of a call are looked up, and a "
                                       "log that had one of them all the time is left out",
               at(find_several, within=tail_calls).instead(_of_one_look),
               scene="tests/client/find/test_several_names.py"),
    PlantedBug("names-mixed", "a reader of several names takes one as it leads now and one from memory, "
                              "and a log that had one of them all the time is left out",
               at(find_several, within=tail_calls).instead(_of_one_look),
               scene="tests/client/find/test_mixed_names.py"),
    PlantedBug("names-remembered-mixed", "a reader takes names from memory that were learnt before and "
                                         "after a rename, and leaves a log out",
               at(KnownLogs.together).instead(_of_any_moment),
               scene="tests/client/find/test_mixed_names.py"),
    PlantedBug("claims-by-new-name", "a compare-and-set that was not answered moves a position in "
                                     "another log when it is made again",
               at(Cursors._earlier).instead(lambda self, asked: None),
               scene="tests/client/read/test_claims_renamed.py"),
    PlantedBug("claims-for-good", "a claim is answered with the outcome of an equal one in a log that "
                                  "had the name before: two callers win it",
               at(Cursors._told).instead(lambda self, consumer, asked=b"": None),
               scene="tests/client/read/test_claims_renamed.py"),
    PlantedBug("claims-last-mark", "of two equal claims without an answer, a store remembers one, and "
                                   "nobody has the records of the other",
               at(Cursors._save_with).around(
                   lambda right, self, call, marks: right(self, call, marks[-1:])),
               scene="tests/client/read/test_claims_renamed.py"),
    PlantedBug("claims-of-one", "of two equal claims without an answer, the second one moves a position in "
                                "another log when both are made again",
               at(Cursors._marks_of).around(_marks_of_one),
               scene="tests/client/read/test_claims_renamed.py"),
    PlantedBug("claims-of-two-callers", "two callers make one claim, one after the other without an answer, and "
                                        "the second repeat moves a position in another log",
               at(Unanswered.and_another).instead(lambda self: self),
               scene="tests/client/read/test_claims_renamed.py"),
    PlantedBug("claims-taken-away", "a claim forgets what an equal one meant before it is answered itself, and "
                                    "the repeat of the other one moves a position in another log",
               at(Unanswered.taken).around(_none_under_way),
               scene="tests/client/read/test_claims_renamed.py"),
    PlantedBug("claims-as-spelt", "of two equal claims without an answer in two spellings, one moves a "
                                  "position in another log when it is made again",
               together(at(cursors._given).instead(_as_spelt),
                        at(Unanswered.and_also).around(_of_the_last_text)),
               scene="tests/client/read/test_claims_renamed.py"),
    PlantedBug("claims-of-one-text", "of two equal claims without an answer, by name and by number, the one "
                                     "by name moves a position in another log when it is made again",
               at(Unanswered.and_also).around(_of_the_last_text),
               scene="tests/client/read/test_claims_renamed.py"),
    PlantedBug("claims-evicted", "a claim is refused when it is made again, because many others had no "
                                 "answer, and nobody has the records",
               at(Cursors._make_room).instead(_room_of_the_oldest),
               scene="tests/client/read/test_claims_renamed.py"),
    PlantedBug("claims-under-way-evicted", "a claim is forgotten for room while it is made again, and a later, "
                                           "equal one means the old log for good",
               at(Cursors._make_room).around(_room_of_those_under_way),
               scene="tests/client/read/test_claims_renamed.py"),
    PlantedBug("again-elsewhere", "records are sent again to another log that took the name, and "
                                  "are stored twice",
               at(Producer.check_led).instead(lambda self, name, log: None),
               scene="tests/client/append/test_producer_renamed.py"),
    PlantedBug("again-first-only", "the second of two calls to be sent again goes to another log that "
                                   "took the name, and is stored twice",
               at(Producer._owes).instead(lambda self, log, place: place.last is None),
               scene="tests/client/append/test_producer_renamed.py"),
    PlantedBug("name-taken-blindly", "an old name is removed without checking the log's present "
                                     "name",
               at(LogEntries.remove_name).instead(_takes_blindly),
               scenario=appending_scenarios.CROSSINGS),
    PlantedBug("name-claimed-last", "a log goes to its new name before the name is claimed",
               at(LogTree.move).around(_claims_last),
               scenario=appending_scenarios.CROSSINGS),
    PlantedBug("rename-any-version", "a late rename undoes a rename back that its caller did not see: "
                                     "the next append by the name makes another log",
               at(LogTree.move).around(_of_any_version),
               scene="tests/client/admin/test_late_changes.py"),
    PlantedBug("claim-of-the-overtaken", "a rename that was not done, and whose write had no answer, leaves "
                                         "its new name taken for good",
               at(LogEntries.overtaken).around(_kept_claim),
               scene="tests/metadata/test_log_tree.py"),
    PlantedBug("rename-twice", "one call of `rename` is done twice, and undoes a rename back that another "
                               "caller was told of",
               at(client_tree.LogTree._may_be_done).instead(staticmethod(lambda asked: False)),
               scene="tests/client/admin/test_late_changes.py"),
    PlantedBug("repeat-by-new-name", "a deletion or a rename without an answer changes another log that "
                                     "took the name when it is made again",
               at(UnansweredChanges.put).instead(lambda self, change, number: None),
               scene="tests/client/admin/test_changes_again.py"),
    PlantedBug("repeat-of-one", "of two equal deletions without an answer, the second one deletes another "
                                "log when both are made again",
               at(UnansweredChanges.put).around(_put_once),
               scene="tests/client/admin/test_changes_again.py"),
    PlantedBug("repeat-of-two-callers", "two callers delete a log one after the other without an answer, and "
                                        "the second repeat deletes another log",
               at(UnansweredChanges.put_back).instead(_put_back_alone),
               scene="tests/client/admin/test_changes_again.py"),
    PlantedBug("repeat-beside-another", "a deletion deletes another log when it is made again while an equal "
                                        "one is under way",
               at(UnansweredChanges.take).around(_taken_away),
               scene="tests/client/admin/test_changes_again.py"),
    PlantedBug("repeat-evicted", "a deletion without an answer deletes another log when it is made again, "
                                 "because many others had no answer",
               together(at(UnansweredChanges.has_room).instead(lambda self: True),
                        at(UnansweredChanges.put).around(_put_over)),
               scene="tests/client/admin/test_changes_again.py"),
    PlantedBug("repeat-untold", "a deletion without an answer is not remembered, because many others had "
                                "none, and its caller is not told: made again, it deletes another log",
               together(at(UnansweredChanges.has_room).instead(lambda self: True),
                        at(UnansweredChanges.put).around(_put_if_room)),
               scene="tests/client/admin/test_changes_again.py"),
    PlantedBug("changes-refused-for-good", "a store refuses all new deletions and renames, because many "
                                           "had no answer and are never made again",
               at(UnansweredChanges.take).around(_take_or_refuse),
               scene="tests/client/admin/test_changes_again.py"),
    PlantedBug("results-undelivered", "a signal ends a blocking call that the loop has done: its repeat deletes "
                                      "another log, or a claim is nobody's",
               at(Delivery.fail).instead(lambda self: None),
               scene="tests/client/blocking/test_broken_off_changes.py"),
    PlantedBug("errors-undelivered", "a signal takes the error of a blocking call as its thread takes it, and the "
                                     "call counts as answered",
               at(LoopThread._cancel).around(_unless_it_ended_with_an_error),
               scene="tests/client/blocking/test_broken_off_changes.py"),
    PlantedBug("repeat-made-here", "a deletion without an answer deletes a log that another task of the "
                                   "store has made since",
               at(client_tree.LogTree.create).around(_made_here),
               scene="tests/client/admin/test_changes_again.py"),
    PlantedBug("torn-attributes", "a log and its directories are read at two moments",
               at(LogTree._still).instead(_of_two_moments),
               scene="tests/metadata/test_log_tree.py"),
    PlantedBug("moved-left-out", "a listing leaves out a log that is renamed while it reads",
               at(LogTree._read_again).around(_moved_left_out),
               scene="tests/metadata/test_log_tree.py"),
    PlantedBug("lists-end", "logs are listed all at once, up to a number that deleted logs use up",
               together(at(pages, within=log_listing).instead(_all_at_once),
                        at(pages, within=epoch_store).instead(_all_at_once)),
               scene="tests/sequencer/test_log_watch.py"),
    PlantedBug("given-up-blindly", "a maker that lost the race for a name deletes a log that may "
                                   "have been made",
               at(LogEntries.give_up).instead(_given_up_blindly),
               scene="tests/metadata/test_log_tree.py"),
    PlantedBug("change-unasked", "a node changes a log without asking for its tokens",
               at(log_rights.changed_rights).instead(lambda was, becomes: ()),
               scenario=scenarios.RIGHTS),
)  # fmt: skip
