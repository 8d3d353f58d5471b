"""Uploads records of the logs that ask for main storage; each node does so for its own logs.

The logs are dealt out by the hash that also chooses sequencers, over the members that live. Another
node stands in now and then, because a node may be cut off from main storage alone
(`protocol.upload_turns`). A lease in the metadata store keeps two nodes that disagree about the
members from doing the same work. It is a hint: safety rests on the manifest, where a turn's fence
ends every earlier turn, and a commit is a compare-and-set (`tier.log_manifest`). So a node that
paused in the middle, or lost its lease, commits nothing.

A node reads a log like a client: each block from one copy, up to the last released LSN. It finds
waiting records by the headers of blocks, and reads these once, without their bodies. Nothing is
uploaded past lost records, or past records that no node sends: the node reports the log, and
continues with others.

Source: docs/protocol/main-storage.md; docs/sources/s3stream.md (b), "Upload".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from cordwood.block import BlockKind, Gap, GapKind
from cordwood.client.store import Store, connected
from cordwood.errors import AccessDenied, BadSetting, CordwoodError, Fenced
from cordwood.host.seams import Host
from cordwood.layout.hello import Hello
from cordwood.lsn import Lsn, format_lsn
from cordwood.metadata.log_info import LogInfo
from cordwood.metadata.store import MetadataStore
from cordwood.nodes import Member, NodeId
from cordwood.protocol.gap_detection import Delivery
from cordwood.protocol.tier_plan import (
    PlannedObject,
    PlannedShare,
    Pressure,
    Waiting,
    plan_uploads,
    upload_rate,
)
from cordwood.protocol.upload_turns import uploader_of
from cordwood.quorum.sequencer_placement import sequencer_order
from cordwood.settings import MIB, ClientSettings, TierSettings
from cordwood.storage.said_once import SaidOfEach, SaidOnce
from cordwood.tier.repair import end_of_objects
from cordwood.tier.shared_upload import LogItems, gather, upload_shared
from cordwood.tier.uploader import Item, LogUploader, Uploaded
from cordwood.uploading.leases import leased
from cordwood.uploading.log_source import LogSource
from cordwood.uploading.objects_at_hand import ObjectsAtHand, OpenObjects
from cordwood.uploading.tiered_logs import TieredLogs, policy_of

logger = logging.getLogger(__name__)

CLIENT = ClientSettings(read_memory_bytes=64 * MIB, timeout_s=10.0)
"""Of the client that an uploader reads with: as much ahead as one object has."""

HEADS_S = 30.0
"""How long the headers of waiting records may take. Records that nodes do not send within this time
count as unknown."""

LOOKED_AT_ONCE = 16
"""Logs that are asked for their release, or whose headers are read, at the same time. With a
hundred silent logs, others wait for minutes, and not for an hour."""

PAUSE_MAX_S = 300.0
"""The longest rest of a log with failing uploads; the pauses double from the time between two
looks."""


@dataclass(slots=True)
class _Seen:
    """The state of a log with records to upload.

    Attributes:
        next: the end of its manifest; -1 if unknown.
        upto: headers are read up to this LSN, exclusive; 0 for none.
        bytes, oldest_us: of the waiting blocks: bytes of bodies, and append time of the first.
        barrier: the first lost or unknown LSN; None if there is none.
        failures, rest_until: failed tries in a row, to upload or to read headers, and the end of
            the log's rest.
    """

    next: int = -1
    upto: int = 0
    bytes: int = 0
    oldest_us: int = 0
    barrier: int | None = None
    failures: int = 0
    rest_until: float = 0.0

    def begin(self, end: int) -> None:
        """The manifest ends here."""
        self.next = self.upto = end
        self.bytes = self.oldest_us = 0
        self.barrier = None


class UploadRole:
    """See the module; `run` does the work.

    Args:
        me: this node.
        members, dead: as this node knows them.
        address: where this node listens; its uploader connects there, as a client.
        greeting: what this node says to others. Its uploader says the same, and so reads logs that
            ask clients for a token.
        presses: how full the disk is.
    Attributes:
        uploaded: objects that this node committed.
        blocked: logs with lost or unknown records before other records, with the LSN of these.
    """

    def __init__(
        self,
        me: NodeId,
        host: Host,
        settings: TierSettings,
        metadata: MetadataStore,
        logs: TieredLogs,
        objects: ObjectsAtHand,
        open_objects: OpenObjects,
        *,
        members: Callable[[], Mapping[NodeId, Member]],
        dead: Callable[[], Set[NodeId]],
        address: Callable[[], str],
        greeting: Callable[[], Hello],
        presses: Callable[[], Pressure],
    ) -> None:
        self.uploaded = 0
        self.blocked: dict[int, int] = {}
        self._me = me
        self._host = host
        self._settings = settings
        self._metadata = metadata
        self._logs = logs
        self._objects = objects
        self._open_objects = open_objects
        self._members = members
        self._dead = dead
        self._address = address
        self._greeting = greeting
        self._presses = presses
        self._seen: dict[int, _Seen] = {}
        self._said = SaidOnce(logger)
        self._said_blocked = SaidOfEach(logger)
        self._said_guarded = SaidOfEach(logger)
        self._said_beyond = SaidOfEach(logger)

    async def run(self) -> None:
        """Look for records to upload at intervals, until cancelled."""
        while True:
            await self._rest()
            try:
                if await self.mine():
                    async with self.connect() as client:
                        await self._upload_with(client)
            except CordwoodError as error:
                self._said.warning(f"uploads have to wait: {error}")

    def connect(self) -> AbstractAsyncContextManager[Store]:
        """A client of this node."""
        return connected(
            (self._address(),), self._host, CLIENT, self._open_objects, member=self._greeting()
        )

    async def _rest(self) -> None:
        # Drawn, so that the nodes of a cluster do not ask at once.
        await asyncio.sleep(self._settings.look_s * (0.5 + self._host.random.random()))

    async def _upload_with(self, client: Store) -> None:
        while await self.mine():
            await self.look(client)
            self._said.over("uploads go on")
            await self._rest()
        # Of logs that come back later a manifest may end elsewhere, as a repair found it.
        self._seen = {}

    async def mine(self) -> dict[int, LogInfo]:
        """The logs that this node uploads now, as the first of their nodes or in its place."""
        await self._logs.refresh()
        members, dead = self._members(), self._dead()
        # A node that is cut off sees all others dead, and itself too: then all of them count.
        living = [each for node, each in members.items() if node not in dead] or members.values()
        now_us, look_s = self._host.clock.now_us(), self._settings.look_s
        return {
            log: info
            for log, info in sorted(self._logs.tiered.items())
            if uploader_of(sequencer_order(log, living), now_us, look_s) == self._me
        }

    def end_of(self, log: int) -> int:
        """Where a log's manifest ended when this node looked last; -1 if it does not know."""
        seen = self._seen.get(log)
        return seen.next if seen is not None else -1

    async def look(self, client: Store) -> None:
        """Measure the waiting records of this node's logs, and upload those that are due.

        Raises:
            CordwoodError: nodes, the metadata store or main storage do not answer.
        """
        mine = await self.mine()
        self._seen = {log: self._seen.get(log) or _Seen() for log in mine}
        now = asyncio.get_running_loop().time()
        for said in (self._said_blocked, self._said_guarded, self._said_beyond):
            said.keep(self._logs.tiered)
        self._tell_guarded(mine)
        able = [
            log
            for log, info in mine.items()
            if info.attributes.is_uploaded and self._seen[log].rest_until <= now
        ]
        tails = await self._tails(client, able)
        waiting = await self._measured(client, mine, tails)
        plan = plan_uploads(waiting, self._host.clock.now_us(), self._presses())
        self._tell_blocked(dict(plan.blocked), able)
        rate = upload_rate(sum(each.bytes for each in waiting), self._presses())
        for planned in plan.objects:
            await self._upload(client, planned, mine, rate)

    async def _tails(self, client: Store, logs: list[int]) -> dict[int, Lsn]:
        """The released LSNs of logs; logs without an answer rest for a while."""
        try:
            return await client.released_by_number(logs)
        except CordwoodError as error:
            logger.debug("some logs do not tell their release: %s", error)
        places = asyncio.Semaphore(LOOKED_AT_ONCE)
        tails: dict[int, Lsn] = {}

        async def ask(log: int) -> None:
            async with places:
                try:
                    tails.update(await client.released_by_number([log]))
                except CordwoodError as error:
                    self._on_failed(log, error)

        await asyncio.gather(*map(ask, logs))
        return {log: tails[log] for log in logs if log in tails}

    def _tell_guarded(self, mine: Mapping[int, LogInfo]) -> None:
        """Warn about logs with `tier=on` and a read token, from before both together were refused.
        Their uploaded records stay in main storage."""
        for log, info in mine.items():
            if info.attributes.is_uploaded:
                self._said_guarded.over(log, f"log {log}: it may be uploaded")
            else:
                self._said_guarded.warning(
                    log,
                    f"log {log}: {info.name} asks for a read token, which does not hold in main "
                    "storage: it is not uploaded. Set tier=off, or tier_open=on if each user "
                    "with access to the store may read it",
                )

    def _tell_blocked(self, blocked: dict[int, int], looked_at: list[int]) -> None:
        # The uploader of a log reports it. A log that rests between two looks stays with this node.
        kept = self._seen.keys() - looked_at
        self.blocked = {log: at for log, at in self.blocked.items() if log in kept} | blocked
        for log in looked_at:
            if log in blocked:
                self._said_blocked.warning(
                    log,
                    f"log {log}: records at {format_lsn(blocked[log])} are lost, or no node gives "
                    "them; nothing is uploaded past them until they come back or an operator "
                    "accepts the loss (`cordwood nodes accept-loss`)",
                )
            else:
                self._said_blocked.over(log, f"log {log}: uploads go on")

    # What waits.

    async def _measured(
        self, client: Store, infos: Mapping[int, LogInfo], tails: Mapping[int, Lsn]
    ) -> list[Waiting]:
        """The waiting records of each log, by log.

        It measures some logs at once: each log with silent nodes takes HEADS_S.
        """
        places = asyncio.Semaphore(LOOKED_AT_ONCE)

        async def measure(log: int) -> Waiting | None:
            async with places:
                try:
                    return await self._waiting(client, infos[log], tails[log])
                except CordwoodError as error:
                    self._on_failed(log, error)
                    return None

        found = await asyncio.gather(*map(measure, tails))
        return [each for each in found if each is not None]

    async def _waiting(self, client: Store, info: LogInfo, tail: int) -> Waiting | None:
        """What of a log may go; None if nothing waits."""
        log = int(info.log_id)
        seen = self._seen[log]
        if seen.next < 0:
            head = await (await self._objects.manifest(log)).load()
            seen.begin(head.end if head is not None else 0)
        if tail < seen.next:
            if tail + 1 < seen.next:
                await self._check_end(client, info, seen, tail)
            return None
        if seen.upto <= tail or seen.barrier is not None:
            await self._read_heads(client, log, seen, tail)
        return Waiting(
            log, policy_of(info.attributes), seen.next, tail + 1, seen.barrier, seen.bytes,
            seen.oldest_us,
        )  # fmt: skip

    async def _check_end(self, client: Store, info: LogInfo, seen: _Seen, tail: int) -> None:
        """Look at a manifest that ends behind what the log has released.

        Either this node heard of the release late, or a repair has changed the manifest, or one
        accepted a loss of what the log never had: nothing is uploaded there.
        """
        log = int(info.log_id)
        manifest = await self._objects.manifest(log)
        held = await end_of_objects(manifest)
        end = manifest.head.end if manifest.head is not None else 0
        if manifest.head is not None and end > tail + 1 >= held:
            upto = (await client.tiered(log)).upto
            right = max(int(upto), held - 1, manifest.head.start - 1)
            self._said_beyond.warning(
                log,
                f"log {log}: the accepted loss in main storage reaches {format_lsn(end - 1)}, and "
                f"the log {format_lsn(tail)}: what comes up to there is not uploaded. Take it "
                f"back: `cordwood tier repair {log} --end {format_lsn(right)}`",
            )
        else:
            self._said_beyond.over(log, f"log {log}: uploads go on")
        if end != seen.next:
            self._seen[log] = _Seen()  # a repair has changed it

    async def _read_heads(self, client: Store, log: int, seen: _Seen, tail: int) -> None:
        """Count the blocks since the last look. A barrier is looked at again."""
        seen.barrier = None
        start: Lsn | str = Lsn(seen.upto) if seen.upto else "oldest"
        stream = await client.read(log, start, Lsn(tail), payloads=False)
        async with stream:
            try:
                async with asyncio.timeout(HEADS_S):
                    while (taken := await stream.next()) is not None:
                        if isinstance(taken, Gap):
                            if taken.kind is GapKind.DATA_LOSS:
                                seen.barrier = int(taken.first)
                                return
                            if taken.kind is GapKind.ACCESS:
                                # From a node that does not know this node as a member any more.
                                raise AccessDenied(f"log {log}: a node asks for its read token")
                            if taken.kind is GapKind.NOT_IN_CONFIG:
                                return
                        else:
                            _count(seen, taken)
                        seen.upto = int(taken.last) + 1
            except TimeoutError:
                seen.barrier = stream.taken_lsn
                # Each look would wait as long for the same nodes, and so would other logs.
                self._rest_of(seen)

    # Uploading.

    async def _upload(
        self, client: Store, planned: PlannedObject, infos: Mapping[int, LogInfo], rate: float
    ) -> None:
        """One planned object, as far as its logs are this node's by their leases."""
        async with AsyncExitStack() as stack:
            shares = [
                share
                for share in planned.shares
                if await stack.enter_async_context(self._leased(share.log))
            ]
            if len(shares) == 1:
                await self._upload_one(client, shares[0], infos, rate)
            elif shares:
                await self._upload_several(client, shares, infos, rate)

    @asynccontextmanager
    async def _leased(self, log: int) -> AsyncIterator[bool]:
        """Hold a log's lease, if no other node does."""
        async with leased(self._metadata, f"tier/{log}", f"node {self._me}") as is_mine:
            yield is_mine

    async def _upload_one(
        self, client: Store, share: PlannedShare, infos: Mapping[int, LogInfo], rate: float
    ) -> None:
        log, info = share.log, infos[share.log]
        try:
            uploader = LogUploader(
                await self._objects.store(), await self._objects.manifest(log), self._host, log,
                info.name, created_us=info.created_us,
            )  # fmt: skip
            next_lsn = await uploader.next_lsn()
            async with LogSource(
                client, log, next_lsn, stop=share.stop, read_end=uploader.next_lsn
            ) as source:
                await self._check_wanted(log)
                await self._objects.check()
                items = _paced(source.items(), rate)
                self._on_uploaded(log, await uploader.run(items, source.first))
        except CordwoodError as error:
            self._on_failed(log, error)

    async def _check_wanted(self, log: int) -> None:
        """Check that a log with a fixed tail is still to be uploaded.

        Race: the upload waited for its turn, and meanwhile the log got a read token, or `tier=off`.
        Records that came after that must not go to main storage, where the token does not protect
        them. All records up to the tail were there before this question.

        Raises:
            BadSetting: the log stays on the nodes.
        """
        await self._logs.refresh()
        info = self._logs.tiered.get(log)
        if info is None or not info.attributes.is_uploaded:
            raise BadSetting(f"the attributes of log {log} no longer ask for uploads")

    async def _upload_several(
        self,
        client: Store,
        planned: list[PlannedShare],
        infos: Mapping[int, LogInfo],
        rate: float,
    ) -> None:
        shares: list[LogItems] = []
        store = await self._objects.store()
        for each in sorted(planned, key=lambda share: share.log):
            info = infos[each.log]
            try:
                manifest = await self._objects.manifest(each.log)
                uploader = LogUploader(
                    store, manifest, self._host, each.log, info.name, created_us=info.created_us
                )
                next_lsn = await uploader.next_lsn()
                async with LogSource(
                    client, each.log, next_lsn, stop=each.stop, read_end=uploader.next_lsn
                ) as source:
                    await self._check_wanted(each.log)
                    items, lost = await gather(_paced(source.items(), rate), each.bytes_max)
                    first = source.first
                if source.silent is not None and not items:
                    self._seen[each.log] = _Seen()  # its headers say where the barrier is
            except CordwoodError as error:
                self._on_failed(each.log, error)
                continue
            if items:
                shares.append(
                    LogItems(each.log, info.name, info.created_us, manifest, first, items,
                          Uploaded(first, blocked=lost))
                )  # fmt: skip
        if not shares:
            return
        try:
            await self._objects.check()
            await upload_shared(store, self._host, shares)
        except CordwoodError as error:
            for share in shares:
                self._on_failed(share.log, error)
            return
        self.uploaded += any(share.failed is None for share in shares)
        for share in shares:
            if share.failed is not None:
                self._on_failed(share.log, share.failed)
            else:
                self._on_uploaded(share.log, replace(share.done, objects=0))

    def _on_uploaded(self, log: int, done: Uploaded) -> None:
        self.uploaded += done.objects
        self._seen[log] = seen = _Seen()
        if done.end:
            seen.begin(done.end)

    def _on_failed(self, log: int, error: CordwoodError) -> None:
        """Leave a log alone for a while, longer each time."""
        seen = self._seen[log]
        seen.next = -1  # another node may have gone on, or this commit may be answered late
        rest_s = self._rest_of(seen)
        level = logging.INFO if isinstance(error, Fenced) else logging.WARNING
        logger.log(level, "log %d: its upload waits for %.1f s: %s", log, rest_s, error)

    def _rest_of(self, seen: _Seen) -> float:
        """Have a log rest after a failed try; for how many seconds."""
        seen.failures += 1
        rest_s = min(PAUSE_MAX_S, self._settings.look_s * 2.0 ** min(seen.failures, 16))
        rest_s *= 0.5 + self._host.random.random() / 2
        seen.rest_until = asyncio.get_running_loop().time() + rest_s
        return rest_s


def _count(seen: _Seen, taken: Delivery) -> None:  # type: ignore[type-arg]
    header = taken.block.header
    if header.kind == BlockKind.DATA:
        seen.bytes += header.raw_bytes
        seen.oldest_us = seen.oldest_us or header.append_time_us


async def _paced(items: AsyncIterator[Item], rate: float) -> AsyncIterator[Item]:
    """Yield items no faster than this many bytes of bodies a second."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    async for item in items:
        if not isinstance(item, Gap):
            due = max(due, loop.time() - 1.0) + item[0].raw_bytes / rate
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
        yield item
