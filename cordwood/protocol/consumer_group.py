"""Consumer groups: which member of a consumer reads which log, and which saves count.

A *consumer* is a name with a position in each log: the first LSN that it has not dealt with. The
members of a consumer share its logs, and each log belongs to one member. Every change of owners is
a new *generation*. Clocks decide only when an absent member loses its logs, never which save
counts.

A log moves between two live members in two steps, as in Kafka's cooperative rebalancing: it gets a
*successor*, then its owner saves and lets go of it. Until then the owner reads on, its saves count,
and the successor waits; so no record is read twice. An owner that does not let go in time loses the
log. It has as much time as was left of its lease when the successor was named.

A position goes back only on an explicit reset.

Source: docs/design.md §6 ("leases are hints, never safety"), §7; docs/sources/logdevice.md 1
(checkpoints), docs/sources/reliability.md §1 (Jepsen on Kafka's consumer groups).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cordwood.errors import Fenced, Rejected

LEASE_US_MAX = 60_000_000
"""The longest time that a member may be silent, even if it asks for more: four times the time that
members ask for. A lease that ends later was written by a clock that was ahead. It would keep the
logs of a dead member for as long as that clock was ahead, an hour in one test."""

SEEN_ALIVE_US = 15_000_000
"""A member whose lease was just seen to change is alive for as long as members ask for. By the
clock of this node its lease may have ended: another node writes it, by another clock."""

MARKS_MAX = 8
"""Marks kept of a log. A second try comes within seconds of the first. Behind more calls of others
than this it is refused, as a call of another would be."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One reader of a consumer.

    Attributes:
        logs: the logs that the member is willing to read.
        expires_us: when the member counts as gone unless it beats before; µs since 1970 UTC.
        joined: the generation that its joining made. An earlier life of the member knows only
            lower generations.
    """

    logs: tuple[str, ...]
    expires_us: int
    joined: int


@dataclass(frozen=True, slots=True)
class Owner:
    """The member that reads a log, and the generation since which it does.

    Attributes:
        member: the reader; "" if no member reads the log any more.
        successor: the member that gets the log when the owner lets go of it, at `due_us` at the
            latest; "" for no member.
    """

    member: str
    since: int
    successor: str = ""
    due_us: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer.

    Attributes:
        generation: grows with each change of owners; 0 if no member ever joined.
        members: by name.
        owners: by log. A log that no member reads keeps an entry with the generation since which
            that is so.
        positions: by log, the first LSN not dealt with.
        resets: by log, how often its position was reset; logs that never were are left out.
        marks: by log, the marks of the last MARKS_MAX calls that compared and set its position, the
            oldest first; see `save`.
    """

    generation: int = 0
    members: Mapping[str, GroupMember] = field(default_factory=dict)
    owners: Mapping[str, Owner] = field(default_factory=dict)
    positions: Mapping[str, int] = field(default_factory=dict)
    resets: Mapping[str, int] = field(default_factory=dict)
    marks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def logs_of(self, member: str) -> tuple[str, ...]:
        """The logs that a member reads, by name."""
        return tuple(sorted(log for log, own in self.owners.items() if own.member == member))


def join(
    group: Group,
    member: str,
    logs: Sequence[str],
    now_us: int,
    ttl_us: int,
    known: int | None = None,
    seen: Collection[str] = (),
) -> Group:
    """`member` starts to read. It replaces a member of the same name.

    A log that another member reads moves to the new member when its owner lets go of it.

    Args:
        known: the generation that the caller looked at; None if it did not look.
        seen: members that are alive whatever the clock says: see `SEEN_ALIVE_US`.
    Raises:
        Fenced: a member of this name joined since the caller looked. It may be the caller itself:
            its call is done a second time.
    """
    before = group.members.get(member)
    # Race: a node that was stopped does the call late. The member that joined by another node would
    # be replaced by itself, and fenced.
    if before is not None and known is not None and before.joined > known:
        raise Fenced(f"a {member} joined since generation {known}: look again", group.generation)
    group = shortened(group, now_us)
    members = _alive(group.members, now_us, seen)
    joined = group.generation + 1
    ends_us = now_us + min(ttl_us, LEASE_US_MAX)
    members[member] = GroupMember(tuple(sorted(set(logs))), ends_us, joined)
    owners = dict(group.owners)
    for log, own in group.owners.items():
        if own.member == member:
            # Race: an earlier life of this member may still save. A new owner, even this same
            # member, has a new generation, so that save is refused.
            owners[log] = Owner("", joined, own.successor)
        elif own.successor == member:
            owners[log] = replace(own, successor="", due_us=0)
    return _assign(replace(group, members=members, owners=owners), now_us, seen)


def leave(group: Group, member: str, generation: int, now_us: int) -> Group:
    """`member` stops reading; its logs go to the other members at once.

    Args:
        generation: the last generation that `member` was told of.
    """
    known = group.members.get(member)
    # Race: a late message of an earlier life must not end the present one.
    if known is None or generation < known.joined:
        return group
    members = {name: value for name, value in group.members.items() if name != member}
    return _assign(replace(group, members=members), now_us)


def beat(
    group: Group,
    member: str,
    generation: int,
    now_us: int,
    ttl_us: int,
    seen: Collection[str] = (),
) -> Group:
    """`member` is alive. Members that expired lose their logs. Owners that did not let go of a
    log in time lose that log.

    Args:
        generation: the generation in which `member` joined, or a later one that it knows.
    Raises:
        Fenced: `member` is no longer a member, or a later life of it joined: join again.
    """
    known = group.members.get(member)
    if known is None or generation < known.joined:
        raise Fenced(f"{member} is no member any more: join again", group.generation)
    group = shortened(group, now_us)
    ends_us = now_us + min(ttl_us, LEASE_US_MAX)
    alive = _alive(group.members, now_us, seen)
    members = {**alive, member: replace(known, expires_us=ends_us)}
    is_due = any(own.successor and own.due_us <= now_us for own in group.owners.values())
    if members.keys() == group.members.keys() and not is_due:
        return replace(group, members=members)
    return _assign(replace(group, members=members), now_us, seen)


def give_up_absent(group: Group, now_us: int, seen: Collection[str] = ()) -> Group:
    """Members that were not heard of lose their logs. This holds also if no member is left: the
    last member may have been killed, and a consumer without members could never save again."""
    group = shortened(group, now_us)
    members = _alive(group.members, now_us, seen)
    if members.keys() == group.members.keys():
        return group
    return _assign(replace(group, members=members), now_us, seen)


def shortened(group: Group, now_us: int) -> Group:
    """No lease, and no time to let go of a log, ends later than it may: see `LEASE_US_MAX`."""
    last_us = now_us + LEASE_US_MAX
    late = {name for name, value in group.members.items() if value.expires_us > last_us}
    overdue = {log for log, own in group.owners.items() if own.due_us > last_us}
    if not late and not overdue:
        return group
    members = {
        name: replace(value, expires_us=last_us) if name in late else value
        for name, value in group.members.items()
    }
    owners = {
        log: replace(own, due_us=last_us) if log in overdue else own
        for log, own in group.owners.items()
    }
    return replace(group, members=members, owners=owners)


def let_go(group: Group, member: str, logs: Iterable[str], generation: int) -> Group:
    """`member` stops reading `logs`; each of them that has a successor belongs to the successor
    now.

    Args:
        generation: the last generation that `member` was told of. A log that got another owner
            since then stays as it is.
    """
    now = group.generation + 1
    owners = dict(group.owners)
    for log in logs:
        own = group.owners.get(log)
        # Race: the call may be late. A log that came back to this member since then is not let go
        # of.
        if own is not None and own.member == member and own.since <= generation and own.successor:
            owners[log] = Owner(own.successor, now)
    if owners == group.owners:
        return group
    return replace(group, owners=owners, generation=now)


def save(
    group: Group,
    positions: Mapping[str, int],
    *,
    member: str = "",
    generation: int = 0,
    expected: Mapping[str, int] | None = None,
    reset: bool = False,
    resets: Mapping[str, int] | None = None,
    mark: str = "",
) -> Group:
    """Move positions forward; all of them or none.

    Args:
        member: the member that saves; "" for a consumer without members.
        generation: the last generation that `member` was told of.
        expected: the positions before this save, 0 for none: a compare-and-set.
        reset: let positions go back, and ignore the owners of the logs. They begin anew from there.
        resets: by log, how many resets the saver knows of: see `Group.resets`.
        mark: identifies a compare-and-set, so that its second try recognises the first try, even
            if the position has moved since. Without a mark, a position that is there already counts
            as set by an earlier try.
    Raises:
        Fenced: a log has had another owner since that generation, or the consumer has members
            and the saver is none of them, or a position is not the expected position, or was
            reset since the saver looked.
        Rejected: a position would go back.
    """
    # Race: an earlier try may have saved, and its answer was lost. The retry succeeds, even if
    # other saves have moved the position since. Another caller with the same positions is fenced.
    if mark and is_same_call(group, positions, mark):
        return group
    for log, was in (expected or {}).items():
        # All logs are compared before any position moves: a save is done whole or not at all.
        now = group.positions.get(log, 0)
        is_again = not mark and now == positions.get(log, was)
        if now != was and not is_again:
            raise Fenced(f"{log} stands at {now}, not at {was}: another save came in between")
    for log, known in (resets or {}).items():
        # A call that is done late would undo a reset, and so would a consumer that reads on. The
        # position does not show it: it may be where it was before.
        count = group.resets.get(log, 0)
        is_done = reset and count == known + 1 and group.positions.get(log) == positions.get(log)
        if count != known and not is_done:
            raise Fenced(f"{log} was reset since, to {group.positions.get(log, 0)}")
    for log, lsn in positions.items():
        own = group.owners.get(log)
        if own is not None and not reset and not _may_save(own, member, generation):
            reads = f"by {own.member}" if own.member else "by no member"
            raise Fenced(f"{log} is read {reads} since generation {own.since}", group.generation)
        if lsn < group.positions.get(log, 0) and not reset:
            raise Rejected(
                f"{log} stands at {group.positions[log]}; going back to {lsn} takes a reset"
            )
    if reset:
        group = read_anew(group, newly_reset(group, positions, expected or {}, resets or {}))
    # Trap: after a reset the same call may come again, and move the position again.
    kept = {log: each for log, each in group.marks.items() if not (reset and log in positions)}
    marks = {log: with_mark(kept.get(log, ()), mark) for log in positions if mark}
    return replace(group, positions={**group.positions, **positions}, marks={**kept, **marks})


def is_same_call(group: Group, positions: Mapping[str, int], mark: str) -> bool:
    """Whether an earlier try of a call moved these positions."""
    return bool(positions) and all(mark in group.marks.get(log, ()) for log in positions)


def with_mark(marks: Sequence[str], mark: str) -> tuple[str, ...]:
    """The marks of a log, with that of one more call."""
    return (*marks, mark)[-MARKS_MAX:]


def newly_reset(
    group: Group,
    positions: Mapping[str, int],
    expected: Mapping[str, int],
    resets: Mapping[str, int],
) -> set[str]:
    """The logs that a call resets, and did not reset in its first try.

    A reset to the position that was saved last is one as well: a reader has come further since. It
    shows in the number of resets that the caller knows; of a caller that names none, in the
    position that it expects.
    """
    return {
        log
        for log, lsn in positions.items()
        if (
            group.resets.get(log, 0) == resets[log]
            if log in resets
            else lsn != group.positions.get(log, 0) or lsn == expected.get(log)
        )
    }


def read_anew(group: Group, logs: Collection[str]) -> Group:
    """Have readers begin again with the logs that are reset: a reader that read on would undo the
    reset with its next save."""
    now = group.generation + 1
    anew = {
        log: replace(own, since=now)
        for log, own in group.owners.items()
        if own.member and log in logs
    }
    counts = {log: group.resets.get(log, 0) + 1 for log in logs}
    group = replace(group, resets={**group.resets, **counts})
    if not anew:
        return group
    return replace(group, generation=now, owners={**group.owners, **anew})


def _alive(
    members: Mapping[str, GroupMember], now_us: int, seen: Collection[str]
) -> dict[str, GroupMember]:
    return {
        name: value for name, value in members.items() if value.expires_us > now_us or name in seen
    }


def _may_save(own: Owner, member: str, generation: int) -> bool:
    """A log without a reader is open to a consumer without members, not to a former member."""
    return own.member == member and (not member or own.since <= generation)


def _assign(group: Group, now_us: int, seen: Collection[str] = ()) -> Group:
    """Distribute the logs again: evenly, with as few moves as possible."""
    generation = group.generation + 1
    share: dict[str, list[str]] = {name: [] for name in sorted(group.members)}
    logs = sorted({log for value in group.members.values() for log in value.logs})
    # As sets: with 4,000 logs and ten members a look into each list held up the node for seconds.
    listed = {name: frozenset(group.members[name].logs) for name in share}
    takers = {log: [name for name in share if log in listed[name]] for log in logs}
    # The member that reads each log in the end.
    target: dict[str, str] = {}
    for log in logs:
        own = group.owners.get(log)
        # A successor knows already that it gets the log. Another choice would take the log from it
        # before it read a record.
        for name in () if own is None else (own.successor, own.member):
            if name in takers[log]:
                target[log] = name
                share[name].append(log)
                break
    for log in logs:
        if log not in target:
            target[log] = name = _least(share, takers[log])
            share[name].append(log)
    _even_out(share, takers, target)
    owners: dict[str, Owner] = {}
    for log in sorted({*logs, *group.owners}):
        own = group.owners.get(log, Owner("", 0))
        stays = group.members[own.member] if own.member in takers.get(log, ()) else None
        if stays is not None and own.member in seen:
            # By this clock its lease may have ended; it is there to let go of the log.
            ends_us = max(stays.expires_us, now_us + SEEN_ALIVE_US)
            stays = replace(stays, expires_us=ends_us)
        owners[log] = _next_owner(own, target.get(log, ""), stays, generation, now_us)
    return replace(group, generation=generation, owners=owners)


def _next_owner(
    own: Owner, target: str, stays: GroupMember | None, generation: int, now_us: int
) -> Owner:
    """The log's owner from now on, and its successor.

    Args:
        stays: the present owner, if it is alive and willing to read the log; else None.
    """
    # The owner keeps its generation, so that its saves under way stay valid.
    if own.member == target:
        return replace(own, successor="", due_us=0)
    if stays is None:
        return Owner(target, generation)
    # Number: the owner has until the end of its lease. A later round does not lengthen that.
    due_us = own.due_us if own.successor == target else stays.expires_us
    if due_us <= now_us:
        return Owner(target, generation)
    return replace(own, successor=target, due_us=due_us)


def _least(share: Mapping[str, Sequence[str]], names: Iterable[str]) -> str:
    return min(names, key=lambda name: (len(share[name]), name))


def _even_out(
    share: dict[str, list[str]], takers: Mapping[str, Sequence[str]], target: dict[str, str]
) -> None:
    """Move a log while its member has at least two logs more than another willing member."""
    # Each move makes the shares more even by one log, so this ends.
    moved = True
    while moved:
        moved = False
        for name in sorted(share, key=lambda each: (-len(share[each]), each)):
            for log in share[name]:
                taker = _least(share, takers[log])
                if len(share[name]) >= len(share[taker]) + 2:
                    share[name].remove(log)
                    share[taker].append(log)
                    target[log] = taker
                    moved = True
                    break
            if moved:
                break


def logs_left(group: Group) -> list[str]:
    """The logs, by number, that no member is willing to read; the oldest first."""
    read = {log for member in group.members.values() for log in member.logs}
    left = {log for log in (*group.positions, *group.owners) if not is_by_name(log)} - read
    return sorted(left, key=int)


def without_logs(group: Group, gone: Collection[str]) -> Group:
    """A consumer without its owners, positions, resets and marks of these logs."""
    owners = {log: own for log, own in group.owners.items() if log not in gone}
    positions = {log: lsn for log, lsn in group.positions.items() if log not in gone}
    resets = {log: count for log, count in group.resets.items() if log not in gone}
    marks = {log: mark for log, mark in group.marks.items() if log not in gone}
    return replace(group, owners=owners, positions=positions, resets=resets, marks=marks)


def is_by_name(log: str) -> bool:
    """Whether a log is kept by its name, as older versions did, and not by its number.

    Trap: `isdigit` takes digits of other scripts and superscripts, which are no numbers or a second
    spelling of a number. So are leading zeros.
    """
    return not (log.isascii() and log.isdigit()) or (log[0] == "0" and log != "0")


def names_in(group: Group) -> set[str]:
    """The log names in an entry of an older version; an entry of today's form has none."""
    logs = {*group.positions, *group.owners}
    logs.update(log for member in group.members.values() for log in member.logs)
    return set(filter(is_by_name, logs))


def by_number(group: Group, numbers: Mapping[str, int]) -> Group:
    """Convert a consumer that an older version kept by log names to today's form.

    A position goes to the log that has the name now. A position under a name without a log is
    dropped. Members whose clients do not know log numbers are removed; the answers to their beats
    tell them so.

    Args:
        numbers: the log numbers of those names in `group` that lead to a log.
    """
    moved = {
        str(numbers[log]): lsn
        for log, lsn in group.positions.items()
        if is_by_name(log) and log in numbers
    }
    kept = {log: lsn for log, lsn in group.positions.items() if not is_by_name(log)}
    stay = {
        name: member
        for name, member in group.members.items()
        if not any(map(is_by_name, member.logs))
    }
    owners = {
        log: own
        for log, own in group.owners.items()
        if not is_by_name(log) and own.member in (*stay, "")
    }
    return Group(group.generation + 1, stay, owners, {**moved, **kept})
