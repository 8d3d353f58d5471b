"""Decides how a follower of the event log goes on that misses records for ever.

Records of the event log are lost if more of its nodes are lost than it has copies. A follower that
had not read them keeps the set of the records before them. Each of these sets is the sum of the
first records of one log. So of any two sets, the set that goes further includes the other. A
node that was told that an event counts has applied this event.

A follower that misses records, and has read up to the tail, asks the other nodes:

- If one of them is whole, its set is taken.
- Otherwise the furthest set is to be *restated*: appended behind the tail, if nothing was appended
  there meanwhile. All followers begin anew with it.
- Before that, the follower asks every node that may know more. It waits for a node that does not
  answer, until an operator or the set reports that node as lost, or until the node was silent for
  as long as a node must be to count as lost.

A node that has not read up to the same tail is not heard yet: it may still apply, and tell, an
event below the tail.

Source: docs/protocol/event-log.md (A loss beyond the copies).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cordwood.nodes import Authority, Member
from cordwood.protocol.event_log import authority_of
from cordwood.rebuilding import RebuildingSet


class Heard(NamedTuple):
    """A follower's report about itself.

    Attributes:
        set: its last whole set.
        reached: it has seen all records up to this LSN.
        is_whole: whether `set` is the result of all records up to `reached`.
    """

    set: RebuildingSet
    reached: int
    is_whole: bool


class Adopt(NamedTuple):
    """Go on with the set of a follower that is whole."""

    said: Heard


class WaitFor(NamedTuple):
    """Ask again: these nodes may know more, in node order."""

    nodes: tuple[int, ...]


class Restate(NamedTuple):
    """Append this set, once the base is fenced: the base may go further by then."""

    set: RebuildingSet


class Restating:
    """See the module. It remembers since when nodes do not answer."""

    def __init__(self, grace_s: float) -> None:
        """
        Args:
            grace_s: a node that is silent for this long is not waited for: as for lost nodes.
        """
        self._grace_s = grace_s
        self._silent_s: dict[int, float] = {}

    def decide(
        self,
        now_s: float,
        mine: Heard,
        base: RebuildingSet,
        members: Iterable[Member],
        heard: Mapping[int, Heard],
    ) -> Adopt | WaitFor | Restate:
        """What to do after a round of questions.

        Args:
            mine: of the follower that asks. It has read up to the tail.
            base: that of the metadata store.
            members: all but the node that asks, with what an operator said of them.
            heard: those that answered.
        """
        found = furthest([mine.set, base, *(each.set for each in heard.values())])
        here = {node: each for node, each in heard.items() if each.reached >= mine.reached}
        whole = [each for each in here.values() if each.is_whole]
        if whole and not mine.is_whole:
            return Adopt(max(whole, key=lambda each: each.set.through))
        silent: dict[int, float] = {}
        waited: list[int] = []
        for member in members:
            if member.node in here:
                continue
            since_s = silent[member.node] = self._silent_s.get(member.node, now_s)
            if not _is_gone(member, found) and now_s - since_s < self._grace_s:
                waited.append(member.node)
        self._silent_s = silent
        return WaitFor(tuple(sorted(waited))) if waited else Restate(found)


def furthest(sets: Iterable[RebuildingSet]) -> RebuildingSet:
    """The set that includes the others."""
    return max(sets, key=lambda each: each.through)


def _is_gone(member: Member, found: RebuildingSet) -> bool:
    """Whether an operator, or the set, says that the member's data is lost or away."""
    statuses = (member.authority, authority_of(found, member.node))
    return any(each is not Authority.FULLY_AUTHORITATIVE for each in statuses)
