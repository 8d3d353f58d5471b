"""S14: nothing is released before its copies are there.

S15 looks at the disks when all is over, and recovery may have mended by then what was
never safe. So nodes' own word that a block is durable is taken down when it is given,
and a release, or a recovered end, is held against what had been said before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cordwood.lsn import ESN_MAX, format_lsn, make_lsn
from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.spread import asked_for, lacking
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import BlockStored, CleanEpochSet, Event, NodeStarted, Released


def check_release_is_replicated(evidence: Evidence) -> list[Violation]:
    """S14: all that is released is stored on R nodes over the racks asked for by then.

    So is all of an epoch that counts as recovered, its bridge included, unless as many nodes
    were lost for good as there are copies: what is left is all there is then. A history of
    which nodes told no stores has no evidence, and breaks nothing.
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
            found.extend(_short(evidence, racks, logs[event.log], event, first, event.lsn))
        elif isinstance(event, CleanEpochSet) and not evidence.may_lose(at):
            first = logs[event.log].unchecked(event.epoch)
            # Up to and with the bridge, which stands after the last record.
            last = max(event.tail, make_lsn(event.epoch, 0)) + 1
            if last & ESN_MAX != ESN_MAX:
                found.extend(_short(evidence, racks, logs[event.log], event, first, last))
    return found


@dataclass(slots=True)
class _Stored:
    """What nodes have said of one log.

    Attributes:
        lasts: by first LSN of a block, its last one.
        nodes: by first LSN, the nodes that said they have it.
        checked: by epoch, the last LSN that was looked at.
    """

    lasts: dict[int, int] = field(default_factory=dict)
    nodes: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    checked: dict[int, int] = field(default_factory=dict)

    def add(self, event: BlockStored) -> None:
        self.lasts[event.first] = max(event.last, self.lasts.get(event.first, 0))
        self.nodes[event.first].add(event.node)

    def unchecked(self, epoch: int) -> int:
        """The first LSN of an epoch that was not looked at."""
        return self.checked.get(epoch, make_lsn(epoch, 0)) + 1


def _short(
    evidence: Evidence,
    racks: Mapping[int, str],
    stored: _Stored,
    event: Released | CleanEpochSet,
    first: int,
    last: int,
) -> Iterator[Violation]:
    """The first place of `[first, last]` that has too few copies."""
    run = evidence.run
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
