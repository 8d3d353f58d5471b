"""Answer what the absence of nodes would stop, from the epoch store, the member list, and what the
other nodes say of themselves.

Source: docs/sources/logdevice.md 3 ("Safety checker"); `cordwood.impact`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

from cordwood.errors import Malformed
from cordwood.impact.check import Finding, Fitness, ImpactCheck, ImpactReport, Placement
from cordwood.layout.message_impact import (
    FINDINGS_MAX,
    ImpactFinding,
    ImpactLog,
    ImpactReply,
)
from cordwood.lsn import EVENT_LOG, LogId
from cordwood.metadata.epoch_store import EpochRecord, EpochStore, NodesetSince
from cordwood.metadata.log_entries import numbers_of
from cordwood.metadata.log_tree import LogTree
from cordwood.nodes import NodeId

TURN_LOGS = 256
"""Logs checked before other tasks get a turn: some milliseconds."""

AskFit = Callable[[Collection[NodeId]], Awaitable[Fitness]]
"""See `fitness_calls.ask_fitness`."""

NAMED_MAX = 200
"""Names looked up for one answer; each is a question to the metadata store."""


async def living_records(epochs: EpochStore, logs: LogTree) -> dict[int, EpochRecord]:
    """The epochs of all logs that were not deleted.

    A deletion is written to the log tree first, and to the epoch store then. A process that died in
    between leaves a record of a deleted log, which nobody can delete again.

    Raises:
        CordwoodError: the metadata store does not answer.
    """
    # Order matters: a log gets its record after its entry in the tree.
    records = {log: each for log, each in (await epochs.records()).items() if not each.deleted}
    unread: dict[str, Malformed] = {}
    there = {int(info.log_id) for info in await logs.list(unread=unread)}
    for log in sorted(records.keys() - there - numbers_of(unread) - {EVENT_LOG}):
        info = await logs.of_one_moment(LogId(log))
        if info is not None and info.is_deleted:
            del records[log]
    return records


def add_log(
    check: ImpactCheck,
    log: int,
    record: EpochRecord,
    placements: dict[tuple[object, ...], Placement],
) -> None:
    """Take the epochs of a log.

    Args:
        placements: as `epochs_of`.
    """
    own_since = record.clean_epoch + 1 if log == EVENT_LOG else None
    check.add(log, epochs_of(record, placements), own_since=own_since)


async def add_all(
    check: ImpactCheck,
    records: Mapping[int, EpochRecord],
    placements: dict[tuple[object, ...], Placement],
) -> None:
    """Take the epochs of all logs.

    Args:
        placements: as `epochs_of`.
    """
    for number, (log, record) in enumerate(sorted(records.items())):
        add_log(check, log, record, placements)
        if number % TURN_LOGS == 0:
            await asyncio.sleep(0)


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


async def impact_reply(report: ImpactReport, logs: LogTree) -> ImpactReply:
    """The answer to a person.

    Raises:
        CordwoodError: the metadata store does not answer.
    """
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
