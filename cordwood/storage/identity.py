"""Who owns a node's data directory: one node of one cluster, for good.

The `identity` file says so from the directory's first start on. Without it, whatever was
mounted there would be taken for the node's own, and its silence for knowledge.
"""

from __future__ import annotations

import msgspec

from cordwood.errors import Malformed, NotOurCluster
from cordwood.layout.json_text import read_json


class Identity(msgspec.Struct, frozen=True):
    """Who owns a data directory; the `identity` file holds it as JSON."""

    cluster: str
    node: int
    wal_bytes: int


def check_identity(stored: bytes, ours: Identity, path: str) -> None:
    """See that a directory is the one that it should be.

    Args:
        stored: what stands in the file at `path`.
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
