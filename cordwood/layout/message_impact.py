"""Control messages about the effects of absent nodes; see `cordwood.impact`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cordwood.layout.message_fields import U32, U62, Location, Name, Sentence

FINDINGS_MAX = 256
"""Findings of one answer: those about the most logs."""

_Nodes = Annotated[tuple[U32, ...], Meta(max_length=4096)]
_Racks = Annotated[tuple[Location, ...], Meta(max_length=4096)]


class AskImpact(Struct, frozen=True, tag="ask_impact"):
    """Asks what would stop if nodes, and the nodes of racks, were absent. Changes nothing."""

    nodes: _Nodes = ()
    racks: _Racks = ()


class AskFitness(Struct, frozen=True, tag="ask_fitness"):
    """What a node that runs cannot do; asked by nodes before they say what may be taken away."""


class FitnessReply(Struct, frozen=True, tag="fitness"):
    """What the node cannot do, "" for nothing.

    Attributes:
        unsure: why it does not know all that it holds, so that its silence proves nothing.
        full: why it takes no new blocks.
        has_lost: it lost records once, so it may lack what envelopes say it has, also where the
            loss was accepted.
    """

    unsure: Sentence = ""
    full: Sentence = ""
    has_lost: bool = False


class ImpactLog(Struct, frozen=True):
    """Epochs `[first, last]` of a log; `last` is 0 where they go on; no name for a log without."""

    log: U62
    name: Name
    first: U32
    last: U32


class ImpactFinding(Struct, frozen=True):
    """Something that would stop; see `impact.check.Finding`.

    Attributes:
        nodes: the nodeset; none for what concerns the cluster.
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
