"""Control messages about nodes; `layout.message` has all others, and the reading.

Source: docs/design.md §6.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cordwood.layout.message_fields import U32, Location, Name
from cordwood.nodes import FILL_MAX, Authority

EntryVersion = Annotated[int, Meta(ge=0, le=2**63 - 1)]


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
    """The members of the cluster.

    Attributes:
        version_of: a node whose entry is to be looked up in the metadata store; 0 for none.
    """

    version_of: U32 = 0


class MembersReply(Struct, frozen=True, tag="members"):
    """The cluster's id (16 bytes) and its nodes.

    Attributes:
        dead: nodes that the answering node takes for dead.
        log_changes: the number of changes to the log tree that it has heard of; -1 if it has heard
            of none yet.
        tier_store: the address of main storage, without credentials; "" for none.
        version: of the entry of `AskMembers.version_of`; 0 for none.
        age_ms: how long ago the answering node read the statuses of its members, or later; 0 for an
            older node, which does not say.
    """

    cluster: bytes
    members: list[MemberInfo]
    dead: list[U32] = []
    log_changes: int = -1
    tier_store: Annotated[str, Meta(max_length=1024)] = ""
    version: EntryVersion = 0
    age_ms: U32 = 0


class SetStorage(Struct, frozen=True, tag="set_storage"):
    """Sets whether a node takes stores. DoneReply answers it. if_version: as in `SetAuthority`."""

    node: U32
    read_only: bool
    if_version: EntryVersion = 0


class SetAuthority(Struct, frozen=True, tag="set_authority"):
    """Set the status of a node's data, if `expected` is its present status.

    Attributes:
        if_version: of the node's entry when the client gave this order. If the entry has changed
            since, the order is refused. 0 for an older client.
    """

    node: U32
    authority: Authority
    expected: Authority
    if_version: EntryVersion = 0
