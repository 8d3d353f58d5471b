"""Uploads the waiting records of several small logs as one object.

An object of ten logs costs as many puts as one of one. The records of all of them are at hand
before the first is written, up to one object's worth, so that a log without records leaves no mark.
Each log has its own turn and its own commit. If another uploader overtakes a log, the log is left
out of the commits, and its part of the object is never named.

Source: docs/objects.md, "Uploading"; docs/sources/s3stream.md (b), "Upload", and complaint 5.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from cordwood.block import Gap, GapKind
from cordwood.errors import Fenced, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.object_writer import FinishedObject, ObjectWriter, read_back
from cordwood.lsn import Lsn
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.origin import keep_origin
from cordwood.tier.uploader import MAKE_S, Item, Uploaded, commit_run, put_checked

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(slots=True)
class LogItems:
    """One log's part of a shared upload.

    Attributes:
        first: what `LogUploader.next_lsn` gave, or where the log's history begins.
        items: from there on; see `LogUploader.run`.
        done: what became of it.
    """

    log: int
    name: str
    created_us: int
    manifest: LogManifest
    first: int
    items: list[Item]
    done: Uploaded = field(default_factory=lambda: Uploaded(0))


async def gather(items: AsyncIterator[Item], bytes_max: int) -> tuple[list[Item], Lsn | None]:
    """The items of a share, without gaps at its end; and the LSN of lost records, None without.

    Args:
        bytes_max: of bodies, at most about.
    """
    found: list[Item] = []
    size = blocks = 0
    async for item in items:
        if isinstance(item, Gap):
            if item.kind is GapKind.DATA_LOSS:
                return found[:blocks], item.first
            found.append(item)
            continue
        found.append(item)
        blocks = len(found)
        size += item[0].raw_bytes
        if size >= bytes_max:
            break
    return found[:blocks], None


async def upload_shared(store: ObjectStore, host: Host, shares: Sequence[LogItems]) -> None:
    """Upload shares as one object, and commit each.

    Args:
        store: patient.
        shares: each with items, by log number.
    Raises:
        BadSetting: the store holds another cluster's log.
        OutcomeUnknown, Retryable: the store does not answer; nothing is torn by that.
        Corrupt: a block is damaged; nothing was committed.
    """
    taking_part: list[LogItems] = []
    writer = ObjectWriter()
    for share in shares:
        try:
            head = await share.manifest.take_turn(share.first)
        except Fenced as error:
            logger.info("log %d is left out: %s", share.log, error)
            continue
        if share.created_us:
            await keep_origin(store, share.log, share.created_us)
        share.done.end = head.end
        if head.end != share.first:
            continue  # another uploader went on meanwhile
        writer.begin_log(share.log, share.name, share.first, head.fence)
        for item in share.items:
            if isinstance(item, Gap):
                writer.add_gap(item)
            else:
                await _in_thread(host, lambda block=item: writer.add_block(*block))  # type: ignore[misc]
        taking_part.append(share)
    if not taking_part:
        return
    made: FinishedObject = await _in_thread(host, writer.write_out)
    day = datetime.fromtimestamp(host.clock.now_us() / 1e6, UTC).strftime("%Y%m%d")
    name = made.name(day, host.random.getrandbits(128))
    await put_checked(store, name, made, _in_thread(host, lambda: read_back(made)))
    for share in taking_part:
        run = made.footer.index.run(share.log)
        assert run is not None, "what takes part is in the object"
        try:
            await commit_run(share.manifest, host, made, run, name, share.done)
        except Fenced as error:
            logger.info("log %d is left out: %s", share.log, error)


async def _in_thread(host: Host, work: Callable[[], Result]) -> Result:
    try:
        return await host.run_blocking(work, timeout_s=MAKE_S)
    except TimeoutError as error:
        raise Unreachable(f"a shared object was not made in {MAKE_S} s") from error
