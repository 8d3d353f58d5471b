"""Questions about a log that its storage nodes answer together, and trimming it.

The log's sequencer tells the tail. Then every node of every epoch's nodeset gets the same question,
about all records up to that tail.

Source: docs/sources/logdevice.md 1 ("Positions"); docs/design.md §7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from cordwood.block import Gap, GapKind
from cordwood.client.admin.log_tree import check_read_token, check_write_token
from cordwood.client.admin.tier_positions import TierPositions
from cordwood.client.cluster import Cluster, LogInfo
from cordwood.client.find.log_info import AnyLog
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.tier_store import TierStore
from cordwood.errors import AccessDenied, CordwoodError, Rejected, UnknownLog, Unreachable
from cordwood.layout.log_questions import (
    AskExtent,
    AskSize,
    AskTime,
    ExtentReply,
    ForReaders,
    SizeReply,
    TimeReply,
    Trim,
    TrimReply,
)
from cordwood.layout.message import Call
from cordwood.lsn import OLDEST, Lsn, format_lsn
from cordwood.nodes import Authority, NodeId
from cordwood.protocol.log_position import TimeAnswer, find_time, size_of
from cordwood.quorum.authority import HAS_DATA
from cordwood.quorum.f_majority import weigh_replies
from cordwood.settings import ClientSettings

ASK_NODE_S = 3.0
"""The deadline of one node. The node looks into memory and a few places of its disk, or writes one
mark. A node that is down costs this time."""

KEYLESS_MAX = 10_000
"""Records without a key that a search skips to find a key: a block or a few."""

Answer = TypeVar("Answer", TrimReply, TimeReply, ExtentReply, SizeReply)

Read = Callable[[AnyLog, int, int], Awaitable[ReadStream]]
"""Opens a read of a log from one LSN to another, both included."""

AskTail = Callable[[LogInfo], Awaitable[Lsn]]


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The result of a trim.

    Attributes:
        lsn: the requested LSN; all records up to and including it are trimmed.
        nodes: nodes that trimmed up to it, durably.
        missing: nodes that may still hold trimmed records, and why. A reader skips these records as
            soon as one node of `nodes` answers it. The missing nodes free the space at the next
            trim, or by retention.
    """

    lsn: Lsn
    nodes: tuple[NodeId, ...]
    missing: Mapping[NodeId, str]

    @property
    def is_partial(self) -> bool:
        """Whether some nodes did not trim. The call may be repeated."""
        return bool(self.missing)


@dataclass(frozen=True, slots=True)
class TimePosition:
    """Where a time lies in a log.

    Attributes:
        lsn: the place to read from: no record from there on is older than the time.
        tail: the tail of the log at the time of the call.
        is_partial: too few nodes answered for an exact place, or main storage lacks records that
            nodes let go of. The place may be too early.
        missing: nodes that did not answer, and why.
    """

    lsn: Lsn
    tail: Lsn
    is_partial: bool
    missing: Mapping[NodeId, str]


@dataclass(frozen=True, slots=True)
class KeyPosition:
    """The place of a key in a log with keys that never decrease.

    Attributes:
        before: the last record with a lower key, None for none.
        at: the first record with this key or a higher key, None for none up to `tail`.
        is_partial: records are lost in the range that was searched, so a lost record may lie
            nearer.
    """

    before: Lsn | None
    at: Lsn | None
    tail: Lsn
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """A record's LSN, and the append time (µs) of its block."""

    lsn: Lsn
    append_time_us: int


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a log's records begin and end.

    Attributes:
        trim: all records up to this LSN are trimmed, e0n0 for none.
        tail: the last LSN that readers may see. It is not always a record's LSN.
        first, last: the first and the last record in between, None in an empty log.
        is_partial: too few nodes answered, or main storage lacks records that nodes let go of.
            There may be records before `first` and after `last`.
        missing: nodes that did not answer, and why.
    """

    trim: Lsn
    tail: Lsn
    first: Point | None
    last: Point | None
    is_partial: bool
    missing: Mapping[NodeId, str]

    @property
    def is_empty(self) -> bool:
        """Whether there is no record."""
        return self.first is None

    @property
    def is_first_known(self) -> bool:
        """Whether `first` is right for sure: enough nodes answered, or nothing can precede it."""
        is_sure = self.first is not None and self.first.lsn == max(OLDEST, self.trim + 1)
        return is_sure or not self.is_partial

    @property
    def is_last_known(self) -> bool:
        """Whether `last` is right for sure: enough nodes answered, or it is the tail itself."""
        return not self.is_partial or (self.last is not None and self.last.lsn == self.tail)


@dataclass(frozen=True, slots=True)
class Size:
    """An approximate number of bytes. `is_partial` says that too few nodes answered, or that main
    storage lacks records that nodes let go of."""

    bytes: int
    is_partial: bool
    missing: Mapping[NodeId, str]


NO_TRIM = Lsn(0)


@dataclass(frozen=True, slots=True)
class Tiered:
    """The part of a log that nodes let go of, and the address of main storage, which has it.

    Attributes:
        address: the address of main storage, as nodes tell it; "" for none.
        upto: only main storage holds the log up to this LSN; e0n0 for nothing.
        created_us: when the log was made, which tells it from other clusters' logs.
        trim: the trim point as nodes know it. Objects may have trimmed records for another minute.
    """

    address: str
    upto: Lsn
    created_us: int
    trim: Lsn = NO_TRIM


class Positions:
    """See the module; the calls are `Store`'s."""

    def __init__(
        self,
        cluster: Cluster,
        ask_tail: AskTail,
        read: Read,
        settings: ClientSettings,
        tier: TierStore,
    ) -> None:
        self._cluster = cluster
        self._tier = tier
        self._ask_tail = ask_tail
        self._read = read
        self._settings = settings

    async def trim(self, log: AnyLog, lsn: int | None) -> Trimmed:
        """See `Store.trim`; None is the tail."""
        # Race: the log is looked up once. If its name moves to another log meanwhile, its tail is
        # no position in that log.
        info, tail = await self.opened(log)
        if not self._cluster.is_member:
            check_write_token(info, self._settings.write_tokens)
        if lsn is None:
            lsn = tail
        if lsn > tail:
            raise Rejected(
                f"{info.name} ends at {format_lsn(tail)}, and {format_lsn(lsn)} is past that: "
                "only what readers may see can be trimmed"
            )
        call = Trim(info.log_id, int(lsn), int(tail))
        done, missing = await self._ask_nodes(info, call, TrimReply)
        return Trimmed(Lsn(lsn), tuple(done), missing)

    async def find_time(self, log: AnyLog, time_us: int, *, approximate: bool) -> TimePosition:
        """See `Store.find_time`."""
        info, tail = await self.opened(log)
        call = AskTime(info.log_id, time_us, int(tail), not approximate, token=self._token(info))
        told, missing = await self._ask_nodes(info, call, TimeReply)
        answers = [TimeAnswer(each.trim, each.before, each.at) for each in told.values()]
        found = find_time(answers, tail, heard_all=self.is_enough(info, tail, told))
        lsn, is_partial = found.lsn, not found.is_complete
        trim = max(each.trim for each in told.values())
        tiered, lacks = await self._tiered(info, trim, told.values())
        if tiered is not None:
            older = await tiered.find_time(time_us, trim, is_exact=not approximate)
            if older is not None:
                lsn, is_partial = min(lsn, older), False
            # Nodes let go each by itself: a silent node may have the only records of a lost range.
            lost = await self._lost_before(tiered, lsn, missing)
            if lost is not None and trim < lsn - 1:
                lsn, is_partial = max(lost, trim + 1), True
        if lacks is not None and lacks < lsn:
            lsn, is_partial = Lsn(lacks), True
        return TimePosition(Lsn(lsn), tail, is_partial, missing)

    async def find_key(self, log: AnyLog, key: bytes) -> KeyPosition:
        """See `Store.find_key`."""
        info, tail = await self.opened(log)
        self._token(info)
        timeout_s = self._settings.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self.search_key(info, tail, key)
        except TimeoutError:
            raise Unreachable(
                f"the nodes of {info.name} did not send all that had to be looked at within "
                f"{timeout_s:g} s"
            ) from None

    async def search_key(self, info: LogInfo, tail: Lsn, key: bytes) -> KeyPosition:
        """See `Store.find_key`; waits for records that nodes have not sent yet."""
        low, high = int(OLDEST), int(tail)
        before: Lsn | None = None
        at: Lsn | None = None
        is_partial = False
        while low <= high:
            middle = (low + high) // 2
            found, has_lost = await first_keyed(
                await self._read(info.log_id, middle, high), info.name
            )
            is_partial |= has_lost
            if found is None:
                high = middle - 1
            elif found[0] >= key:
                at = found[1]
                high = middle - 1
            else:
                before = found[1]
                low = before + 1
        return KeyPosition(before, at, tail, is_partial)

    async def extent(self, log: AnyLog) -> Extent:
        """See `Store.tail_attributes`, `Store.head_attributes` and `Store.is_empty`."""
        info, tail = await self.opened(log)
        trim = 0
        while True:
            call = AskExtent(info.log_id, int(tail), trim, token=self._token(info))
            told, missing = await self._ask_nodes(info, call, ExtentReply)
            trim = max(trim, *(each.trim for each in told.values()))
            held = [each for each in told.values() if each.first and each.last > trim]
            if all(each.first > trim for each in held):
                break
            # Readers skip records that any node has trimmed. So a node that missed the trim must
            # report its records above the trim point.
        first = min(((e.first, e.first_us) for e in held), default=(0, 0))
        last = max(((e.last, e.last_us) for e in held), default=(0, 0))
        is_partial = not self.is_enough(info, tail, told)
        tiered, lacks = await self._tiered(info, trim, told.values())
        if tiered is not None:
            # A node may hold a record of a range that main storage lost.
            ends = (first, await tiered.first(trim))
            first = min((each for each in ends if each and each[0]), default=first)
            if last[0] <= tiered.up_to:
                # A node that trims late may hold none of the last records that the other nodes
                # trimmed.
                last = max(last, await tiered.last(trim) or last)
            # A silent node may have records that main storage lost before the first of these, or
            # behind the last.
            edges = [first[0]] if first[0] else []
            edges += [tiered.up_to + 1] if last[0] <= tiered.up_to else []
            for edge in edges:
                lost = await self._lost_before(tiered, edge, missing)
                is_partial |= lost is not None and trim < edge - 1
        if lacks is not None:
            # The unknown range begins at `lacks`, and ends below the records that only nodes hold.
            up_to = max(each.tier for each in told.values())
            is_partial |= not 0 < first[0] < lacks or last[0] <= up_to
        return Extent(Lsn(trim), tail, _point(first), _point(last), is_partial, missing)

    async def tiered(self, log: AnyLog) -> Tiered:
        """See `Store.tiered`."""
        address = self._cluster.tier_store
        if not address:
            return Tiered("", Lsn(0), 0)
        info, tail = await self.opened(log)
        call = AskExtent(info.log_id, int(tail), 0, token=self._token(info))
        told, _ = await self._ask_nodes(info, call, ExtentReply)
        upto = Lsn(max((each.tier for each in told.values()), default=0))
        trim = Lsn(max((each.trim for each in told.values()), default=0))
        return Tiered(address, upto, info.created_us, trim)

    async def let_go(self, log: AnyLog) -> tuple[Lsn, Lsn]:
        """The trim point of a log and its tier point, by the nodes that answer; e0n0 for none. The
        sequencer is not asked.

        Raises:
            Unreachable: no node answered.
        """
        info = await self._fresh(log)
        call = AskExtent(info.log_id, 0, 0, token=self._token(info))
        told, _ = await self._ask_nodes(info, call, ExtentReply)
        trim = max((each.trim for each in told.values()), default=0)
        return Lsn(trim), Lsn(max((each.tier for each in told.values()), default=0))

    async def data_size(self, log: AnyLog, start_us: int, stop_us: int) -> Size:
        """See `Store.data_size`."""
        info, tail = await self.opened(log)
        call = AskSize(info.log_id, start_us, stop_us, token=self._token(info))
        told, missing = await self._ask_nodes(info, call, SizeReply)
        copies = info.history[-1].copies if info.history else info.replication.copies
        size = size_of((each.bytes for each in told.values()), len(told) + len(missing), copies)
        tiered, lacks = await self._tiered(info, 0, told.values())
        if tiered is not None:
            size += await tiered.bytes_between(start_us, stop_us)
        is_partial = lacks is not None or not self.is_enough(info, tail, told)
        return Size(size, is_partial, missing)

    async def epoch_end(self, info: LogInfo, last: int) -> Lsn | None:
        """The first LSN of the bridge that covers an epoch's last LSN, as main storage knows it;
        None if it does not."""
        manifest = await self._tier.manifest(info)
        if manifest is None:
            return None
        found = await TierPositions(self._tier, manifest, info, last).epoch_end(last)
        return None if found is None else Lsn(found)

    async def _lost_before(
        self, tiered: TierPositions, lsn: int, missing: Collection[NodeId]
    ) -> int | None:
        """Where the range begins right before an LSN that main storage lost, and that a silent node
        with data may hold; None if there is none."""
        fully = Authority.FULLY_AUTHORITATIVE
        statuses = self._cluster.statuses
        if not any(statuses.get(node, fully) in HAS_DATA for node in missing):
            return None
        return await tiered.lost_before(min(lsn, tiered.up_to + 1))

    async def _tiered(
        self, info: LogInfo, trim: int, told: Collection[TimeReply | ExtentReply | SizeReply]
    ) -> tuple[TierPositions | None, int | None]:
        """The answers of main storage below the nodes' tier points, None if nodes let go of
        nothing; and the first LSN that nodes let go of and main storage does not have, None if it
        has all.

        Its manifest may be lost, or be repaired from a part of its objects.
        """
        up_to = max((each.tier for each in told), default=0)
        if up_to <= trim:
            return None, None
        manifest = await self._tier.manifest(info)
        head = manifest.head if manifest is not None else None
        if manifest is None or head is None:
            return None, max(OLDEST, trim + 1)
        lacks = max(head.end, trim + 1)
        found = TierPositions(self._tier, manifest, info, up_to)
        return found, lacks if lacks <= up_to else None

    def _token(self, info: LogInfo) -> str:
        """See `check_read_token`; a node's client needs none."""
        if self._cluster.is_member:
            return ""
        return check_read_token(info, self._settings.read_tokens)

    async def opened(self, log: AnyLog) -> tuple[LogInfo, Lsn]:
        """A log with all its epochs, and its tail.

        Raises:
            UnknownLog: the log does not exist.
            Retryable: no sequencer answered.
        """
        info = await self._fresh(log)
        tail = await self._ask_tail(info)
        if tail.epoch > info.epoch:
            # The question may have started a sequencer, in an epoch with other nodes.
            # Race: by number, since the name may have moved to another log meanwhile.
            info = await self._fresh(info.log_id)
        return info, tail

    def is_enough(self, info: LogInfo, tail: Lsn, heard: Collection[NodeId]) -> bool:
        """Whether the nodes that answered intersect every copyset of every epoch."""
        if tail.epoch > info.epoch or not info.history:
            return False
        # A node that answered is up, even if its status says otherwise.
        told = {n: status for n, status in self._cluster.statuses.items() if n not in heard}
        for each in info.history:
            found = self._cluster.nodeset_of(info, each.since)
            if found is None or not weigh_replies(set(heard), *found, told).is_f_majority:
                return False
        return True

    async def _fresh(self, log: AnyLog) -> LogInfo:
        """Look the log up with all its epochs: the remembered entry may lack nodes of the newest
        epoch."""
        self._cluster.check_open()
        timeout_s = self._settings.timeout_s
        return await self._cluster.find_log(log, create=False, timeout_s=timeout_s, fresh=True)

    async def _ask_nodes(
        self, info: LogInfo, call: Call, kind: type[Answer]
    ) -> tuple[dict[NodeId, Answer], dict[NodeId, str]]:
        """Ask the nodes that may hold records of a log: the answers, and the reasons of nodes that
        gave none.

        Raises:
            Unreachable: no node answered.
        """
        timeout_s = min(ASK_NODE_S, self._settings.timeout_s)
        if isinstance(call, ForReaders):
            call = msgspec.structs.replace(call, timeout_ms=max(1, round(timeout_s * 1000)))

        async def ask(node: NodeId) -> Answer | CordwoodError:
            try:
                reply = await self._cluster.call_node(node, call, timeout_s=timeout_s)
            except CordwoodError as error:
                return error
            assert isinstance(reply, kind), f"{call} is answered with {kind.__name__}"
            return reply

        nodes = info.all_nodes
        told: dict[NodeId, Answer] = {}
        missing: dict[NodeId, str] = {}
        for node, answer in zip(nodes, await asyncio.gather(*map(ask, nodes)), strict=True):
            if isinstance(answer, CordwoodError):
                missing[node] = str(answer)
            else:
                told[node] = answer
        if not told:
            reasons = "; ".join(f"node {node}: {why}" for node, why in missing.items())
            raise Unreachable(f"no node of {info.name} answers: {reasons or 'it has none yet'}")
        return told, missing


async def first_keyed(stream: ReadStream, name: str) -> tuple[tuple[bytes, Lsn] | None, bool]:
    """Key and LSN of the first record with a key, None for none; and whether records before it are
    lost."""
    keyless = 0
    has_lost = False
    try:
        async for item in stream:
            if isinstance(item, Gap):
                has_lost |= item.kind is GapKind.DATA_LOSS
                if item.kind is GapKind.ACCESS:
                    raise AccessDenied(f"{name} may not be read by this client any more")
                if item.kind is GapKind.NOT_IN_CONFIG:
                    raise UnknownLog(f"{name} was deleted while a key was looked for in it")
            else:
                if item.key is not None:
                    return (item.key, item.lsn), has_lost
                keyless += 1
                if keyless > KEYLESS_MAX:
                    raise Rejected(
                        f"{name} has more than {KEYLESS_MAX} records without a key in a row: "
                        "a key can be found only where records have one"
                    )
    finally:
        stream.close()
    return None, has_lost


def _point(point: tuple[int, int]) -> Point | None:
    return Point(Lsn(point[0]), point[1]) if point[0] else None
