"""A small world in which a ledger is written and recovered, by the rules alone.

One writer, two recoverers and a few nodes send one another messages through a bag: a message may
be late, come twice or not at all, and whoever waits for its answer may give it up at any time; it
may still arrive after that. Nodes stop and come back, one loses its disk or one copy rots, a node
is read-only for a while. The writer dies or closes, the recoverers begin anew whenever they like.
Compare-and-sets are messages too, so their answers are lost as others are. All of it is drawn from
a seed. `check` says what must hold at any time, `finish` lets all come to rest.

The real roles will do the same over a network; what the rules get wrong is found here first.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from cordwood.ledger import NO_ENTRY, Fragment, LedgerMetadata, LedgerState, Striping, Versioned
from cordwood.protocol import ledger_recovery as recovering
from cordwood.protocol import ledger_writer as writing
from cordwood.protocol.ledger_recovery import LedgerRecovery
from cordwood.protocol.ledger_writer import LedgerWriter, Refusal, WriterLimits
from cordwood.quorum.ensemble import Answer, write_set

ENTRIES = 7
SHAPES = (Striping(3, 3, 2), Striping(3, 3, 2), Striping(4, 3, 2), Striping(3, 2, 2))
LATE = 120.0
"""Steps that the latest messages take."""

WRITER = 0
RECOVERERS = (1, 2)


class Copy(NamedTuple):
    """An entry as it is sent and kept."""

    size: int
    length: int
    lac: int
    rotten: bool = False


@dataclass
class WorldNode:
    """A node; what it has is on its disk before it answers."""

    number: int
    up: bool = True
    read_only: bool = False
    fenced: bool = False
    lost: bool = False
    """It lost its disk, and was in the last ensemble of a ledger that was not closed."""
    saw: bool = False
    lac: int = NO_ENTRY
    copies: dict[int, Copy] = field(default_factory=dict)

    def told(self) -> int:
        """The highest LAC that it was told."""
        return max([self.lac, *(copy.lac for copy in self.copies.values())])


@dataclass(eq=False)
class Ask:
    """A message to a node or to the metadata store, node 0; `open` while it is waited for."""

    client: int
    attempt: int
    what: object
    node: int
    copy: Copy | None = None
    not_before: float = 0.0
    open: bool = True


class Reply(NamedTuple):
    ask: Ask
    answer: object


class World:
    """See the module."""

    writer_kind: type[LedgerWriter] = LedgerWriter
    recovery_kind: type[LedgerRecovery] = LedgerRecovery
    reads_fence = True
    adds_many = True
    """Whether several entries may be added at once."""
    count = 5
    shapes = SHAPES

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.is_narrow = self.random.random() < 0.5
        self.striping = self.shapes[0 if self.is_narrow else seed % len(self.shapes)]
        self.nodes = {n: WorldNode(n) for n in range(1, self.count + 1)}
        first = tuple(self.random.sample(sorted(self.nodes), self.striping.ensemble))
        metadata = LedgerMetadata(1, self.striping, (Fragment(0, first),))
        self.store = Versioned(metadata, 1)
        limits = WriterLimits(
            entries_max=self.random.choice([2, 4, 100]),
            quorum_timeout_s=None if self.is_narrow else self.random.choice([None, 40.0]),
            changes_max=self.random.choice([None, 3]),
            delays_change=self.random.random() < 0.3,
        )
        self.writer: LedgerWriter | None = self.writer_kind(self.store, limits)
        self.recoveries: dict[int, LedgerRecovery] = {}
        self.read: dict[tuple[int, int, int], Copy] = {}
        """What a recoverer read, by its number, attempt and entry."""
        self.attempts = dict.fromkeys((WRITER, *RECOVERERS), 1)
        self.bag: list[Ask] = []
        self.replies: list[Reply] = []
        self.asked: list[Ask] = []
        self.now = 0.0
        self.lags_by_kind = self.random.random() < 0.6
        self.lags: dict[tuple[int, str, int], float] = {}
        self.unrest = self.random.choice([0.5, 2])
        self.zeal = self.random.choice([0.3, 0.8])
        self.weariness = self.random.choice([0.02, 0.15])
        self.haste = self.random.choice([2, 10])
        self.impatience = self.random.choice([2, 5])
        self.entries = self.random.choice([2, 3, ENTRIES])
        self.is_deaf = self.random.random() < 0.5
        """The writer waits for every answer, and learns from nodes only what others do."""
        self.recoverers = RECOVERERS
        if self.is_narrow:
            self.be_narrow()
        self.losses = 0
        self.hurt: set[tuple[int, int]] = set()
        """Nodes and entries of which a copy was lost."""
        self.calm = False
        self.sizes: list[int] = []
        self.acked: list[int] = []
        self.not_stored: list[int] = []
        self.writer_ended = False
        self.ends: list[tuple[int, int]] = []
        self.closed: LedgerMetadata | None = None
        self.met: dict[str, int] = {}

    def be_narrow(self) -> None:
        """Few entries and few faults: what is left is the order of messages, and more of it."""
        self.lags_by_kind = self.is_deaf = True
        self.unrest, self.zeal, self.haste, self.impatience = 0.1, 1, 10, 0.2
        self.weariness = 0.02
        self.entries = self.random.choice([1, 2])
        self.recoverers = RECOVERERS[:1]

    def meet(self, what: str) -> None:
        self.met[what] = self.met.get(what, 0) + 1

    # What happens.

    def step(self) -> None:
        """One thing happens."""
        self.now += 1
        acts = [
            (self.add, self.haste), (self.deliver, 16), (self.answer, 16), (self.lose, 0.5),
            (self.give_up, self.impatience), (self.crash, self.unrest), (self.rot, 0.3),
            (self.come_back, 2 * self.unrest), (self.turn, self.unrest), (self.tick, 1),
            (self.close, self.weariness), (self.die, self.weariness),
            (self.recover, self.zeal), (self.hear, 0.3),
        ]  # fmt: skip
        act = self.random.choices([a for a, _ in acts], [w for _, w in acts])[0]
        act()

    def add(self) -> None:
        writer = self.writer
        if writer and writer.is_open and writer.has_room and len(self.sizes) < self.entries:
            sizes = [self.random.randint(1, 9)]
            while (
                self.adds_many
                and len(self.sizes) + len(sizes) < self.entries
                and writer.has_room_behind(len(sizes), sum(sizes))
                and self.random.random() < 0.5
            ):
                sizes.append(self.random.randint(1, 9))
            self.sizes += sizes
            self.run_writer(writer.on_add(sizes, self.now))

    def deliver(self) -> None:
        """A message arrives; sometimes it will once more."""
        ready = [ask for ask in self.bag if self.calm or ask.not_before <= self.now]
        if not ready:
            return
        ask = self.random.choice(ready)
        if self.calm or self.random.random() < 0.9:
            self.bag.remove(ask)
        if ask.node == 0:
            self.replies.append(Reply(ask, self.write_metadata(ask.what)))
        elif self.nodes[ask.node].up:
            self.replies.append(Reply(ask, self.on_node(self.nodes[ask.node], ask)))

    def answer(self) -> None:
        """An answer arrives."""
        if self.replies:
            place = self.random.randrange(len(self.replies))
            reply = self.replies.pop(place)
            self.hand_over(reply.ask, reply.answer)

    def give_up(self) -> None:
        """Somebody does not wait any longer for an answer."""
        waiting = [ask for ask in self.asked if ask.client != WRITER or not self.is_deaf]
        if waiting:
            ask = self.random.choice(waiting)
            self.hand_over(ask, self.silence(ask))

    def silence(self, ask: Ask) -> object:
        if ask.node == 0:
            return self.store
        return Refusal.FAILED if ask.client == WRITER else Answer.SILENT

    def lose(self) -> None:
        """A message or an answer is lost."""
        bags = [bag for bag in (self.bag, self.replies) if bag]
        if bags:
            bag = self.random.choice(bags)
            bag.pop(self.random.randrange(len(bag)))

    def crash(self) -> None:
        node = self.random.choice([*self.nodes.values()])
        node.up = False

    def come_back(self) -> None:
        """A node starts again, perhaps with an empty disk."""
        node = self.random.choice([*self.nodes.values()])
        if node.up:
            return
        node.up = True
        if not self.losses and self.random.random() < 0.4 and not self.calm:
            self.losses += 1
            self.hurt |= {(node.number, entry) for entry in range(ENTRIES)}
            node.copies.clear()
            node.lac, node.saw, node.fenced = NO_ENTRY, False, False
            metadata = self.store.metadata
            if metadata.state is not LedgerState.CLOSED and node.number in metadata.newest.nodes:
                self.meet("a node lost its disk")
                node.lost = node.fenced = True

    def rot(self) -> None:
        """One copy rots."""
        node = self.random.choice([*self.nodes.values()])
        if node.copies and not self.losses:
            self.losses += 1
            entry = self.random.choice(sorted(node.copies))
            node.copies[entry] = node.copies[entry]._replace(rotten=True)
            self.hurt.add((node.number, entry))

    def turn(self) -> None:
        """A node becomes read-only, or takes entries again."""
        node = self.random.choice([*self.nodes.values()])
        node.read_only = not node.read_only

    def tick(self) -> None:
        if self.writer:
            self.run_writer(self.writer.on_lac_tick() + self.writer.on_time(self.now))

    def close(self) -> None:
        if self.writer:
            self.run_writer(self.writer.on_close())

    def die(self) -> None:
        self.writer = None

    def hear(self) -> None:
        """The writer hears of the metadata."""
        if self.writer and not self.is_deaf:
            self.run_writer(self.writer.on_metadata_changed(self.store))

    def recover(self) -> None:
        """A recoverer begins; if it had begun before, what that sent may still arrive."""
        client = self.random.choice(self.recoverers)
        found = self.recoveries.get(client)
        if not self.is_narrow or found is None or found.stage in recovering.OVER:
            self.begin(client)

    def begin(self, client: int) -> None:
        self.attempts[client] += 1
        self.recoveries[client] = self.recovery_kind(self.store)
        self.run_recovery(client, self.recoveries[client].start())

    # Nodes and the store.

    def on_node(self, node: WorldNode, ask: Ask) -> object:
        """What a node does and answers."""
        what = ask.what
        if isinstance(what, writing.SendLac):
            node.saw = True
            node.lac = max(node.lac, what.lac)
            return None
        if isinstance(what, writing.SendEntry):
            if node.fenced:
                return Refusal.FENCED
            if node.read_only:
                return Refusal.READ_ONLY
            assert ask.copy is not None
            self.keep(node, what.entry, ask.copy)
            return True
        if isinstance(what, recovering.ReAdd):
            if node.read_only:
                return False
            assert ask.copy is not None
            self.keep(node, what.entry, ask.copy)
            return True
        if isinstance(what, recovering.AskFence):
            node.fenced = True
            if node.lost:
                return Answer.LOST_DATA
            if not node.saw:
                node.saw = True
                return Answer.NO_LEDGER
            return Answer.FOUND if node.told() != NO_ENTRY else Answer.NO_ENTRY
        assert isinstance(what, recovering.ReadEntry)
        if self.reads_fence:
            node.fenced = True
        copy = node.copies.get(what.entry)
        if copy is not None:
            return Answer.DAMAGED if copy.rotten else copy
        return Answer.LOST_DATA if node.lost else Answer.NO_ENTRY

    def keep(self, node: WorldNode, entry: int, copy: Copy) -> None:
        node.saw = True
        node.copies[entry] = copy
        self.hurt.discard((node.number, entry))

    def write_metadata(self, what: object) -> object:
        """A compare-and-set: the new version, or what is there."""
        assert isinstance(what, (writing.WriteMetadata, recovering.ClaimOrClose))
        if what.version != self.store.version:
            return self.store
        self.store = Versioned(what.metadata, what.version + 1)
        self.meet(f"metadata {what.metadata.state.value}")
        return self.store.version

    # Clients.

    def send(self, client: int, what: object, node: int, copy: Copy | None = None) -> None:
        lag = self.lag(client, type(what).__name__, node) if node else 0
        ask = Ask(client, self.attempts[client], what, node, copy, self.now + lag)
        self.bag.append(ask)
        self.asked.append(ask)

    def lag(self, client: int, kind: str, node: int) -> float:
        """Steps that a message takes at least. Some are so late that a whole recovery overtakes
        them: any of them, or all of one kind to one node."""
        if not self.lags_by_kind:
            return self.random.choice((0, 0, 0, 5, LATE))
        if (client, kind, node) not in self.lags:
            self.lags[client, kind, node] = self.random.choice((0, 0, 0, LATE, LATE))
        return self.lags[client, kind, node]

    def hand_over(self, ask: Ask, answer: object) -> None:
        """A client hears an answer; of its present attempt only. Of a compare-and-set it takes
        the first answer: it writes no two at once, and must not take one's answer for another's."""
        if ask.node == 0 and not ask.open:
            return
        ask.open = False
        if ask in self.asked:
            self.asked.remove(ask)
        if ask.attempt != self.attempts[ask.client]:
            return
        if ask.client == WRITER:
            if self.writer:
                self.run_writer(self.tell_writer(self.writer, ask, answer))
        else:
            recovery = self.recoveries[ask.client]
            self.run_recovery(ask.client, self.tell_recovery(recovery, ask, answer))

    def tell_writer(self, writer: LedgerWriter, ask: Ask, answer: object) -> list[writing.Effect]:
        what = ask.what
        if isinstance(what, writing.WriteMetadata):
            if isinstance(answer, Versioned):
                return writer.on_metadata_found(answer)
            assert isinstance(answer, int)
            return writer.on_metadata_written(answer)
        if isinstance(what, writing.SendEntry):
            if isinstance(answer, Refusal):
                return writer.on_failed(what.entry, ask.node, answer)
            return writer.on_stored(ask.node, what.entry)
        if isinstance(what, writing.SendLac) and isinstance(answer, Refusal):
            self.meet("a LAC was not taken")
            writer.on_lac_failed(ask.node, what.lac)
        return []

    def tell_recovery(
        self, recovery: LedgerRecovery, ask: Ask, answer: object
    ) -> list[recovering.Effect]:
        what = ask.what
        if isinstance(what, recovering.ClaimOrClose):
            if isinstance(answer, Versioned):
                return recovery.on_metadata_found(answer)
            assert isinstance(answer, int)
            return recovery.on_metadata_written(answer)
        if isinstance(what, recovering.AskFence):
            assert isinstance(answer, Answer)
            # The LAC as of now: a node tells no lower one later.
            return recovery.on_fenced(ask.node, answer, self.nodes[ask.node].told())
        if isinstance(what, recovering.ReadEntry):
            if isinstance(answer, Copy):
                self.read[ask.client, ask.attempt, what.entry] = answer
                size, length = answer.size, answer.length
                return recovery.on_read(what.entry, ask.node, Answer.FOUND, size, length)
            assert isinstance(answer, Answer)
            return recovery.on_read(what.entry, ask.node, answer)
        assert isinstance(what, recovering.ReAdd)
        return recovery.on_readded(what.entry, ask.node, answer is True)

    def spares(self, taken: tuple[int, ...]) -> list[int]:
        found = [n for n, node in self.nodes.items() if n not in taken and node.up]
        return self.random.sample(found, len(found))

    def send_entry(self, what: writing.SendEntry) -> None:
        length = sum(self.sizes[: what.entry + 1])
        self.send(WRITER, what, what.node, Copy(self.sizes[what.entry], length, what.lac))

    def run_writer(self, effects: list[writing.Effect]) -> None:
        for effect in effects:
            assert self.writer is not None
            match effect:
                case writing.SendEntries(entries, node, lac):
                    # The answers come entry by entry all the same, which is harder.
                    for entry in entries:
                        self.send_entry(writing.SendEntry(entry, node, lac))
                case writing.SendEntry():
                    self.send_entry(effect)
                case writing.SendLac(node, _):
                    self.send(WRITER, effect, node)
                case writing.WriteMetadata():
                    self.send(WRITER, effect, 0)
                case writing.PickNodes(places, taken):
                    picked = dict(zip(places, self.spares(taken), strict=False))
                    self.meet("an ensemble changed" if picked else "no node was left")
                    self.run_writer(self.writer.on_nodes_picked(picked))
                case writing.Acked(first, last):
                    assert not self.writer_ended, "an ack after the end"
                    assert len(self.acked) == first <= last, "acks come in the order of entries"
                    self.acked += range(first, last + 1)
                case writing.Failed(entry, outcome):
                    assert entry >= len(self.acked), "an entry that was acknowledged failed"
                    self.meet(f"outcome {outcome.value}")
                    if outcome is writing.Outcome.NOT_STORED:
                        self.not_stored.append(entry)
                case writing.Ended(end, last, length):
                    self.writer_ended = True
                    self.meet(f"writer {end.value}")
                    if self.writer.metadata.state is LedgerState.CLOSED:
                        self.ends.append((last, length))

    def run_recovery(self, client: int, effects: list[recovering.Effect]) -> None:
        recovery = self.recoveries[client]
        for effect in effects:
            match effect:
                case recovering.AskFence(node) | recovering.ReadEntry(_, node):
                    self.send(client, effect, node)
                case recovering.ReadStrays(entry):
                    copies = [
                        node.copies[entry]
                        for node in self.nodes.values()
                        if node.up and entry in node.copies
                    ]
                    lengths = [each.length for each in copies if not each.rotten]
                    self.meet("strays")
                    self.run_recovery(client, recovery.on_strays(entry, next(iter(lengths), None)))
                case recovering.ReAdd(entry, node):
                    copy = self.read[client, self.attempts[client], entry]
                    self.send(client, effect, node, copy)
                case recovering.ClaimOrClose():
                    self.send(client, effect, 0)
                case recovering.PickSpare(entry, place, taken):
                    found = next(iter(self.spares(taken)), None)
                    self.meet("a spare" if found else "no spare")
                    self.run_recovery(client, recovery.on_spare_picked(entry, place, found))
                case recovering.Recovered(last, length):
                    self.meet("recovered")
                    self.ends.append((last, length))
                case recovering.RecoveryFailed(failure, _):
                    self.meet(f"recovery: {failure.value}")

    # What must hold.

    def check(self) -> None:
        """What holds at any time."""
        metadata = self.store.metadata
        for node in self.nodes.values():
            assert node.told() < len(self.acked), "a LAC past what is acknowledged"
        for entry in self.acked:
            self.check_readable(metadata, entry)
        if metadata.state is not LedgerState.CLOSED:
            assert not self.ends, "an end of a ledger that is not closed"
            return
        if self.closed is None:
            self.closed = metadata
        assert metadata == self.closed, "a closed ledger changed"
        assert {*self.ends} <= {(metadata.last, metadata.length)}, "two ends"
        assert metadata.last >= len(self.acked) - 1, "an ack past the end"
        assert metadata.length == sum(self.sizes[: metadata.last + 1]), "a wrong length"
        assert all(entry > metadata.last for entry in self.not_stored), "kept, and said not to be"
        for entry in range(metadata.last + 1):
            self.check_readable(metadata, entry)

    def check_readable(self, metadata: LedgerMetadata, entry: int) -> None:
        """A reader finds the entry where the metadata says, as it was written, and so it does
        after more losses: Qa copies, without those that were lost."""
        nodes = metadata.nodes_at(entry)
        places = [nodes[place] for place in write_set(entry, self.striping)]
        good = [self.nodes[n].copies[entry] for n in places if entry in self.nodes[n].copies]
        intact = [copy for copy in good if not copy.rotten]
        hurt = sum((n, entry) in self.hurt for n in places)
        assert len(intact) >= self.striping.ack - hurt, f"entry {entry} has too few copies"
        assert intact, f"entry {entry} is lost"
        for copy in intact:
            same = (copy.size, copy.length) == (self.sizes[entry], sum(self.sizes[: entry + 1]))
            assert same, f"entry {entry} is not what was written"

    def tell_quietly(self) -> None:
        """No more faults and no more entries: the writer tells its LAC until no node is asked."""
        self.calm = True
        for node in self.nodes.values():
            node.up, node.read_only = True, False
        for _ in range(3 + ENTRIES):
            while self.bag or self.replies:
                self.deliver()
                self.answer()
                self.check()
            for ask in [*self.asked]:
                self.hand_over(ask, self.silence(ask))
            self.tick()

    def check_told(self) -> None:
        """Each member knows how far a quiet ledger is confirmed: no entry tells it any more."""
        assert self.writer is not None
        for number in self.writer.ensemble:
            told = self.nodes[number].told()
            assert told == self.writer.lac, f"node {number} knows {told}, not {self.writer.lac}"

    def finish(self) -> None:
        """No more faults: both recoverers come to an end."""
        self.calm = True
        for node in self.nodes.values():
            node.up, node.read_only = True, False
        for _ in range(5):
            for client in RECOVERERS:
                found = self.recoveries.get(client)
                if found is None or found.stage is not recovering.Stage.DONE:
                    self.begin(client)
            while self.bag or self.replies:
                self.deliver()
                self.answer()
                self.check()
        assert self.store.metadata.state is LedgerState.CLOSED, "nobody could close it"
        for client in RECOVERERS:
            assert self.recoveries[client].stage is recovering.Stage.DONE
