"""Consumer groups: who of a consumer's members reads which log, and whose saves count.

A *consumer* is a name with a position in each log: the first LSN that it has not dealt
with yet. Members that join it share its logs: each log belongs to one of them. Every
change of that is a new *generation*. A member that was replaced at a log may go on for a
while without knowing; what it saves then is refused, because the log has had another owner
since. Clocks decide only when an absent member's logs are given away, never whose save
counts.

Positions go back only when somebody says so in as many words.

Source: design.md §6 ("leases are hints, never safety"), §7; LogDevice digest 1
(checkpoints), reliability digest §1 (Jepsen on Kafka's consumer groups).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    """Who reads a log, and since which generation."""

    member: str
    since: int


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer.

    Attributes:
        generation: grows with each change of who reads what; 0 where nobody ever joined.
        members: by name.
        owners: by log; a log that nobody will read has none.
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
    """
    members = _alive(group.members, now_us)
    joined = group.generation + 1
    members[member] = GroupMember(tuple(sorted(set(logs))), now_us + ttl_us, joined)
    kept = {log: own for log, own in group.owners.items() if own.member != member}
    return _assign(replace(group, members=members, owners=kept))


def leave(group: Group, member: str) -> Group:
    """`member` reads no more; its logs go to the others at once."""
    if member not in group.members:
        return group
    return _assign(replace(group, members={m: v for m, v in group.members.items() if m != member}))


def beat(group: Group, member: str, generation: int, now_us: int, ttl_us: int) -> Group:
    """`member` is there; members that were not heard of lose their logs.

    Args:
        generation: in which it joined, or a later one that it was told of.
    Raises:
        Fenced: it is no member any more, or a later life of it is: it has to join again.
    """
    known = group.members.get(member)
    if known is None or generation < known.joined:
        raise Fenced(f"{member} is no member any more: join again", group.generation)
    members = {**_alive(group.members, now_us), member: replace(known, expires_us=now_us + ttl_us)}
    if members.keys() == group.members.keys():
        return replace(group, members=members)
    return _assign(replace(group, members=members))


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
        if own is not None and not reset and (own.member != member or own.since > generation):
            raise Fenced(
                f"{log} is read by {own.member} since generation {own.since}", group.generation
            )
        if lsn < group.positions.get(log, 0) and not reset:
            raise Rejected(
                f"{log} stands at {group.positions[log]}; going back to {lsn} takes a reset"
            )
    return replace(group, positions={**group.positions, **positions})


def _alive(members: Mapping[str, GroupMember], now_us: int) -> dict[str, GroupMember]:
    return {name: value for name, value in members.items() if value.expires_us > now_us}


def _assign(group: Group) -> Group:
    """Share the logs out anew: evenly, and moving as few as that allows."""
    generation = group.generation + 1
    share: dict[str, list[str]] = {name: [] for name in sorted(group.members)}
    logs = sorted({log for value in group.members.values() for log in value.logs})
    takers = {log: [name for name in share if log in group.members[name].logs] for log in logs}
    owners: dict[str, Owner] = {}
    for log in logs:
        own = group.owners.get(log)
        if own is not None and own.member in takers[log]:
            owners[log] = own
            share[own.member].append(log)
    for log in logs:
        if log not in owners:
            name = _least(share, takers[log])
            owners[log] = Owner(name, generation)
            share[name].append(log)
    _even_out(share, takers, owners, generation)
    return replace(group, generation=generation, owners=owners)


def _least(share: Mapping[str, Sequence[str]], names: Iterable[str]) -> str:
    return min(names, key=lambda name: (len(share[name]), name))


def _even_out(
    share: dict[str, list[str]],
    takers: Mapping[str, Sequence[str]],
    owners: dict[str, Owner],
    generation: int,
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
                    owners[log] = Owner(taker, generation)
                    moved = True
                    break
            if moved:
                break
