"""The capabilities of this machine, and the kinds of fault that are left out because of missing
ones.

Source: docs/sources/reliability.md §5.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.chaos.disks import why_no_disks
from cordwood.chaos.namespaces import why_not
from cordwood.chaos.packets import why_no_netem, why_no_packets
from cordwood.chaos.plan import KINDS, Need
from cordwood.chaos.syscalls import why_no_strace


def lacking(below: str) -> dict[Need, str]:
    """The capabilities that this machine lacks, with the reason. Each capability is tried.

    Args:
        below: a directory where files may be made.
    """
    no_networks = why_not()
    reasons = {
        Need.NETWORKS: no_networks,
        Need.PACKETS: no_networks or why_no_packets(),
        Need.NETEM: no_networks or why_no_netem(),
        Need.TRACE: why_no_strace(),
        Need.DISKS: why_no_disks(below),
    }
    reasons[Need.COMMAND] = "it is for a cluster of your own (--cluster)"
    reasons[Need.CLONES] = reasons[Need.DISKS] or why_no_disks(below, can_clone=True)
    return {need: reason for need, reason in reasons.items() if reason}


def kinds_without(lacks: Mapping[Need, str]) -> tuple[str, ...]:
    """The names of the kinds of fault that need none of these."""
    return tuple(name for name, kind in KINDS.items() if not lacks.keys() & set(kind.needs))


def left_out(lacks: Mapping[Need, str]) -> list[str]:
    """The faults that are left out, with the reason, one line for each kind."""
    lines = []
    for name, kind in KINDS.items():
        need = next((need for need in kind.needs if need in lacks), None)
        if need is not None and need is not Need.COMMAND:
            lines.append(f"left out: {name}, which needs {need.value}: {lacks[need]}")
    return lines
