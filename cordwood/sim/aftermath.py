"""The end of a run, after healing: some nodes are lost for ever, or one node is hampered.

*Losses.* Some nodes never come back. Nothing is rebuilt here, so an operator reports their status
by hand: their data is gone (UNDER_REPLICATED), or they had none (AUTHORITATIVE_EMPTY), or it is not
known yet (UNAVAILABLE). Readers must then reach the tail without waiting for these nodes, and must
report a loss exactly where no copy is left. Either fewer nodes are lost than there are copies, or
all nodes that hold some block are lost. A client appends to all logs meanwhile. If the remaining
nodes can hold its records, its appends succeed again, and readers reach these records: recovery
ends the epochs with the losses.

*Pace.* A client measures how long appends take while all is well. It measures again while one node
is stopped, or has a disk that is a hundred times slower (L7).

Source: docs/sources/logdevice.md 2.9; docs/sources/reliability.md §3 (L7).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping, Sequence
from functools import partial

from cordwood.client.store import Store
from cordwood.errors import CordwoodError
from cordwood.host.seams import Host
from cordwood.lsn import OLDEST
from cordwood.metadata.epoch_store import EpochStore
from cordwood.metadata.memory import MemoryMetadata
from cordwood.metadata.store import MetadataStore
from cordwood.nodes import Authority, NodeId
from cordwood.quorum.copyset import can_replicate
from cordwood.sim.cluster import SimCluster
from cordwood.sim.crew import Crew
from cordwood.sim.end_events import NodesLost, PaceBegan, PaceEnded
from cordwood.sim.event_losses import restart, say_unkept
from cordwood.sim.history import EndReason
from cordwood.sim.holdings import held_blocks
from cordwood.sim.payload import make_payload
from cordwood.sim.readers import given_to
from cordwood.sim.workload import RECONNECT_S, Clients, find_log

FEW, COPIES = "few", "copies"
"""Fewer nodes than there are copies; or all nodes that hold some block."""

Statuses = Mapping[NodeId, Authority]

OPERATOR = "operator"
"""The operator's machine, which reports the status of lost nodes."""

DOUBT_S = 20.0
"""In half of the runs, the operator calls a lost node unavailable for this long before giving it
up. Readers have met the loss by then, and must judge it again."""

ASK_AGAIN_S = 1.0

PACER = "pacer"

PACE_S = 4.0
"""The shortest time for which appends are measured without a break."""

PACE_LANES = 3
PACE_EVERY_S = 0.04
"""Number of appends in flight, and the pause after each: some three hundred appends in PACE_S."""

UNPACED_EVERY_S = 0.12
"""The pause while appends are not measured: a few appends are enough to find the slow node."""

PACE_APPENDS = 301
PACE_MOST_S = 30.0
"""Where links are slow, the measurement goes on until this many appends have ended: one hundredth
of them must be more than the lanes that one stall holds up. It ends after the second number at the
latest."""

PACE_BYTES = 100

NOTICE_S = 10.0
"""The time that the other nodes have to notice that a node is hampered (L7)."""

SLOWER = 100.0
"""The factor by which a slow disk is slower."""

TRIED_S = 5.0
TRIED_LOOK_S = 0.02
"""How long a slow node is watched until something is stored there, and the pause between two looks,
which is shorter than a store on a slow node. A node in no copyset goes unnoticed, and the first
store there is late."""


WRITER = "last-writer"

WRITE_EVERY_S = 0.03
"""Pause between the writer's appends: some are acknowledged before most nodes have heard of
them."""


CUT_S = 0.5
"""How long a sequencer and its copyset are cut off before they are lost: time for some appends."""

LAST_READ_S = 2.0
"""A log that is about to stand still for ever still owes a few records, in a healed cluster or in a
cluster that was cut in two half a second ago. This is the longest time to wait for these records
and to read them. Together with the half second it is less than an append's deadline, so an append
that begins in the cut cluster ends after the loss and is owed no answer."""


class LastWords:
    """The tasks of the writer while nodes are lost, and its results.

    Attributes:
        is_told: the operator has reported the status of all lost nodes.
        ends: by log, a record that was appended and acknowledged after these reports.
        writes: logs to which it writes until it has such a record.
        acked: by log, the last record acknowledged to it.
        waits: logs with an append in flight.
    """

    def __init__(self) -> None:
        self.is_told = False
        self.ends: dict[str, int] = {}
        self.writes: list[str] = []
        self.acked: dict[str, int] = {}
        self.waits: set[str] = set()


# Losses.


async def pick_lost(cluster: SimCluster, kind: str, chance: random.Random) -> tuple[NodeId, ...]:
    """The nodes to lose; none if these would be all nodes."""
    numbers = cluster.numbers
    copies = cluster.options.replication.copies
    if kind == FEW:
        return tuple(sorted(chance.sample(numbers, min(copies, len(numbers)) - 1)))
    copysets, newest = [], []
    for _, node in sorted(cluster.running.items()):
        for log in sorted(node.engine.cache.logs):
            blocks = [b for b in await held_blocks(node.engine, log) if b.envelope.copyset]
            copysets += [block.envelope.copyset for block in blocks]
            newest += [block.envelope.copyset for block in blocks[-1:]]
    if newest and chance.random() < 0.5:
        copysets = newest
    lost = tuple(NodeId(node) for node in sorted(chance.choice(copysets))) if copysets else ()
    return lost if len(lost) < len(numbers) else ()


async def true_statuses(cluster: SimCluster, lost: Sequence[NodeId]) -> Statuses:
    """The true status of the lost nodes, which still run: their data will be gone."""
    statuses: dict[NodeId, Authority] = {}
    for node in lost:
        engine = cluster.running[node].engine
        holds = [await held_blocks(engine, log) for log in sorted(engine.cache.logs)]
        is_empty = not any(holds)
        statuses[node] = Authority.AUTHORITATIVE_EMPTY if is_empty else Authority.UNDER_REPLICATED
    return statuses


async def lose_nodes(
    cluster: SimCluster,
    crew: Crew,
    clients: Clients,
    kind: str,
    chance: random.Random,
    *,
    loses_events: bool = False,
) -> tuple[str, ...]:
    """Lose nodes for ever, and begin to read all logs without them.

    Args:
        loses_events: whether records of the event log are lost with the nodes.
    Returns:
        The readers to wait for.
    """
    words = LastWords()
    words.writes = [log for log in clients.log_ids if await still_takes(cluster, clients, log)]
    crew.start(WRITER, partial(append_on, WRITER, words, clients))
    await asyncio.sleep(chance.uniform(1.0, 3.0))
    lost = await pick_lost(cluster, kind, chance)
    if loses_events:
        lost = await say_unkept(cluster, chance) or lost
    elif kind == COPIES and chance.random() < 0.5:
        lost = await _cut_off(cluster, words.writes, clients, chance) or lost
    takes = [log for log in words.writes if await still_takes(cluster, clients, log, lost)]
    if not lost:
        takes.clear()
    await _end_the_rest(takes, words, crew, clients)
    if not lost:
        return (WRITER,)
    tails = {name: clients.tails.get(log) for name, log in clients.log_ids.items()}
    statuses = await true_statuses(cluster, lost)
    unavailable = dict.fromkeys(lost, Authority.UNAVAILABLE)
    told: list[Statuses] = [statuses]
    if chance.random() < 0.5:
        # Their status is not known yet. Readers must still get the records that other nodes hold.
        told = [unavailable] if kind == FEW else [unavailable, statuses]
    for node in lost:
        cluster.kill(node)
    if loses_events:
        restart(cluster, lost)
    clients.recorder.add(NodesLost(clients.recorder.now_us, lost))
    crew.start(OPERATOR, partial(_tell, OPERATOR, told, clients, words))
    readers = []
    for number, log in enumerate(words.writes, start=1):
        readers.append(f"successor-{number}")
        crew.start(readers[-1], partial(_read_to_the_end, readers[-1], log, words, clients))
    for log, tail in tails.items():
        if tail is not None:
            readers.append(f"survivor-{len(readers) + 1}")
            crew.start(readers[-1], partial(read_what_is_left, readers[-1], log, tail, clients))
    return (*readers, OPERATOR, WRITER)


async def _end_the_rest(takes: list[str], words: LastWords, crew: Crew, clients: Clients) -> None:
    """Go on writing to the logs that can take appends after the loss. Have all other logs read to
    their last record before the loss: a log that stands still for ever may never be read to its
    end, and a run counts only if every log was."""
    ending = [log for log in words.writes if log not in takes]
    words.writes = takes
    with contextlib.suppress(TimeoutError):  # then the run does not count, and breaks nothing
        async with asyncio.timeout(LAST_READ_S):
            while not words.waits.isdisjoint(ending):  # noqa: ASYNC110 - seldom, and simple
                await asyncio.sleep(WRITE_EVERY_S)
    names = []
    for number, log in enumerate((each for each in ending if each in words.acked), start=1):
        names.append(f"witness-{number}")
        program = partial(_read_at_most, names[-1], log, words.acked[log], clients)
        crew.start(names[-1], program)
    await crew.wait(*names)


async def _read_at_most(name: str, log: str, until: int, clients: Clients, host: Host) -> None:
    """Read a log from its start to `until`, or give up."""
    with contextlib.suppress(TimeoutError):  # then the run does not count
        async with asyncio.timeout(LAST_READ_S):
            await read_what_is_left(name, log, until, clients, host)


async def _cut_off(
    cluster: SimCluster, logs: Sequence[str], clients: Clients, chance: random.Random
) -> tuple[NodeId, ...]:
    """A log's sequencer and the nodes that it stores on. They are cut off from all other nodes
    CUT_S before they are lost, so no other node hears of the records that they acknowledge. Empty
    if too few other nodes are left."""
    if not logs:
        return ()
    log = clients.log_ids[chance.choice(logs)]
    ends = []
    for number, node in sorted(cluster.running.items()):
        ends += [(block, number) for block in (await held_blocks(node.engine, log))[-1:]]
    ruling = [n for n, node in sorted(cluster.running.items()) if log in node.sequencing]
    if not (ends and ruling):
        return ()
    newest = max(ends, key=lambda end: end[0].header.last)[0].envelope.copyset
    some = tuple(NodeId(n) for n in sorted({*newest, *ruling}))
    others = [n for n in cluster.numbers if n not in some]
    if len(others) < cluster.options.replication.copies:
        return ()
    names = [[cluster.machine(n).name for n in each] for each in (some, others)]
    cluster.network.partition(*names)
    await asyncio.sleep(CUT_S)
    return some


async def still_takes(
    cluster: SimCluster, clients: Clients, log: str, lost: Sequence[NodeId] = ()
) -> bool:
    """Whether a log takes appends from any client, and its remaining nodes can hold them."""
    metadata: MetadataStore = cluster.metadata
    if cluster.metadata.is_out:
        metadata = MemoryMetadata(random.Random(log), cluster.metadata.data)
    record = await EpochStore(metadata).read(clients.log_ids[log])
    if record is None or record.token:
        return False
    entry = record.entry(record.next_epoch - 1)
    nodeset = entry.nodeset({})
    return can_replicate(set(nodeset.nodes) - set(lost), nodeset, entry.replication)


async def append_on(name: str, words: LastWords, clients: Clients, host: Host) -> None:
    """Append to each log until an append is acknowledged after the operator's last report. Leave
    out logs that can take nothing any more."""
    life, chance = clients.next_life(name)
    while not clients.giving_up and words.writes != sorted(words.ends, key=words.writes.index):
        try:
            async with (
                clients.connected(host, clients.settings(chance)) as store,
                asyncio.TaskGroup() as tasks,
            ):
                for number, log in enumerate(words.writes):
                    session = life * len(clients.log_ids) + number
                    tasks.create_task(_write(name, session, store, log, words, clients, chance))
        except* CordwoodError as group:
            clients.told(name, "connect", group)
            await asyncio.sleep(RECONNECT_S)


async def _write(
    name: str,
    session: int,
    store: Store,
    log: str,
    words: LastWords,
    clients: Clients,
    chance: random.Random,
) -> None:
    recorder = clients.recorder
    log_id = await find_log(store, log, clients)
    while log in words.writes and log not in words.ends and not clients.giving_up:
        is_told = words.is_told
        payload = make_payload(name, next(clients.sequences(name)), PACE_BYTES, chance)
        op = recorder.append_invoked(
            name, log_id, [payload], session=session,
            timeout_s=clients.options.append_timeout_s,
        )  # fmt: skip
        clients.calls.began(name, op)
        words.waits.add(log)
        try:
            lsn = await store.append(log, payload)
            recorder.append_ok(op, [lsn])
            words.acked[log] = lsn
            if is_told:
                words.ends[log] = lsn
        except CordwoodError as error:
            recorder.append_raised(op, error)
        words.waits.discard(log)
        clients.calls.ended(name, op)
        await asyncio.sleep(WRITE_EVERY_S)


async def _read_to_the_end(
    name: str, log: str, words: LastWords, clients: Clients, host: Host
) -> None:
    """Read a log from its start to its last appended record."""
    while log not in words.ends and not clients.giving_up:  # noqa: ASYNC110 - seldom, and simple
        await asyncio.sleep(ASK_AGAIN_S)
    if log in words.ends:
        await read_what_is_left(name, log, words.ends[log], clients, host)


async def _tell(
    name: str, told: Sequence[Statuses], clients: Clients, words: LastWords, host: Host
) -> None:
    """Report the status of all lost nodes, and later perhaps another status."""
    _, chance = clients.next_life(name)
    left = [dict(statuses) for statuses in told]
    while left and not clients.giving_up:
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                while left:
                    while left[0]:
                        node, status = min(left[0].items())
                        await store.set_authority(node, status)
                        del left[0][node]
                    left.pop(0)
                    await asyncio.sleep(DOUBT_S if left else 0)
                words.is_told = True
        except CordwoodError as error:  # some are not regarded as dead yet
            clients.told(name, "say", error)
            await asyncio.sleep(ASK_AGAIN_S)


async def read_what_is_left(name: str, log: str, until: int, clients: Clients, host: Host) -> None:
    """Read a log from its start to `until`."""
    _, chance = clients.next_life(name)
    recorder, is_done = clients.recorder, False
    while not (is_done or clients.giving_up):
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                log_id = await find_log(store, log, clients)
                stream = await store.read(log, OLDEST, until)
                recorder.read_started(name, log_id, OLDEST, until)
                try:
                    while not is_done:
                        for item in await stream.next_items():
                            given_to(recorder, name, item)
                        is_done = stream.next_lsn > until
                except asyncio.CancelledError:
                    recorder.read_ended(name, EndReason.STOPPED)
                    raise
                recorder.read_ended(name, EndReason.UNTIL)
        except CordwoodError as error:
            clients.told(name, "read", error)
            await asyncio.sleep(RECONNECT_S)


# Pace.


async def measure_pace(
    cluster: SimCluster, crew: Crew, clients: Clients, chance: random.Random
) -> None:
    """Time appends with every node well, then with one hampered; all is well afterwards."""
    recorder = clients.recorder
    crew.start(PACER, partial(_append_steadily, PACER, clients))
    await asyncio.sleep(1.0)
    await _stretch(clients, is_hampered=False)
    nodes = may_be_hampered(cluster)
    if nodes:
        await _hamper(cluster, clients, chance.choice(nodes), chance)
    clients.is_paced = False
    await crew.wait(PACER)
    recorder.faults_healed()


async def _hamper(
    cluster: SimCluster, clients: Clients, node: NodeId, chance: random.Random
) -> None:
    recorder, machine = clients.recorder, cluster.machine(node)
    is_stopped = chance.random() < 0.5
    kind = "pause" if is_stopped else "slow_disk"
    recorder.fault_struck(kind, (node,), "hampered")
    if is_stopped:
        machine.pause()
    else:
        machine.disk.latency_factor = SLOWER
    # All nodes miss a stopped node. Only sequencers that store on a slow node notice it, and
    # copysets stick.
    if is_stopped or await is_stored_on(cluster, node):
        await asyncio.sleep(NOTICE_S)
        await _stretch(clients, is_hampered=True)
    machine.resume()
    machine.disk.heal()
    recorder.fault_eased(kind, (node,), "hampered")


def damaged_nodes(cluster: SimCluster) -> tuple[NodeId, ...]:
    """The nodes that say that they lost records."""
    return tuple(number for number, node in sorted(cluster.running.items()) if node.engine.damage)


def may_be_hampered(cluster: SimCluster) -> Sequence[NodeId]:
    """Nodes that may be hampered, one at a time, without slowing appends down.

    A node that lost records cannot answer for any epoch in full, so recovery does without it. If
    these nodes and one more are as many as there are copies, no epoch can be recovered while that
    other node is away, and no full epoch can be left. Then a node that lost records is hampered.

    Every append needs the only node of a region, if copies lie in as many regions as there are.
    """
    damaged, spared = damaged_nodes(cluster), cluster.spared()
    if len(damaged) + 1 < cluster.options.replication.copies or not damaged:
        return spared
    return [node for node in damaged if node in spared]


async def is_stored_on(cluster: SimCluster, node: NodeId) -> bool:
    """Whether a run is sent to a node within TRIED_S. Returns at once when a run is sent."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + TRIED_S
    while loop.time() < ends_at:
        for number in cluster.numbers:
            if any(node in run.waiting for window in cluster.windows(number) for run in window):
                return True
        await asyncio.sleep(TRIED_LOOK_S)
    return False


async def _stretch(clients: Clients, *, is_hampered: bool) -> None:
    recorder = clients.recorder
    recorder.add(PaceBegan(recorder.now_us, PACER, is_hampered))
    clients.is_timed = True
    enough = clients.paced + PACE_APPENDS
    await asyncio.sleep(PACE_S)
    for _ in range(round(PACE_MOST_S - PACE_S)):
        if clients.paced >= enough:
            break
        await asyncio.sleep(1.0)
    clients.is_timed = False
    recorder.add(PaceEnded(recorder.now_us, PACER))


async def _append_steadily(name: str, clients: Clients, host: Host) -> None:
    """Make small appends, in each lane one after another, until told to stop."""
    life, chance = clients.next_life(name)
    log = clients.options.logs[0]
    while clients.is_paced:
        try:
            async with (
                clients.connected(host, clients.settings(chance)) as store,
                asyncio.TaskGroup() as tasks,
            ):
                log_id = await find_log(store, log, clients)
                for lane in range(PACE_LANES):
                    session = life * PACE_LANES + lane
                    tasks.create_task(_pace(name, session, store, log, log_id, clients, chance))
        except* CordwoodError as group:
            clients.told(name, "connect", group)
            await asyncio.sleep(RECONNECT_S)


async def _pace(
    name: str,
    session: int,
    store: Store,
    log: str,
    log_id: int,
    clients: Clients,
    chance: random.Random,
) -> None:
    recorder = clients.recorder
    while clients.is_paced:
        payload = make_payload(name, next(clients.sequences(name)), PACE_BYTES, chance)
        op = recorder.append_invoked(
            name, log_id, [payload], session=session,
            timeout_s=clients.options.append_timeout_s,
        )  # fmt: skip
        clients.calls.began(name, op)
        try:
            recorder.append_ok(op, [await store.append(log, payload)])
        except CordwoodError as error:
            recorder.append_raised(op, error)
        clients.calls.ended(name, op)
        clients.paced += 1
        await asyncio.sleep(PACE_EVERY_S if clients.is_timed else UNPACED_EVERY_S)
