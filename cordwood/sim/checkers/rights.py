"""S28: a reader without the right to read a log is given no record of it.

The readers without the right have no read token of the log, from the log's making on. The token
changes meanwhile, and these readers have none of the tokens. A reader with all tokens is never
refused.

Source: docs/sources/reliability.md §3 (S28).
"""

from __future__ import annotations

from cordwood.block import GapKind
from cordwood.lsn import format_lsn
from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.violation import Violation


def check_read_rights(evidence: Evidence) -> list[Violation]:
    """S28: a reader without the right gets no record; a reader with the right is never refused."""
    found: list[Violation] = []
    for read in evidence.reads:
        if read.started.barred:
            for _, record in read.records():
                text = f"{read.reader} has no right to read, but got {record.payload.id}"
                found.append(Violation("S28", text, read.log, record.lsn, (record,)))
                break
            continue
        for _, gap in read.gaps():
            if gap.kind is GapKind.ACCESS:
                text = f"{read.reader} may read, but was refused at {format_lsn(gap.first)}"
                found.append(Violation("S28", text, read.log, gap.first, (gap,)))
    return found
