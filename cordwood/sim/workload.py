"""The work of simulated clients: producers append, readers follow, and all calls are recorded.

Each client is a process of its own on a machine of its own. Payloads identify themselves, so the
history alone tells the fate of each.

Source: docs/sources/reliability.md §1 (Jepsen's Kafka workload), §3.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from itertools import count

from cordwood.client.append.buffered_writer import BufferedWriter, WriteMode, WriterOptions
from cordwood.client.append.producer import Producer
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.store import Store, connected
from cordwood.client.tier_store import OpenObjects
from cordwood.errors import CordwoodError, LogExists, OutcomeUnknown
from cordwood.host.seams import Host
from cordwood.log_attributes import LogAttributes, token_digest
from cordwood.settings import ClientSettings
from cordwood.sim.buggify import Buggify
from cordwood.sim.crew import OpenCalls
from cordwood.sim.history import HistoryRecorder
from cordwood.sim.keys import as_key, key_of
from cordwood.sim.payload import make_payload
from cordwood.sim.position_clients import ask_extent, find_a_time, poll_released
from cordwood.sim.sent_again import AGAIN_PAUSE_S, are_one, draw_tries, patience_s, sent_again
from cordwood.sim.streams import stream
from cordwood.tier.addresses import open_object_store

PAYLOAD_BYTES_MIN = 64
"""Bytes for the id and its checksum."""

RECONNECT_S = 0.5
"""Pause before a client that could not connect tries again."""

LOOK_S = 2.5
"""How long a reader waits for an item before it checks whether it should stop: longer than a stream
waits before it asks for the tail."""

GIVE_UP_S = 0.4
"""Longest that an impatient caller waits before it cancels its call."""

PAUSE_MAX_S = 20.0
"""A third of the time in which all clients end."""

PIPELINED = 0.3
"""Share of a producer's steps in which it makes several calls at once."""

CALLS_AT_ONCE_MAX = 4

HELD = "/sim/held"
"""The log that holders take in turn, see `sim.token_clients`; no other client appends to it."""

SORTED = "/sim/sorted"
"""The log whose keys do not fall, see `sim.sorters`; no other client appends to it."""

GUARDED = "/sim/guarded"
"""The log that demands a read token, see `sim.rights_clients`."""

READ_TOKENS = ("one", "the other")
"""The tokens that it demands, in turn; outsiders have neither."""

CODECS = ("none", "none", "zstd", "lz4")


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """The options of one run's clients.

    Attributes:
        producers, readers: how many of each.
        logs: names of the logs used.
        pause_s: mean time between two calls of a lane.
        burst: most records in one call.
        lanes: calls that one producer has in flight; each lane is a session of its own.
        payload_bytes_max: largest payload.
        restart_s: mean time after which a reader starts over.
        append_timeout_s: the clients' deadline.
        rush_s, lull_s: times for which producers work and rest in turn; a lull of 0: steady work.
        ask_s: mean time between two questions for a tail; 0 asks none.
        trim_s: mean time between two trims; 0 trims nothing.
        idempotent: share of lanes that append as a `Producer`, so that retries are stored once.
        grouped: share of the calls with several records that append them as one atomic group.
        members: number of members of the consumer; 0 for no consumer.
        reset_s: mean time between two resets of the consumer's positions; 0 resets nothing.
        conditional: share of the single appends of other lanes that are conditional.
        buffered: share of the lanes without an identity that append by a buffered writer of their
            own, in one of its modes.
        publishers: queries that stage and publish batches; each is a client of its own.
        publish_s: mean time between two batches of one query.
        holders: clients that take a log of their own under fencing tokens, in turn.
        outsiders: readers without a log's read token; one more client, the keeper, changes it.
        callers: clients of a log whose name changes; one more client, the namer, changes it.
        crossers: administrators who change the same names at the same moments.
        keyed: share of the calls whose records have keys.
        manners: share of the reads that ask for some keys, no payloads, or batches.
        browsers: readers of all logs at once.
        crowds: clients with several readers of one log.
        scribes: clients that write ledgers; three more recover, follow and read them at the end.
        tiers_ledgers: whether every other ledger asks for main storage.
        long_ledgers: whether scribes write ledgers until they must stop; few are recovered.
        sorters: clients (one at most) of a log whose keys do not fall, which look keys up.
        resenders: clients that send a failed call again at the same place.
        switches: operators (one at most) that switch repairs of ledgers off and on.
        rebalanced: nodes that an operator lets give copies to one another; () for none.
        given_up: nodes that an operator gives up when they are down; () for none.
        read_only: nodes that an operator makes read-only, and lets store again; () for none.
        client: settings of every client; deadline and codec are set for each.
    """

    producers: int = 2
    readers: int = 2
    logs: tuple[str, ...] = ("/sim",)
    pause_s: float = 0.5
    burst: int = 20
    lanes: int = 3
    payload_bytes_max: int = 400
    restart_s: float = 30.0
    append_timeout_s: float = 5.0
    rush_s: float = 5.0
    lull_s: float = 0.0
    ask_s: float = 3.0
    trim_s: float = 0.0
    idempotent: float = 0.0
    conditional: float = 0.0
    members: int = 0
    reset_s: float = 0.0
    grouped: float = 0.0
    buffered: float = 0.0
    publishers: int = 0
    publish_s: float = 1.0
    holders: int = 0
    outsiders: int = 0
    callers: int = 0
    crossers: int = 0
    keyed: float = 0.0
    manners: float = 0.0
    browsers: int = 0
    crowds: int = 0
    scribes: int = 0
    tiers_ledgers: bool = False
    long_ledgers: bool = False
    sorters: int = 0
    resenders: int = 0
    switches: int = 0
    rebalanced: tuple[int, ...] = ()
    given_up: tuple[int, ...] = ()
    read_only: tuple[int, ...] = ()
    client: ClientSettings = field(default_factory=ClientSettings)


def records_a_second(options: WorkloadOptions, burst: int) -> float:
    """The approximate number of records that producers append without faults: one of two calls has
    a single record, the other call up to `burst`."""
    turn_s = options.rush_s + options.lull_s
    busy = options.rush_s / turn_s if options.lull_s else 1.0
    turns = options.producers * options.lanes * busy / options.pause_s
    return turns * turn_calls(options.idempotent) * (0.75 + burst / 4)


def turn_calls(idempotent: float) -> float:
    """Mean number of calls in a lane's step, if this share of the lanes is idempotent."""
    return 1 + idempotent * PIPELINED * CALLS_AT_ONCE_MAX / 2


class Clients:
    """The state that all clients of one run share.

    Attributes:
        stopping: whether producers should finish their calls and end.
        acked: records acknowledged so far.
        log_ids: numbers of the logs, by name.
        tails: by log, the last LSN that readers must reach; empty until it is known.
        open_reads: by the reader's name, the open read of each reader that follows a log.
        looks: by reader, how long it waits for an item before it looks at `tails`.
        giving_up: set when readers should end at any place.
        batches: the publishers' checkpoints: by name, the batch that comes next.
        trials: by publisher, the number of its last try of any batch.
        open_batches: publishers with a batch that they have tried and not yet published.
        ledgers: numbers of the ledgers that were made, and not deleted.
        deleted_ledgers: numbers of ledgers that were deleted, or may be.
        token: the highest fencing token that was given out.
        slowness: factor by which producers pause longer than drawn.
        burst: most records in one call now.
        is_paced: whether the client that measures appends goes on.
        is_timed: whether its appends are measured now.
        paced: number of its appends, successful or not.
    """

    def __init__(
        self,
        addresses: tuple[str, ...],
        options: WorkloadOptions,
        recorder: HistoryRecorder,
        seed: int,
        calls: OpenCalls,
        buggify: Buggify,
        open_objects: OpenObjects = open_object_store,
    ) -> None:
        self.addresses = addresses
        self._open_objects = open_objects
        self.options = options
        self.recorder = recorder
        self.calls = calls
        self.buggify = buggify
        self._stop = asyncio.Event()
        self.giving_up = False
        self.acked = 0
        self.batches: dict[str, int] = {}
        self.trials: dict[str, int] = {}
        self.open_batches: set[str] = set()
        self.ledgers: list[int] = []
        self.deleted_ledgers: list[int] = []
        self.token = 0
        self.slowness = 1.0
        self.burst = options.burst
        self.is_paced = True
        self.is_timed = False
        self.paced = 0
        self.log_ids: dict[str, int] = {}
        self.times: dict[int, list[int]] = {}
        self.tails: dict[int, int] = {}
        self.open_reads: dict[str, ReadStream] = {}
        self.looks: dict[str, asyncio.Timeout] = {}
        self._seed = seed
        self._sequences: dict[str, Iterator[int]] = {}
        self._lives: dict[str, int] = {}

    def connected(self, host: Host, settings: ClientSettings) -> AbstractAsyncContextManager[Store]:
        """A client of the cluster, for the length of a block."""
        return connected(self.addresses, host, settings, self._open_objects)

    @property
    def stopping(self) -> bool:
        """See the class."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Let the producers end, including those that pause."""
        self._stop.set()

    async def pause(self, for_s: float) -> None:
        """Sleep, but not longer than until producers are told to end."""
        if self.stopping:
            await asyncio.sleep(for_s)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await self._stop.wait()

    def know_tails(self, tails: Mapping[int, int]) -> None:
        """Give all readers the LSNs that they must reach, including readers that wait for
        records."""
        self.tails.update(tails)
        for look in self.looks.values():
            if not look.expired():
                look.reschedule(asyncio.get_running_loop().time())

    def note_time(self, log: int, append_us: int) -> None:
        """Readers were given a record of this append time."""
        known = self.times.setdefault(log, [])
        if not known or known[-1] < append_us:
            known.append(append_us)

    def next_life(self, client: str) -> tuple[int, random.Random]:
        """Number of a client's life, from 0, and the stream of chance for it."""
        life = self._lives[client] = self._lives.get(client, -1) + 1
        return life, stream(self._seed, "workload", client, str(life))

    def sequences(self, client: str) -> Iterator[int]:
        """Numbers of a client's payloads, which continue over all its lives."""
        return self._sequences.setdefault(client, count())

    def lane_chance(self, client: str, session: int) -> random.Random:
        """The stream of chance for the kind of a lane, apart from its calls."""
        return stream(self._seed, "lane", client, str(session))

    def again_chance(self, client: str, session: int) -> random.Random:
        """The stream of chance for calls that are sent again, apart from all else."""
        return stream(self._seed, "again", client, str(session))

    def manner_chance(self, client: str, life: int) -> random.Random:
        """The stream of chance for the manner of reads, apart from their place and time."""
        return stream(self._seed, "manner", client, str(life))

    def next_token(self) -> int:
        """A fencing token that is higher than all before, as a lock service gives it out."""
        self.token += 1
        return self.token

    def settings(self, chance: random.Random) -> ClientSettings:
        """Settings of one connection."""
        own = self.options.client
        return replace(
            own,
            timeout_s=self.options.append_timeout_s,
            codec=chance.choice(CODECS),
            read_tokens=READ_TOKENS,
            # Now and then a reader of another kind, so that all kinds read side by side.
            scd_enabled=own.scd_enabled and chance.random() < 0.9,
        )

    def told(self, client: str, call: str, error: BaseException) -> None:
        """Record the error of a call that is neither an append nor an open read."""
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                self.told(client, call, each)
        else:
            self.recorder.call_failed(client, call, error)

    def is_lull(self, now_s: float) -> bool:
        """Whether producers rest."""
        options = self.options
        turn_s = options.rush_s + options.lull_s
        return not self.stopping and options.lull_s > 0 and now_s % turn_s > options.rush_s


async def produce(name: str, clients: Clients, host: Host) -> None:
    """Append until told to stop; every call and its end go into the history."""
    life, chance = clients.next_life(name)
    while not clients.stopping:
        try:
            async with (
                clients.connected(host, clients.settings(chance)) as store,
                asyncio.TaskGroup() as tasks,
            ):
                for lane in range(clients.options.lanes):
                    session = life * clients.options.lanes + lane
                    tasks.create_task(_Lane(name, session, store, clients, chance).run())
        except* CordwoodError as group:
            # An append's own end is recorded with its call; this is an error on the way to it.
            clients.told(name, "connect", group)
            await asyncio.sleep(RECONNECT_S)


@dataclass(frozen=True, slots=True)
class _Manner:
    """The options of a call beside its records."""

    producer: Producer | None
    expected_tail: int | None
    atomic: bool
    is_keyed: bool = False

    def keys(self, payloads: list[bytes]) -> list[str]:
        """The keys of the records; none if they have no keys."""
        return [key_of(payload) for payload in payloads] if self.is_keyed else []


class _Lane:
    """One call after another, until told to stop."""

    def __init__(
        self, name: str, session: int, store: Store, clients: Clients, chance: random.Random
    ) -> None:
        self._name = name
        self._session = session
        self._store = store
        self._clients = clients
        self._chance = chance
        self._keys = clients.manner_chance(name, session)
        self._again = clients.again_chance(name, session)
        self.producer: Producer | None = None
        self._last: dict[str, int] = {}
        self._writer: BufferedWriter | None = None

    def _begin_writer(self) -> None:
        """Some lanes without an identity gather their records."""
        chance = self._clients.lane_chance(self._name, self._session)
        if self.producer is None and chance.random() < self._clients.options.buffered:
            mode = chance.choice(list(WriteMode))
            self._writer = self._store.buffered_writer(
                WriterOptions(
                    mode=mode,
                    time_trigger_s=chance.choice((0.001, 0.05, 0.5)),
                    size_trigger_bytes=chance.choice((300, 3000, 100_000)),
                    # A block that is sent again may come after later blocks of the same call.
                    retry_count=0 if mode is WriteMode.INDEPENDENT else 1,
                    compression=chance.choice(("none", "lz4", "zstd")),
                    memory_bytes_max=1 << 20,
                )
            )

    def _begin_producer(self) -> None:
        """Take an identity: a new producer with each session, a new epoch after an error."""
        known = self.producer
        if known is not None:
            self.producer = Producer(known.producer, known.epoch + 1)
        elif self._chance.random() < self._clients.options.idempotent:
            self.producer = Producer(self._chance.randrange(1, 1 << 62))

    async def run(self) -> None:
        clients, chance = self._clients, self._chance
        self._begin_producer()
        self._begin_writer()
        await clients.pause(self._pause_s())
        while not clients.stopping:
            if not clients.is_lull(asyncio.get_running_loop().time()):
                log = chance.choice(clients.options.logs)
                await self._append_some(log, self._calls_at_once())
            await clients.pause(self._pause_s())

    def _pause_s(self) -> float:
        """The pause until the next call; short enough to notice the end (seed 12062 slept through
        it)."""
        pause_s = self._chance.expovariate(1 / self._clients.options.pause_s)
        return min(PAUSE_MAX_S, pause_s * self._clients.slowness)

    def _calls_at_once(self) -> int:
        """A producer's calls keep their order although no call waits for the call before."""
        is_many = self.producer is not None and self._chance.random() < PIPELINED
        return self._chance.randint(2, CALLS_AT_ONCE_MAX) if is_many else 1

    async def _append_some(self, log: str, calls: int) -> None:
        # The log is looked up before, so that the calls reach the store in the order of their
        # numbers.
        log_id = await find_log(self._store, log, self._clients)
        if calls == 1:
            await self._append(log, log_id)
            return
        async with asyncio.TaskGroup() as tasks:
            for _ in range(calls):
                tasks.create_task(self._append(log, log_id))

    async def _append(self, log: str, log_id: int) -> None:
        """One call; its outcome goes into the history."""
        clients, producer = self._clients, self.producer
        options, recorder = clients.options, clients.recorder
        payloads = self._payloads()
        manner = self._manner(log, len(payloads))
        tries = draw_tries(producer, self._again)
        op = recorder.append_invoked(
            self._name, log_id, payloads, session=self._session,
            timeout_s=patience_s(options.append_timeout_s, tries),
            atomic=manner.atomic,
            producer=(producer.producer, producer.epoch) if producer is not None else (0, 0),
            expected_tail=manner.expected_tail,
            keys=manner.keys(payloads),
        )  # fmt: skip
        clients.calls.began(self._name, op)
        try:
            lsns = await sent_again(
                self, log_id,
                lambda chosen: self._call(log, payloads, replace(manner, producer=chosen)),
                tries,
                lambda: clients.pause(self._again.random() * AGAIN_PAUSE_S),
            )  # fmt: skip
        except CordwoodError as error:
            recorder.append_raised(op, error)
            self._last.pop(log, None)
            if producer is not None and are_one(producer, self.producer):
                self._begin_producer()
        else:
            recorder.append_ok(op, lsns)
            self._last[log] = lsns[-1]
            clients.acked += len(lsns)
        clients.calls.ended(self._name, op)

    def _manner(self, log: str, records: int) -> _Manner:
        """The other options of the next call."""
        options, chance = self._clients.options, self._chance
        is_keyed = self._keys.random() < options.keyed
        if self._writer is not None:
            return _Manner(None, None, False, is_keyed)  # it cuts blocks of its own
        atomic = records > 1 and options.grouped > 0 and chance.random() < options.grouped
        expected = None
        if self.producer is None and records == 1 and chance.random() < options.conditional:
            expected = self._last.get(log)
        return _Manner(self.producer, expected, atomic, is_keyed)

    def _payloads(self) -> list[bytes]:
        options, chance = self._clients.options, self._chance
        records = 1 if chance.random() < 0.5 else chance.randint(1, self._clients.burst)
        sequences = self._clients.sequences(self._name)
        bytes_max = options.payload_bytes_max
        if self._clients.buggify("payload-large"):
            bytes_max = options.client.block_bytes // 2
        largest = max(PAYLOAD_BYTES_MIN, min(bytes_max, LARGE_BYTES_MAX // records))
        return [
            make_payload(
                self._name, next(sequences), chance.randint(PAYLOAD_BYTES_MIN, largest), chance
            )
            for _ in range(records)
        ]

    async def _call(self, log: str, payloads: list[bytes], manner: _Manner) -> list[int]:
        if not self._clients.buggify("caller-gives-up"):
            return await self._ask(log, payloads, manner)
        try:
            async with asyncio.timeout(GIVE_UP_S * self._chance.random()):
                return await self._ask(log, payloads, manner)
        except TimeoutError:
            raise GivenUp("the caller did not wait for the answer") from None

    async def _ask(self, log: str, payloads: list[bytes], manner: _Manner) -> list[int]:
        if self._writer is not None:
            return await self._gather(self._writer, log, payloads, manner)
        keys = [as_key(key) for key in manner.keys(payloads)]
        if len(payloads) > 1:
            told = await self._store.append_many(
                log, payloads, keys=keys or None, producer=manner.producer, atomic=manner.atomic
            )
            return list(told)
        lsn = await self._store.append(
            log, payloads[0], key=keys[0] if keys else None, producer=manner.producer,
            expected_tail=manner.expected_tail,
        )  # fmt: skip
        return [lsn]

    async def _gather(
        self, writer: BufferedWriter, log: str, payloads: list[bytes], manner: _Manner
    ) -> list[int]:
        """Append by the writer, and wait as long as for any other append."""
        try:
            async with asyncio.timeout(self._clients.options.append_timeout_s):
                futures = []
                keys = manner.keys(payloads) or [""] * len(payloads)
                for payload, key in zip(payloads, keys, strict=True):
                    await writer.wait_space()
                    futures.append(writer.append_nowait(log, payload, key=as_key(key)))
                told = await asyncio.gather(*futures, return_exceptions=True)
        except TimeoutError:
            raise OutcomeUnknown("the writer has not told the outcome yet") from None
        failures = [each for each in told if isinstance(each, BaseException)]
        if not failures:
            return [each for each in told if not isinstance(each, BaseException)]
        if len(failures) < len(told):
            raise OutcomeUnknown(f"some of it is stored: {failures[0]}") from failures[0]
        raise next((e for e in failures if isinstance(e, OutcomeUnknown)), failures[0])


class GivenUp(OutcomeUnknown):
    """The caller did not wait for the outcome; `history.GIVEN_UP` is the name of this error."""


LARGE_BYTES_MAX = 64 << 10
"""Most payload bytes in one call: a few calls of this size fit into a simulated WAL."""


async def find_log(store: Store, log: str, clients: Clients) -> int:
    """The log's number, looked up once for the whole run."""
    found = clients.log_ids.get(log)
    if found is None and log == GUARDED:
        with contextlib.suppress(LogExists):
            asked = token_digest(READ_TOKENS[0])  # also of main storage, if all logs exist
            await store.create_log(log, attributes=LogAttributes(read_token=asked, tier_open=True))
    if found is None:
        tail = await store.read(log, "oldest", 0)  # makes the log if that is allowed
        tail.close()
        found = clients.log_ids[log] = tail.info.log_id
    return found


async def final_tails(name: str, clients: Clients, host: Host) -> None:
    """Learn the last readable LSN of every used log, after all producers have ended."""
    _, chance = clients.next_life(name)
    found: dict[int, int] = {}
    while len(found) < len(clients.log_ids):
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                for log in list(clients.log_ids):
                    found[clients.log_ids[log]] = await _ask_tail(name, store, log, clients)
        except CordwoodError as error:
            clients.told(name, "tail", error)
            await asyncio.sleep(RECONNECT_S)
    clients.know_tails(found)


async def ask_tails(name: str, clients: Clients, host: Host) -> None:
    """Ask for tails now and then, until told to stop."""
    _, chance = clients.next_life(name)
    while not clients.stopping:
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                while not clients.stopping:
                    await clients.pause(chance.expovariate(1 / clients.options.ask_s))
                    log = chance.choice(clients.options.logs)
                    if log in clients.log_ids:
                        await _ask_tail(name, store, log, clients)
                        await find_a_time(name, store, log, clients, chance)
                        await ask_extent(name, store, log, clients)
                        await poll_released(name, store, clients)
        except CordwoodError as error:
            clients.told(name, "tail", error)
            await asyncio.sleep(RECONNECT_S)


async def _ask_tail(name: str, store: Store, log: str, clients: Clients) -> int:
    asked_us = round(asyncio.get_running_loop().time() * 1e6)
    tail = await store.tail(log)
    clients.recorder.tail_answered(name, clients.log_ids[log], tail, invoked_us=asked_us)
    return tail
