"""Consumer groups: who of a consumer's members reads which log, and whose saves count.

A *consumer* is a name with a position in each log: the first LSN that it has not dealt
with yet. Members that join it share its logs: each log belongs to one of them. Every
change of that is a new *generation*. A member that was replaced at a log may go on for a
while without knowing; what it saves then is refused, because the log has had another owner
since; that is remembered where nobody reads the log any more, too. Clocks decide only when an
absent member's logs are given away, never whose save counts.

A log goes from a member that is there to another one in two steps, as in Kafka's cooperative
rebalancing: it gets an *heir*, and its owner saves and lets go of it. Until then the owner reads
on and its saves count, and the heir waits; so nothing is read twice. An owner that does not let go
within the time that it had to live by then loses it all the same.

Positions go back only when somebody says so in as many words.

Source: docs/design.md §6 ("leases are hints, never safety"), §7; docs/sources/logdevice.md 1
(checkpoints), docs/sources/reliability.md §1 (Jepsen on Kafka's consumer groups).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cordwood.errors import Fenced, Rejected


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One reader of a consumer.

    Attributes:
        logs: the logs it is willing to read.
        expires_us: when it counts as gone unless it is heard of; µs since 1970 UTC.
        joined: the generation that its joining made: an earlier life knows only lower ones.
    """

    logs: tuple[str, ...]
    expires_us: int
    joined: int


@dataclass(frozen=True, slots=True)
class Owner:
    """Who reads a log, and since which generation.

    Attributes:
        member: "" where nobody does any more.
        heir: who gets it once the owner lets go of it, at `due_us` at the latest; "" for nobody.
    """

    member: str
    since: int
    heir: str = ""
    due_us: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer.

    Attributes:
        generation: grows with each change of who reads what; 0 where nobody ever joined.
        members: by name.
        owners: by log; of a log that nobody will read any more, since when that is so.
        positions: by log, the first LSN not dealt with.
    """

    generation: int = 0
    members: Mapping[str, GroupMember] = field(default_factory=dict)
    owners: Mapping[str, Owner] = field(default_factory=dict)
    positions: Mapping[str, int] = field(default_factory=dict)

    def logs_of(self, member: str) -> tuple[str, ...]:
        """The logs that a member reads, by name."""
        return tuple(sorted(log for log, own in self.owners.items() if own.member == member))


def join(group: Group, member: str, logs: Sequence[str], now_us: int, ttl_us: int) -> Group:
    """`member` starts to read; one of that name that was there is replaced.

    Its logs get a new owner, itself included: what its earlier life still saves is refused.
    Logs that others read go over to it once they let go of them.
    """
    members = _alive(group.members, now_us)
    joined = group.generation + 1
    members[member] = GroupMember(tuple(sorted(set(logs))), now_us + ttl_us, joined)
    owners = dict(group.owners)
    for log, own in group.owners.items():
        if own.member == member:
            owners[log] = Owner("", joined, own.heir)
        elif own.heir == member:
            owners[log] = replace(own, heir="", due_us=0)
    return _assign(replace(group, members=members, owners=owners), now_us)


def leave(group: Group, member: str, generation: int, now_us: int) -> Group:
    """`member` reads no more; its logs go to the others at once.

    Args:
        generation: that it was told of last. A late word of an earlier life ends no later one.
    """
    known = group.members.get(member)
    if known is None or generation < known.joined:
        return group
    members = {name: value for name, value in group.members.items() if name != member}
    return _assign(replace(group, members=members), now_us)


def beat(group: Group, member: str, generation: int, now_us: int, ttl_us: int) -> Group:
    """`member` is there; members that were not heard of lose their logs, and so do those that
    were to let go of some and have not in time.

    Args:
        generation: in which it joined, or a later one that it was told of.
    Raises:
        Fenced: it is no member any more, or a later life of it is: it has to join again.
    """
    known = group.members.get(member)
    if known is None or generation < known.joined:
        raise Fenced(f"{member} is no member any more: join again", group.generation)
    members = {**_alive(group.members, now_us), member: replace(known, expires_us=now_us + ttl_us)}
    is_due = any(own.heir and own.due_us <= now_us for own in group.owners.values())
    if members.keys() == group.members.keys() and not is_due:
        return replace(group, members=members)
    return _assign(replace(group, members=members), now_us)


def give_up_absent(group: Group, now_us: int) -> Group:
    """Members that were not heard of lose their logs. Also where no member is left to say so: the
    last one may have been killed, and a consumer without members could never save again."""
    members = _alive(group.members, now_us)
    if members.keys() == group.members.keys():
        return group
    return _assign(replace(group, members=members), now_us)


def let_go(group: Group, member: str, logs: Iterable[str], generation: int) -> Group:
    """`member` gives none of `logs` out any more: those that have an heir are its from now on.

    Args:
        generation: that `member` was told of last; where it was replaced since, nothing changes.
    """
    now = group.generation + 1
    owners = dict(group.owners)
    for log in logs:
        own = group.owners.get(log)
        if own is not None and own.member == member and own.since <= generation and own.heir:
            owners[log] = Owner(own.heir, now)
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
) -> Group:
    """Move positions forward; all of them or none.

    Args:
        member: who saves; "" for a consumer without members.
        generation: that `member` was told of last.
        expected: positions that must be there now, 0 for none: a compare-and-set. One that
            was saved already, by a try whose answer was lost, is as good.
        reset: let positions go back, whoever owns the logs.
    Raises:
        Fenced: a log has had another owner since that generation, or has members and the
            saver is none, or a position is not the expected one.
        Rejected: a position would go back.
    """
    for log, was in (expected or {}).items():
        now = group.positions.get(log, 0)
        if now not in (was, positions.get(log, was)):
            raise Fenced(f"{log} stands at {now}, not at {was}: somebody saved in between")
    for log, lsn in positions.items():
        own = group.owners.get(log)
        if own is not None and not reset and not _may_save(own, member, generation):
            reads = f"by {own.member}" if own.member else "by nobody"
            raise Fenced(f"{log} is read {reads} since generation {own.since}", group.generation)
        if lsn < group.positions.get(log, 0) and not reset:
            raise Rejected(
                f"{log} stands at {group.positions[log]}; going back to {lsn} takes a reset"
            )
    return replace(group, positions={**group.positions, **positions})


def _alive(members: Mapping[str, GroupMember], now_us: int) -> dict[str, GroupMember]:
    return {name: value for name, value in members.items() if value.expires_us > now_us}


def _may_save(own: Owner, member: str, generation: int) -> bool:
    """A log that nobody reads any more is open to a consumer without members, and not to one
    that was its member once."""
    return own.member == member and (not member or own.since <= generation)


def _assign(group: Group, now_us: int) -> Group:
    """Share the logs out anew: evenly, and moving as few as that allows."""
    generation = group.generation + 1
    share: dict[str, list[str]] = {name: [] for name in sorted(group.members)}
    logs = sorted({log for value in group.members.values() for log in value.logs})
    takers = {log: [name for name in share if log in group.members[name].logs] for log in logs}
    # Who is to read each log in the end.
    target: dict[str, str] = {}
    for log in logs:
        own = group.owners.get(log)
        for name in () if own is None else (own.heir, own.member):
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
        owners[log] = _next_owner(own, target.get(log, ""), stays, generation, now_us)
    return replace(group, generation=generation, owners=owners)


def _next_owner(
    own: Owner, target: str, stays: GroupMember | None, generation: int, now_us: int
) -> Owner:
    """Who reads a log from now on, and who after that.

    Args:
        stays: its owner, where that is there and willing to read it.
    """
    if own.member == target:
        return replace(own, heir="", due_us=0)
    if stays is None:
        return Owner(target, generation)
    due_us = own.due_us if own.heir == target else stays.expires_us
    if due_us <= now_us:
        return Owner(target, generation)
    return replace(own, heir=target, due_us=due_us)


def _least(share: Mapping[str, Sequence[str]], names: Iterable[str]) -> str:
    return min(names, key=lambda name: (len(share[name]), name))


def _even_out(
    share: dict[str, list[str]], takers: Mapping[str, Sequence[str]], target: dict[str, str]
) -> None:
    """Move logs from members that have two more than another one that would take them."""
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
    left = {log for log in (*group.positions, *group.owners) if log.isdigit()} - read
    return sorted(left, key=int)


def without_logs(group: Group, gone: Collection[str]) -> Group:
    """A consumer without what it has of these logs."""
    owners = {log: own for log, own in group.owners.items() if log not in gone}
    positions = {log: lsn for log, lsn in group.positions.items() if log not in gone}
    return replace(group, owners=owners, positions=positions)


def is_by_name(log: str) -> bool:
    """Whether a log is kept by its name, as older versions did, and not by its number."""
    return not log.isdigit()


def names_in(group: Group) -> set[str]:
    """The names that a consumer's logs are kept by, none in an entry of today's form."""
    logs = {*group.positions, *group.owners}
    logs.update(log for member in group.members.values() for log in member.logs)
    return set(filter(is_by_name, logs))


def by_number(group: Group, numbers: Mapping[str, int]) -> Group:
    """A consumer that was kept by names, in today's form.

    A position goes to the log that has the name now, and one of a name without a log is nobody's.
    Its members are of clients that know of no numbers: they are out, and told so by their beats.

    Args:
        numbers: of the names in it that lead to a log.
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
