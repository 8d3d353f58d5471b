"""Control messages about maintenance; see `cordwood.impact.maintenance`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cordwood.layout.message_fields import U32, AnyLsn, Location, Mark, Sentence

_Nodes = Annotated[tuple[U32, ...], Meta(max_length=4096)]
_Racks = Annotated[tuple[Location, ...], Meta(max_length=4096)]
_Word = Annotated[str, Meta(max_length=32)]


class ApplyMaintenance(Struct, frozen=True, tag="apply_maintenance"):
    """Requests that nodes, and the nodes of racks, are taken out of service.

    Attributes:
        mark: a text that only this call and its retries have. By it a retry recognises the request
            that the first try made; "" for none.
    """

    nodes: _Nodes
    racks: _Racks
    wanted: _Word
    reason: Sentence
    user: Sentence
    ttl_s: Annotated[int, Meta(ge=0, le=2**40)] = 0
    mark: Mark = ""


class RemoveMaintenance(Struct, frozen=True, tag="remove_maintenance"):
    """Take a request back; see `ApplyMaintenance` for the mark."""

    number: AnyLsn
    mark: Mark = ""


class AskMaintenance(Struct, frozen=True, tag="ask_maintenance"):
    """Asks for all requests. The node first grants requests that became safe."""


class MaintenanceRequest(Struct, frozen=True):
    """One request; `state` is BLOCKED_UNTIL_SAFE, GRANTED, DRAINING or DRAINED.

    Attributes:
        blocked: what a blocked request waits for, or why a drain of a granted request is refused.
    """

    number: AnyLsn
    nodes: _Nodes
    wanted: _Word
    state: _Word
    reason: Sentence
    user: Sentence
    made_us: AnyLsn
    ends_us: AnyLsn
    blocked: Sentence


class MaintenanceReply(Struct, frozen=True, tag="maintenance"):
    """All requests, oldest first.

    Attributes:
        applied: the number of the request that the call made or removed, 0 for none.
    """

    requests: list[MaintenanceRequest]
    applied: AnyLsn = 0


MaintenanceCall = ApplyMaintenance | RemoveMaintenance | AskMaintenance
