"""Bugs of clients, of connections and of the metadata store's users.

Source: docs/sources/reliability.md §2 (etcd, Redpanda), §6.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from operator import length_hint
from typing import Any

from crc32c import crc32c

from cordwood.admin import consumer_calls
from cordwood.block import Gap
from cordwood.client.admin import positions
from cordwood.client.admin.positions import Positions
from cordwood.client.append.appends import Appends
from cordwood.client.append.buffered_writer import BufferedWriter
from cordwood.client.append.line import LetIn
from cordwood.client.append.log_appends import LogAppends
from cordwood.client.append.producer import Producer, ProducerCall, ProducerPlace
from cordwood.client.cluster import Cluster, LogInfo
from cordwood.client.read.consumer import Consumer
from cordwood.client.read.cursors import Cursors
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.read.reader import Reader
from cordwood.errors import CordwoodError, OutcomeUnknown, Retryable
from cordwood.layout import frame
from cordwood.lsn import Lsn
from cordwood.metadata import change, consumers
from cordwood.metadata.change import Decide, Known
from cordwood.metadata.memory import MemoryData
from cordwood.metadata.store import MetadataStore
from cordwood.nodes import NodeId
from cordwood.protocol import consumer_group
from cordwood.protocol.consumer_group import Group, save
from cordwood.sim.planted import appending_scenarios, reading_scenarios, scenarios
from cordwood.sim.planted.bug import PlantedBug, at, notes_of, together, value
from cordwood.wire import connection, peers
from cordwood.wire import server as wire_server
from cordwood.wire.connection import Connection


def _unknown_resent(right: Any, self: LogAppends, connection: Connection) -> None:
    lost = [token for token, (_, used) in self._sent.items() if used is connection]
    for token in sorted(lost, reverse=True):
        batch, _ = self._sent.pop(token)
        self._owner.sent.pop(token, None)
        self._requeue(batch, token)
    right(self, connection)


async def _ticks_first(right: Any, self: BufferedWriter) -> None:
    self._waits += 1
    if self._waits % 256 == 0:
        await asyncio.sleep(0)
    await right(self)


def _places_copied(right: Any, self: Producer, log: int, sequence: int) -> Any:
    places = {**self._lineage.places, **self._own}
    known = {each: place.sequence for each, place in places.items()}
    return type(self)(self.producer, self.epoch, {**known, log: sequence})


def _ends_without_its_blocks(right: Any, self: BufferedWriter, error: CordwoodError) -> None:
    for lane in self._lanes.values():
        lane.stream = None
    right(self, error)


def _place_left(right: Any, self: LogAppends) -> None:
    broken = self._broken
    right(self)
    self._broken = broken


def _begun_block_stays(right: Any, self: Reader) -> None:
    if self._up is None or not length_hint(self._up.hand.items):
        right(self)


async def _reading_of_now(
    right: Any, self: Consumer, new: Mapping[str, int], reading: Any, let_go: Sequence[str] = ()
) -> None:
    await right(self, new, self._reading(new), let_go)


async def _by_news(
    right: Any, self: Consumer, logs: Any, new: Any, reading: Any, *, go: bool = False
) -> None:
    if go and self._group is not None:
        reading = reading._replace(generation=self._group.generation)
    await right(self, logs, new, reading, go=go)


async def _begun_unsaved(self: Consumer, log: str, since: int) -> None:
    self._begun[log] = since
    with contextlib.suppress(Retryable):
        await self._save({log: int(self._reader.position(log))}, self._reading([log]))


def _values_only(
    right: Any,
    self: ProducerCall,
    first: int,
    values: Any,
    keys: Any,
    headers: Any = None,
    times_us: Any = None,
) -> None:
    right(self, first, values, None)


def _epoch_above(right: Any, self: Producer, log: int, sequence: int) -> Any:
    return type(self)(self.producer, self.epoch + 1)


def _deadline_ignored(right: Any, self: LogAppends, now: float) -> None:
    self._pump()


def _doubt_forgotten(
    right: Any, self: LogAppends, token: int, error: CordwoodError, node: NodeId, by: Connection
) -> None:
    found = self._sent.get(token)
    if found is not None and isinstance(error, Retryable):
        found[0].maybe = False
    right(self, token, error, node, by)


def _place_given_twice(right: Any, self: ProducerCall) -> None:
    # As if each place below a successful call could be sent again by its own call.
    right(self)
    self.place.answered = 0


def _no_compare(
    right: Any, self: MemoryData, key: str, value: bytes | None, expected: int
) -> int | None:
    found = self.values.get(key)
    if key.startswith("epochs/") and found is not None:
        expected = found.version
    version: int | None = right(self, key, value, expected)
    return version


async def _unknown_is_done(
    right: Any,
    store: MetadataStore,
    key: str,
    decide: Decide,
    known: Known | None = None,
    version: int | None = None,
) -> bytes | None:
    wanted: bytes | None = None

    def noting(found: bytes | None) -> bytes | None:
        nonlocal wanted
        wanted = decide(found)
        return wanted

    found = await store.get(key)
    value = noting(found.value if found else None)
    if value is None:
        return found.value if found else None
    try:
        if await store.compare_and_set(key, value, found.version if found else 0):
            return value
    except OutcomeUnknown:
        return value
    done: bytes | None = await right(store, key, decide, None, version)
    return done


def _damage_told(right: Any, self: Connection, error: CordwoodError) -> Any:
    return error


def _anybody_saves(
    right: Any, group: Group, positions: Mapping[str, int], *, member: str = "", **rest: Any
) -> Any:
    return dataclasses.replace(
        right(dataclasses.replace(group, owners={}), positions, member=member, **rest),
        owners=group.owners,
    )


def _read_on(right: Any, group: Group, logs: Any) -> Any:
    anew = right(group, logs)
    return dataclasses.replace(anew, generation=group.generation, owners=group.owners)


def _moved_only(
    right: Any,
    group: Group,
    positions: Mapping[str, int],
    expected: Mapping[str, int],
    resets: Mapping[str, int],
) -> set[str]:
    return {log for log, lsn in positions.items() if lsn != group.positions.get(log, 0)}


def _one_more(right: Any, self: Reader, log: str) -> Any:
    return right(self, log) + 1


async def _found_beside(right: Any, stream: ReadStream, name: str) -> Any:
    # As if nothing could stand after a record without a key.
    async for item in stream:
        if not isinstance(item, Gap):
            stream.close()
            return (None if item.key is None else (item.key, item.lsn)), False
    return None, False


def _key_is_before(right: Any, self: Positions, info: LogInfo, tail: Lsn, key: bytes) -> Any:
    # As if the records of the key itself had a lower key.
    return right(self, info, tail, key + b"\0")


def _no_sum(data: Any, value: int = 0, gil_release_mode: int = 0) -> int:
    return 0


def _lane_of_each(right: Any, self: Appends, log: int, producer: Producer | None = None) -> Any:
    if producer is None:
        return right(self, log)
    # The bug: each producer has a place, and so a lane, of its own.
    own = notes_of(self).setdefault("places", {}).setdefault((log, producer), ProducerPlace())
    if (log, own) not in self._logs:
        right(self, log, producer)
        self._logs[log, own] = self._logs.pop((log, producer.place(log)))
    return self._logs[log, own]


BUGS = (
    PlantedBug("unknown-resent", "a client sends records again although they may be stored",
               at(LogAppends.on_down).around(_unknown_resent), scenario=scenarios.RECOVERIES),
    PlantedBug("writer-ticks-first", "a buffered writer lets others go on before an append has its "
                                     "place",
               at(BufferedWriter._wait_room).around(_ticks_first),
               scene="tests/client/append/test_buffered_writer.py"),
    PlantedBug("doubt-forgotten",
               "an append that may be stored is reported as not stored after a later refusal",
               at(LogAppends.on_fault).around(_doubt_forgotten),
               scenario=appending_scenarios.REFUSED_LATER),
    PlantedBug("place-given-twice", "Producer.again gives a call the place of a successful call",
               at(ProducerCall.ended_well).around(_place_given_twice),
               scenario=appending_scenarios.SENT_AGAIN),
    PlantedBug("other-records-there",
               "a call takes a place at which another call's records may be stored",
               at(ProducerCall.failed).instead(lambda *rest: None),
               scenario=appending_scenarios.SENT_AGAIN),
    PlantedBug("again-copies-places",
               "a producer from Producer.again does not see places that other calls take in its "
               "other logs",
               at(Producer.again).around(_places_copied), scenario=appending_scenarios.AGAIN),
    PlantedBug("again-begins-anew", "Producer.again begins a higher epoch",
               at(Producer.again).around(_epoch_above), scenario=appending_scenarios.AGAIN),
    PlantedBug("lineage-apart",
               "calls of two producers that share a place in a log do not wait for one another",
               at(Appends.log).around(_lane_of_each),
               scene="tests/client/append/test_producers_cluster.py"),
    PlantedBug("key-behind-keyless", "find_key stops at a record without a key",
               at(positions.first_keyed).around(_found_beside), scenario=scenarios.KEYS_SOUGHT),
    PlantedBug("key-off-by-one", "find_key treats the key's own records as records of a lower key",
               at(Positions.search_key).around(_key_is_before),
               scenario=scenarios.KEYS_SOUGHT),
    PlantedBug("deadline-ignored", "a client waits for ever",
               at(LogAppends.sweep).around(_deadline_ignored),
               scenario=scenarios.HANGING),
    PlantedBug("frame-crc-ignored", "damaged frames are accepted",
               at(crc32c, within=frame).instead(_no_sum),
               scenario=scenarios.BAD_LINES),
    PlantedBug("damage-told", "callers get the checksum error of a damaged frame",
               at(Connection.error_for_callers).around(_damage_told),
               scenario=scenarios.BAD_LINES),
    PlantedBug("closed-amid-a-call", "a change that a node has, and whose client is closed, is told that nothing "
                                     "was done",
               at(Connection._closed_meanwhile).instead(lambda self, message, error: error),
               scene="tests/client/test_closed_meanwhile.py"),
    PlantedBug("closed-between-nodes", "a change that a node did before it died, and whose client is closed before "
                                       "it asks another node, is told that nothing was done",
               at(Cluster._closed_meanwhile).instead(staticmethod(lambda message, silent, error: error)),
               scene="tests/client/test_closed_meanwhile.py"),
    PlantedBug("pings-without-pause", "a node pings its peers hundreds of times a second",
               value(lambda: peers.PING_EVERY_S, 0.005)),
    PlantedBug("anybody-saves", "a former member may still save positions",
               at(save, within=consumer_calls).around(_anybody_saves), scenario=scenarios.CONSUMERS),
    PlantedBug("reset-reads-on", "members read on after a reset, and save over it",
               at(consumer_group.read_anew).around(_read_on), scenario=reading_scenarios.RESETS),
    PlantedBug("reset-by-position", "a reset to the last saved position does nothing",
               at(consumer_group.newly_reset).around(_moved_only), scenario=reading_scenarios.RESETS),
    PlantedBug("saves-ahead", "a consumer saves a position beyond a record that it was not given",
               at(Reader.position).around(_one_more)),
    PlantedBug("saves-other-reading", "a consumer saves the places of one reading as places of "
                                      "the next reading, which undoes the reset in between",
               at(Consumer._save).around(_reading_of_now),
               scene="tests/client/read/test_consumer.py"),
    PlantedBug("lets-go-by-news", "a member lets go of a log with positions from before a reset "
               "that it has heard of since",
               at(Consumer._save_each).around(_by_news),
               scene="tests/client/read/test_consumer_handover.py"),
    PlantedBug("begins-unsaved", "a member gives out records of a log whose begin at the tail is not "
               "saved",
               at(Consumer._save_first).instead(_begun_unsaved),
               scene="tests/client/read/test_consumer_at_tail.py"),
    PlantedBug("loop-passes-turn", "a loop goes on with its block of a log that a cancelled call let "
               "go of",
               at(Reader.ask).around(_begun_block_stays),
               scene="tests/client/read/test_consumer_handover.py"),
    PlantedBug("ended-stream-stays", "the blocks of a stream that ended keep the room of others",
               at(BufferedWriter.end).around(_ends_without_its_blocks),
               scene="tests/client/append/test_writer_ends.py"),
    PlantedBug("values-are-records", "two records at one place are compared by their values only",
               at(ProducerCall.takes).around(_values_only),
               scene="tests/client/append/test_producer_places.py"),
    PlantedBug("place-left-to-next", "a producer's next block gets the place of a block that could not "
               "be encoded",
               at(LogAppends._cut).around(_place_left),
               scene="tests/client/append/test_producer_places.py"),
    PlantedBug("nowait-passes", "a call that does not wait takes the free space for which "
                                "others wait",
               at(LetIn.take).instead(lambda self: True),
               scene="tests/client/append/test_room_in_turn.py"),
    PlantedBug("room-for-nobody", "calls that wait for the same free space block one another "
                                  "for ever",
               at(LetIn.take).instead(lambda self: False),
               scene="tests/client/append/test_room_in_turn.py"),
    PlantedBug("answers-of-any-size", "a node sends an answer that its caller takes for a damaged frame",
               at(wire_server.fits).instead(lambda size: True),
               scene="tests/wire/test_server.py"),
    PlantedBug("producer-of-any-process", "a process that forks and its child append as one producer",
               at(Producer._check_process).instead(lambda self: None),
               scene="tests/client/append/test_producer_forked.py"),
    PlantedBug("producer-copies-append", "a pickled producer appends beside the one that it is of",
               at(Producer._copied).instead(lambda self: self.__dict__),
               scene="tests/client/append/test_producer_forked.py"),
    PlantedBug("polls-take-all", "questions that wait for news leave a client's other calls no turn",
               value(lambda: connection.POLLS_AT_ONCE, 1 << 20), scene="tests/wire/test_connection.py"),
    PlantedBug("leases-of-any-length", "a lease that a clock ahead of time wrote is believed",
               together(at(consumer_group.shortened).instead(lambda group, now_us: group),
                        at(consumer_group.shortened, within=consumer_calls).instead(
                            lambda group, now_us: group)),
               scene="tests/client/read/test_consumer_handover.py"),
    PlantedBug("leases-by-one-clock", "a node takes a member for absent whose lease another node's "
               "clock wrote",
               at(consumer_calls.SeenLeases.seen).instead(lambda self, consumer, group: set()),
               scene="tests/client/read/test_consumer_handover.py"),
    PlantedBug("joins-without-room", "a member joins although the consumer's entry has no room for "
               "what is saved later",
               at(consumers._room).instead(lambda group: 0),
               scene="tests/client/read/test_consumer_entry.py"),
    PlantedBug("claims-are-repeats", "a compare-and-set is taken for a repeat of another caller's",
               at(consumer_group.is_same_call).instead(
                   lambda group, positions, mark: positions.items() <= group.positions.items()),
               scene="tests/client/read/test_consumer.py"),
    PlantedBug("claims-are-forgotten", "the second try of a compare-and-set is refused, because "
               "another caller went on from where the first one had moved the position",
               at(consumer_group.with_mark).instead(lambda marks, mark: (mark,)),
               scene="tests/client/read/test_consumer.py"),
    PlantedBug("claims-begin-anew", "a compare-and-set that was not answered is another one when "
               "it is made again, and is refused",
               at(Cursors._marks_of).instead(lambda self, claim: (self._new_mark(),)),
               scene="tests/client/read/test_consumer.py"),
    PlantedBug("calls-unmarked", "a node does not recognise the second try of a call",
               at(Cluster.new_mark).instead(lambda self: ""),
               scene="tests/client/admin/test_maintenance.py"),
    PlantedBug("epoch-without-compare", "the epoch store writes without comparing",
               at(MemoryData.compare_and_set).around(_no_compare),
               scenario=scenarios.BAD_METADATA),
    PlantedBug("unknown-is-done", "a write of unknown outcome counts as done",
               at(change.change).around(_unknown_is_done), scenario=scenarios.BAD_METADATA),
)  # fmt: skip
