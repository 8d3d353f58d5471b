"""A data directory's files are accessible to their owner alone.

A user with write access to the directory can put a link, or another file, where a store writes. Its
files contain log names and digests of tokens, so other users may not read them either.
"""

from __future__ import annotations

import logging
import os
import stat

from cordwood.errors import BadSetting

logger = logging.getLogger(__name__)

KNOWN = frozenset({"lock", "identity", "cluster.json", "metadata.sqlite"})
"""Files of which one stands in each data directory."""


def check_private(path: str) -> None:
    """Check that no other user may write into a data directory; a directory of our own is closed to
    others.

    Others may read a directory that has files of other programs in it: what we write there
    has modes of its own.

    Raises:
        BadSetting: another user owns it, or others may write into it.
    """
    found, user = os.stat(path), os.geteuid()
    if found.st_uid not in (user, 0):
        raise BadSetting(
            f"{path} belongs to another user (number {found.st_uid}): give a directory of your "
            "own, or change its owner"
        )
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == user and mode & 0o077:
        names = set(os.listdir(path))
        if not names or names & KNOWN:
            os.chmod(path, mode & ~0o077)
            logger.info("%s: others may not look into it any more", path)
            return
    is_ours = found.st_uid == 0 != user and found.st_gid in (os.getegid(), *os.getgroups())
    if mode & 0o002 or (mode & 0o020 and not is_ours):
        raise BadSetting(
            f"others may write into {path}: give a directory of its own (`chmod go-w {path}` "
            "if they are not meant to)"
        )
