"""The greeting: the caller's identity, in a fixed shape that is safe to read from any sender.

Little-endian, 48 bytes for HELLO and WELCOME alike::

    offset width field
    0      8     magic, b"CORDWOOD"
    8      2     lowest protocol version spoken (in WELCOME: the chosen version)
    10     2     highest protocol version spoken (in WELCOME: the chosen version)
    12     4     node of the sender, 0 for a client
    16     16    cluster id, zeros where the sender does not know it yet
    32     8     incarnation of the sender, 0 for a client
    40     4     node that is wanted, 0 for any
    44     4     reserved, 0

A REFUSAL is a UTF-8 sentence of at most 512 bytes. The request field of its frame says what
follows from it, see `RefusalKind`.

Source: docs/sources/reliability.md §7 (4); docs/sources/logdevice.md 2.14.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from cordwood.block import Buffer
from cordwood.errors import CordwoodError, Malformed, NotOurCluster, Overloaded, Unreachable

_LAYOUT = struct.Struct("<8sHHI16sQII")
_MAGIC = b"CORDWOOD"
HELLO_BYTES = _LAYOUT.size
VERSION = 4
"""2: stores that amend, and the refusals of these stores and of copysets that are rebuilt.
3: TOKENS, without which nodes refuse appends to logs that ask for a token.
4: AddEntries with its entries as one run of bytes, and ReadRun."""
ANY_CLUSTER = bytes(16)
REFUSAL_BYTES_MAX = 512


class RefusalKind(enum.IntEnum):
    """What follows from a REFUSAL."""

    NOT_OURS = 0
    """Another cluster, node or version: it will be refused again."""

    CROWDED = 1
    """Too many connections: try again, or another node."""

    UNKNOWN_NODE = 2
    """The calling node is no member, as far as the called node knows. It may have joined just now,
    so the caller tries again."""


def to_refusal(error: CordwoodError) -> tuple[RefusalKind, bytes]:
    """A REFUSAL frame's request and payload."""
    kind = RefusalKind.NOT_OURS
    if isinstance(error, Overloaded):
        kind = RefusalKind.CROWDED
    elif isinstance(error, Unreachable):
        kind = RefusalKind.UNKNOWN_NODE
    return kind, str(error).encode()[:REFUSAL_BYTES_MAX]


def to_error(request: int, payload: Buffer) -> CordwoodError:
    """The error of a REFUSAL; NotOurCluster for an unknown kind."""
    text = bytes(payload[:REFUSAL_BYTES_MAX]).decode("utf-8", "replace")
    if request == RefusalKind.CROWDED:
        return Overloaded(text)
    if request == RefusalKind.UNKNOWN_NODE:
        return Unreachable(text)
    return NotOurCluster(text)


@dataclass(frozen=True, slots=True)
class Hello:
    """What one side of a greeting says of itself.

    Attributes:
        node: the sender's node number, 0 for a client.
        cluster: 16 bytes, ANY_CLUSTER where not known yet.
        incarnation: grows each time a node starts; 0 for a client.
        wanted: the node that the sender means to reach, 0 for any.
        low, high: versions spoken.
    """

    node: int
    cluster: bytes
    incarnation: int = 0
    wanted: int = 0
    low: int = VERSION
    high: int = VERSION


def pack_hello(hello: Hello) -> bytes:
    """The 48 bytes of a HELLO or WELCOME."""
    return _LAYOUT.pack(
        _MAGIC,
        hello.low,
        hello.high,
        hello.node,
        hello.cluster,
        hello.incarnation,
        hello.wanted,
        0,
    )


def unpack_hello(payload: Buffer) -> Hello:
    """Read a HELLO or WELCOME.

    Raises:
        Malformed: not of this shape.
    """
    if len(payload) != HELLO_BYTES:
        raise Malformed(f"a hello has {HELLO_BYTES} bytes, this one {len(payload)}")
    magic, low, high, node, cluster, incarnation, wanted, reserved = _LAYOUT.unpack(payload)
    if magic != _MAGIC:
        raise Malformed("the other side does not speak Cordwood")
    if reserved or low > high:
        raise Malformed("a hello sets bits that this version keeps at 0")
    return Hello(node, cluster, incarnation, wanted, low, high)


def check_hello(ours: Hello, theirs: Hello) -> None:
    """Refuse a peer that is not the peer that this side means to reach.

    Raises:
        NotOurCluster: other versions, another cluster, a node that names none, or another
            node than wanted.
    """
    if theirs.high < ours.low or theirs.low > ours.high:
        raise NotOurCluster(
            f"the other side speaks protocol {theirs.low} to {theirs.high}, "
            f"this one {ours.low} to {ours.high}: upgrade the older one"
        )
    if theirs.node and theirs.cluster == ANY_CLUSTER:
        # Only a client may leave the cluster out, because it may connect to learn it. A node of
        # another cluster could change this node's logs for good.
        raise NotOurCluster(f"node {theirs.node} does not tell its cluster")
    known = ANY_CLUSTER not in (ours.cluster, theirs.cluster)
    if known and ours.cluster != theirs.cluster:
        raise NotOurCluster(
            f"the other side is cluster {theirs.cluster.hex()}, this one {ours.cluster.hex()}: "
            "check the address"
        )
    if theirs.wanted and ours.node and theirs.wanted != ours.node:
        raise NotOurCluster(f"node {theirs.wanted} was wanted, this is node {ours.node}")
    if ours.wanted and theirs.node != ours.wanted:
        raise NotOurCluster(f"node {ours.wanted} was wanted, node {theirs.node} answered")
