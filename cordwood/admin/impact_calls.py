"""Answer what the absence of nodes would stop, from the epoch store, the member list, and what the
other nodes say of themselves.

Source: docs/sources/logdevice.md 3 ("Safety checker"); `cordwood.impact`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Set

from cordwood.impact.check import (
    Finding,
    Fitness,
    ImpactCheck,
    ImpactReport,
    Placement,
    find_absent,
)
from cordwood.layout.message_impact import (
    FINDINGS_MAX,
    AskImpact,
    ImpactFinding,
    ImpactLog,
    ImpactReply,
)
from cordwood.metadata.epoch_store import EpochRecord, EpochStore, NodesetSince
from cordwood.metadata.log_tree import LogTree
from cordwood.nodes import Member, NodeId

TURN_LOGS = 256
"""Logs checked before other tasks get a turn: some milliseconds."""

AskFit = Callable[[Collection[NodeId]], Awaitable[Fitness]]
"""See `fitness_calls.ask_fitness`."""

NAMED_MAX = 200
"""Names looked up for one answer; each is a question to the metadata store."""


async def check_impact(
    epochs: EpochStore,
    members: Mapping[NodeId, Member],
    dead: Set[NodeId],
    absent: Collection[NodeId],
    ask: AskFit,
) -> ImpactReport:
    """Judge every epoch of every log.

    Raises:
        CordwoodError: the metadata store does not answer.
    """
    fitness = await ask(members.keys() - dead - frozenset(absent))
    check = ImpactCheck(members, frozenset(absent), dead, fitness)
    placements: dict[tuple[object, ...], Placement] = {}
    for number, (log, record) in enumerate(sorted((await epochs.records()).items())):
        if not record.deleted:
            check.add(log, epochs_of(record, placements))
        if number % TURN_LOGS == 0:
            await asyncio.sleep(0)
    return check.report()


def epochs_of(
    record: EpochRecord, placements: dict[tuple[object, ...], Placement]
) -> list[tuple[int, int, Placement]]:
    """First and last epoch of each entry of a history, and where its records may lie.

    Args:
        placements: earlier placements, by their contents.
    """
    ends = [each.since - 1 for each in record.history[1:]]
    return [
        (each.since, end, _placement(each, placements))
        for each, end in zip(record.history, [*ends, 0], strict=True)
    ]


def _placement(entry: NodesetSince, known: dict[tuple[object, ...], Placement]) -> Placement:
    wider = tuple(sorted(entry.wider.items()))
    key = (entry.nodes, entry.locations, entry.copies, entry.racks, wider)
    found = known.get(key)
    if found is None:
        found = known[key] = Placement(entry.nodes, entry.locations, entry.replication)
    return found


async def answer_impact(
    call: AskImpact,
    epochs: EpochStore,
    logs: LogTree,
    members: Mapping[NodeId, Member],
    dead: Set[NodeId],
    ask: AskFit,
) -> ImpactReply:
    """Answer a person.

    Args:
        ask: asks nodes how they are.
    Raises:
        BadSetting: no node is named, or a named node does not exist.
        CordwoodError: the metadata store does not answer.
    """
    absent = find_absent(members, call.nodes, call.racks)
    report = await check_impact(epochs, members, dead, absent, ask)
    shown = report.findings[:FINDINGS_MAX]
    names: dict[int, str] = {}
    for log in sorted({each.log for finding in shown for each in finding.examples})[:NAMED_MAX]:
        info = await logs.by_id(log)
        names[log] = info.name if info is not None else ""
    return ImpactReply(
        report.absent, report.down, report.logs, report.epochs,
        [_told(each, names) for each in shown], len(report.findings) - len(shown),
    )  # fmt: skip


def _told(finding: Finding, names: Mapping[int, str]) -> ImpactFinding:
    placement = finding.placement
    examples = [
        ImpactLog(each.log, names.get(each.log, ""), each.first, each.last)
        for each in finding.examples
    ]
    return ImpactFinding(
        finding.stops.value, finding.first, finding.already,
        placement.nodes if placement else (),
        placement.replication.by_scope if placement else {},
        finding.logs, examples,
    )  # fmt: skip
