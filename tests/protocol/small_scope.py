"""Seal and recovery in a world small enough to walk all of it.

Three nodes, two copies of each block; a sequencer of epoch 1 with three blocks; two
sequencers after it (epochs 2 and 3) that recover epoch 1, at the same time if they like.
A step is one message taken by one side. Loss, crashes and delays need no steps of their
own: a message that is lost, or whose receiver is down, is a step that is not taken (yet),
and a sequencer that crashed takes none any more. Nodes keep what they have on disk. A
sequencer that loses patience sends a block to another copyset, in a higher wave; the stores
of the old one may still arrive, and their confirmations count for nothing. What a node has
confirmed may be heard at any time after, whatever became of the copy since.

A recovery may be given up at any moment and tried again under the same seal, with other answers.
Each attempt has a place of its own in the order of copies. What a given-up attempt sent (copies,
or word of the end) may still arrive at any time after; it decides nothing any more. A node that no
recovery told of the end learns it in the end, and purges by it, at any time: so what it would then
show is looked at in every world.

The rules are the production ones: `SealTable`, `SealTally`, `Digest`, `is_enough`. Their
states are rebuilt from plain tuples, so that worlds can be compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from cordwood.block import BlockHeader, BlockKind, Envelope, EnvelopeFlag
from cordwood.lsn import ESN_MAX
from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.protocol import digest as digest_rule
from cordwood.protocol import seal as seal_rule
from cordwood.recovery import heard as heard_rule
from cordwood.storage.log_cache import CachedLog, EpochEnd

NODES = (0, 1, 2)
NODESET = Nodeset(tuple(Member(NodeId(n + 1), "") for n in NODES))
REPLICATION = Replication(2, 1)
COPYSETS = ((0, 1), (1, 2), (0, 2))
"""Of up to three blocks."""

EPOCH = 1 << 32


class Held(NamedTuple):
    """A copy on a node: `first` to `last` within the epoch, and what decides between copies.

    Attributes:
        wave: of a recovery's copy, the attempt that stored it.
    """

    first: int
    last: int
    kind: int
    by_recovery: bool
    seal: int
    wave: int = 1

    @property
    def order(self) -> tuple[bool, int, int]:
        return self.by_recovery, self.seal, self.wave


End = tuple[tuple[int, ...], int]
"""How an epoch ends: the LSNs with records, and the bridge."""


Told = tuple[int, int, int]
"""That the epoch is over: by which seal, which attempt, and above which LNG."""

NOT_TOLD: Told = (0, 0, 0)


class Disk(NamedTuple):
    """A node.

    Attributes:
        end: once it was told that the epoch is over, by which seal and attempt, and above which
            LNG.
    """

    seal: int = 0
    lng: int = 0
    held: frozenset[Held] = frozenset()
    end: Told = NOT_TOLD


class Recovery(NamedTuple):
    """One attempt of a sequencer to recover epoch 1. The next attempt stands behind it.

    Attributes:
        attempt: 0 for one that has not begun.
        given_up: the next has begun, and only what this one has sent may still come.
        sealed: by node the LNG it told, -1 while it has not answered.
        lng: once reading began, else -1.
        read: by node what it held; None while it has not answered.
        outcome: what is to be stored, once decided.
        stored: members of `copyset` that have it.
        cleaned: nodes that were told that the epoch is over.
    """

    seal: int
    attempt: int = 1
    given_up: str = ""
    sealed: tuple[int, ...] = (-1, -1, -1)
    lng: int = -1
    read: tuple[frozenset[Held] | None, ...] = (None, None, None)
    outcome: frozenset[Held] | None = None
    copyset: tuple[int, ...] = ()
    stored: frozenset[int] = frozenset()
    cleaned: frozenset[int] = frozenset()
    is_over: bool = False


class World(NamedTuple):
    """Everything.

    Attributes:
        waves: of each block, the latest.
        waves_max: how many copysets the first sequencer tries.
        places: of each block, which of `COPYSETS` its first wave goes to.
        taken: (block, wave, node) of every store that a node took, and so confirmed.
        heard: (block, node) confirmations of the latest wave that the first sequencer has heard.
        clean: how epoch 1 ended, as the epoch store has it.
    """

    waves: tuple[int, ...]
    waves_max: int
    places: tuple[int, ...]
    disks: tuple[Disk, ...]
    taken: frozenset[tuple[int, int, int]]
    heard: frozenset[tuple[int, int]]
    recoveries: tuple[Recovery, ...]
    clean: End | None = None


class Broken(AssertionError):
    """A promise that did not hold, and the world in which it did not."""


COPIES, ENDS = "copies", "ends"
"""What of a given-up attempt may still come: what it stored, or its word of the end."""


def start(
    blocks: int,
    recoveries: int,
    waves: int = 1,
    places: tuple[int, ...] = (0, 1, 2),
    attempts: int = 1,
) -> World:
    """Nothing has happened.

    Args:
        attempts: that the first recovery makes at most; the others make one.
    """
    return World(
        waves=(1,) * blocks,
        waves_max=waves,
        places=places[:blocks],
        disks=(Disk(),) * len(NODES),
        taken=frozenset(),
        heard=frozenset(),
        recoveries=(
            *(Recovery(2, attempt=0 if tried else 1) for tried in range(attempts)),
            *(Recovery(3 + n) for n in range(recoveries - 1)),
        ),
    )


def copyset_of(place: int, wave: int) -> tuple[int, ...]:
    """Where a wave goes of a block whose first one goes to `place`."""
    return COPYSETS[(place + wave - 1) % len(COPYSETS)]


def is_heard(world: World, block: int) -> bool:
    """Whether the whole copyset of a block's latest wave was heard."""
    nodes = copyset_of(world.places[block], world.waves[block])
    return all((block, node) in world.heard for node in nodes)


def acknowledged(world: World) -> int:
    """Blocks acknowledged, in order: those whose whole copyset was heard, and all before."""
    count = 0
    while count < len(world.waves) and is_heard(world, count):
        count += 1
    return count


def steps(world: World) -> Iterator[World]:
    """Every world that is one message away."""
    yield from _stores(world)
    for at, recovery in enumerate(world.recoveries):
        if not recovery.attempt:
            yield from _tried_again(world, at)
        elif recovery.given_up:
            yield from _late(world, at, recovery)
        elif not recovery.is_over:
            yield from _recovery_steps(world, at, recovery)


def _stores(world: World) -> Iterator[World]:
    """The first sequencer's stores arrive, or their confirmations do, or it waits no longer."""
    for block, latest in enumerate(world.waves):
        for wave in range(1, latest + 1):
            for node in copyset_of(world.places[block], wave):
                yield from _store(world, block, wave, node)
        if latest < world.waves_max and not is_heard(world, block):
            waves = (*world.waves[:block], latest + 1, *world.waves[block + 1 :])
            heard = frozenset(each for each in world.heard if each[0] != block)
            yield world._replace(waves=waves, heard=heard)


def _store(world: World, block: int, wave: int, node: int) -> Iterator[World]:
    message = (block, wave, node)
    disk = world.disks[node]
    if message in world.taken:
        if wave == world.waves[block] and (block, node) not in world.heard:
            yield world._replace(heard=world.heard | {(block, node)})
    elif admits(disk.seal, 0):
        held = inserted(disk.held, frozenset({copy_of(block, wave)}))
        # A store tells an LNG of when it was sent: the block itself was not acknowledged then,
        # and it may have been on its way for any time.
        for told in range(min(block, acknowledged(world)) + 1):
            after = _with_disk(world, node, disk._replace(lng=max(disk.lng, told), held=held))
            yield after._replace(taken=world.taken | {message})


def copy_of(block: int, wave: int) -> Held:
    """What the first sequencer sends."""
    return Held(block + 1, block + 1, BlockKind.DATA, False, 0, wave)


def _recovery_steps(world: World, at: int, mine: Recovery) -> Iterator[World]:
    if mine.lng < 0:
        yield from _seals(world, at, mine)
    elif mine.outcome is None:
        yield from _reads(world, at, mine)
    elif not set(mine.copyset) <= mine.stored:
        yield from _mends(world, at, mine)
    else:
        yield from _cleans(world, at, mine)


def _tried_again(world: World, at: int) -> Iterator[World]:
    """A recovery is given up, wherever it stands, and its next attempt begins."""
    before, mine = world.recoveries[at - 1], world.recoveries[at]
    if before.is_over or before.given_up or not before.attempt:
        return
    is_stored = before.outcome is not None and set(before.copyset) <= before.stored
    after = _with_recovery(world, at - 1, before._replace(given_up=ENDS if is_stored else COPIES))
    yield _with_recovery(after, at, mine._replace(attempt=before.attempt + 1))


def _late(world: World, at: int, mine: Recovery) -> Iterator[World]:
    """What a given-up attempt has sent arrives; a refusal is heard by nobody."""
    if mine.outcome is None:
        return
    late = _mends if mine.given_up == COPIES else _cleans
    for after in late(world, at, mine):
        if not after.recoveries[at].is_over:
            yield after


def _seals(world: World, at: int, mine: Recovery) -> Iterator[World]:
    for node in NODES:
        disk = world.disks[node]
        if mine.sealed[node] < 0:
            sealed = sealed_with(disk.seal, mine.seal)
            if sealed is None:
                yield _with_recovery(world, at, mine._replace(is_over=True))
                continue
            told = (*mine.sealed[:node], disk.lng, *mine.sealed[node + 1 :])
            after = _with_disk(world, node, disk._replace(seal=sealed))
            yield _with_recovery(after, at, mine._replace(sealed=told))
    heard = frozenset(node for node in NODES if mine.sealed[node] >= 0)
    if is_enough(heard):
        yield _with_recovery(world, at, mine._replace(lng=consensus_lng(mine.sealed)))


def _reads(world: World, at: int, mine: Recovery) -> Iterator[World]:
    for node in NODES:
        if mine.sealed[node] >= 0 and mine.read[node] is None:
            read = (*mine.read[:node], world.disks[node].held, *mine.read[node + 1 :])
            yield _with_recovery(world, at, mine._replace(read=read))
    heard = frozenset(node for node in NODES if mine.read[node] is not None)
    if is_enough(heard):
        outcome = decide(place_of(mine), mine.lng, mine.read)
        for chosen in itertools.combinations(sorted(heard), REPLICATION.copies):
            yield _with_recovery(world, at, mine._replace(outcome=outcome, copyset=chosen))


def place_of(mine: Recovery) -> tuple[int, int]:
    """Where what an attempt stores and tells stands in the order of copies."""
    return mine.seal, mine.attempt


@cache
def decide(
    place: tuple[int, int], lng: int, read: tuple[frozenset[Held] | None, ...]
) -> frozenset[Held]:
    """What the digest says, as copies of the attempt of this place."""
    found = digest_rule.Digest(1, EPOCH + lng)
    for held in read:
        found.add(_copy(each) for each in held or ())
    mend = found.mend()
    kept = [(c.header.first - EPOCH, c.header.last - EPOCH, BlockKind.DATA) for c in mend.blocks]
    holes = [(first - EPOCH, last - EPOCH, BlockKind.HOLE) for first, last in mend.holes]
    bridge = (mend.bridge - EPOCH, ESN_MAX, BlockKind.BRIDGE)
    return frozenset(Held(*each, True, *place) for each in (*kept, *holes, bridge))


def _mends(world: World, at: int, mine: Recovery) -> Iterator[World]:
    for node in set(mine.copyset) - mine.stored:
        disk = world.disks[node]
        if not admits(disk.seal, mine.seal):
            yield _with_recovery(world, at, mine._replace(is_over=True))
            continue
        assert mine.outcome is not None
        counting = in_time(mine.outcome, disk.end)
        after = _with_disk(world, node, disk._replace(held=inserted(disk.held, counting)))
        yield _with_recovery(after, at, mine._replace(stored=mine.stored | {node}))


def in_time(outcome: frozenset[Held], end: Told) -> frozenset[Held]:
    """What of a recovery's outcome a node takes that knows how the epoch ended. Only an attempt
    that was given up, or a rule of seals that is wrong, lets copies come that late."""
    return cleaned(outcome, end)


def inserted(held: frozenset[Held], new: frozenset[Held]) -> frozenset[Held]:
    """Of two copies of one range and kind the one of higher precedence stays."""
    best = {(each.first, each.last, each.kind): each for each in held}
    for each in new:
        known = best.get((each.first, each.last, each.kind))
        if known is None or each.order > known.order:
            best[each.first, each.last, each.kind] = each
    return frozenset(best.values())


def _cleans(world: World, at: int, mine: Recovery) -> Iterator[World]:
    asked = {node for node in NODES if mine.read[node] is not None}
    for node in asked - mine.cleaned:
        disk = world.disks[node]
        if disk.seal > mine.seal:
            yield _with_recovery(world, at, mine._replace(is_over=True))
            continue
        told = max(disk.end, told_by(mine))
        held = cleaned(disk.held, told)
        after = _with_disk(world, node, disk._replace(held=held, end=told))
        yield _with_recovery(after, at, mine._replace(cleaned=mine.cleaned | {node}))
    if asked <= mine.cleaned:
        after = _with_recovery(world, at, mine._replace(is_over=True))
        end = _end(mine)
        if world.clean is not None and world.clean != end:
            raise Broken(f"epoch 1 ends twice: {world.clean} and {end}", world)
        yield after._replace(clean=end)


def told_by(mine: Recovery) -> Told:
    """How an attempt tells nodes that the epoch is over."""
    return (*place_of(mine), mine.lng)


@cache
def cleaned(held: frozenset[Held], end: Told) -> frozenset[Held]:
    """What a node keeps that is told that the epoch is over."""
    seal, attempt, lng = end
    log = CachedLog()
    log.ends[1] = EpochEnd(seal, EPOCH + lng, attempt=attempt)
    return frozenset(each for each in held if log.counts(EPOCH + each.last, each.seal, each.wave))


def end_of(lng: int, outcome: frozenset[Held]) -> End:
    """How the epoch ends by one recovery."""
    kept = {each.first for each in outcome if each.kind == BlockKind.DATA}
    bridge = next(each.first for each in outcome if each.kind == BlockKind.BRIDGE)
    return tuple(sorted(kept | set(range(1, lng + 1)))), bridge


def _end(mine: Recovery) -> End:
    assert mine.outcome is not None
    return end_of(mine.lng, mine.outcome)


def check(world: World) -> None:
    """No acknowledged record is lost, whenever its acknowledgement came, each that is left has
    its copies, and no node that was told of the end shows another, or would once it purged.

    Raises:
        Broken: one is lost, or has not.
    """
    if world.clean is not None:
        records, bridge = world.clean
        lost = set(range(1, acknowledged(world) + 1)) - set(records)
        if lost:
            raise Broken(f"records {lost} were acknowledged; the epoch ends {world.clean}", world)
        for record in records:
            copies = sum(
                any(each.first == record and each.kind == BlockKind.DATA for each in disk.held)
                for disk in world.disks
            )
            if copies < REPLICATION.copies:
                raise Broken(f"record {record} of {world.clean} has {copies} copies", world)
        if max(records, default=0) >= bridge:
            raise Broken(f"the bridge is over a record: {world.clean}", world)
        for mine in world.recoveries:
            _check_shown(world, mine)
            if mine.is_over and is_all_cleaned(mine):
                _check_purged(world, mine)


def is_all_cleaned(mine: Recovery) -> bool:
    """Whether all that one recovery read were told of the end."""
    asked = {node for node in NODES if mine.read[node] is not None}
    return mine.outcome is not None and asked <= mine.cleaned


def is_shown_wrong(copy: Held, end: End, blocks: int) -> bool:
    """Whether a copy tells of another end."""
    covered = set(end[0]) & set(range(copy.first, min(copy.last, blocks) + 1))
    return bool(covered) != (copy.kind == BlockKind.DATA)


def _check_shown(world: World, mine: Recovery) -> None:
    """What nodes may show once they were told that the epoch is over is one outcome a slot."""
    if not is_all_cleaned(mine):
        return
    for node in mine.cleaned:
        for each in world.disks[node].held:
            if is_shown_wrong(each, _end(mine), len(world.waves)):
                raise Broken(f"node {node} shows {each}, and the epoch ends {_end(mine)}", world)


def _check_purged(world: World, mine: Recovery) -> None:
    """A node that heard of no end asks those that did, and keeps what counts by it."""
    for node, disk in enumerate(world.disks):
        for each in cleaned(disk.held, max(disk.end, told_by(mine))):
            if is_shown_wrong(each, _end(mine), len(world.waves)):
                raise Broken(f"node {node} purges, and shows {each}: {_end(mine)}", world)


def walk(first: World, visit: Callable[[World], object] = check) -> tuple[int, int]:
    """Visit every world that can come of `first`; how many there are, and how many ended.

    Raises:
        Broken: a promise does not hold in one of them.
    """
    seen, todo, ended = {first}, [first], 0
    while todo:
        world = todo.pop()
        visit(world)
        ended += world.clean is not None
        for after in steps(world):
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return len(seen), ended


def _table(seal: int) -> seal_rule.SealTable:
    table = seal_rule.SealTable()
    if seal:
        table.seal(1, seal)
    return table


@cache
def admits(sealed: int, seal_epoch: int) -> bool:
    return _table(sealed).admits(1, 1, seal_epoch)


@cache
def sealed_with(before: int, epoch: int) -> int | None:
    """The seal of a node that is asked to seal; None if it refuses."""
    table = _table(before)
    return table.of(1) if table.seal(1, epoch) else None


@cache
def consensus_lng(sealed: tuple[int, ...]) -> int:
    tally = seal_rule.SealTally(NODESET)
    for node, told in enumerate(sealed):
        if told >= 0:
            tally.on_sealed(NodeId(node + 1), {1: EPOCH + told}, 0)
    return tally.lng(1) - EPOCH


@cache
def is_enough(heard: frozenset[int]) -> bool:
    """As `seal_epoch` and `collect_digest` have it."""
    nodes = {NodeId(node + 1) for node in heard}
    return heard_rule.is_enough(nodes, NODESET, REPLICATION, {})


def forget() -> None:
    """Ask the rules anew: they may have been changed."""
    for each in (decide, cleaned, admits, sealed_with, consensus_lng, is_enough):
        each.cache_clear()


def _copy(held: Held) -> digest_rule.Copy[None]:
    header = BlockHeader(1, EPOCH + held.first, held.last - held.first + 1, 0, BlockKind(held.kind))
    flags = EnvelopeFlag.BY_RECOVERY if held.by_recovery else 0
    return digest_rule.Copy(header, Envelope((1, 2), held.wave, held.seal, 0, flags), None)


def _with_disk(world: World, node: int, disk: Disk) -> World:
    return world._replace(disks=(*world.disks[:node], disk, *world.disks[node + 1 :]))


def _with_recovery(world: World, at: int, mine: Recovery) -> World:
    all_of = world.recoveries
    return world._replace(recoveries=(*all_of[:at], mine, *all_of[at + 1 :]))
