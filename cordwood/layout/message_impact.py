"""Control messages about the effects of absent nodes; see `cordwood.impact`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cordwood.layout.message_fields import U32, U62, Location, Name, Sentence

FINDINGS_MAX = 256
"""The most findings in one answer. Findings about the most logs come first."""

_Nodes = Annotated[tuple[U32, ...], Meta(max_length=4096)]
_Racks = Annotated[tuple[Location, ...], Meta(max_length=4096)]


class AskImpact(Struct, frozen=True, tag="ask_impact"):
    """Asks what would stop if nodes, and the nodes of racks, were absent. Changes nothing."""

    nodes: _Nodes = ()
    racks: _Racks = ()


class AskFitness(Struct, frozen=True, tag="ask_fitness"):
    """Asks a running node for the tasks that it cannot do. Nodes ask it before they answer which
    nodes may be taken away."""


class FitnessReply(Struct, frozen=True, tag="fitness"):
    """The tasks that a running node cannot do, and why; "" for a task that it can do.

    Attributes:
        unsure: why it does not know all records that it stored. A record that it does not send may
            still exist.
        full: why it takes no new blocks.
        has_lost: whether it ever lost records. It may then lack records that envelopes say it has,
            even if an operator accepted the loss.
        waits: whether it could not read the event log at its start. Until it can, it takes no
            record and serves no reader of another log.
    """

    unsure: Sentence = ""
    full: Sentence = ""
    has_lost: bool = False
    waits: bool = False


class ImpactLog(Struct, frozen=True):
    """Epochs `[first, last]` of a log. `last` is 0 if the last epoch still goes on. The name is ""
    if the log has none."""

    log: U62
    name: Name
    first: U32
    last: U32


class ImpactFinding(Struct, frozen=True):
    """A service that would stop; see `impact.check.Finding`.

    Attributes:
        nodes: the nodeset; empty if the finding concerns the cluster.
        replicate_across: copies by scope.
    """

    stops: Name
    first: Sentence
    already: bool
    nodes: _Nodes
    replicate_across: dict[str, int]
    logs: int
    examples: list[ImpactLog]


class ImpactReply(Struct, frozen=True, tag="impact"):
    """See `impact.check.ImpactReport`.

    Attributes:
        more: number of findings left out.
    """

    absent: _Nodes
    down: _Nodes
    logs: int
    epochs: int
    findings: Annotated[list[ImpactFinding], Meta(max_length=FINDINGS_MAX)]
    more: int = 0
