"""The owner of a node's data directory: one node of one cluster, forever.

The `identity` file names the owner from the directory's first start on. Without it, the node would
take any mounted directory for its own, and would report records as absent that it never looked for.
"""

from __future__ import annotations

import logging

import msgspec

from cordwood.errors import Malformed, NotOurCluster
from cordwood.layout.json_text import read_json

ACCEPT_LOSS = "accept-loss"
"""A file beside `identity`. With ACCEPTED in it, the node accepts its losses at its start; an older
copy of the directory starts with either word in it."""

ACCEPTED = b"yes\n"

GO_ON_OLDER = b"older\n"
"""A word in place of ACCEPTED. An older copy of the directory may start; a record that it lacks
then still counts as unknown."""

KEEP_LEDGERS = "keep-ledgers"
"""A file beside `identity`. With ACCEPTED in it, a node that was rebuilt while it was away drops
the blocks of its logs at its next start, and joins with its ledgers."""

logger = logging.getLogger(__name__)


class Identity(msgspec.Struct, frozen=True):
    """The owner of a data directory; the `identity` file holds it as JSON.

    Attributes:
        wal_bytes: the size with which the WAL was made; it never changes.
    """

    cluster: str
    node: int
    wal_bytes: int


def check_identity(stored: bytes, ours: Identity, path: str) -> Identity:
    """Check that a directory is the expected one; returns its stored identity.

    Another WAL size in the settings is reported but not refused: a store must open for a user who
    did not create it and passes the usual size.

    Args:
        stored: the contents of the file at `path`.
        ours: as the settings say.
    Raises:
        NotOurCluster: it is another node's, or cannot be read.
    """
    try:
        theirs = read_json(stored, Identity, path)
    except Malformed as error:
        raise NotOurCluster(f"{error}: restore it") from None
    if (theirs.cluster, theirs.node) != (ours.cluster, ours.node):
        raise NotOurCluster(
            f"{path} says node {theirs.node} of cluster {theirs.cluster}; this is node "
            f"{ours.node} of cluster {ours.cluster}: give the right directory"
        )
    if theirs.wal_bytes != ours.wal_bytes:
        logger.warning(
            "node %d: its WAL has the %d bytes that it was made with; the %d bytes of "
            "storage.wal_bytes count for nothing. For another size, start it under a new number "
            "in an empty directory, and let the old one go when its records are elsewhere",
            ours.node, theirs.wal_bytes, ours.wal_bytes,
        )  # fmt: skip
    return theirs
