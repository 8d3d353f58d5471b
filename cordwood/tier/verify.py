"""Reads all objects of a log in main storage, and compares every checksum.

Source: docs/objects.md, "The command line".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from cordwood.block import BlockHeader, Buffer, Gap, GapKind
from cordwood.errors import Corrupt, Malformed, NoObject
from cordwood.host.seams import Host
from cordwood.layout.object_file import Footer, ObjectRun, piece_blocks, read_group
from cordwood.lsn import Lsn
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_reader import entry_footer
from cordwood.tier.object_store import ObjectStore
from cordwood.tiered import Entry, is_lost

GET_S = 120.0
CHECK_S = 120.0
"""The longest time of a get with all its tries, and of the check of a row group in a thread."""


@dataclass(slots=True)
class Verified:
    """The result of reading a log.

    Attributes:
        objects, rows, bytes: intact objects, their records, and the bytes of their bodies.
        lost: ranges that a repair found in no object.
        faults: damaged objects, with the damage of each.
        changed: objects that were merged or trimmed, and deleted, before they were read.
    """

    objects: int = 0
    rows: int = 0
    bytes: int = 0
    lost: list[tuple[int, int]] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)
    changed: int = 0


async def verify_log(store: ObjectStore, manifest: LogManifest, host: Host, log: int) -> Verified:
    """Read every block of a log. Damage is noted, and the other blocks are read too.

    Raises:
        Corrupt: the manifest cannot be read.
    """
    done = Verified()
    async for entry in all_entries(manifest):
        if is_lost(entry):
            done.lost.append((entry.first, entry.last))
            continue
        try:
            rows = size = 0
            async for item in entry_items(store, entry, host, log):
                if not isinstance(item, Gap):
                    rows += item[0].count
                    size += item[0].raw_bytes
        except (Corrupt, NoObject) as error:
            if await is_named(manifest, entry):
                done.faults.append((entry.name, str(error)))
            else:
                done.changed += 1
            continue
        done.objects += 1
        done.rows += rows
        done.bytes += size
    return done


async def is_named(manifest: LogManifest, entry: Entry) -> bool:
    """Whether the manifest, read anew, still names an object at the same place."""
    await manifest.load()
    found = await manifest.find(entry.last)
    return found is not None and found.name == entry.name


async def all_entries(manifest: LogManifest) -> AsyncIterator[Entry]:
    """The entries of a manifest, a page at a time."""
    lsn = 0
    while page := await manifest.entries(lsn):
        for entry in page:
            yield entry
        lsn = page[-1].last + 1


async def entry_items(
    store: ObjectStore, entry: Entry, host: Host, log: int
) -> AsyncIterator[tuple[BlockHeader, Buffer] | Gap]:
    """The items of an entry, in order: blocks with uncompressed bodies, and gaps.

    Whole blocks: the first may begin before the entry does.

    Raises:
        NoObject: the object is gone.
        Corrupt: it is not the object that was uploaded.
    """
    if is_lost(entry):
        yield Gap(Lsn(entry.first), Lsn(entry.last), GapKind.DATA_LOSS)
        return
    footer = await entry_footer(store, entry, timeout_s=GET_S)
    run = footer.index.run(log)
    if run is None or run.last != entry.last or run.first > entry.first:
        raise Malformed(f"{entry.name} does not hold {Lsn(entry.first)} to {Lsn(entry.last)}")
    gaps = [gap for gap in run.gap_list() if gap.last >= entry.first]
    for number, pieces in _by_group(run, entry.first):
        blocks = await _group_blocks(store, entry, footer, run, number, pieces, host)
        for header, raw in blocks:
            while gaps and gaps[0].first < header.first:
                yield gaps.pop(0)
            if header.last >= entry.first:
                yield header, raw
    for gap in gaps:
        yield gap


def _by_group(run: ObjectRun, first: int) -> Iterator[tuple[int, list[int]]]:
    """The row groups with pieces that reach an LSN, and the numbers of these pieces."""
    groups: dict[int, list[int]] = {}
    for index, piece in enumerate(run.pieces):
        if piece.last >= first:
            groups.setdefault(piece.group, []).append(index)
    yield from groups.items()


async def _group_blocks(
    store: ObjectStore,
    entry: Entry,
    footer: Footer,
    run: ObjectRun,
    number: int,
    pieces: list[int],
    host: Host,
) -> list[tuple[BlockHeader, Buffer]]:
    """Fetch a row group and check the blocks of some pieces."""
    group = footer.index.groups[number]
    content = await store.get(entry.name, group.start, group.stop, timeout_s=GET_S)

    def check() -> list[tuple[BlockHeader, Buffer]]:
        rows = read_group(footer, number, content)
        blocks: list[tuple[BlockHeader, Buffer]] = []
        for index in pieces:
            blocks += piece_blocks(run.pieces[index], rows, log=run.log)
        return blocks

    return await host.run_blocking(check, timeout_s=CHECK_S)
