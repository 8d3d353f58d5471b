"""Calls that change something for good. A client that saw no answer does not know their outcome.

Other calls change nothing that their caller decides by. A question asks. What a look-up of a log, a
member of a consumer, a staged block or the id of a ledger leaves behind is found again, or goes by
itself. The commit of a batch and the entries of a ledger have rules of their own for calls without
an answer (`client.publish.publishing`, `client.ledgers.writable_ledger`).

Source: docs/api.md ("errors").
"""

from __future__ import annotations

from cordwood.errors import CordwoodError, OutcomeUnknown
from cordwood.layout.log_questions import Trim
from cordwood.layout.message import Call
from cordwood.layout.message_consumers import SaveCursors
from cordwood.layout.message_ledgers import (
    CreateLedger,
    DeleteLedger,
    SetLedger,
    SwitchAutorecovery,
)
from cordwood.layout.message_logs import CreateLog
from cordwood.layout.message_maintenance import ApplyMaintenance, RemoveMaintenance
from cordwood.layout.message_nodes import SetAuthority, SetStorage
from cordwood.layout.message_rebuilding import SayRebalance, SayRebuild
from cordwood.layout.message_rights import DeleteLog, RaiseToken, RenameLog, SetAttributes

CHANGES = (
    CreateLog, SetAttributes, DeleteLog, RenameLog, RaiseToken, Trim, SaveCursors, CreateLedger,
    SetLedger, DeleteLedger, SwitchAutorecovery, SetAuthority, SetStorage, SayRebuild, SayRebalance,
    ApplyMaintenance, RemoveMaintenance,
)  # fmt: skip


def without_answer(call: Call, error: CordwoodError) -> CordwoodError:
    """The end of a call that a node has, and whose answer this side does not wait for any more.

    Args:
        error: why it does not wait.
    Returns:
        OutcomeUnknown for a call that changes something, else `error`.
    """
    if not isinstance(call, CHANGES):
        return error
    return OutcomeUnknown(f"{type(call).__name__} was sent, and may be done, also later: {error}")
