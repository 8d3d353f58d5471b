"""One pass of a donor over its logs: the work that it found, and the results.

Source: docs/protocol/rebuilding.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cordwood.protocol.event_log import gives, gives_last
from cordwood.protocol.rebuild_plan import Held, Losses
from cordwood.rebuilding import Gave, RebuildingSet
from cordwood.storage.rebuild.copy_questions import Report


@dataclass(slots=True)
class LogWork:
    """The work that a pass found in one log: the first block to move, the amount, and whether more
    blocks have to move that are not settled yet."""

    log: int
    first: int
    blocks: int = 0
    bytes: int = 0
    is_unsettled: bool = False

    def add(self, more: LogWork) -> None:
        """Add the work in other blocks of the log."""
        self.first = min(self.first or more.first, more.first or self.first)
        self.blocks += more.blocks
        self.bytes += more.bytes
        self.is_unsettled = self.is_unsettled or more.is_unsettled


@dataclass(slots=True)
class Doubted:
    """The blocks of a log that this node gives only if a member before it let go of them.

    Attributes:
        work: the work in these blocks.
        lowest: the lowest of them that names each such member. A node lets go of a log from its
            beginning on, so this block goes first.
    """

    work: LogWork
    lowest: dict[int, Held] = field(default_factory=dict)

    def add(self, more: Doubted) -> None:
        """Add what is in later blocks of the log."""
        self.work.add(more.work)
        self.lowest = more.lowest | self.lowest


@dataclass(slots=True)
class Pass:
    """One pass: the work that it found, and the results.

    Attributes:
        unsettled: logs with blocks that name a lost node and are not settled yet.
        rotten: logs with copies that have rotted here. Nothing is repaired before it is released.
        noted: moves that the look found noted and unfinished.
        is_uncertain: some lost nodes together may have held a block that no other node has.
        has_main: this node has main storage, so other nodes may let go of blocks that it leaves to
            them, also of a log that goes to main storage only later.
        short_of: awaited nodes that blocks here name only because they have too few copies.
        has_waited: it waited for silent nodes after its look.
        is_cut: a later set, or a loss that was heard of at the end, asks for another pass.
    """

    rebuilding: RebuildingSet
    losses: Losses
    report: Report = field(default_factory=Report)
    todo: list[LogWork] = field(default_factory=list)
    unsettled: list[int] = field(default_factory=list)
    rotten: list[int] = field(default_factory=list)
    noted: int = 0
    has_main: bool = False
    short_of: set[int] = field(default_factory=set)
    is_uncertain: bool = False
    is_looking: bool = True
    has_waited: bool = False
    is_cut: bool = False
    began_s: float = 0.0

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to this donor."""
        return self.report.is_clean and not self.unsettled and not self.is_cut

    def looks_again(self, me: int) -> bool:
        """Whether a drained node looks once more before it says that it is done: see
        `event_log.gives_last`."""
        return self.is_done and self.has_main and not gives_last(self.rebuilding, me)

    def is_look_old(self, me: int) -> bool:
        """Whether main storage may have lost something since the look, in the time that moves of a
        drained node took, or waiting for nodes. Then another pass looks again; it moves no block
        that was moved, and asks nodes that answer by now."""
        is_last = me in self.losses.leaving and gives_last(self.rebuilding, me)
        return self.has_main and (self.has_waited or (is_last and self.report.blocks > 0))

    @property
    def blocked(self) -> str:
        """The reasons why the pass is not done, as text; "" if it waits for nothing."""
        report, found = self.report, []
        if report.waits:
            found.append(f"nodes {sorted(report.waits)} do not say what they have")
        if report.stuck:
            found.append(f"{report.stuck} blocks have no place: too few nodes, or in too few racks")
        if report.only_here:
            found.append(
                f"main storage lost {report.only_here} of these, and other nodes let go of their "
                "range: put the objects back and run `cordwood tier repair`, or trim the log"
            )
        if report.elsewhere:
            found.append(f"{report.elsewhere} blocks wait for copies that other nodes have to make")
        if self.unsettled:
            found.append(f"the ends of {len(self.unsettled)} logs are not settled yet")
        if report.trouble:
            found.append(report.trouble)
        if not found and report.again:
            found.append(f"{report.again} blocks are looked at again")
        return "; ".join(found)


def given_so_far(node: int, before: Gave, made: Pass) -> Gave:
    """A node's totals of a rebalance with a pass added: a stop needs another pass."""
    known = made.rebuilding.rebalancing
    if known is None or not gives(made.rebuilding, node):
        return before
    report = made.report
    if before.version != known.version:
        before = Gave(node, known.version)
    return Gave(
        node, known.version, before.blocks + report.blocks, before.bytes + report.bytes,
        report.kept, report.kept_bytes,
    )  # fmt: skip
