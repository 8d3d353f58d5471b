"""A WAL's file: created once on purpose, and opened only by its owner.

An unreadable file is never formatted: a file that is neither a Cordwood WAL nor blank is refused
and left unchanged.

Source: docs/sources/s3stream.md (a), "Channels", and "Traps" 9 (the reference formats
when both headers are bad).
"""

from __future__ import annotations

from collections.abc import Sequence

from crc32c import crc32c

from cordwood.errors import BadSetting, CordwoodError, Malformed, NotOurCluster, Rejected
from cordwood.host.seams import DirectFile, Disk
from cordwood.layout.wal_block import (
    WAL_RING_START,
    WAL_SLOTS,
    WAL_UNIT_BYTES,
    WalHeader,
    check_wal_capacity,
    pack_wal_header,
    unpack_wal_header,
)
from cordwood.nodes import NodeId
from cordwood.storage.wal.wal_recovery import ReadableFile

BLANK_BYTES = 1 << 20
"""A file is blank if its first BLANK_BYTES are zeros: the header slots, and some of the ring."""


class WalBlank(Rejected):
    """The file is there and holds nothing yet: format it."""


async def format_wal(
    disk: Disk, path: str, capacity: int, *, owner: NodeId, epoch: int = 0, salt: int | None = None
) -> None:
    """Make a WAL of `capacity`, header slots included; that never changes.

    Args:
        disk, path: where; the directory must exist. An existing file is used only if it is blank
            and large enough (an interrupted format, or a device).
        capacity: a multiple of 4096, at least 72 KiB.
        owner: the node that stores its records here; no other node opens it.
        epoch: the owner's incarnation, kept for a person to read.
        salt: 32 bits that no client can guess, so that no payload passes for a WAL record. With
            None the salt is derived from the other arguments, which a client may know. This is only
            for tests and measurements, where no payload comes from a client.
    Raises:
        BadSetting: a capacity that no WAL can have, or the file is not blank or too small.
        OSError: no space, no permission, no directory.
    """
    check_wal_capacity(capacity)
    if salt is None:
        salt = crc32c(f"{owner} {epoch} {capacity} {path}".encode())
    header = WalHeader(
        owner=owner,
        capacity=capacity,
        epoch=epoch,
        graceful=True,
        window=WAL_UNIT_BYTES,
        salt=salt,
    )
    file = await _open_blank(disk, path, capacity)
    try:
        for slot in range(WAL_SLOTS):
            await file.write(slot * WAL_UNIT_BYTES, [pack_wal_header(header)])
    finally:
        await file.close()


async def open_wal(
    disk: Disk, path: str, *, owner: NodeId, capacity: int | None
) -> tuple[DirectFile, WalHeader]:
    """Open a WAL that `format_wal` made: its file, and the header that counts. Nothing is written.

    Args:
        disk, path: where.
        owner: the node that opens it.
        capacity: the expected capacity; None takes any.
    Raises:
        FileNotFoundError: it is not there.
        WalBlank: it is there and holds nothing yet.
        Malformed: it holds something, but neither header can be read.
        NotOurCluster: it is another node's.
        BadSetting: its capacity is another, or the file is smaller than that.
    """
    file = await disk.open_direct(path)
    try:
        header = await _read_header(file, path)
        _check(header, file, path, owner, capacity)
    except BaseException:
        await file.close()
        raise
    return file, header


async def _open_blank(disk: Disk, path: str, capacity: int) -> DirectFile:
    try:
        return await disk.open_direct(path, create_bytes=capacity)
    except FileExistsError:
        # A format that a crash cut short left it, or it is a device.
        file = await disk.open_direct(path)
    try:
        if file.size < capacity:
            raise BadSetting(f"{path} has {file.size} bytes; a WAL of {capacity} does not fit")
        if not await _is_blank(file):
            raise BadSetting(
                f"{path} holds data already and is not formatted again: "
                "remove it first if its data is not needed"
            )
    except BaseException:
        await file.close()
        raise
    return file


async def _is_blank(file: ReadableFile) -> bool:
    start = await file.read(0, min(BLANK_BYTES, file.size))
    return not any(start)


async def read_slots(file: ReadableFile) -> tuple[WalHeader | CordwoodError, ...]:
    """Both header slots, each a header or why it is none."""
    data = await file.read(0, WAL_RING_START)
    slots: list[WalHeader | CordwoodError] = []
    for slot in range(WAL_SLOTS):
        try:
            slots.append(unpack_wal_header(data[slot * WAL_UNIT_BYTES :][:WAL_UNIT_BYTES]))
        except CordwoodError as error:
            slots.append(error)
    return tuple(slots)


async def newest_header(
    file: ReadableFile, path: str, slots: Sequence[WalHeader | CordwoodError]
) -> WalHeader:
    """The header that counts.

    Raises:
        WalBlank: neither is one, and the file holds nothing.
        Malformed: neither is one, and it holds something.
    """
    found = [slot for slot in slots if isinstance(slot, WalHeader)]
    if found:
        return max(found, key=lambda header: header.sequence)
    if await _is_blank(file):
        raise WalBlank(f"{path} is blank: it must be formatted before it is a WAL")
    wrong = "; ".join(f"slot {number}: {error}" for number, error in enumerate(slots))
    raise Malformed(
        f"{path}: neither header of a WAL can be read ({wrong}), and it is not "
        "blank; it is left as it is"
    )


async def _read_header(file: ReadableFile, path: str) -> WalHeader:
    return await newest_header(file, path, await read_slots(file))


def _check(
    header: WalHeader, file: DirectFile, path: str, owner: NodeId, capacity: int | None
) -> None:
    if header.owner != owner:
        raise NotOurCluster(f"{path} is the WAL of node {header.owner}, not of node {owner}")
    if capacity is not None and header.capacity != capacity:
        raise BadSetting(
            f"{path} was formatted with {header.capacity} bytes; its capacity cannot "
            f"become {capacity}"
        )
    if file.size < header.capacity:
        raise BadSetting(
            f"{path} has {file.size} bytes, but was formatted with {header.capacity}: "
            "part of it is missing"
        )
