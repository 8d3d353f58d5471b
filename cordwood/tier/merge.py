"""Makes one object from the records of several objects: read, write, put, read back. It commits
nothing.

This is the core that nodes, `cordwood tier compact` and the tasks of `cordwood spark compact`
share. Row groups are read one after another, and one written object is in memory. Each body is
compared with its CRC when it is read, and again in the finished object. Then the bytes that the
store has are compared with the CRCs of their row groups. The source objects are deleted later, so
the check must use the bytes that the store returns.

Source: docs/objects.md, "Compaction".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TypeVar

from cordwood.block import BlockHeader, Buffer, Gap
from cordwood.errors import BadSetting, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.object_file import check_group, entry_of
from cordwood.layout.object_writer import FinishedObject, ObjectWriter, read_back
from cordwood.lsn import Lsn
from cordwood.tier.object_reader import entry_footer
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.uploader import MAKE_S, put_checked
from cordwood.tier.verify import GET_S, entry_items
from cordwood.tiered import MERGED, Entry

Result = TypeVar("Result")

Item = tuple[BlockHeader, Buffer] | Gap

TAKEN_BYTES = 1 << 20
"""Bodies that are handed to the writer's thread at once: a thread costs as much as 10 KiB."""

TAKEN_MAX = 1000
"""Blocks and gaps at once."""


@dataclass(frozen=True, slots=True)
class MergeTask:
    """A run that becomes one object. It may travel to another process.

    Attributes:
        log: its number.
        number: of the turn at merging.
        run: the entries as the manifest had them.
    """

    log: int
    number: int
    run: tuple[Entry, ...]


async def merge_run(store: ObjectStore, host: Host, task: MergeTask) -> Entry:
    """Put the object of a run, and check it. Returns the entry that may take the run's place.

    A repeated call puts the same bytes under the same name.

    Args:
        store: patient.
    Raises:
        NoObject: an object of the run is gone: others took its place, or a trim did.
        Corrupt: an object of the run is damaged.
        BadSetting: blocks reach past the ends of an entry. A repair may leave entries like that.
        OutcomeUnknown, Retryable: the store does not answer; at most an orphan is left.
    """
    made = await _made(store, host, task)
    name = made.name("", 0)
    await put_checked(store, name, made, _in_thread(host, lambda: read_back(made)))
    (run,) = made.footer.index.runs
    first, last = task.run[0], task.run[-1]
    entry = entry_of(
        run, name, len(made.content), made.footer_bytes, made.footer_crc, first.append_first_us
    )._replace(append_first_us=first.append_first_us, append_last_us=last.append_last_us)
    await check_stored(store, entry)
    return entry


async def check_stored(store: ObjectStore, entry: Entry) -> None:
    """Read an object from the store, and compare the CRCs of its footer and row groups.

    Raises:
        Corrupt: it is not what was put.
    """
    footer = await entry_footer(store, entry, timeout_s=GET_S)
    for number, group in enumerate(footer.index.groups):
        content = await store.get(entry.name, group.start, group.stop, timeout_s=GET_S)
        check_group(footer, number, content)


async def _made(store: ObjectStore, host: Host, task: MergeTask) -> FinishedObject:
    first, last = task.run[0], task.run[-1]
    footer = await entry_footer(store, last, timeout_s=GET_S)
    youngest = footer.index.run(task.log)
    writer = ObjectWriter()
    name = youngest.name if youngest is not None else ""
    writer.begin_log(task.log, name, first.first, MERGED | task.number)
    rows = 0
    async for taken in _taken(_items(store, host, task)):
        rows += sum(item[0].count for item in taken if not isinstance(item, Gap))
        await _in_thread(host, lambda items=taken: _add(writer, items))  # type: ignore[misc]
    made = await _in_thread(host, writer.write_out)
    (run,) = made.footer.index.runs
    if run.last != last.last or rows != sum(entry.rows for entry in task.run):
        raise BadSetting(
            f"log {task.log}: the objects from {Lsn(first.first)} to {Lsn(last.last)} differ "
            "from their entries: they are not merged"
        )
    return made


async def _items(store: ObjectStore, host: Host, task: MergeTask) -> AsyncIterator[Item]:
    """The blocks and gaps of all entries, in order."""
    for entry in task.run:
        async for item in entry_items(store, entry, host, task.log):
            if not isinstance(item, Gap):
                yield item
            elif item.last >= entry.first:
                yield Gap(Lsn(max(item.first, entry.first)), item.last, item.kind)


async def _taken(items: AsyncIterator[Item]) -> AsyncIterator[list[Item]]:
    taken: list[Item] = []
    size = 0
    async for item in items:
        taken.append(item)
        size += 0 if isinstance(item, Gap) else item[0].raw_bytes
        if size >= TAKEN_BYTES or len(taken) == TAKEN_MAX:
            yield taken
            taken, size = [], 0
    if taken:
        yield taken


def _add(writer: ObjectWriter, items: list[Item]) -> None:
    for item in items:
        if isinstance(item, Gap):
            writer.add_gap(item)
        else:
            writer.add_merged(*item)


async def _in_thread(host: Host, work: Callable[[], Result]) -> Result:
    try:
        return await host.run_blocking(work, timeout_s=MAKE_S)
    except TimeoutError as error:
        raise Unreachable(f"a merged object was not made in {MAKE_S} s") from error
