"""S28: who may not read a log is given no record of it.

Here that is who lacks its read token, from the log's making on; what logs ask changes meanwhile
between tokens of which such a reader has none. Whoever has them is never told that it may not.

Source: docs/sources/reliability.md §3 (S28).
"""

from __future__ import annotations

from cordwood.block import GapKind
from cordwood.lsn import format_lsn
from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.violation import Violation


def check_read_rights(evidence: Evidence) -> list[Violation]:
    """S28: who may not read a log is given no record of it, and who may is never refused."""
    found: list[Violation] = []
    for read in evidence.reads:
        if read.started.barred:
            for _, record in read.records():
                text = f"{read.reader} has no right to read, and was given {record.payload.id}"
                found.append(Violation("S28", text, read.log, record.lsn, (record,)))
                break
            continue
        for _, gap in read.gaps():
            if gap.kind is GapKind.ACCESS:
                text = f"{read.reader} may read, and was refused at {format_lsn(gap.first)}"
                found.append(Violation("S28", text, read.log, gap.first, (gap,)))
    return found
