"""Uploads the waiting records of several small logs as one object.

An object of ten logs costs as many puts as an object of one log. The uploader gathers the records
of all of them, up to the size of one object, before it writes the first. So a log without records
leaves no trace in the object. Each log has its own turn and its own commit. If another uploader
overtakes a log, the log is left out of the commits, and its part of the object is never named. Only
the log itself is left out for a bad block or a bad manifest.

Source: docs/objects.md, "Uploading"; docs/sources/s3stream.md (b), "Upload", and complaint 5.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from cordwood.block import Gap, GapKind
from cordwood.errors import BadSetting, CordwoodError, Corrupt, Fenced, Unreachable
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
        first: the result of `LogUploader.next_lsn`, or the first LSN of the log's history.
        items: from there on; see `LogUploader.run`.
        done: the result of its upload.
        failed: why it was left out of the object, or not committed; None if it was not, or another
            uploader has the log.
    """

    log: int
    name: str
    created_us: int
    manifest: LogManifest
    first: int
    items: list[Item]
    done: Uploaded = field(default_factory=lambda: Uploaded(0))
    failed: CordwoodError | None = None


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
    A share that fails by itself is left out: the error is in its `failed`.

    Raises:
        OutcomeUnknown, Retryable: the store does not answer; nothing is torn by that.
        Corrupt: the object does not read back as it was to be; nothing was committed.
    """
    begun: list[tuple[LogItems, int]] = []
    for share in shares:
        try:
            if fence := await _begin(store, share):
                begun.append((share, fence))
        except Fenced as error:
            logger.info("log %d is left out: %s", share.log, error)
        except (BadSetting, Corrupt) as error:
            share.failed = error
    writer, taking_part = await _written(host, begun)
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
        except (BadSetting, Corrupt) as error:
            share.failed = error


async def _begin(store: ObjectStore, share: LogItems) -> int:
    """Take a log's turn. Returns its fence; 0 if another uploader went on meanwhile.

    Raises:
        Fenced: it overtook this one just now.
        BadSetting: the store holds another cluster's log.
        Corrupt: the manifest or the origin cannot be read, or is gone.
        OutcomeUnknown, Retryable: the store does not answer.
    """
    head = await share.manifest.take_turn(share.first)
    if share.created_us:
        await keep_origin(store, share.log, share.created_us)
    share.done.end = head.end
    return head.fence if head.end == share.first else 0


async def _written(
    host: Host, begun: list[tuple[LogItems, int]]
) -> tuple[ObjectWriter, list[LogItems]]:
    """The shares in an object, and those that are in it."""
    while True:
        writer = ObjectWriter()
        for share, fence in begun:
            try:
                await _add(host, writer, share, fence)
            except (BadSetting, Corrupt) as error:
                share.failed = error
                break
        else:
            return writer, [share for share, _ in begun]
        # The writer has a part of it. The other logs must not wait for a bad one.
        begun = [each for each in begun if each[0].failed is None]


async def _add(host: Host, writer: ObjectWriter, share: LogItems, fence: int) -> None:
    """Add a share to an object.

    Raises:
        BadSetting: a block does not follow the manifest's end, or the block before it.
        Corrupt: a block is damaged.
    """
    writer.begin_log(share.log, share.name, share.first, fence)
    for item in share.items:
        if isinstance(item, Gap):
            writer.add_gap(item)
        else:
            await _in_thread(host, lambda block=item: writer.add_block(*block))  # type: ignore[misc]


async def _in_thread(host: Host, work: Callable[[], Result]) -> Result:
    try:
        return await host.run_blocking(work, timeout_s=MAKE_S)
    except TimeoutError as error:
        raise Unreachable(f"a shared object was not made in {MAKE_S} s") from error
