"""The blocks that a node stores again in a range of a log that rotted on it: a plan from the
answers of other nodes.

The node asks all other nodes of the nodesets for header and envelope of each block that they hold
in the range. For each block, the latest envelope that names this node counts. Under that envelope
the node needs the block again, from any node that holds the same block. If a node in that
envelope's copyset has a later envelope, the block was moved to other nodes meanwhile. If only nodes
outside the copyset have later envelopes, a move was not completed: the nodes of the copyset do not
know of it, and count on this node.

A range is *whole* if nothing else can be missing there. One of two facts shows this:

- The index entry of the one block that rotted can still be read, and that block was found.
- The nodes that answered, and that know all their copies, are an f-majority. Then each
  acknowledged block of the range is on one of them. This node counts as silent there.

A node that let go of the range, because main storage held it, has no copy there, and is not sure:
main storage may have lost the range since. Then the nodes that still hold it have the only copies.
`Past` says how such nodes count.

Records that other nodes trimmed are left alone: this node takes them for damaged until it hears of
the trim. No trimmed record is stored again.

Source: docs/protocol/repair.md; docs/sources/bookkeeper.md (f); HDFS, replication of corrupt
blocks: a corrupt replica is removed after a good one is stored.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from cordwood.block import BlockHeader, Envelope, EnvelopeFlag
from cordwood.lsn import LSN_MAX
from cordwood.nodes import Authority, NodeId, Nodeset, Replication
from cordwood.protocol.rebuild_compare import rank_of
from cordwood.quorum.authority import HAS_DATA
from cordwood.quorum.f_majority import weigh_replies

Range = TypeVar("Range", bound=Hashable)

Place = tuple[int, int, int]
"""First and last LSN, and kind, of a block."""

PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 60.0
"""Before a range that could not be mended is tried again; the pause doubles with each try."""


class HeldCopy(NamedTuple):
    """A copy that a node holds, without its body."""

    header: BlockHeader
    envelope: Envelope

    @property
    def place(self) -> Place:
        """The block's LSNs and kind."""
        return self.header.first, self.header.last, self.header.kind

    @property
    def rank(self) -> int:
        """The precedence of its envelope as a number."""
        flags = self.envelope.flags
        by_recovery = bool(flags & EnvelopeFlag.BY_RECOVERY)
        return rank_of(by_recovery, self.envelope.seal_epoch, self.envelope.wave)


class Said(NamedTuple):
    """What a node said of a range.

    Attributes:
        copies: that it holds there.
        is_sure: whether these are all, so that it holds nothing else there.
        gone: up to where the log is trimmed, as that node knows.
        let_go: up to where it let go of copies, because main storage held the records. Main storage
            may have lost them since.
        upto: the last LSN of which it spoke; it may end before the range does.
    """

    copies: Sequence[HeldCopy]
    is_sure: bool = True
    gone: int = 0
    upto: int = LSN_MAX
    let_go: int = 0


class Past(enum.Enum):
    """How nodes count that let go of a range: they have no copy there, and never say more."""

    SILENT = "as silent nodes: the range stays unknown here until this node lets go of it too"
    SURE = "among the nodes that know their copies: main storage has the range"
    EMPTY = "as SURE, but only once no other node with data is silent: main storage lost the range"


class Take(NamedTuple):
    """A block to be stored again: under this envelope, from one of these nodes."""

    copy: HeldCopy
    holders: tuple[NodeId, ...]


class RepairPlan(NamedTuple):
    """See the module.

    Attributes:
        start: from where on the range is dealt with.
        last: up to where it is; all of it may not have been asked for at once.
        takes: by place.
        is_whole: once these are stored, nothing is missing in the range.
        waits: why not, "" if it is whole.
    """

    start: int
    takes: tuple[Take, ...]
    is_whole: bool
    waits: str = ""
    last: int = LSN_MAX


def part_to_plan(first: int, last: int, said: Mapping[NodeId, Said]) -> tuple[int, int]:
    """The part of `[first, last]` that can be planned by these answers: all nodes spoke of it, and
    each let go of all of it or of nothing of it.

    It is empty if some node spoke only of LSNs that others trimmed. Then ask again behind these.

    Returns:
        Its first and last LSN.
    """
    gone = max((each.gone for each in said.values()), default=0)
    upto = min((each.upto for each in said.values()), default=last)
    start = max(first, gone + 1)
    upto = min([upto, *(each.let_go for each in said.values() if start <= each.let_go < last)])
    if upto >= last or gone >= last:
        return first, last
    return (first, upto) if upto > gone else (max(first, gone + 1), gone)


def plan_repair(
    first: int,
    last: int,
    me: NodeId,
    said: Mapping[NodeId, Said],
    mine: Iterable[HeldCopy],
    epochs: Iterable[tuple[Nodeset, Replication]],
    statuses: Mapping[NodeId, Authority],
    known: BlockHeader | None = None,
    *,
    past: Past = Past.SILENT,
) -> RepairPlan:
    """The blocks to store again in `[first, last]`.

    Args:
        said: the answers, by node; this node is not among them.
        mine: good copies that this node holds in the range, elsewhere than the rotten copies.
        epochs: nodeset and replication of all epochs of the range.
        statuses: of nodes that are not fully authoritative.
        known: the header of the block that rotted, where all of the range is that block and its
            index entry can be read.
        past: how nodes count that let go of the range.
    """
    gone = max((each.gone for each in said.values()), default=0)
    start = max(first, gone + 1)
    # The range is trimmed elsewhere. This node hears of that by itself.
    if start > last:
        return RepairPlan(start, (), is_whole=False, waits=_TRIMMED, last=last)
    held = {copy.place: copy for copy in mine}
    found: dict[Place, dict[NodeId, HeldCopy]] = {}
    for node, each in said.items():
        for copy in each.copies:
            if _counts(copy, start, last):
                by_node = found.setdefault(copy.place, {})
                if _is_later(copy, by_node.get(node)):
                    by_node[node] = copy
    takes = []
    for place, by_node in sorted(found.items()):
        due, own = _due(me, by_node), held.get(place)
        # With the index entry of the rotten block at hand, only that very block may take its place.
        if due is None or (known is not None and due.header != known):
            continue
        # A newer envelope that this node holds elsewhere must not be replaced by an older one.
        if own is None or own.rank < due.rank:
            holders = tuple(
                node
                for node, each in sorted(said.items())
                if any(other.header == due.header for other in each.copies)
            )
            takes.append(Take(due, holders))
    if known is not None:
        others = (copy for by_node in found.values() for copy in by_node.values())
        is_found = known in (copy.header for copy in (*others, *held.values()))
        waits = "" if is_found else _WANTED.format([int(node) for node in sorted(said)])
        return RepairPlan(start, tuple(takes), is_found, waits, last)
    # Where it is not known what rotted, only an f-majority can say that nothing is missing.
    let_go = {node for node, each in said.items() if each.let_go >= start} - {me}
    sure = {node for node, each in said.items() if each.is_sure} - let_go - {me}
    for nodeset, replication in epochs:
        if weigh_replies(sure, nodeset, replication, statuses).is_f_majority:
            continue
        lacking = set(nodeset.nodes) - sure - {me}
        if past is not Past.SILENT:
            lacking -= let_go
            # Trap: where main storage lost the range, a member that let go does not stand for the
            # copyset. A silent member may have the only copy.
            is_awaited = past is Past.EMPTY and any(_has_data(each, statuses) for each in lacking)
            verdict = weigh_replies(sure | let_go, nodeset, replication, statuses)
            if verdict.is_f_majority and not is_awaited:
                continue
        waits = f"nodes {[int(n) for n in sorted(lacking)]} do not say all that they hold there"
        return RepairPlan(start, tuple(takes), is_whole=False, waits=waits, last=last)
    return RepairPlan(start, tuple(takes), is_whole=True, last=last)


def _has_data(node: NodeId, statuses: Mapping[NodeId, Authority]) -> bool:
    return statuses.get(node, Authority.FULLY_AUTHORITATIVE) in HAS_DATA


_TRIMMED = "it is trimmed on other nodes, and not here yet"
_WANTED = "none of nodes {} has a good copy of it"


def _counts(copy: HeldCopy, first: int, last: int) -> bool:
    is_aside = copy.envelope.flags & EnvelopeFlag.DRAINED
    return not is_aside and copy.header.first <= last and first <= copy.header.last


def _due(me: NodeId, by_node: Mapping[NodeId, HeldCopy]) -> HeldCopy | None:
    """The latest copy of a block whose envelope names this node, None where the block is not this
    node's."""
    named: HeldCopy | None = None
    for copy in by_node.values():
        if me in copy.envelope.copyset and _is_later(copy, named):
            named = copy
    if named is None:
        return None
    # Trap: the envelope of a new node alone proves no move. If the donor ended before it told the
    # other holders, they count this node as a holder, and give no copy if one of them is lost.
    told = (by_node.get(NodeId(node)) for node in named.envelope.copyset)
    is_moved = any(copy is not None and _is_later(copy, named) for copy in told)
    return None if is_moved else named


def _is_later(copy: HeldCopy, other: HeldCopy | None) -> bool:
    if other is None:
        return True
    mine = (copy.rank, tuple(copy.envelope.copyset))
    return mine > (other.rank, tuple(other.envelope.copyset))


class RepairTurns:
    """Decides which rotten range is tried next.

    The caller keeps the ranges and bounds their number. `due` forgets the ranges that the caller
    does not name any more.
    """

    def __init__(self) -> None:
        self._tries: dict[Hashable, tuple[float, float]] = {}

    def due(self, ranges: Sequence[Range], now: float) -> list[Range]:
        """The ranges that are due now, in their order."""
        self._tries = {each: self._tries[each] for each in ranges if each in self._tries}
        return [each for each in ranges if self._tries.get(each, (0.0, 0.0))[0] <= now]

    def next_s(self, now: float) -> float | None:
        """Seconds until the next try of a range that could not be mended; None if there is none."""
        if not self._tries:
            return None
        return max(0.0, min(due_s for due_s, _ in self._tries.values()) - now)

    def on_failed(self, tried: Hashable, now: float) -> None:
        """Note that the range could not be mended."""
        _, before_s = self._tries.get(tried, (0.0, 0.0))
        pause_s = min(PAUSE_MAX_S, max(PAUSE_FIRST_S, 2 * before_s))
        self._tries[tried] = (now + pause_s, pause_s)

    def forget(self, tried: Hashable) -> None:
        """Forget a range that is mended, or that is gone."""
        self._tries.pop(tried, None)
