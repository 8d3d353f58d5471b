"""S14: nothing is released before its copies are there.

S15 looks at the disks at the end of a run, when recovery may have mended blocks that were never
safe. So every report of a node that a block is durable is recorded when it is made, and a release,
or a recovered end, is compared with the reports before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cordwood.lsn import ESN_MAX, format_lsn, make_lsn
from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.spread import asked_for, asked_of, lacking
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import BlockStored, CleanEpochSet, Event, NodeStarted, Released


def check_release_is_replicated(evidence: Evidence) -> list[Violation]:
    """S14: all released records are stored by then on R nodes, in as many racks as the log wants.

    The same holds for all records of a recovered epoch, including its bridge, unless as many nodes
    as copies were lost for ever: then only the copies that are left exist. A history without
    reports of stores has no evidence, and breaks nothing.
    """
    if not evidence.of(BlockStored):
        return []
    racks = {e.node: e.rack for _, e in evidence.of(NodeStarted) if isinstance(e, NodeStarted)}
    logs: dict[int, _Stored] = defaultdict(_Stored)
    found: list[Violation] = []
    for at, event in evidence.of(BlockStored, Released, CleanEpochSet):
        if isinstance(event, BlockStored):
            logs[event.log].add(event)
        elif isinstance(event, Released):
            first = logs[event.log].unchecked(event.lsn >> 32)
            found.extend(_short(evidence, at, racks, logs[event.log], event, first, event.lsn))
        elif isinstance(event, CleanEpochSet) and not evidence.may_lose(at):
            first = logs[event.log].unchecked(event.epoch)
            # Including the bridge, which comes after the last record.
            last = max(event.tail, make_lsn(event.epoch, 0)) + 1
            if last & ESN_MAX != ESN_MAX:
                found.extend(_short(evidence, at, racks, logs[event.log], event, first, last))
    return found


@dataclass(slots=True)
class _Stored:
    """The reports of nodes about one log.

    Attributes:
        lasts: by first LSN of a block, its last LSN.
        nodes: by first LSN, the nodes that reported the block durable.
        checked: by epoch, the last LSN that was checked.
    """

    lasts: dict[int, int] = field(default_factory=dict)
    nodes: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    checked: dict[int, int] = field(default_factory=dict)

    def add(self, event: BlockStored) -> None:
        self.lasts[event.first] = max(event.last, self.lasts.get(event.first, 0))
        self.nodes[event.first].add(event.node)

    def unchecked(self, epoch: int) -> int:
        """The first LSN of an epoch that was not checked."""
        return self.checked.get(epoch, make_lsn(epoch, 0)) + 1


def _short(
    evidence: Evidence,
    at: int,
    racks: Mapping[int, str],
    stored: _Stored,
    event: Released | CleanEpochSet,
    first: int,
    last: int,
) -> Iterator[Violation]:
    """The first place of `[first, last]` that has too few copies.

    Args:
        at: position of `event`.
    """
    run = asked_of(evidence, event.log, at)
    while first <= last:
        nodes = stored.nodes.get(first, set())
        then = evidence.racks_then(event.log, first >> 32)
        lacks = lacking(run, nodes, {then.get(node, racks.get(node, "")) for node in nodes})
        if lacks:
            what = "released" if isinstance(event, Released) else "recovered"
            text = f"{what} up to {format_lsn(last)} with {lacks} here; {asked_for(run)}"
            yield Violation("S14", text, event.log, first, _told(evidence, event, first))
            break
        first = stored.lasts[first] + 1
    stored.checked[last >> 32] = max(last, stored.checked.get(last >> 32, 0))


def _told(evidence: Evidence, event: Event, first: int) -> tuple[Event, ...]:
    stores = [e for e in evidence.events if isinstance(e, BlockStored) and e.first == first]
    return (*stores, event)
