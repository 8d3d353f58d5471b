"""Control messages about nodes; `layout.message` has all others, and the reading.

Source: docs/design.md §6.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cordwood.layout.message_fields import U32, Location, Name
from cordwood.nodes import FILL_MAX, Authority


class MemberInfo(Struct, frozen=True):
    """A node for the wire; see `nodes.Member`."""

    node: U32
    address: Name
    location: Location
    incarnation: int
    weight: float
    authority: Authority = Authority.FULLY_AUTHORITATIVE
    read_only: bool = False
    fill: Annotated[int, Meta(ge=0, le=FILL_MAX)] = 0


class AskMembers(Struct, frozen=True, tag="ask_members"):
    """The members of the cluster."""


class MembersReply(Struct, frozen=True, tag="members"):
    """The cluster's id (16 bytes) and its nodes.

    Attributes:
        dead: those of them that the answering node takes for dead.
        log_changes: changes to the log tree that it has heard of, -1 where it has not yet.
        tier_store: the address of main storage, without credentials; "" for none.
    """

    cluster: bytes
    members: list[MemberInfo]
    dead: list[U32] = []
    log_changes: int = -1
    tier_store: Annotated[str, Meta(max_length=1024)] = ""


class SetStorage(Struct, frozen=True, tag="set_storage"):
    """Say whether a node stores nothing; answered with DoneReply."""

    node: U32
    read_only: bool


class SetAuthority(Struct, frozen=True, tag="set_authority"):
    """Set the status of a node's data, if `expected` is its present status."""

    node: U32
    authority: Authority
    expected: Authority
