"""A separate file system for each node of a local cluster, which can fill up and lose its power.

Each file system is an ext4 in a file, mounted with a loop device on the node's directory. The files
may be on an XFS that can clone by reference (one more file and loop device). Then a clone taken at
any instant holds the content of the device at that instant: all synced data, and other data that
the kernel had already written. To cut a node's power, the node is stopped, so that it acknowledges
nothing any more. Its disk is cloned, and the node is killed. Then the clone is mounted in place of
the disk.

Data that a real device had taken and not flushed would be lost too; here it is not.

Source: docs/sources/reliability.md §5.3.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from cordwood.chaos.commands import run, run_beside
from cordwood.errors import Unreachable
from cordwood.nodes import NodeId
from cordwood.settings import MIB

DISK_BYTES = 768 * MIB
"""Size for a WAL of 64 MiB and the records of an hour; sparse, so that only written bytes take
space."""

UNMOUNT_TRIES = 40
"""Tries, a tenth of a second each: a killed process keeps its files open for an instant."""

BALLAST = "ballast"
"""The file that fills a disk."""

FILL_BYTES_MIN = 1024
"""The smallest block of an ext4."""


class Disks:
    """See the module. Made by `disks`.

    Attributes:
        can_clone: whether power can be cut.
    """

    def __init__(self, place: str, directories: dict[NodeId, str], *, can_clone: bool) -> None:
        self.can_clone = can_clone
        self._place = place
        self._images = os.path.join(place, "images")
        self._directories = directories
        self._loops: dict[NodeId, str] = {}
        self._base = ""

    def make(self) -> None:
        """Make and mount all disks.

        Raises:
            Unreachable: this machine does not allow it.
        """
        os.makedirs(self._images, exist_ok=True)
        if self.can_clone:
            base = os.path.join(self._place, "base.img")
            _sparse(base, (len(self._directories) + 1) * DISK_BYTES)
            run("mkfs.xfs", "-q", "-m", "reflink=1", base)
            self._base = run("losetup", "-f", "--show", base).strip()
            run("mount", self._base, self._images)
        for node, directory in self._directories.items():
            image = self._image(node)
            _sparse(image, DISK_BYTES)
            run("mkfs.ext4", "-q", "-F", image)
            os.makedirs(directory, mode=0o700, exist_ok=True)
            self._mount(node)

    def remove(self) -> None:
        """Unmount all disks; missing ones are no error. The caller removes the files."""
        for node, loop in list(self._loops.items()):
            with suppress(Unreachable):
                run("umount", "--lazy", self._directories[node])
            with suppress(Unreachable):
                run("losetup", "-d", loop)
        if self._base:
            with suppress(Unreachable):
                run("umount", "--lazy", self._images)
            with suppress(Unreachable):
                run("losetup", "-d", self._base)

    def fill(self, node: NodeId) -> None:
        """Leave no byte free on a node's disk: milliseconds, since nothing is written."""
        path = os.path.join(self._directories[node], BALLAST)
        step = DISK_BYTES
        with open(path, "wb") as file:
            while step >= FILL_BYTES_MIN:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, step)
                except OSError:  # not enough space for this much: less may fit
                    step //= 2

    def empty(self, node: NodeId) -> None:
        """Undo `fill`."""
        with suppress(FileNotFoundError):
            os.remove(os.path.join(self._directories[node], BALLAST))

    def clone(self, node: NodeId) -> None:
        """Keep the present content of the node's disk; its process is stopped.

        Raises:
            Unreachable: the file system does not clone.
        """
        run("cp", "--reflink=always", self._image(node), self._image(node) + ".cut")

    async def lose_power(self, node: NodeId) -> None:
        """Give the node the content that `clone` kept; its process is dead.

        Raises:
            Unreachable: the disk cannot be mounted.
        """
        for turn in range(UNMOUNT_TRIES):
            try:
                await run_beside("umount", self._directories[node])
                break
            except Unreachable:
                if turn == UNMOUNT_TRIES - 1:
                    raise
                await asyncio.sleep(0.1)
        await run_beside("losetup", "-d", self._loops.pop(node))
        os.replace(self._image(node) + ".cut", self._image(node))
        self._mount(node)

    def _image(self, node: NodeId) -> str:
        return os.path.join(self._images, f"disk-{node}.img")

    def _mount(self, node: NodeId) -> None:
        loop = run("losetup", "-f", "--show", self._image(node)).strip()
        self._loops[node] = loop
        run("mount", loop, self._directories[node])


@contextmanager
def disks(place: str, directories: dict[NodeId, str], *, can_clone: bool) -> Iterator[Disks]:
    """Disks for these nodes, for the length of the block.

    Args:
        place: an empty directory for the disks' files.
        directories: the mount point of each node's disk.
        can_clone: whether power will be cut.
    Raises:
        Unreachable: this machine does not let them be made; see `why_no_disks`.
    """
    made = Disks(place, directories, can_clone=can_clone)
    try:
        made.make()
        yield made
    finally:
        made.remove()


def why_no_disks(below: str, *, can_clone: bool = False) -> str:
    """Why nodes get no separate disks here, or none that can be cloned; "" if they do."""
    if os.geteuid() != 0:
        return "mounting file systems takes root"
    wanted: Sequence[str] = ("losetup", "mkfs.ext4", "mount", "umount")
    for program in (*wanted, "mkfs.xfs") if can_clone else wanted:
        if shutil.which(program) is None:
            return f"{program} is not installed"
    with tempfile.TemporaryDirectory(prefix=".cordwood-disks-", dir=below) as place:
        try:
            with disks(place, {NodeId(1): f"{place}/node"}, can_clone=can_clone) as made:
                if can_clone:
                    made.clone(NodeId(1))
        except Unreachable as error:
            return str(error)
    return ""


def _sparse(path: str, length: int) -> None:
    with open(path, "wb") as file:
        file.truncate(length)
