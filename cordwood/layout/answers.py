"""The kind of reply that answers each kind of call.

A reply of another kind is a peer's mistake. It ends the connection, and the call ends as if the
connection was lost. So callers may rely on the kind of an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import get_args

from cordwood.errors import Corrupt, Malformed
from cordwood.layout import log_questions as questions
from cordwood.layout import message as m
from cordwood.layout import message_consumers as consumers
from cordwood.layout import message_impact as impact
from cordwood.layout import message_ledgers as ledgers
from cordwood.layout import message_logs as logs
from cordwood.layout import message_maintenance as maintenance
from cordwood.layout import message_nodes as nodes
from cordwood.layout import message_rebuilding as rebuilding
from cordwood.layout import message_rights as rights
from cordwood.layout import message_staging as staging
from cordwood.layout.entry_run import is_run
from cordwood.layout.ledger_metadata import read_ledger

ANSWERS: Mapping[type, type] = {
    logs.AskDirectory: logs.DirectoryReply,
    m.AskEpoch: m.EpochReply,
    logs.AskEpochs: logs.EpochsReply,
    consumers.AskConsumers: consumers.ConsumersReply,
    m.AskNodesets: m.NodesetsReply,
    m.AskReleased: m.ReleasedReply,
    m.AskStatus: m.StatusReply,
    m.AskStreams: m.StreamsReply,
    m.AskTail: m.TailReply,
    consumers.BeatConsumer: consumers.ConsumerReply,
    m.Clean: m.DoneReply,
    logs.CreateLog: logs.LogReply,
    rights.DeleteLog: m.DoneReply,
    logs.FindLog: logs.LogReply,
    consumers.JoinConsumer: consumers.ConsumerReply,
    consumers.LeaveConsumer: consumers.ConsumerReply,
    logs.ListLogs: logs.LogsReply,
    m.Ping: m.DoneReply,
    rights.AskVersion: rights.VersionReply,
    rights.RaiseToken: logs.EpochsReply,
    rights.RenameLog: logs.LogReply,
    consumers.SaveCursors: consumers.ConsumerReply,
    m.Seal: m.SealReply,
    rights.SetAttributes: m.DoneReply,
    m.TellNodesets: m.DoneReply,
    m.Yield: m.DoneReply,
    ledgers.AddEntries: ledgers.AddReply,
    ledgers.AllotLedgerId: ledgers.LedgerIdReply,
    ledgers.AskAutorecovery: ledgers.AutorecoveryReply,
    ledgers.AskLac: ledgers.LacReply,
    ledgers.AskLedger: ledgers.LedgerReply,
    ledgers.CreateLedger: ledgers.LedgerReply,
    ledgers.DeleteLedger: m.DoneReply,
    ledgers.ForceEntries: ledgers.AddReply,
    ledgers.ListLedgers: ledgers.LedgersReply,
    ledgers.OpenMainStorage: m.DoneReply,
    ledgers.ReadEntries: ledgers.EntriesReply,
    ledgers.ReadRun: ledgers.RunReply,
    ledgers.SetLedger: ledgers.LedgerReply,
    ledgers.SwitchAutorecovery: m.DoneReply,
    ledgers.TellLac: m.DoneReply,
    impact.AskFitness: impact.FitnessReply,
    impact.AskImpact: impact.ImpactReply,
    maintenance.ApplyMaintenance: maintenance.MaintenanceReply,
    maintenance.AskMaintenance: maintenance.MaintenanceReply,
    maintenance.RemoveMaintenance: maintenance.MaintenanceReply,
    nodes.AskMembers: nodes.MembersReply,
    nodes.SetAuthority: m.DoneReply,
    nodes.SetStorage: m.DoneReply,
    questions.AskCopies: questions.CopiesReply,
    questions.AskExtent: questions.ExtentReply,
    questions.AskIfLost: questions.IfLostReply,
    questions.AskKept: questions.KeptReply,
    questions.AskSize: questions.SizeReply,
    questions.AskTime: questions.TimeReply,
    questions.Trim: questions.TrimReply,
    rebuilding.AskEvents: rebuilding.EventsReply,
    rebuilding.AskHeld: rebuilding.HeldReply,
    rebuilding.AskRebuilding: rebuilding.RebuildingReply,
    rebuilding.SayRebalance: rebuilding.RebuildingReply,
    rebuilding.SayRebuild: rebuilding.RebuildingReply,
    rebuilding.TellProducers: m.DoneReply,
    staging.AskPublication: staging.PublicationReply,
    staging.AskStaged: staging.StagedReply,
    staging.BeginPublish: staging.PublicationReply,
    staging.CommitPublish: staging.PublicationReply,
    staging.FindStaged: staging.StagedPlaces,
    staging.FinishPublish: staging.PublicationReply,
    staging.PinStaged: m.DoneReply,
    staging.PlaceStaged: m.DoneReply,
    staging.StageBlock: m.DoneReply,
    staging.Unstage: m.DoneReply,
}

assert ANSWERS.keys() == set(get_args(m.Call)), "every call has its answer"


def check_answer(call: m.Call, reply: m.Reply) -> None:
    """Refuse a reply that does not answer this call.

    Raises:
        Malformed: the answer is of another kind or number, of another log, or of an impossible log.
    """
    if type(reply) is not ANSWERS[type(call)]:
        raise Malformed(f"{type(call).__name__} was answered with {type(reply).__name__}")
    if isinstance(call, m.AskReleased) and isinstance(reply, m.ReleasedReply):
        asked, answers = len(call.logs), len(reply.released)
        if asked != answers:
            raise Malformed(f"{asked} logs were answered with {answers} numbers")
    if isinstance(call, ledgers.ReadEntries) and isinstance(reply, ledgers.EntriesReply):
        told = [each.entry for each in reply.entries]
        if not told or told != call.entries[: len(told)]:
            raise Malformed(f"of ledger {call.ledger} entries came that were not asked for")
    if (
        isinstance(call, ledgers.ReadRun)
        and isinstance(reply, ledgers.RunReply)
        and (
            reply.count > call.count or not is_run(reply.packed, call.first, reply.count, call.step)
        )
    ):
        raise Malformed(f"an answer for ledger {call.ledger} is no run of entries")
    if isinstance(call, ledgers.ListLedgers) and isinstance(reply, ledgers.LedgersReply):
        _check_page(call.after, call.limit, reply.ledgers)
    if isinstance(call, ledgers.AskAutorecovery) and isinstance(reply, ledgers.AutorecoveryReply):
        _check_page(call.after, call.limit, [each.ledger for each in reply.ledgers])
    if isinstance(reply, ledgers.LedgerReply) and isinstance(
        call, ledgers.AskLedger | ledgers.CreateLedger | ledgers.SetLedger
    ):
        _check_ledger(call.ledger, reply)
    if isinstance(reply, consumers.ConsumerReply) and isinstance(call, consumers.ConsumerCall):
        _check_consumers(call.consumer, [reply])
    if isinstance(reply, consumers.ConsumersReply) and isinstance(call, consumers.AskConsumers):
        _check_consumers(call.consumer, reply.groups)
    if isinstance(reply, logs.LogReply) and not all(each.nodes for each in reply.history):
        raise Malformed(f"{reply.name} is said to have an epoch without nodes")
    if isinstance(call, logs.FindLog | logs.CreateLog) and isinstance(reply, logs.LogReply):
        # In a look-up by number, the name in the answer counts: it may have changed since the
        # caller learnt it.
        by_number = call.log if isinstance(call, logs.FindLog) else None
        if by_number is not None and reply.log != by_number:
            raise Malformed(f"log {by_number} was asked for, and log {reply.log} came")
        if by_number is None and reply.name.strip("/") != call.name.strip("/"):
            raise Malformed(f"{call.name} was asked for, and {reply.name} came")
        if not reply.history:
            raise Malformed(f"{reply.name} is said to have no nodes")


def _check_consumers(asked: str, told: Sequence[consumers.ConsumerReply]) -> None:
    """A member that took another consumer's positions would skip records."""
    if asked and [each.consumer for each in told] != [asked]:
        raise Malformed(f"consumer {asked} was asked for, and others came")


def _check_page(after: int, limit: int, told: Sequence[int]) -> None:
    """Refuse a page whose ids do not rise above `after`: with such pages a listing would never
    end."""
    if len(told) > limit or any(a >= b for a, b in pairwise([after, *told])):
        raise Malformed(f"ledgers came that are no page of {limit} after ledger {after}")


def _check_ledger(ledger: int, reply: ledgers.LedgerReply) -> None:
    if ledger < 0 or not reply.version:
        return
    try:
        found = read_ledger(reply.value)
    except Corrupt:
        return  # The metadata store may have it so: its reader says what is wrong.
    if found.ledger != ledger:
        raise Malformed(f"ledger {ledger} was asked for, and ledger {found.ledger} came")
