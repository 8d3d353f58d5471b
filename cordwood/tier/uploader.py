"""Uploads a log's history: blocks and gaps come in, objects are put and committed, in order.

Each block is read once and put once. The order is always: write the object, put it while it is read
back, commit it once both are done and the object before it is committed. The next objects are
written and put meanwhile, so that neither the cores nor the store wait for the other. A crash
before the commit, or an object that reads back wrong, leaves orphans, UNCOMMITTED_MAX at most;
`collect` finds them. A commit with a lost answer is repeated, and happens once. Nothing goes past
DATA_LOSS: the upload ends before it and says so. An overtaken uploader gets `Fenced` at its next
commit.

The objects are made in a thread of the host's: the loop goes on.

Source: docs/objects.md, "Uploading"; docs/sources/s3stream.md (b), "Upload".
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import TypeVar

from cordwood.block import BlockHeader, Buffer, Gap, GapKind
from cordwood.errors import CordwoodError, OutcomeUnknown, Retryable, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.object_file import ObjectRun, entry_of
from cordwood.layout.object_writer import FinishedObject, ObjectWriter, read_back
from cordwood.lsn import Lsn
from cordwood.protocol.manifest import last_append_us
from cordwood.protocol.tier_plan import OBJECT_BYTES
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.origin import check_origin, keep_origin
from cordwood.tiered import Head

logger = logging.getLogger(__name__)

Item = tuple[BlockHeader, Buffer] | Gap
"""A block with its body as stored, or a gap."""

Result = TypeVar("Result")

PUT_S = 600.0
"""One object with all its tries: 64 MiB at 110 KB/s."""

MAKE_S = 120.0
"""Writing an object, and reading it back: 64 MiB at half a megabyte a second."""

MAKING_MAX = 2
"""The most objects that are written at the same time. In memory each has its bytes, and its bodies,
which are dropped as they are written."""

UNCOMMITTED_MAX = 4
"""The most objects that are written, put or committed at the same time: two are put while the next
two are written. An object that is put has only its bytes in memory."""

COMMIT_TRIES_MAX = 10
COMMIT_PAUSE_S = 1.0
"""The most tries of a commit while the store does not answer, and the mean pause between them."""


@dataclass(slots=True)
class Uploaded:
    """The result of an upload.

    Attributes:
        end: the manifest's present end.
        objects, rows, stored: committed objects, records, and bytes in the store.
        blocked: the LSN of lost records, before which the upload ended; None without them.
    """

    end: int
    objects: int = 0
    rows: int = 0
    stored: int = 0
    blocked: Lsn | None = None


class LogUploader:
    """See the module.

    Args:
        store: patient.
        manifest: the log's; its turn is taken by `begin`.
        name: the log's, for readers of objects without Cordwood.
        created_us: creation time of the log, which distinguishes it from other clusters' logs; 0 if
            unknown.
        object_bytes: bytes of bodies at which an object is closed.
    """

    def __init__(
        self,
        store: ObjectStore,
        manifest: LogManifest,
        host: Host,
        log: int,
        name: str,
        *,
        created_us: int = 0,
        object_bytes: int = OBJECT_BYTES,
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._host = host
        self._log = log
        self._name = name
        self._created_us = created_us
        self._object_bytes = object_bytes
        self._done = Uploaded(0)
        self._written: deque[asyncio.Event] = deque()
        self._under_way: deque[asyncio.Task[None]] = deque()

    async def next_lsn(self) -> int:
        """The manifest's end; 0 if the log has no manifest yet.

        Raises:
            BadSetting: it is another cluster's log.
        """
        head = await self._manifest.load()
        if head is not None and self._created_us:
            await check_origin(self._store, self._log, self._created_us)
        return head.end if head is not None else 0

    async def run(self, items: AsyncIterator[Item], first: int, fence: int = 0) -> Uploaded:
        """Take a turn, and upload blocks until the source ends.

        Args:
            items: from `first` on, without a hole; whole blocks.
            first: the result of `next_lsn`. For a log without a manifest it is the first LSN of its
                history, or 0 if it has none.
            fence: see `LogManifest.take_turn`.
        Raises:
            Fenced: another uploader has begun.
            BadSetting: the store holds another cluster's log.
            OutcomeUnknown, Retryable: the store does not answer; nothing is torn by that.
            Corrupt: a block is damaged; earlier commits stay.
            CordwoodError: the source's; all objects that were closed before it are committed.
        """
        if not first:
            # Trap: a trim took the first block of this upload. A manifest that began there would
            # be of no log.
            return Uploaded(0)
        head = await self._manifest.take_turn(first, fence)
        if self._created_us:
            await keep_origin(self._store, self._log, self._created_us)
        self._done = Uploaded(head.end)
        if head.end != first:
            return (
                self._done
            )  # another uploader continued meanwhile: this source's blocks are not the next blocks
        try:
            await self._upload(items, head)
        finally:
            under_way, self._under_way = self._under_way, deque()
            for work in under_way:
                work.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
        return self._done

    async def _upload(self, items: AsyncIterator[Item], head: Head) -> None:
        taken: list[Item] = []
        first, size = head.end, 0
        async for item in self._with_commits(items):
            if isinstance(item, Gap):
                if item.kind is GapKind.DATA_LOSS:
                    self._done.blocked = item.first
                    logger.warning(
                        "log %d: records from %s to %s are lost; nothing is uploaded past them "
                        "until the loss is accepted", self._log, item.first, item.last,
                    )  # fmt: skip
                    break
                taken.append(item)
                continue
            taken.append(item)
            size += item[0].raw_bytes
            if size >= self._object_bytes:
                await self._close_object(taken, first, head.fence)
                taken, first, size = [], int(item[0].last) + 1, 0
        if size:
            # Gaps without records wait for the records after them: the end of an epoch needs no
            # object of its own.
            await self._close_object(taken, first, head.fence)
        await self._commit_all()

    async def _with_commits(self, items: AsyncIterator[Item]) -> AsyncIterator[Item]:
        """Pass the items on. Before an error of theirs is raised, all closed objects are committed.

        Otherwise, if the records of a log cannot be read at some place, each try would put the
        objects before that place again and never commit them.
        """
        try:
            async for item in items:
                yield item
        except CordwoodError:
            await self._commit_all()
            raise

    async def _commit_all(self) -> None:
        while self._under_way:
            await self._under_way.popleft()

    async def _close_object(self, items: list[Item], first: int, fence: int) -> None:
        """Begin to write, put and commit an object. Returns when another object may begin.

        Raises:
            CordwoodError: an earlier object failed.
        """
        before = self._under_way[-1] if self._under_way else None
        written = asyncio.Event()
        work = self._upload_object(items, first, fence, written, before)
        self._under_way.append(asyncio.get_running_loop().create_task(work))
        self._written.append(written)
        while len(self._written) >= MAKING_MAX:
            await self._written.popleft().wait()
        while self._under_way and (
            len(self._under_way) >= UNCOMMITTED_MAX or self._under_way[0].done()
        ):
            await self._under_way.popleft()

    async def _upload_object(
        self,
        items: list[Item],
        first: int,
        fence: int,
        written: asyncio.Event,
        before: asyncio.Task[None] | None,
    ) -> None:
        """Write an object, put it and read it back, and commit it after the one before it.

        Args:
            written: is set once the object is written, or has failed.
            before: the work on the object before it. Its error is this object's too.
        """
        try:
            done = await self._in_thread(lambda: self._make(items, first, fence))
        finally:
            written.set()
        name = done.name("", 0)
        await put_checked(self._store, name, done, self._in_thread(lambda: read_back(done)))
        if before is not None:
            await before
        await self._commit(done, name)

    def _make(self, items: list[Item], first: int, fence: int) -> FinishedObject:
        writer = ObjectWriter()
        writer.begin_log(self._log, self._name, first, fence)
        # A body is dropped when its row group is written, so an object that is put holds no bodies.
        items.reverse()
        while items:
            item = items.pop()
            if isinstance(item, Gap):
                writer.add_gap(item)
            else:
                writer.add_block(*item)
        return writer.write_out()

    async def _commit(self, done: FinishedObject, name: str) -> None:
        (run,) = done.footer.index.runs
        await commit_run(self._manifest, self._host, done, run, name, self._done)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        try:
            return await self._host.run_blocking(work, timeout_s=MAKE_S)
        except TimeoutError as error:
            raise Unreachable(f"an object of log {self._log} was not made in {MAKE_S} s") from error


async def put_checked(
    store: ObjectStore, name: str, made: FinishedObject, check: Coroutine[None, None, None]
) -> None:
    """Put an object while it is read back; returns when both are done.

    Args:
        check: reads it back.
    Raises:
        Corrupt: the object reads back wrong; it may not be committed.
        OutcomeUnknown, Retryable: the store does not answer.
    """
    checking = asyncio.get_running_loop().create_task(check)
    try:
        await store.put(name, [made.content], timeout_s=PUT_S)
        await checking
    finally:
        checking.cancel()
        await asyncio.gather(checking, return_exceptions=True)


async def commit_run(
    manifest: LogManifest,
    host: Host,
    made: FinishedObject,
    run: ObjectRun,
    name: str,
    done: Uploaded,
) -> None:
    """Commit one log's share of an object, and count it in `done`.

    Raises:
        Fenced: the turn is over.
        OutcomeUnknown, Retryable: the store does not answer.
    """
    size = len(made.content)
    head = manifest.head
    after_us = last_append_us(head) if head is not None else 0
    entry = entry_of(run, name, size, made.footer_bytes, made.footer_crc, after_us)
    for tries in range(1, COMMIT_TRIES_MAX + 1):
        try:
            head = await manifest.commit(entry)
            break
        except (Retryable, OutcomeUnknown):
            if tries == COMMIT_TRIES_MAX:
                raise
            await asyncio.sleep(COMMIT_PAUSE_S * (0.5 + host.random.random()))
    assert head is not None
    done.end = head.end
    done.objects += 1
    done.rows += entry.rows
    done.stored += size
    logger.info(
        "log %d: %s to %s are in %s, %d bytes", run.log, Lsn(entry.first), Lsn(entry.last), name,
        size,
    )  # fmt: skip
