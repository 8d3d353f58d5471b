"""The faults of a chaos run and their times: a pure function of its seed.

A plan is a list of faults. Each has the second at which it begins, its length, and its target: the
sequencer, or another node by rank, because it is not known before which node will sequence. A plan
never takes more nodes away at once than the promises allow: R-1. The only exception is a power cut
of all nodes, which comes alone and after which all nodes come back.

Kinds are drawn like cards from a shuffled deck, so that every kind comes once before any kind comes
a second time.

Source: docs/sources/reliability.md §5.1; FoundationDB's choice of kills by the replication policy
(§1).
"""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass


class Need(enum.Enum):
    """A capability that a kind needs; see `chaos.capabilities`."""

    NETWORKS = "network namespaces"
    PACKETS = "nftables in them"
    NETEM = "netem"
    TRACE = "strace"
    DISKS = "file systems of the nodes' own"
    CLONES = "reflink clones of them"
    COMMAND = "a command of yours"


class Aim(enum.Enum):
    """The possible targets of a kind."""

    ANY = "any"
    PAIR = "two nodes"
    ALL = "all nodes"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    Attributes:
        needs: the capabilities that it needs.
        length_s: how long it may last; after a fault that ends by itself (a kill), the node starts
            again after this time.
        aim: its targets.
        words: a description for people.
    """

    name: str
    words: str
    length_s: tuple[float, float] = (0.5, 4.0)
    aim: Aim = Aim.ANY
    needs: tuple[Need, ...] = ()


_NET = (Need.NETWORKS,)
_PACKETS = (Need.NETWORKS, Need.PACKETS)

KINDS = {
    kind.name: kind
    for kind in (
        Kind("kill", "kill -9, and started again", (0.0, 3.0)),
        Kind("stop", "SIGSTOP, then SIGCONT", (0.2, 8.0)),
        Kind("rolling-restart", "each node in turn stopped in order and started", aim=Aim.ALL),
        Kind("ping-pong", "the sequencer is killed, three times running", (0.0, 0.3), Aim.ALL),
        Kind("clock-step", "a node's clock jumps by up to an hour, and back", (1.0, 6.0)),
        Kind("cut-off", "nothing to or from a node", (0.5, 8.0), needs=_NET),
        Kind("deaf", "nothing reaches a node; it can send", (0.5, 8.0), needs=_PACKETS),
        Kind("mute", "nothing a node sends arrives; it hears", (0.5, 8.0), needs=_PACKETS),
        Kind("split", "two nodes and the rest apart, clients reach all", (0.5, 8.0),
             Aim.PAIR, _PACKETS),
        Kind("link", "two nodes cannot reach one another", (0.5, 8.0), needs=_PACKETS),
        Kind("reset", "a node's connections are reset again and again", (0.5, 4.0), needs=_PACKETS),
        Kind("loss", "a node loses packets, 5 to 30 %", (1.0, 6.0), needs=_PACKETS),
        Kind("jitter", "a node's packets are late (netem)", (1.0, 6.0),
             needs=(Need.NETWORKS, Need.NETEM)),
        Kind("proxy-delay", "frames to a node come late", (2.0, 6.0), needs=_PACKETS),
        Kind("proxy-reorder", "frames to a node overtake one another", (2.0, 6.0), needs=_PACKETS),
        Kind("proxy-duplicate", "frames to a node come twice", (2.0, 6.0), needs=_PACKETS),
        Kind("proxy-corrupt", "bits of frames to a node flip", (2.0, 6.0), needs=_PACKETS),
        Kind("slow-writes", "each write of a node takes 50 ms longer", (1.0, 6.0),
             needs=(Need.TRACE,)),
        Kind("slow-reads", "each read of a node takes 50 ms longer", (2.0, 8.0),
             needs=(Need.TRACE,)),
        Kind("fsync-eio", "each fsync of a node fails", (0.5, 4.0), needs=(Need.TRACE,)),
        Kind("write-eio", "direct writes of a node fail", (0.5, 4.0), needs=(Need.TRACE,)),
        Kind("full-disk", "no byte is free on a node's disk", (1.0, 8.0), needs=(Need.DISKS,)),
        Kind("power-cut", "a node restarts from what its disk held", (0.0, 2.0),
             needs=(Need.DISKS, Need.CLONES)),
        Kind("command", "what your command does to a node", (1.0, 8.0), needs=(Need.COMMAND,)),
        Kind("blackout", "a power cut of all nodes at once", (0.0, 1.0), Aim.ALL,
             (Need.DISKS, Need.CLONES)),
    )
}  # fmt: skip
"""The kinds by name."""

CALM_S = (0.3, 1.5)
"""Pause between two faults that do not overlap."""

OVERLAP_SHARE = 0.4
"""Share of the faults that begin while another fault lasts."""

FIRST_S = 1.0
"""When the first fault comes."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault.

    Attributes:
        at_s: since the start of the run; a longer fault before it delays it.
        rank: its target: 0 for the sequencer, otherwise the rank-th of the other nodes.
        seed: for its own draws.
    """

    at_s: float
    length_s: float
    kind: str
    rank: int
    seed: int

    @property
    def away(self) -> int:
        """Number of nodes that it takes away; above the limit for a fault that must be alone."""
        return {Aim.PAIR: 2, Aim.ALL: ALONE}.get(KINDS[self.kind].aim, 1)


ALONE = 1_000
"""A number of absent nodes above every cluster's limit."""


def plan_of(
    seed: int, seconds: float, kinds: Sequence[str], *, nodes: int, away_max: int
) -> tuple[PlannedFault, ...]:
    """The faults of a run, in the order of their beginning; a pure function of its arguments.

    Args:
        seconds: no fault is planned to end later.
        kinds: names in KINDS of the possible kinds.
        nodes: number of nodes.
        away_max: most nodes that may be away at once: R-1.
    """
    chance = random.Random(f"chaos run {seed}")
    names = [
        name for name in KINDS if name in kinds
        and (KINDS[name].aim is not Aim.PAIR or away_max >= 2)
    ]  # fmt: skip
    faults: list[PlannedFault] = []
    deck: list[str] = []
    at_s = FIRST_S
    while names:
        if not deck:
            deck = chance.sample(names, len(names))
        fault = _drawn(chance, deck.pop(), at_s, nodes)
        at_s = _earliest(faults, fault, away_max)
        fault = PlannedFault(at_s, fault.length_s, fault.kind, fault.rank, fault.seed)
        if fault.at_s + fault.length_s > seconds:
            break
        faults.append(fault)
        at_s += chance.uniform(*CALM_S)
        if chance.random() >= OVERLAP_SHARE:
            at_s = max(at_s, max(s.at_s + s.length_s for s in faults) + chance.uniform(*CALM_S))
    return tuple(faults)


def _drawn(chance: random.Random, name: str, at_s: float, nodes: int) -> PlannedFault:
    """A fault of a kind, before its time is decided."""
    kind = KINDS[name]
    # The sequencer is one of five nodes, and the target of half of the faults.
    rank = 0 if kind.aim is Aim.ANY and chance.random() < 0.5 else chance.randrange(1, nodes)
    return PlannedFault(
        at_s, round(chance.uniform(*kind.length_s), 3), name, rank, chance.getrandbits(32)
    )


def _earliest(faults: Sequence[PlannedFault], fault: PlannedFault, away_max: int) -> float:
    """The first time at which, together with earlier faults, few enough nodes are away."""
    at_s = fault.at_s
    while True:
        running = [each for each in faults if each.at_s <= at_s < each.at_s + each.length_s]
        if not running or sum(e.away for e in running) + fault.away <= away_max:
            return at_s
        at_s = min(each.at_s + each.length_s for each in running)
