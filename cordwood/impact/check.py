"""Whether nodes may be taken out of service: the work that would stop, and the first step to take.

For each epoch of each log that may still hold records there are three questions, by the nodeset and
the failure domains that were recorded with the epoch:

- *writes*, of the newest epoch only: do the nodes that are left make a copyset?
- *reads*: could the absent nodes hold a copyset between them? Then records of that epoch may lie on
  absent nodes only. Readers wait, and so does a recovery.
- *rebuilding*: do the nodes that are left make a copyset? Otherwise copies that are lost find no
  place, and a drain does not end.

A fourth is for the cluster as a whole: *capacity*, by the weights of the nodes.

Nodes that are down already count as absent. A node that runs and does not know all that it holds
proves nothing by its silence, so it counts as absent for reads. A node that takes no new blocks, as
its disk is full or as it is drained, counts as absent for writes and rebuilding. A node that has
not read the event log since its start does neither, except for the event log. Logs of one nodeset
and replication get one verdict: a hundred thousand logs have some dozens of nodesets.

Each node that starts reads the event log. So if it cannot be read already, any absence finds that.

Source: docs/sources/logdevice.md 3 ("Safety checker"), 2.6.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from cordwood.errors import BadSetting
from cordwood.nodes import Authority, Member, NodeId, Nodeset, Replication
from cordwood.quorum.copyset import can_replicate

CAPACITY_SHARE_MAX = 0.35
"""Share of all weight that may be absent: as many nodes as may be rebuilt at once."""

EXAMPLES_MAX = 20
"""Logs that a finding names."""


START_WORDS = "until then a node that starts cannot read the event log, and serves no other log"


class Stops(enum.StrEnum):
    """The kinds of work that would stop."""

    WRITES = "writes"
    READS = "reads"
    REBUILDING = "rebuilding"
    CAPACITY = "capacity"


class Placement(NamedTuple):
    """The nodes that may hold an epoch's records: logs that share a placement share the verdict."""

    nodes: tuple[int, ...]
    locations: tuple[str, ...]
    replication: Replication


class LogEpochs(NamedTuple):
    """Epochs `[first, last]` of a log; `last` is 0 for an epoch that goes on."""

    log: int
    first: int
    last: int


class Fitness(NamedTuple):
    """What nodes cannot do just now, as they say.

    Attributes:
        silent: they do not answer.
        unsure: they do not know all that they hold: they lost records, or copies rotted.
        full: they take no new blocks.
        waiting: they have not read the event log since their start. Until then they take no block
            and serve no reader, but those of the event log.
    """

    silent: frozenset[NodeId] = frozenset()
    unsure: frozenset[NodeId] = frozenset()
    full: frozenset[NodeId] = frozenset()
    waiting: frozenset[NodeId] = frozenset()


FIT = Fitness()


class _Epoch(NamedTuple):
    """An epoch to judge.

    Attributes:
        excused: no reader and no recovery waits for these nodes.
        waiting: these nodes neither store nor send its records yet.
        is_events: whether it is of the event log.
    """

    nodeset: Nodeset
    replication: Replication
    excused: frozenset[NodeId]
    waiting: frozenset[NodeId]
    is_events: bool


@dataclass(slots=True)
class Finding:
    """Something that would stop.

    Attributes:
        placement: of the epochs; None for a finding about the cluster.
        logs: how many.
        examples: some of them, by number.
        already: the finding holds even without the absence in question.
        first: the first step to take, in words.
    """

    stops: Stops
    placement: Placement | None
    first: str
    already: bool = False
    logs: int = 0
    examples: list[LogEpochs] = field(default_factory=list)


class ImpactReport(NamedTuple):
    """See the module; nothing would stop where there are no findings.

    Attributes:
        absent: the nodes in question.
        down: nodes that are already down or without their data.
        logs, epochs: how many logs and ranges of epochs were checked.
    """

    absent: tuple[int, ...]
    down: tuple[int, ...]
    logs: int
    epochs: int
    findings: tuple[Finding, ...]

    @property
    def is_safe(self) -> bool:
        """Whether nothing would stop."""
        return not self.findings


def find_absent(
    members: Mapping[NodeId, Member], nodes: Iterable[int], racks: Iterable[str]
) -> frozenset[NodeId]:
    """The nodes that numbers and racks name.

    Args:
        racks: locations of racks, or of any wider domain: `eu.row1.rack2`, or `eu`.
    Raises:
        BadSetting: none is named, or a named node or rack does not exist; the text lists those that
            exist.
    """
    found: set[NodeId] = set()
    for node in nodes:
        if NodeId(node) not in members:
            known = ", ".join(str(each) for each in sorted(members))
            raise BadSetting(f"there is no node {node}; there are {known}")
        found.add(NodeId(node))
    for rack in racks:
        inside = {n for n, member in members.items() if _is_in(member.location, rack)}
        if not inside:
            known = ", ".join(sorted({each.location or "none" for each in members.values()}))
            raise BadSetting(f"no node is in rack {rack!r}; nodes are in {known}")
        found |= inside
    if not found:
        raise BadSetting("name a node, or a rack")
    return frozenset(found)


def _is_in(location: str, domain: str) -> bool:
    return bool(domain) and (location == domain or location.startswith(f"{domain}."))


class ImpactCheck:
    """Takes the logs one by one, and then gives the report."""

    def __init__(
        self,
        members: Mapping[NodeId, Member],
        absent: frozenset[NodeId],
        dead: Set[NodeId],
        fitness: Fitness = FIT,
        leaving: Set[NodeId] = frozenset(),
        stored_empty: Set[NodeId] = frozenset(),
    ) -> None:
        """
        Args:
            dead: nodes that are dead, or that may disappear by a word that was given.
            fitness: of the other nodes.
            leaving: nodes that are there and give their copies away: they get no new copies.
            stored_empty: nodes that are empty by the metadata store alone, without the event log.
        """
        data = Authority.FULLY_AUTHORITATIVE, Authority.AUTHORITATIVE_EMPTY
        away = {n for n, m in members.items() if m.authority not in data}
        self._members = members
        self._absent = absent
        self._down = frozenset((dead | away | fitness.silent) - absent)
        self._unsure, self._full = fitness.unsure, fitness.full
        self._waiting = fitness.waiting
        self._leaving = leaving
        self._stored_empty = stored_empty
        self._empty = frozenset(
            n for n, m in members.items() if m.authority is Authority.AUTHORITATIVE_EMPTY
        )
        self._verdicts: dict[tuple[Placement, bool, bool, bool], list[Finding]] = {}
        self._logs = self._epochs = 0

    def add(
        self,
        log: int,
        epochs: Sequence[tuple[int, int, Placement]],
        *,
        own_since: int | None = None,
    ) -> None:
        """Take a log.

        Args:
            epochs: first and last epoch of each entry of its history, oldest first; new records
                belong to the last entry, which has 0 for its last epoch.
            own_since: for the event log, its first epoch that is not recovered. The recovery cannot
                go by what the log itself says of nodes, so it waits for nodes that are empty by the
                event log. None for other logs.
        """
        self._logs += 1
        self._epochs += len(epochs)
        is_events = own_since is not None
        for first, last, placement in epochs:
            is_own = own_since is not None and (not last or last >= own_since)
            key = (placement, not last, is_own, is_events)
            findings = self._verdicts.get(key)
            if findings is None:
                epoch = _Epoch(
                    Nodeset.recorded(placement.nodes, placement.locations, self._members),
                    placement.replication,
                    frozenset(self._stored_empty if is_own else self._empty),
                    frozenset() if is_events else self._waiting,
                    is_events,
                )
                findings = self._verdicts[key] = self._judge(placement, epoch, is_newest=not last)
            for finding in findings:
                finding.logs += 1
                if len(finding.examples) < EXAMPLES_MAX:
                    finding.examples.append(LogEpochs(log, first, last))

    def report(self) -> ImpactReport:
        """The findings; those about most logs first."""
        found = [each for some in self._verdicts.values() for each in some]
        order = list(Stops)
        found.sort(key=lambda each: (order.index(each.stops), -each.logs, each.examples[:1]))
        return ImpactReport(
            tuple(map(int, sorted(self._absent))), tuple(map(int, sorted(self._down))),
            self._logs, self._epochs, (*found, *self._capacity()),
        )  # fmt: skip

    def _judge(self, placement: Placement, epoch: _Epoch, *, is_newest: bool) -> list[Finding]:
        if not self._absent.intersection(map(NodeId, placement.nodes)):
            if epoch.is_events and self._is_stopped(Stops.READS, epoch, self._down):
                first = f"{self._advice(Stops.READS, epoch)}; {START_WORDS}"
                return [Finding(Stops.READS, placement, first, already=True)]
            return []  # what these nodes do makes no difference to it
        kinds = [Stops.READS, Stops.REBUILDING]
        if is_newest:
            kinds.insert(0, Stops.WRITES)
        return [
            Finding(
                stops, placement, self._advice(stops, epoch),
                already=self._is_stopped(stops, epoch, self._down),
            )
            for stops in kinds
            if self._is_stopped(stops, epoch, self._absent | self._down)
        ]  # fmt: skip

    def _is_stopped(
        self, stops: Stops, epoch: _Epoch, away: Set[NodeId], *, if_fit: bool = False
    ) -> bool:
        """
        Args:
            if_fit: as if the other nodes could do all that a node does.
        """
        nodeset, replication, excused, waiting, _ = epoch
        unsure, full = self._unsure | waiting, self._full | waiting
        if if_fit:
            unsure = full = frozenset()
        if stops is Stops.READS:
            gone = away | {node for node in nodeset.nodes if node not in self._members}
            return can_replicate((gone | unsure) - excused, nodeset, replication)
        left = {
            member.node
            for member in nodeset.members
            if member.node in self._members
            and member.node not in away
            and member.node not in self._empty
            and member.node not in self._leaving
            and member.node not in full
            and not member.read_only
            and (member.weight > 0 or stops is Stops.REBUILDING)
        }
        return not can_replicate(left, nodeset, replication)

    def _advice(self, stops: Stops, epoch: _Epoch) -> str:
        """What to do first about something that would stop."""
        nodeset = epoch.nodeset
        every = self._absent | self._down
        if not self._is_stopped(stops, epoch, every, if_fit=True):
            return self._fit_first(stops, epoch)
        here = sorted(self._absent.intersection(nodeset.nodes))
        down = sorted(self._down.intersection(nodeset.nodes))
        waited_for = [node for node in down if node in self._empty - epoch.excused]
        if waited_for and stops is Stops.READS:
            return (
                f"nodes {_numbers(waited_for)} are empty, but the event log's recovery waits for "
                "them: wait a minute until a new epoch leaves them out, or bring them back"
            )
        if down and not self._is_stopped(stops, epoch, self._absent):
            return f"bring back nodes {_numbers(down)}, or have them rebuilt, first"
        singles = [self._down | {node} for node in here]
        if len(here) > 1 and not any(self._is_stopped(stops, epoch, each) for each in singles):
            return f"take nodes {_numbers(here)} out of service one after the other"
        if stops is Stops.WRITES:
            return "give these logs more nodes, or fewer copies (`cordwood logs set`)"
        if stops is Stops.READS:
            return f"drain nodes {_numbers(here)} first (`cordwood nodes drain`)"
        return "wait until these epochs are trimmed, or bring more of their nodes into service"

    def _fit_first(self, stops: Stops, epoch: _Epoch) -> str:
        """What to do first about nodes that run and cannot do all that a node does."""
        nodeset = epoch.nodeset
        waiting = sorted(epoch.waiting.intersection(nodeset.nodes) - self._absent)
        if waiting:
            return (
                f"nodes {_numbers(waiting)} take no record and serve no reader until they have "
                "read the event log: bring back its nodes that are down"
            )
        if stops is Stops.READS:
            unsure = sorted(self._unsure.intersection(nodeset.nodes) - self._absent)
            return (
                f"nodes {_numbers(unsure)} do not know all that they hold: wait until it is mended "
                "(`cordwood nodes scrub`). If records of a WAL are lost for good, accept that "
                "(`cordwood nodes accept-loss`). A rotten copy is not mended if no node has a good "
                "one: it goes when its log is trimmed behind it"
            )
        full = sorted(self._full.intersection(nodeset.nodes) - self._absent)
        return f"nodes {_numbers(full)} take no new blocks; `cordwood nodes show` says why"

    def _capacity(self) -> list[Finding]:
        weights = {node: max(0.0, member.weight) for node, member in self._members.items()}
        whole = sum(weights.values())
        away = {
            name: sum(weights[node] for node in nodes if node in weights)
            for name, nodes in (("all", self._absent | self._down), ("down", self._down))
        }
        if not whole or away["all"] / whole <= CAPACITY_SHARE_MAX:
            return []
        words = (
            f"{away['all'] / whole:.0%} of the capacity would be absent, and "
            f"{CAPACITY_SHARE_MAX:.0%} may be: take fewer nodes at once, or add nodes"
        )
        already = away["down"] / whole > CAPACITY_SHARE_MAX
        return [Finding(Stops.CAPACITY, None, words, already, self._logs)]


def _numbers(nodes: Sequence[NodeId]) -> str:
    return ", ".join(str(int(node)) for node in nodes)
