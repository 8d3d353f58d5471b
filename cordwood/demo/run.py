"""The demo, step by step: Cordwood's main job, on real data.

Spark boots in its own process from the first moment on, while the cluster starts and the
log is written: on two cores the flights took 19.7 s that way and 26.9 s one after the
other, because neither keeps both cores busy.

Source: the issue that asks for this demo, "The main job".
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cordwood.client.address import SCHEME
from cordwood.client.aio import connect
from cordwood.client.store import Store
from cordwood.demo.board import Board, Moving
from cordwood.demo.checks import CheckFailed
from cordwood.demo.digest import Digest
from cordwood.demo.epoch_rows import each_was_bridged, epoch_rows, only_harmless
from cordwood.demo.files import Files
from cordwood.demo.follow import Follow
from cordwood.demo.ingest import Ingest, Kill
from cordwood.demo.input import Source
from cordwood.demo.rebuild import rebuild_files, same_bytes
from cordwood.demo.rejoin import find_rejoined
from cordwood.demo.report import Ingested, Killed, Report, Stored
from cordwood.demo.spark_messages import Answered, Audited, Booted, Job, Landed
from cordwood.demo.spark_process import SparkProcess, session_members, spark_process
from cordwood.demo.tail_check import TailCheck
from cordwood.demo.victim import Victim, choose_sequencer, choose_victim
from cordwood.host.real import real_host
from cordwood.layout.message import StatusReply
from cordwood.local_cluster import ClusterShape, LocalCluster, local_cluster
from cordwood.lsn import OLDEST, Lsn, format_lsn
from cordwood.nodes import NodeId
from cordwood.settings import MIB, ClientSettings

CODEC = "zstd"
"""The codec of the flights: 107 MB of bodies are 16 MB with zstd. Both are appended and followed in
3.6 to 3.9 s, and with zstd the nodes write and remember a seventh."""

NODES = 5
RACKS = 3
COPIES = 3
COPY_RACKS = 2

WAL_BYTES_MIN = 32 * MIB
"""Share of the input that is added to the WAL's size: a wave fills whole blocks of 4 KiB, and a
wave that was tried again is stored twice."""

MEET_TIMEOUT_S = 15.0
"""Longest wait until nodes know each other: they read the member list every second; a busy machine
takes longer."""

STORAGE_SHARE = 1 / 2
SEQUENCER_SHARE = 3 / 4
"""Shares of the input after which nodes are killed: some input is left after each kill, to show
that appends go on."""

CATCH_UP_TIMEOUT_S = 60.0
SPARK_TIMEOUT_S = 300.0
REBUILD_TIMEOUT_S = 300.0
POLL_S = 0.02

START = "Start a cluster"
INGEST = "Append, and follow the tail"
RESTART = "Restart the killed nodes"
BOOT = "Boot Spark"
LAND = "Stream the log to Parquet"
QUERY = "Query it, compare with the source"
REBUILD = "Rebuild the files, compare bytes"


@dataclass(slots=True)
class Plan:
    """The options of a run.

    Attributes:
        where: the demo's directory; it exists.
        seed: decides which storage node is killed.
    """

    source: Source
    where: Path
    seed: int


def step_titles(source: Source) -> list[str]:
    """The steps, in order."""
    titles = [START, INGEST, RESTART, BOOT, LAND, QUERY]
    return [*titles, REBUILD] if isinstance(source, Files) else titles


def wal_bytes(source: Source) -> int:
    """Size of a ring that cannot fill, even if one node has a copy of everything."""
    return WAL_BYTES_MIN + -(-source.stored_bytes_max * 5 // 4 // MIB) * MIB


class Demo:
    """One run. Its results go into the report, even if it fails half-way."""

    def __init__(self, plan: Plan, board: Board, report: Report) -> None:
        self._plan = plan
        self._source = plan.source
        self._board = board
        self._report = report
        self._check = TailCheck()
        self._victims: list[Victim] = []
        self._digest = Digest()
        self._sessions: list[int] = []

    async def run(self) -> None:
        """Do all steps. No started process is left when this returns or raises.

        Raises:
            CheckFailed: a claim does not hold, and later steps need it.
            CordwoodError: a part of Cordwood failed.
        """
        async with AsyncExitStack() as stack:
            spark = await stack.enter_async_context(spark_process(self._plan.where / "spark"))
            self._sessions.append(spark.session)
            with self._board.step(START) as step:
                cluster = await self._start_cluster(stack)
                writer = await self._meet(cluster, stack)
                reader = await stack.enter_async_context(await connect(cluster.url))
                step.note = f"{NODES} nodes in {RACKS} racks, {COPIES} copies over {COPY_RACKS}"
            await self._ingest(cluster, writer, reader)
            await self._restart(cluster, writer)
            await self._land(spark, cluster)
            if isinstance(self._source, Files):
                await self._rebuild(self._source)
            self._check_nodes(cluster)
        self._check_nothing_left()

    # The cluster.

    async def _start_cluster(self, stack: AsyncExitStack) -> LocalCluster:
        shape = ClusterShape(NODES, RACKS, COPIES, COPY_RACKS, wal_bytes(self._source))
        directory = str(self._plan.where / "cluster")
        cluster = await stack.enter_async_context(local_cluster(directory, shape))
        self._sessions += [each.process.pid for each in cluster.nodes.values() if each.process]
        self._report.nodes = {node: each.location for node, each in cluster.nodes.items()}
        return cluster

    async def _meet(self, cluster: LocalCluster, stack: AsyncExitStack) -> Store:
        """A client, after every node knows every other node: only then do nodes know all racks."""
        settings = ClientSettings(codec=CODEC)
        try:
            async with asyncio.timeout(MEET_TIMEOUT_S):
                while True:
                    store = await connect(cluster.url, settings)
                    if len(store.members) == NODES and await _all_know_all(store):
                        return await stack.enter_async_context(store)
                    await store.close()
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise CheckFailed(f"the nodes have not met within {MEET_TIMEOUT_S:g} s") from None

    def _check_nodes(self, cluster: LocalCluster) -> None:
        down = [node for node, each in cluster.nodes.items() if not each.is_running]
        self._report.checks.note(
            "every node runs", not down, f"down: {', '.join(map(str, down)) or 'none'}"
        )

    def _check_nothing_left(self) -> None:
        left = [pid for session in self._sessions for pid in session_members(session)]
        self._report.checks.note(
            "no process is left behind",
            not left,
            f"{len(self._sessions)} were started, with all that they started"
            if not left else f"processes {left}",
        )  # fmt: skip

    # Writing and following.

    async def _ingest(self, cluster: LocalCluster, writer: Store, reader: Store) -> None:
        with self._board.step(INGEST) as step:
            log = await writer.create_log(self._source.log)
            check = self._check
            follow = Follow(reader, self._source.log, check, self._report.nodes)

            async def choose_holder() -> None:
                chance = random.Random(self._plan.seed)
                self._victims.append(choose_victim(await writer.status(), log.log_id, chance))

            async def choose_head() -> None:
                # A call to all nodes waits for the dead one, and meanwhile nothing is appended.
                # This pause must not count as a time without a sequencer.
                before = self._victims[0]
                if check.last_acked >> 32 == before.epoch:
                    held = follow.copies.by_node[before.sequencer]
                    victim = Victim(before.sequencer, before.sequencer, before.epoch, held)
                else:
                    victim = choose_sequencer(await writer.status(), log.log_id)
                self._victims.append(victim)

            def kill() -> None:
                cluster.kill(self._victims[-1].node)
                follow.reads.mark(asyncio.get_running_loop().time())

            kills = [
                Kill(STORAGE_SHARE, choose_holder, kill),
                Kill(SEQUENCER_SHARE, choose_head, kill),
            ]
            ingest = Ingest(writer, self._source, check, follow, kills)
            began = asyncio.get_running_loop().time()
            self._board.moving = partial(self._moving, cluster, ingest, began)
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(follow.run())
                await ingest.run()
                seconds = asyncio.get_running_loop().time() - began
                tail = await writer.tail(self._source.log)
                await follow.wait_until(
                    lambda: check.is_even and check.next > tail, CATCH_UP_TIMEOUT_S
                )
                following.cancel()
            self._note_ingest(ingest, follow, seconds)
            await self._note_epochs(writer)
            killed = ", ".join(str(victim.node) for victim in self._victims)
            step.note = f"{ingest.records:,} records, nodes {killed} killed on the way"

    def _note_ingest(self, ingest: Ingest, follow: Follow, seconds: float) -> None:
        report, copies = self._report, follow.copies
        report.ingested = Ingested(ingest.records, ingest.bytes, seconds)
        report.stored = Stored(
            copies.blocks, copies.stored_bytes, copies.fewest, copies.fewest_racks,
            copies.retried, copies.by_node,
        )  # fmt: skip
        report.killed, report.beheaded = (
            Killed(victim, report.nodes[victim.node], kill.at_kill or 0, ack_s, read_s)
            for victim, kill, ack_s, read_s in zip(
                self._victims, ingest.kills, ingest.acks.since_marks_s,
                follow.reads.since_marks_s, strict=True,
            )
        )  # fmt: skip
        self._digest = ingest.digest
        self._note_claims(ingest, follow)

    def _note_claims(self, ingest: Ingest, follow: Follow) -> None:
        checks, check, copies = self._report.checks, self._check, follow.copies
        checks.note(
            "the whole input was appended",
            self._source.taken == self._source.size and ingest.records == ingest.digest.records,
            f"{self._source.taken:,} of {self._source.size:,} {self._source.unit}",
        )
        checks.note(
            "every acknowledged record was read at its LSN, once, byte for byte",
            check.is_even and check.read == check.acked == ingest.records,
            f"{check.read:,} of {check.acked:,}",
        )
        checks.note(
            "records and gaps tile the log",
            check.next > check.last_acked,
            f"{OLDEST} to {Lsn(check.next - 1)}, {sum(check.gaps.values())} gaps",
        )
        kinds = ", ".join(f"{count} {kind.value}" for kind, count in check.gaps.items())
        checks.note(
            "no record is lost: every gap is a bridge or a hole",
            only_harmless(check.gaps) and check.is_even,
            kinds or "no gaps",
        )
        checks.note(
            f"every block has {COPIES} copies over {COPY_RACKS} racks or more",
            copies.fewest >= COPIES and copies.fewest_racks >= COPY_RACKS,
            f"the fewest: {copies.fewest} over {copies.fewest_racks}, of {copies.blocks} blocks",
        )
        for whom, kill in zip(("killed node", "killed sequencer"), ingest.kills, strict=True):
            after = ingest.records - (kill.at_kill or 0)
            checks.note(
                f"appends and the tail went on without the {whom}",
                after > 0 or not kill.in_flight,
                f"{after:,} records after it",
            )

    async def _note_epochs(self, writer: Store) -> None:
        """Join the log's epochs from the epoch store and from the records read."""
        found = await writer.log_tree.epochs(self._source.log)
        last = found.next_epoch - 1
        seen = {victim.epoch: int(victim.sequencer) for victim in self._victims}
        owners = {last - 1: found.owner_before, last: found.owner}
        epochs = epoch_rows(self._check, owners | seen, last)
        self._report.epochs = epochs
        self._report.checks.note(
            "another node numbers the log in a new epoch, and readers saw a bridge to it",
            last > self._victims[-1].epoch
            and found.owner != self._victims[-1].node
            and each_was_bridged(epochs),
            f"epoch {last} by node {found.owner}, "
            + ", ".join(f"{gap.first} to {gap.last}" for gap in self._check.bridges),
        )

    async def _restart(self, cluster: LocalCluster, writer: Store) -> None:
        """Start the killed nodes, and wait until they have caught up."""
        with self._board.step(RESTART) as step:
            loop = asyncio.get_running_loop()
            began = loop.time()
            log = await writer.log(self._source.log)
            killed = sorted(victim.node for victim in self._victims)
            tail = self._check.next - 1
            async with asyncio.TaskGroup() as tasks:
                for node in killed:
                    tasks.create_task(self._start_again(cluster, node))
            try:
                async with asyncio.timeout(CATCH_UP_TIMEOUT_S):
                    while True:
                        status = await writer.status()
                        rejoined = find_rejoined(status, killed, log.log_id, tail)
                        if len(rejoined) == len(killed):
                            break
                        await asyncio.sleep(POLL_S)
            except TimeoutError:
                raise CheckFailed(
                    f"nodes {', '.join(map(str, killed))} were started again and have not "
                    f"caught up to {format_lsn(tail)} in {CATCH_UP_TIMEOUT_S:g} s"
                ) from None
            self._report.rejoined = rejoined
            self._report.rejoin_s = loop.time() - began
            words = ", ".join(map(str, killed))
            self._report.checks.note(
                "the killed nodes are back, purged and readable up to the tail",
                True,
                f"nodes {words}, up to {format_lsn(min(each.readable for each in rejoined))}",
            )
            step.note = f"nodes {words} are members again"

    async def _start_again(self, cluster: LocalCluster, node: NodeId) -> None:
        await cluster.start_node(node)
        process = cluster.nodes[node].process
        assert process is not None, "it was started"
        self._sessions.append(process.pid)

    def _moving(self, cluster: LocalCluster, ingest: Ingest, began: float) -> Moving:
        return Moving(
            done=self._source.taken,
            wanted=self._source.size,
            records=ingest.records,
            bytes=ingest.bytes,
            ingest_s=asyncio.get_running_loop().time() - began,
            lag=self._check.lag,
            nodes={node: each.is_running for node, each in cluster.nodes.items()},
        )

    # Spark.

    async def _land(self, spark: SparkProcess, cluster: LocalCluster) -> None:
        report = self._report
        with self._board.step(BOOT) as step:
            report.booted = booted = await spark.wait_for(Booted, SPARK_TIMEOUT_S)
            step.note = (
                f"Spark {booted.spark} on Java {booted.java}, up after {booted.seconds:.1f} s"
            )
        with self._board.step(LAND) as step:
            servers = cluster.url.removeprefix(SCHEME)
            job = Job(servers, self._source.log, str(report.parquet), report.query)
            spark.submit(job)
            report.landed = landed = await spark.wait_for(Landed, SPARK_TIMEOUT_S)
            step.note = f"{landed.records:,} rows in {landed.batches} micro-batch"
        with self._board.step(QUERY) as step:
            report.audited = audited = await spark.wait_for(Audited, SPARK_TIMEOUT_S)
            report.answered = answered = await spark.wait_for(Answered, SPARK_TIMEOUT_S)
            self._note_landing(audited, answered)
            step.note = f"{len(answered.rows)} rows, digest {self._digest}"

    def _note_landing(self, audited: Audited, answered: Answered) -> None:
        checks, digest = self._report.checks, self._digest
        checks.note(
            "Parquet holds every record once",
            audited.records == audited.lsns == digest.records
            and audited.last_lsn == self._check.last_acked,
            f"{audited.records:,} rows, {audited.lsns:,} LSNs, the last {Lsn(audited.last_lsn)}",
        )
        landed = Digest(audited.records, audited.first, audited.second)
        checks.compare("its digest is the source's", str(digest), str(landed))
        counted = {
            key: (tally.records, tally.units, tally.total)
            for key, tally in self._source.tallies.items()
        }
        answer = {row.key: (row.records, row.units, row.total) for row in answered.rows}
        wrong = sorted(key for key in {*counted, *answer} if counted.get(key) != answer.get(key))
        checks.note(
            "the query answers what plain Python counted",
            not wrong,
            f"{len(answer)} rows" if not wrong else f"not for {wrong[0]!r}",
        )

    # Files.

    async def _rebuild(self, source: Files) -> None:
        with self._board.step(REBUILD) as step:
            where = self._plan.where / "rebuilt"
            same = partial(_rebuilt_same, self._report.parquet, source, where)
            async with real_host() as host:
                found = await host.run_blocking(same, timeout_s=REBUILD_TIMEOUT_S)
            self._report.rebuilt = len(found)
            other = [name for name, is_same in found.items() if not is_same]
            self._report.checks.note(
                "the files come back from Parquet byte for byte",
                not other,
                f"{len(found)} files, {source.size:,} bytes" if not other
                else f"other bytes in {', '.join(other)}",
            )  # fmt: skip
            step.note = f"{source.size:,} bytes"


async def _all_know_all(store: Store) -> bool:
    replies = (await store.status()).values()
    return all(isinstance(each, StatusReply) and len(each.members) == NODES for each in replies)


def _rebuilt_same(parquet: Path, source: Files, where: Path) -> dict[str, bool]:
    """Rebuild all files. Returns whether each is the same, by name."""
    paths = rebuild_files(parquet, source.files, where)
    return {
        file.name: same_bytes(path, file.path, file.size)
        for file, path in zip(source.files, paths, strict=True)
    }
