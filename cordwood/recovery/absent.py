"""The refusal that recovery makes when too few members answer."""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.decisions import MembersLacking, RecoveryFenced, tell
from cordwood.errors import CordwoodError, Fenced, NoSequencer
from cordwood.lsn import NO_LOG, LogId
from cordwood.nodes import NodeId


def refuse_fenced(failures: Mapping[NodeId, CordwoodError]) -> None:
    """Raise if a higher epoch rules.

    Raises:
        Fenced: one of the nodes is sealed by a higher epoch.
    """
    for error in failures.values():
        if isinstance(error, Fenced):
            tell(RecoveryFenced(NO_LOG, error.epoch))
            raise error


def refuse_absent(log: LogId, step: str, failures: Mapping[NodeId, CordwoodError]) -> None:
    """Raise an error that names the absent members.

    Raises:
        Fenced: one of the nodes is sealed by a higher epoch.
        NoSequencer: members are absent; the text names them and the reasons.
    """
    refuse_fenced(failures)
    tell(MembersLacking(log, step))
    named = "; ".join(f"node {node}: {failures[node]}" for node in sorted(failures))
    raise NoSequencer(
        f"log {log} cannot be recovered ({step}) while too many members are absent: {named}. "
        "Start them again; appends go on when enough have answered."
    )
