"""Publishing: a query's batch of staged blocks goes into its logs, once, even if clients fail.

`protocol.publishing` has the rules, the metadata store the query's entry. This is the client that
goes through them: take an attempt, pin on every copy, commit; then, for each log, read the staged
bodies and append *copies* of them as one atomic group of the query's producer (a sequencer could
bind LSNs to the staged bodies and save this copy; docs/design.md §9 allows both); then mark it as
done. If this client dies after the commit, the next publisher of the query does the rest.

A pin has to hold on all copies, so that the client can read any copy after the commit. If a node
with a copy is down, nothing is committed, and the caller stages again.

Source: docs/design.md §9; docs/sources/spark.md §8.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cordwood.client.admin.log_tree import check_write_token
from cordwood.client.append.appends import Appends
from cordwood.client.append.blocks import check_group
from cordwood.client.append.producer import QueryProducer
from cordwood.client.cluster import Cluster
from cordwood.client.publish.staged_copies import StagedCopies, blocks_of
from cordwood.client.publish.staging import StagedRef, Stager
from cordwood.errors import (
    BadSetting,
    Closed,
    Fenced,
    Malformed,
    Misplaced,
    OutcomeUnknown,
    OutOfSequence,
    ProducerFenced,
    RecordTooLarge,
    Rejected,
    Retryable,
    StageExpired,
    UnknownLog,
    UnknownProducer,
)
from cordwood.layout.append_group import GroupPart
from cordwood.layout.message import Call, Reply
from cordwood.layout.message_logs import ListLogs, LogsReply
from cordwood.layout.message_staging import (
    STAGES_MAX,
    AskPublication,
    BeginPublish,
    BlockPlace,
    CommitPublish,
    FinishPublish,
    LogBlocks,
    PublicationReply,
)
from cordwood.lsn import Lsn
from cordwood.protocol.producers import sure_s
from cordwood.protocol.publishing import StagedBlock, check_repeat, group_end
from cordwood.settings import ClientSettings, block_bytes_max

logger = logging.getLogger(__name__)

CALL_S = 5.0
"""How long one node may take for one question."""

ATTEMPTS_MAX = 3
"""The most attempts of one call, if other publishers overtake them: two publishers must not
overtake each other for ever."""

READS_AT_ONCE = 8
"""Staged bodies read at a time."""

SPLIT_SHARE = 8
"""A share that exceeds one group is cut into groups of this fraction of the largest group. The
largest group takes half of a WAL; several in a row would each wait for a flush."""

RETRY_S = 0.1
"""Pause before staged bodies are read again that no node gave."""

LOOK_UPS_MAX = 16
"""Up to this many logs of a batch are looked up one by one before the commit; for more, all logs
are listed once."""

QUERY_CHARS_MAX = 255


@dataclass(frozen=True, slots=True)
class Published:
    """A batch that is in its logs.

    Attributes:
        spans: by log, first and last LSN. Logs without records of the batch are left out. It is
            empty for a batch before the last one, of which no spans are kept. If a batch came in
            several groups, records of other callers may stand between them. If another client
            stored the first groups, the span begins with the first group that the log remembers.
        is_repeat: whether it was committed before this call, so that the references of this call
            were not used.
    """

    query: str
    batch: int
    spans: Mapping[str, tuple[Lsn, Lsn]] = field(default_factory=dict)
    is_repeat: bool = False


class _OwnCommit(NamedTuple):
    """A commit that a call made, and when its appends begin to be late."""

    commits: int
    late_at: float


class Publisher:
    """Publishes for one client."""

    def __init__(
        self,
        cluster: Cluster,
        appends: Appends,
        stager: Stager,
        ask: Callable[[Call], Awaitable[Reply]],
        settings: ClientSettings,
    ) -> None:
        self._cluster = cluster
        self._appends = appends
        self._stager = stager
        self._ask = ask
        self._settings = settings
        self._copies = StagedCopies(cluster, settings)

    async def published(self, query: str) -> Published | None:
        """See `Store.published`."""
        known = await self.call_store(AskPublication(_query(query)))
        return None if known.batch < 0 or not known.is_done else _told(query, known)

    async def publish(
        self,
        query: str,
        batch: int,
        refs: Sequence[StagedRef | Mapping[str, Any]],
        fingerprint: str = "",
        *,
        whole: bool = True,
    ) -> Published:
        """See `Store.publish`."""
        _query(query)
        if not 0 <= batch < 1 << 63:
            raise BadSetting(f"batch {batch}: it goes from 0 to 2**63 - 1")
        shares = _shares(refs)
        known = await self.call_store(AskPublication(query))
        if batch <= known.batch:
            check_repeat(query, (known.batch, known.fingerprint), (batch, fingerprint))
            return await self.finish_batch(query, batch, known, is_repeat=True)
        known = await self.roll_forward(query, known)
        tries = 0
        while batch > known.batch:
            known = await self.call_store(BeginPublish(query, batch))
            if batch <= known.batch:
                break
            _check_shares(shares, known.group_bytes_max, whole=whole)
            attempt, tries = known.attempt, tries + 1
            shares = await self._check_there(await self._copies.pin(query, attempt, shares))
            sure_until = asyncio.get_running_loop().time()
            try:
                with _unknown_from_here(query, batch):
                    known = await self.call_store(
                        CommitPublish(query, batch, attempt, shares, fingerprint)
                    )
            except Fenced:
                # By another publisher, or by this publisher if its request arrived twice.
                if tries >= ATTEMPTS_MAX:
                    raise
            else:
                own = _OwnCommit(known.commits, sure_until + sure_s(known.producer))
                return await self.finish_batch(query, batch, known, own, is_repeat=False)
        # Another publisher of the query was first.
        check_repeat(query, (known.batch, known.fingerprint), (batch, fingerprint))
        return await self.finish_batch(query, batch, known, is_repeat=True)

    async def finish_batch(
        self,
        query: str,
        batch: int,
        known: PublicationReply,
        own: _OwnCommit | None = None,
        *,
        is_repeat: bool,
    ) -> Published:
        """Make sure that a batch is in its logs. This batch or a later batch is committed."""
        with _unknown_from_here(query, batch, is_committed=True):
            known = await self.roll_forward(query, known, own)
        if batch < known.batch:
            return Published(query, batch, is_repeat=True)
        return _told(query, known, is_repeat=is_repeat)

    async def call_store(
        self, call: AskPublication | BeginPublish | CommitPublish | FinishPublish
    ) -> PublicationReply:
        reply = await self._ask(call)
        assert isinstance(reply, PublicationReply), "publishing calls are answered with the query"
        return reply

    async def _check_there(self, shares: list[LogBlocks]) -> list[LogBlocks]:
        """Look for the logs by number, past what the client remembers of their names.

        Blocks are staged for a number. A log that was deleted, and perhaps created again under its
        name, would refuse its blocks after the commit, although the batch would count as published.

        Returns:
            The shares. Logs that had one name when their blocks were staged have their present
            names: spans are told by name.
        Raises:
            UnknownLog: a log is gone; nothing is published.
            AccessDenied: a log wants a write token that this client does not have. After the commit
                it would refuse its share, and the query would stop there.
        """
        timeout_s, gone = self._settings.timeout_s, list(shares)
        names: dict[int, str] = {}
        if len(shares) <= LOOK_UPS_MAX:
            gone = []
            for share in shares:
                try:
                    info = await self._cluster.find_log(
                        share.log, create=False, timeout_s=timeout_s, fresh=True
                    )
                    check_write_token(info, self._settings.write_tokens)
                    names[share.log] = info.name
                except UnknownLog:
                    gone.append(share)
        if not gone:
            return _told_apart(shares, names)
        reply = await self._cluster.call_any(ListLogs("/"), timeout_s=timeout_s)
        assert isinstance(reply, LogsReply), "ListLogs is answered with logs"
        there = {each.log: each for each in reply.logs}
        names |= {each.log: each.name for each in reply.logs}
        for share in gone:
            if share.log in there:
                check_write_token(there[share.log], self._settings.write_tokens)
            elif share.log in reply.unread_logs:
                # Not deleted: nothing is known of it, so the batch waits. The others go nowhere
                # without it.
                raise Malformed(
                    f"{share.name} (log number {share.log}) has an entry in the metadata store "
                    "that cannot be read: nothing is published. Publish again once it can be read"
                )
            else:
                self._cluster.forget_log(share.name)
                raise UnknownLog(
                    f"{share.name} was deleted since these records were staged for it (it was log "
                    f"number {share.log}): nothing is published. Stage them again, for a log that "
                    "is there"
                )
        return _told_apart(shares, names)

    async def roll_forward(
        self, query: str, known: PublicationReply, own: _OwnCommit | None = None
    ) -> PublicationReply:
        """Make sure that the last commit is in its logs. Other publishers may do the same at the
        same time.

        Args:
            own: the commit that this call made a moment ago. Any other batch may have been appended
                so long ago that its logs have forgotten it.
        Raises:
            Retryable, OutcomeUnknown: not yet; it may be tried again.
        """
        while not known.is_done:
            commits = known.commits
            late_at = own.late_at if own is not None and own.commits == commits else 0.0
            try:
                # All queries take logs in one order: a log may delay a new query until a remembered
                # query is done, and two queries must not wait for each other.
                spans = {
                    share.name: await self.append_share(query, known, share, late_at)
                    for share in sorted(known.shares, key=lambda share: share.log)
                }
            except _STUCK as error:
                # Another publisher may have finished it, and gone on.
                again = await self.call_store(AskPublication(query))
                if again.commits == commits and not again.is_done:
                    raise OutcomeUnknown(
                        f"batch {known.batch} of {query!r} is committed and cannot be brought "
                        f"into its logs: {error}"
                    ) from error
                known = again
                continue
            found = {name: span for name, span in spans.items() if span is not None}
            await self.call_store(FinishPublish(query, commits, found))
            blocks = [_unpacked(block) for block in blocks_of(known.shares)]
            await self._stager.unstage(blocks, query, known.committed_by)
            known = await self.call_store(AskPublication(query))
        return known

    async def append_share(
        self, query: str, known: PublicationReply, share: LogBlocks, late_at: float = 0.0
    ) -> tuple[int, int] | None:
        """Append one log's share. Returns its first and last LSN, or None if the log is gone.

        It is one atomic group, or several in order if one does not hold it. Sequences tell which
        records are stored, so the groups of an earlier try do not matter.

        Args:
            late_at: see `protocol.producers`.
        """
        limit, at, sequence = _group_limit(known.group_bytes_max, share), 0, 0
        sizes = [block.stored_bytes for block in share.blocks]
        records = [block.records for block in share.blocks]
        span: tuple[int, int] | None = None
        is_asked = False
        while at < len(sizes):
            end = group_end(sizes, at, limit)
            count = sum(records[at:end])
            try:
                first = await self.append_one_group(
                    known, share, share.blocks[at:end], sequence, late_at
                )
            except UnknownProducer:
                if is_asked or sequence:
                    raise
                is_asked = True
                # A log remembers each commit that is not done, so this commit was never appended
                # here.
                late_at = asyncio.get_running_loop().time() + sure_s(known.producer)
                again = await self.call_store(AskPublication(query))
                if again.commits != known.commits or again.is_done:
                    raise
                continue
            except UnknownLog:
                logger.warning(
                    "log %s was deleted: the records published into it are gone", share.name
                )
                return None
            except RecordTooLarge:
                # The sequencer has lower limits than the node that was asked. The commit is made,
                # so the batch comes in smaller groups: else the query would stop for good.
                if end - at < 2:
                    raise
                limit = sum(sizes[at:end]) // 2
                logger.warning("%s takes smaller groups than %d bytes", share.name, 2 * limit)
                continue
            except OutOfSequence as error:
                # An earlier try stored records, in other groups or at a forgotten position:
                # continue after the stored records. If a group ends above them, only the group's
                # end is new.
                stored = min((error.expected or 0) - sequence, count)
                end = _blocks_of(records, at, stored)
                if error.kind is not Misplaced.STORED or end == at:
                    raise
                count = stored
            else:
                span = (span[0] if span else first), first + count - 1
            at, sequence = end, sequence + count
        return span

    async def append_one_group(
        self,
        known: PublicationReply,
        share: LogBlocks,
        blocks: Sequence[BlockPlace],
        sequence: int,
        late_at: float,
    ) -> int:
        """Append blocks as one group. Returns its first LSN."""
        parts = await self._read(blocks)
        check_group(parts)
        producer = QueryProducer(known.producer, known.commits, {share.log: sequence}, late_at)
        lane = self._appends.log(share.log, producer)
        await self._appends.window.wait_space()
        return int(await lane.add_group(parts, sum(part.raw_bytes for part in parts)))

    async def _read(self, blocks: Sequence[BlockPlace]) -> list[GroupPart]:
        """The bodies of blocks, in order."""
        at_once = asyncio.Semaphore(READS_AT_ONCE)

        async def read(block: BlockPlace) -> GroupPart:
            async with at_once:
                return await self._copies.read(block)

        tasks = [asyncio.ensure_future(read(block)) for block in blocks]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()


_STUCK = (
    ProducerFenced, StageExpired, RecordTooLarge, OutOfSequence, UnknownProducer
)  # fmt: skip
"""Errors of a commit's appends that a further try does not change."""


@contextmanager
def _unknown_from_here(query: str, batch: int, *, is_committed: bool = False) -> Iterator[None]:
    """Once a commit may have been made, turn errors into OutcomeUnknown.

    Args:
        is_committed: the commit was made. It stays, even if a log refuses its share: the next
            publisher of the query that is not refused brings the share in.
    """
    unsure = (Retryable, Rejected) if is_committed else (Retryable, Closed)
    try:
        yield
    except unsure as error:
        may_be = "is" if is_committed else "may be"
        raise OutcomeUnknown(
            f"batch {batch} of {query!r} {may_be} committed, and is not known to be in its logs "
            f"({error}): publish it again"
        ) from error


def _query(query: str) -> str:
    if not query or len(query) > QUERY_CHARS_MAX:
        raise BadSetting(f"a query has a name of 1 to {QUERY_CHARS_MAX} characters")
    return query


def _shares(refs: Sequence[StagedRef | Mapping[str, Any]]) -> list[LogBlocks]:
    """Each log's references, in their order."""
    by_log: dict[int, LogBlocks] = {}
    for each in refs:
        ref = each if isinstance(each, StagedRef) else StagedRef.from_json(each)
        if ref.blocks:
            share = by_log.setdefault(ref.log_id, LogBlocks(ref.log_id, ref.log, []))
            share.blocks.extend(
                BlockPlace(b.stage, list(b.nodes), b.records, b.stored_bytes) for b in ref.blocks
            )
    shares = list(by_log.values())
    stages = [block.stage for block in blocks_of(shares)]
    if len(set(stages)) != len(stages):
        raise BadSetting("a staged block is named twice in one batch")
    return shares


def _told_apart(shares: list[LogBlocks], names: Mapping[int, str]) -> list[LogBlocks]:
    """Give shares that have the same name the present names of their logs.

    A third share may have one of these present names. Then it gets its own present name too, and so
    on: no two logs have one name now.
    """
    while True:
        count = Counter(share.name for share in shares)
        alike = {
            share.log
            for share in shares
            if count[share.name] > 1 and share.name != names[share.log]
        }
        if not alike:
            return shares
        shares = [
            LogBlocks(share.log, names[share.log], share.blocks) if share.log in alike else share
            for share in shares
        ]


def _check_shares(shares: Sequence[LogBlocks], group_bytes_max: int, *, whole: bool) -> None:
    """Refuse a batch that no sequencer would take, before it is committed.

    Raises:
        RecordTooLarge: the text says what and how much.
    """
    blocks = len(blocks_of(shares))
    if blocks > STAGES_MAX:
        raise RecordTooLarge(f"a batch of {blocks} staged blocks; it has at most {STAGES_MAX}")
    for share in shares:
        sizes = [block.stored_bytes for block in share.blocks]
        if max(sizes) > block_bytes_max(group_bytes_max):
            raise RecordTooLarge(
                f"a batch brings {share.name} a block of {max(sizes)} bytes as stored, and a "
                f"member takes at most {block_bytes_max(group_bytes_max)}: stage them again, "
                "with a lower block_bytes"
            )
        size = sum(sizes) if whole else max(sizes)
        if size > group_bytes_max:
            raise RecordTooLarge(
                f"a batch brings {share.name} {size} bytes as stored; one atomic group has at "
                f"most {group_bytes_max}: publish smaller batches, or compress more"
            )


def _blocks_of(records: Sequence[int], at: int, count: int) -> int:
    """The index after the blocks from `at` on that have `count` records; `at` if no block ends
    there."""
    ends = itertools.accumulate(records[at:])
    return next((end for end, reached in enumerate(ends, at + 1) if reached == count), at)


def _group_limit(group_bytes_max: int, share: LogBlocks) -> int:
    """The largest size of the groups of a share, in bytes."""
    if sum(block.stored_bytes for block in share.blocks) <= group_bytes_max:
        return group_bytes_max
    return max(1, group_bytes_max // SPLIT_SHARE)


def _unpacked(block: BlockPlace) -> StagedBlock:
    return StagedBlock(block.stage, tuple(block.nodes), block.records, block.stored_bytes)


def _told(query: str, known: PublicationReply, *, is_repeat: bool = False) -> Published:
    spans = {name: (Lsn(first), Lsn(last)) for name, (first, last) in known.spans.items()}
    return Published(query, known.batch, spans, is_repeat)
