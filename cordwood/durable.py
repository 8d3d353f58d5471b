"""Files that count only once they are durable: first the bytes, then the name.

All files that are written by name go through this module: notes, manifests, settings, published
files of jobs. The order is always the same. Files are synced, then the directories that name them,
then the rename that makes them count, then the directory of that rename. A power cut then leaves
the old state or the new state, and never a name without its bytes. Without these syncs, a renamed
file may lose its bytes: ext4 leaves 0 bytes.

Files are made for their owner alone (0600), and no symbolic link is followed: a link that another
user put into a shared directory would lead a write to another file.

Recovery does not believe a name either: `check_file` compares a file with the note about it before
the recovery uses the file.

The steps of the machine (`sync_file`, `sync_directory`, `rename`, `unlink`, `make_directory`,
`write_new`) are functions of this module, each one system call, so that `sim.crash_states` can
record them and try every state that a power cut may leave.

Source: Pillai et al., OSDI 2014 (renames without syncs); docs/architecture.md, "Files by name".
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cordwood.errors import Corrupt

if TYPE_CHECKING:
    from cordwood.block import Buffer  # Spark's processes load this module, and not msgspec

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

PARTIAL = ".partial"
"""Ends the name of a file that is being written; `write_whole` replaces it after a crash."""

Place = str | os.PathLike[str]


def write_whole(path: Place, content: bytes, mode: int = FILE_MODE) -> None:
    """Replace a file, durably: a crash leaves the old content or the new content.

    Its directory, and all missing directories above, are made first.

    Raises:
        OSError: the machine refused; the file is as it was.
    """
    place = Path(path)
    make_directories(place.parent)
    partial = place.with_name(f".{place.name}{PARTIAL}")
    unlink(partial)  # left by a crash, or a link that another user put there
    try:
        write_new(partial, content, mode)
        sync_file(partial)
        rename(partial, place)
    except OSError:
        with contextlib.suppress(OSError):
            unlink(partial)
        raise
    sync_directory(place.parent)


def open_private(path: Place, flags: int, mode: int = FILE_MODE) -> int:
    """`os.open` that follows no link as its last step, and makes files for their owner alone.

    Raises:
        OSError: ELOOP, with the way out, if the path is a symbolic link; else as `os.open`.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(
            errno.ELOOP,
            "a symbolic link is at the path of a file to write: remove it",
            os.fspath(path),
        ) from None


def make_directories(path: Place, mode: int = DIRECTORY_MODE) -> None:
    """Make a directory and those above it, durably; existing directories stay as they are.

    Raises:
        OSError: a file has the name, or the machine refused.
    """
    missing: list[Path] = []
    at = Path(os.path.abspath(path))
    while not os.path.lexists(at):
        missing.append(at)
        at = at.parent
    if not missing and not at.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process made it meanwhile
            make_directory(directory, mode)
        sync_directory(directory.parent)


def sync_files(paths: Iterable[Place], root: Place) -> None:
    """Sync files that others wrote, then every directory that names them, up to `root`.

    Raises:
        OSError: a file is missing, or the machine refused; nothing may be published then.
    """
    top = Path(root)
    directories: set[Path] = {top}
    for each in sorted(map(Path, paths)):
        sync_file(each)
        at = each.parent
        while at != top and top in at.parents:
            directories.add(at)
            at = at.parent
    _sync_all(directories)


def sync_tree(root: Place) -> None:
    """Sync all files below a directory, and the directories, itself too; links are passed over."""
    directories: set[Path] = set()
    for place, _, names in os.walk(root):
        directories.add(Path(place))
        for name in sorted(names):
            path = Path(place, name)
            if not path.is_symlink():
                sync_file(path)
    _sync_all(directories)


def publish(moves: Sequence[tuple[Place, Place]]) -> None:
    """Rename durable files (`sync_files`) to their final names, and sync the directories.

    A source that is gone was moved by an earlier try. A caller that rolls forward after a crash
    calls this again, and checks with `check_file` that the target is whole.
    """
    for _, target in moves:
        make_directories(Path(target).parent, 0o777)
    done: set[Path] = set()
    for source, target in moves:
        with contextlib.suppress(FileNotFoundError):
            rename(source, target)
        done.add(Path(target).parent)
    _sync_all(done)


def remove(paths: Iterable[Place]) -> None:
    """Remove files, durably; those that are gone stay gone."""
    places = sorted(map(Path, paths))
    for path in places:
        unlink(path)
    _sync_all({path.parent for path in places if path.parent.is_dir()})


def check_file(path: Place, size: int, told_by: str) -> None:
    """Check that a file is there, and as long as it was noted to be.

    Args:
        told_by: what noted it, for the error.
    Raises:
        Corrupt: it is gone, or of another length.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        raise Corrupt(f"{path} is gone, and {told_by} says that it has {size} bytes") from None
    if not stat.S_ISREG(found.st_mode):
        raise Corrupt(f"{path} is no plain file, as {told_by} says")
    if found.st_size != size:
        raise Corrupt(f"{path} has {found.st_size} bytes, and {told_by} says {size}")


def _sync_all(directories: Iterable[Path]) -> None:
    # The deepest first: the content of a directory is durable before the directory's own name.
    for each in sorted(directories, key=lambda path: (-len(path.parts), path)):
        sync_directory(each)


# ---- the steps ----


def write_new(path: Place, content: Buffer, mode: int = FILE_MODE) -> None:
    """Make a file that was not there, and write it; it is not durable yet."""
    fd = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(fd, "wb") as file:
        file.write(content)


def sync_file(path: Place) -> None:
    """Put a file's bytes on stable storage, even if another process wrote them."""
    _sync(path, 0)


def sync_directory(path: Place) -> None:
    """Put the names in a directory on stable storage."""
    _sync(path, os.O_DIRECTORY)


def rename(source: Place, target: Place) -> None:
    """Give a file another name; what had that name is gone."""
    os.replace(source, target)


def unlink(path: Place) -> None:
    """Take a name away, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def make_directory(path: Place, mode: int = DIRECTORY_MODE) -> None:
    """Make one directory."""
    os.mkdir(path, mode)


def _sync(path: Place, flags: int) -> None:
    # A directory may be reached through a link (/tmp on some systems); a file may not.
    flags |= os.O_RDONLY | (0 if flags & os.O_DIRECTORY else os.O_NOFOLLOW) | os.O_CLOEXEC
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        os.close(fd)
