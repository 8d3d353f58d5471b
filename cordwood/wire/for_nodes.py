"""Frames and calls that only another node of the cluster may send: their effect on a log may be
permanent.

A caller's number was looked up among the members as it greeted (`wire.server`). This protects
against mistakes and strangers. It does not stop a forger, because a greeting is not authenticated
yet.

Source: docs/sources/reliability.md §7 (4).
"""

from __future__ import annotations

from cordwood.errors import Malformed, Rejected
from cordwood.layout.frame import Kind
from cordwood.layout.log_questions import AskCopies, AskKept
from cordwood.layout.message import AskEpoch, Call, Clean, Seal, TellNodesets, Yield
from cordwood.layout.message_rebuilding import TellProducers
from cordwood.wire.connection import Connection

CALLS = (Seal, Clean, Yield, AskEpoch, TellNodesets, TellProducers, AskKept, AskCopies)
FRAMES = frozenset({Kind.STORE, Kind.RELEASE, Kind.GOSSIP})


def is_node(connection: Connection) -> bool:
    """Whether a member of the cluster is at the other end."""
    return connection.peer is not None and connection.peer.node > 0


def check_frame(connection: Connection, kind: int) -> None:
    """Raise Malformed if a client sends a node's frame."""
    if kind in FRAMES and not is_node(connection):
        raise Malformed(f"frames of kind {kind} are for nodes, not for clients")


def check_call(connection: Connection, call: Call) -> None:
    """Raise Rejected if a client sends a node's call."""
    if isinstance(call, CALLS) and not is_node(connection):
        raise Rejected(f"{type(call).__name__} is for nodes, not for clients")
