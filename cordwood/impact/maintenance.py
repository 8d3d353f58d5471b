"""Requests to take nodes out of service: which are granted, and what follows from them.

A request names nodes and their target state:

- MAY_DISAPPEAR: the nodes may be stopped at any time while the request stands.
- DRAINED: the nodes are to give all their copies away, so that they can be removed.

It is *blocked until safe*: it is granted when nothing would stop without its nodes. The nodes of
all granted requests, and nodes that are down, count as absent then. Requests stack: a node is in
service again when the last request that names it is gone. A request ends by an operator's word, or
by its TTL.

The set of all requests is one value, which is changed as a whole. So two requests that are safe
alone but not together are never both granted.

A client whose call a node does not answer asks the next node, and the first node may do the call
later. So a call has a *mark*, which a request keeps. The marks of ended calls are kept as well: a
call that is done late neither asks for nodes again nor takes anything back a second time.

Source: docs/protocol/maintenance.md; docs/sources/logdevice.md 3 ("Maintenance").
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Set
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import replace

from cordwood.errors import BadSetting, Rejected
from cordwood.impact.check import Finding, ImpactReport, Stops
from cordwood.nodes import NodeId

REQUESTS_MAX = 256
REASON_CHARS_MAX = 512
USER_CHARS_MAX = 128
TTL_S_MAX = 365 * 86_400
MARK_CHARS_MAX = 32
OVER_MAX = 128
"""Marks of calls that are over: a request leaves two of them. A call that is done late is late by
seconds, and operators do not end 64 requests in that time."""

_Node = Annotated[int, Meta(ge=1, le=2**32 - 1)]
_Nodes = Annotated[tuple[_Node, ...], Meta(max_length=4096)]
_Number = Annotated[int, Meta(ge=0, le=2**62)]
_Mark = Annotated[str, Meta(max_length=MARK_CHARS_MAX)]


class Wanted(enum.StrEnum):
    """The target state of a request's nodes."""

    MAY_DISAPPEAR = "MAY_DISAPPEAR"
    DRAINED = "DRAINED"


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    """One request.

    Attributes:
        number: by which it is removed; never used again.
        nodes: ascending.
        made_us: when, by the clock of the node that took it.
        ttl_s: it ends so long after it was made; 0 for never.
        is_granted: once so, it stays so.
        blocked: what would stop, "" once it is granted.
        mark: of the call that asked, "" for none.
    """

    number: _Number
    nodes: Annotated[tuple[_Node, ...], Meta(min_length=1, max_length=4096)]
    wanted: Wanted
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_CHARS_MAX)]
    user: Annotated[str, Meta(min_length=1, max_length=USER_CHARS_MAX)]
    made_us: Annotated[int, Meta(ge=0, le=2**62)]
    ttl_s: Annotated[int, Meta(ge=0, le=TTL_S_MAX)] = 0
    is_granted: bool = False
    blocked: str = ""
    mark: _Mark = ""

    @property
    def ends_us(self) -> int:
        """When it ends by itself; 0 for never."""
        return self.made_us + self.ttl_s * 1_000_000 if self.ttl_s else 0


class MaintenanceSet(Struct, frozen=True, forbid_unknown_fields=True):
    """All requests, oldest first.

    Attributes:
        last: the highest number that was given out.
        drained: nodes that are drained by a request's word, and not only by an operator's.
        over: the marks of calls that were done and left no request, and of requests that are over;
            the last OVER_MAX, oldest first.
    """

    last: _Number = 0
    requests: Annotated[tuple[Request, ...], Meta(max_length=REQUESTS_MAX)] = ()
    drained: _Nodes = ()
    over: Annotated[tuple[_Mark, ...], Meta(max_length=OVER_MAX)] = ()

    def named(self, wanted: Wanted) -> frozenset[NodeId]:
        """The nodes that granted requests of a kind name."""
        return frozenset(
            NodeId(node)
            for each in self.requests
            if each.is_granted and each.wanted is wanted
            for node in each.nodes
        )

    @property
    def absent(self) -> frozenset[NodeId]:
        """The nodes of all granted requests."""
        return self.named(Wanted.MAY_DISAPPEAR) | self.named(Wanted.DRAINED)


Judge = Callable[[frozenset[NodeId], Set[NodeId]], ImpactReport]
"""What would stop without some nodes, where others are absent already."""


def with_request(
    known: MaintenanceSet,
    nodes: Iterable[int],
    wanted: Wanted,
    reason: str,
    user: str,
    ttl_s: int,
    now_us: int,
    mark: str = "",
) -> MaintenanceSet:
    """The set with one more request, which is not granted yet.

    Args:
        mark: of the call; see the module.

    Raises:
        BadSetting: it makes no sense, or there are too many.
    """
    named = tuple(sorted({int(node) for node in nodes}))
    if not named:
        raise BadSetting("a request for maintenance names a node, or a rack")
    for what, text, most in (
        ("reason", reason.strip(), REASON_CHARS_MAX),
        ("user", user.strip(), USER_CHARS_MAX),
    ):
        if not 1 <= len(text) <= most:
            raise BadSetting(f"say a {what}, of {most} characters at most: others will read it")
    if not 0 <= ttl_s <= TTL_S_MAX:
        raise BadSetting(f"a TTL is from 0 s (none) to {TTL_S_MAX} s, not {ttl_s} s")
    if len(known.requests) >= REQUESTS_MAX:
        raise BadSetting(
            f"there are {REQUESTS_MAX} requests already: remove some (`cordwood maintenance show`)"
        )
    request = Request(
        known.last + 1, named, wanted, reason.strip(), user.strip(), max(0, now_us), ttl_s,
        mark=mark,
    )  # fmt: skip
    return replace(known, last=request.number, requests=(*known.requests, request))


def without_request(known: MaintenanceSet, number: int, mark: str = "") -> MaintenanceSet:
    """The set without a request; as it is where this call took it back before.

    Args:
        mark: of the call; see the module.
    Raises:
        BadSetting: no request has this number; the text lists all numbers.
    """
    if mark and mark in known.over:
        return known
    rest = tuple(each for each in known.requests if each.number != number)
    if len(rest) == len(known.requests):
        numbers = ", ".join(str(each.number) for each in rest) or "none"
        raise BadSetting(f"there is no request {number}; there are {numbers}")
    gone = [each.mark for each in known.requests if each.number == number]
    return replace(known, requests=rest, over=_with_marks(known.over, [*gone, mark]))


def request_of(known: MaintenanceSet, mark: str) -> Request | None:
    """The request that a call with this mark made, None if it made none yet.

    Raises:
        Rejected: that request is over.
    """
    if mark and mark in known.over:
        raise Rejected("the request is over: it was taken back, or its TTL ended")
    return next((each for each in known.requests if mark and each.mark == mark), None)


def _with_marks(over: tuple[str, ...], marks: Iterable[str]) -> tuple[str, ...]:
    return (*over, *filter(None, marks))[-OVER_MAX:]


def advanced(
    known: MaintenanceSet, now_us: int, judge: Judge, empty: Set[int] = frozenset()
) -> MaintenanceSet:
    """The present set: without expired requests, and with safe requests granted.

    Args:
        empty: drained nodes that have given all their copies away.

    Older requests come first. A younger request may be granted before an older request that is
    blocked: the older request may not become safe for days.
    """
    left = tuple(each for each in known.requests if not 0 < each.ends_us <= now_us)
    ended = [each.mark for each in known.requests if each not in left]
    found = replace(known, requests=left, over=_with_marks(known.over, ended))
    for request in left:
        if not request.is_granted:
            found = _judged(found, request, judge, empty)
    return found


def _judged(
    known: MaintenanceSet, request: Request, judge: Judge, empty: Set[int]
) -> MaintenanceSet:
    nodes = frozenset(map(NodeId, request.nodes)) - _covered(known, request.wanted, empty)
    blocked = ""
    if nodes:
        report = judge(nodes, known.absent - nodes)
        # A drained node gives its copies away before it goes: no reader misses it.
        spared = {Stops.READS} if request.wanted is Wanted.DRAINED else set()
        stops = [each for each in report.findings if each.stops not in spared]
        if stops:
            blocked = _words_of(stops[0])
    after = replace(request, is_granted=not blocked, blocked=blocked[:4096])
    requests = tuple(after if each.number == after.number else each for each in known.requests)
    return replace(known, requests=requests)


def _words_of(finding: Finding) -> str:
    """What would stop, an example of a log where it would, and the first step to take."""
    logs = f" for {finding.logs} logs" if finding.logs else ""
    example = f", such as log {finding.examples[0].log}" if finding.examples else ""
    return f"{finding.stops} would stop{logs}{example}: {finding.first}"


def _covered(known: MaintenanceSet, wanted: Wanted, empty: Set[int]) -> frozenset[NodeId]:
    """The nodes for which the same was granted already, so that a new request may have them.

    A drain asks for more than that a node may disappear. And a node that is drained may disappear
    only when it is empty: its drain was granted although reads may need its copies until then.
    """
    drained = known.named(Wanted.DRAINED)
    if wanted is Wanted.DRAINED:
        return drained
    return known.named(Wanted.MAY_DISAPPEAR) | (drained & frozenset(map(NodeId, empty)))


def drained_words(node: int, number: int) -> str:
    """The error of what a standing request would undo."""
    return (
        f"request {number} drains node {node}, and would drain it again: remove the request first "
        f"(`cordwood maintenance remove {number}`)"
    )


def noted_words(node: int) -> str:
    """The error of an operator's late drain, if a request ordered the drain that is there."""
    return (
        f"node {node} is drained by a request for maintenance, and not by this order, which took "
        "long: give it again if the node is to stay drained without the request"
    )


class Drains(NamedTuple):
    """What follows for the draining of nodes.

    Attributes:
        noted: the set with the nodes that this maintenance drains. It is written before any order.
        begin, end: nodes for which a drain is to be ordered, or to be cancelled. A repeated order
            changes nothing.
    """

    noted: MaintenanceSet
    begin: tuple[int, ...]
    end: tuple[int, ...]


def drains_of(known: MaintenanceSet, draining: Set[int], empty: Set[int] = frozenset()) -> Drains:
    """What follows from the granted requests.

    Args:
        draining: drained nodes, by a request's or an operator's order. An operator's drain that was
            there first stays when the request goes.
        empty: those of them that are empty.
    """
    wanted = set(map(int, known.named(Wanted.DRAINED)))
    drained = set(known.drained)
    over = drained - wanted
    # An empty node stops when its drain ends. Ledgers may have their only copies there, so the end
    # of a request does not decide that: the drain is an operator's from now on.
    noted = replace(known, drained=tuple(sorted((drained - (over & empty)) | (wanted - draining))))
    begin = tuple(sorted(wanted - draining))
    return Drains(noted, begin, tuple(sorted(over - empty)))


def stray_drains(known: MaintenanceSet, ordered: Iterable[int]) -> tuple[int, ...]:
    """The nodes of which nothing says any more that a drain is to be, or to be cancelled.

    Args:
        ordered: nodes whose drains were ordered by an earlier set.
    """
    return tuple(sorted({*ordered} - {*map(int, known.named(Wanted.DRAINED))} - {*known.drained}))


def drains_or_will(known: MaintenanceSet, node: int) -> bool:
    """Whether a request's word drains a node, or may be about to."""
    return node in known.drained or node in known.named(Wanted.DRAINED)


def kept_drain(known: MaintenanceSet, node: int) -> MaintenanceSet:
    """The set once an operator ordered the drain of a node as well: no request's end ends it."""
    return replace(known, drained=tuple(each for each in known.drained if each != node))


def ended_drains(known: MaintenanceSet, ended: Iterable[int]) -> MaintenanceSet:
    """The set once drains were taken back."""
    wanted = set(map(int, known.named(Wanted.DRAINED)))
    over = set(ended) - wanted
    return replace(known, drained=tuple(each for each in known.drained if each not in over))
