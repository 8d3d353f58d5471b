"""Hand-made histories, written as a few lines a person can check by eye.

One event a line; each line comes one millisecond after the one before::

    run copies=2 racks=2 beyond     the header (3 copies in 1 rack without it)
    log 2                           the lines below are about log 2 (1 at first)
    take e1 n3                      the epoch store gives epoch 1 to node 3
    clean e1 e1n5                   … and notes that epoch 1 ended at e1n5
    w1 put a b @ e1n1 e1n2          an append and its ack
    w1 putgroup a b @ e1n1 e1n2     … of records that are one atomic group (`sendgroup`)
    w1 putbatch q:3:0 a b @ …       … that query q publishes as batch 3, try 0 (`sendbatch`)
    w1 send c d                     an append that goes on …
    w1 ack c e1n3 e1n4              … and ends, named by its first payload
    w1 fail c | w1 lose c           … or fails, or ends with unknown outcome (`… c Fenced`)
    w1 lose c after 3               … whose last try had ended 3 s before
    w1 again c | w1 again c Fenced  … or is made again, after a try that ended so
    w1 trims e1n4                   a client is about to trim
    w1 trimmed e1n4 n1 n2           … and is told that these nodes have
    n1 trims e1n4                   a node has, durably
    n1 scrubbed 1 rotten e1n2 found e1n1-e1n3   passes over its store; what rotted, what it found
    n1 retains e1n4 5               … is about to, as its log keeps records for 5 s
    n1 retains e1n4 5 bytes         … as its log keeps so many bytes
    w1 finds 7 e1n4 upto e1n9 [early]   find_time of append time 7 µs; it may lie too early
    w1 seeks k7 e1n2 e1n4 upto e1n9 [lost]   find_key of k7: before, at it (-: none); by a loss
    w1 bounds e1n2 e1n3 e1n9 e1n9 [partial] [~7 ~9]   extent: trim, first, last (-: none), tail;
                                    it does not know for sure; their append times
    w1 told Overloaded              another call of it ended with this error
    w1#2 send e within 5            session 2 of w1; a deadline of 5 s
    w1 put f @ e1n5 as 7/2          through producer 7 in its epoch 2 (`send f as 7/2`)
    w1 put g @ e1n6 expects e1n5    if the last record is at e1n5
    w1 put h i @ e1n7 e1n8 keys k - of keys k and none
    w1 fences 5 | w1 fenced 5 e3    w1 is about to take the log under token 5, and holds it from e3
    w1 put j @ e3n1 under 5         an append under it
    w1 polls e1n4                   w1 is told that it can read up to there, at least
    s1 releases e1n4                a sequencer
    w1 asks | w1 tail e1n4          a question for the tail; its answer
    r1 from e1n1 [to e1n9]          a reader starts
    r1 from e1n1 keys k l | heads   … that asks for these keys only, or for no payloads
    r1 from e1n1 barred             … that has no right to read
    r1 e1n1=a~7 e1n2=b e1n3-e2n0=bridge   ~7: of append time 7 µs; … is given records and gaps
    r1 end until|tail|stopped|error     (or `error Corrupt`)
    n1@rack1 e1n1=a e1n2=hole/2 e1n3-e1n4=c,d e1n5=!e   a dump; /2: seal epoch; !: not intact
    n1@rack1 e1n1=a@1,2,3           … with the nodes that the envelope names
    n1@rack1 trim=e1n2 tier=e1n1 e1n3=a   … of a node that has trimmed, and let go
    tier e1n1 to e1n4 e1n1=a e1n2-e1n4=hole   what main storage holds of it, both included
    n1 stores e1n1-e1n4 e1n5        what a node says is durable
    group g gen=2 a:m1/1=e1n3 b:m2/2   the store has consumer g in generation 2: log a is m1's
                                    since generation 1, and stands at e1n3
    group g gen=3 a:m1/3=e1n1*1     … a was reset once, to e1n1
    reset g a e1n1                  whoever asked for it, a line ago, is told so
    m1 of g asks | m1 of g saved a=e1n3   a member's question to save, and that it is saved
    m1:a of g from e1n1             a member's read; what it is given as for r1
    w1 says n1 read-only|read-write     an operator is about to say so of a node (`said`: and has)
    n1 hears read-only|read-write 40    a node knows; what it takes comes to 40 in its WAL or on
    n1 kept e1n1-e1n4 41            a block, at 41, at a node that knows that it stores nothing
    n1 scanned upto e1n9 [damaged] e1n1=a e1n2=hole/2     what it tells of its copies up to there
    n1 gives-up n2,n3 40            a node knows that these are gone (- for none), as `hears`
    n1 names n2,n3 e1n1-e1n4 41     a block, at 41, at a node that knows that these are gone
    accept n1                       an operator accepts what n1 lost
    fault crash [n1 n2] | ease crash | start n1 [rack1] [weight=0] | heal | wait 2.5
    name made 5 | name sought 5 deleted|found|named|listed …    a log, and how it is found at last
    begin n1 rack1                  a node begins to start there, and may never run
    disk n1 own|other               a machine is given a disk
    n1 knows e3 e1:1,2,3 e3:1,2     a node knows which nodes have epochs up to 3: from e1 on, …
    n1 has wal_bytes 5 of 9         a node holds so much of what has a limit
    lost n1 n2                      nodes are gone for good
    wiped n1                        a node's disk is gone for good, and an empty one there
    disks 2 [n1]                    so many disks were lost, and n1 is still said to be lost
    back n1 n2                      nodes that were away past the healing come back
    pace w1 [hampered] | paced w1   from here on w1's appends are timed | … up to here
    w1 puts 60 from e1n1 each 0.01  so many appends, one after another, each so many seconds long
    ledger made w1 | ledger adds 0 a | ledger acked 0 5 | ledger refused 0   a ledger, of which
                                    the first thing added is a, and is entry 5
    ledger read r1 5 a | ledger ends w1 5 [384] | ledger audited w1 [lost]   … is read, ends, and
                                    is audited
    idle nodes=3 for=2 steps=100    steps of all nodes together, in seconds that nobody wants them

A table of histories is a text file: a line ``== S1 S5: in words`` and then the lines
of one history, again and again. ``-- name`` begins a part that a line ``@name`` in a
history repeats. Text after a `#` that starts a line or follows a space is a comment.

A payload `a*` has a's id and other bytes; `?` has no id.
"""

from __future__ import annotations

import pathlib
import re
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from cordwood.block import GapKind
from cordwood.lsn import format_lsn, parse_lsn
from cordwood.sim.end_events import (
    DiskLost,
    DisksReplaced,
    NodesBack,
    NodesLost,
    PaceBegan,
    PaceEnded,
)
from cordwood.sim.events import AppendAgain, PositionsReset
from cordwood.sim.history import (
    AppendFailed,
    AppendInvoked,
    AppendOk,
    AppendUnknown,
    Batch,
    BlockStored,
    CallFailed,
    CleanEpochSet,
    DiskGiven,
    DumpedSlots,
    EndReason,
    EpochTaken,
    Event,
    FaultEased,
    FaultsHealed,
    FaultStruck,
    GapDelivered,
    GroupChanged,
    Idled,
    NodeDumped,
    NodeStarted,
    NodeStarting,
    PayloadMark,
    PositionsSaved,
    ReadEnded,
    ReadStarted,
    RecordDelivered,
    Released,
    RunStarted,
    SlotKind,
    TailAnswered,
    TierDumped,
)
from cordwood.sim.ledger_events import (
    EntryAcked,
    EntryAdded,
    EntryRead,
    EntryRefused,
    LedgerAudited,
    LedgerChecked,
    LedgerEnds,
    LedgerMade,
)
from cordwood.sim.name_events import LogMade, LogSought, NamedAppend, NamedRead, NameLeads
from cordwood.sim.node_events import EpochsNodes, Gauged, NodesetsKnown
from cordwood.sim.operator_events import (
    BlockKept,
    BlockNames,
    LossAccepted,
    NodeScanned,
    OrderAsked,
    OrderSeen,
    OrderTold,
    RebuildingKnown,
    StorageAsked,
    StorageKnown,
    StorageTold,
)
from cordwood.sim.position_events import (
    ExtentTold,
    KeyFound,
    NodeTrimmed,
    ReleasedTold,
    RetentionTrims,
    TimeFound,
    TrimAnswered,
    TrimAsked,
)
from cordwood.sim.scrub_events import NodeScrubbed
from cordwood.sim.token_events import FenceAnswered, FenceAsked

STEP_US = 1000
GAPS = {kind.value for kind in GapKind}

LEDGER = 7
"""What all lines about a ledger are about."""


def mark(name: str) -> PayloadMark:
    """The mark of a payload by its name in a script."""
    if name == "?":
        return PayloadMark(None, 1, 64)
    crc = sum(name.encode()) + (1 if name.endswith("*") else 0)
    return PayloadMark("w/" + name.rstrip("*"), crc, 64)


class Row(NamedTuple):
    """One history of a table: the promises it is about, what it shows, its lines."""

    promises: str
    name: str
    script: str


def read_table(path: pathlib.Path) -> list[Row]:
    """Read a table of histories."""
    rows: list[Row] = []
    parts: dict[str, str] = {}
    for section in re.split(r"^(?===|--)", path.read_text(), flags=re.MULTILINE)[1:]:
        title, _, script = section.partition("\n")
        script = re.sub(r"^@(\w+)$", lambda m: parts[m[1]], script, flags=re.MULTILINE)
        if title.startswith("--"):
            parts[title.split()[1]] = script
        else:
            promises, _, name = title.removeprefix("==").partition(":")
            rows.append(Row(promises.strip(), name.strip(), script))
    return rows


def play(script: str) -> list[Event]:
    """Turn a script into a history."""
    stage = _Stage()
    for line in script.splitlines():
        words = re.sub(r"(^|\s)#.*", "", line).split()
        if words:
            stage.time_us += STEP_US
            stage.on_line(words)
    return stage.events


class _Stage:
    def __init__(self) -> None:
        self.time_us = 0
        self.log = 1
        self.events: list[Event] = []
        self.ops: dict[str, int] = {}
        self.asked_us: dict[str, int] = {}

    def on_line(self, words: list[str]) -> None:
        verb = getattr(self, f"do_{words[0]}", None)
        if verb is not None:
            verb(*words[1:])
        elif re.match(r"m\d", words[0]):
            self.on_member(words[0], words[1:])
        elif re.match(r"w\d", words[0]):
            self.on_client(words[0], words[1], words[2:])
        elif re.match(r"r\d", words[0]):
            self.on_reader(words[0], words[1:])
        elif re.match(r"s\d", words[0]) and words[1] == "releases":
            self.add(Released(self.time_us, self.log, parse_lsn(words[2]), words[0]))
        elif re.match(r"n\d", words[0]) and words[1:2] == ["stores"]:
            for word in words[2:]:
                first, last = _span(word)
                self.add(BlockStored(self.time_us, int(words[0][1:]), self.log, first, last))
        elif re.match(r"n\d", words[0]) and words[1:2] == ["retains"]:
            node, lsn, kept = int(words[0][1:]), parse_lsn(words[2]), int(words[3])
            is_size = words[4:] == ["bytes"]
            how = ("space", 0, kept) if is_size else ("time", kept * 10**6, 0)
            self.add(RetentionTrims(self.time_us, node, self.log, lsn, *how))
        elif re.match(r"n\d", words[0]) and words[1:2] == ["scrubbed"]:
            at = words.index("found")
            rotten, damaged = (tuple(map(_span, some)) for some in (words[4:at], words[at + 1 :]))
            node, passes = int(words[0][1:]), int(words[2])
            self.add(NodeScrubbed(self.time_us, node, self.log, passes, rotten, damaged))
        elif re.match(r"n\d", words[0]) and words[1:2] == ["knows"]:
            history = tuple(_entry(word) for word in words[3:])
            node, epoch = int(words[0][1:]), int(words[2][1:])
            self.add(NodesetsKnown(self.time_us, node, self.log, epoch, history))
        elif re.match(r"n\d", words[0]) and words[1:2] == ["hears"]:
            node, read_only = int(words[0][1:]), words[2] == "read-only"
            self.add(StorageKnown(self.time_us, node, read_only, int(words[3])))
        elif re.match(r"n\d", words[0]) and words[1:2] == ["kept"]:
            first, last = _span(words[2])
            kept = BlockKept(self.time_us, int(words[0][1:]), self.log, first, last, int(words[3]))
            self.add(kept)
        elif re.match(r"n\d", words[0]) and words[1:2] == ["scanned"]:
            is_damaged = words[4:5] == ["damaged"]
            told = tuple(replace(_slots(word), payloads=()) for word in words[4 + is_damaged :])
            node, stop = int(words[0][1:]), parse_lsn(words[3]) + 1
            self.add(NodeScanned(self.time_us, node, self.log, stop, told, is_damaged))
        elif re.match(r"n\d", words[0]) and words[1:2] in (["gives-up"], ["names"]):
            node, some = int(words[0][1:]), words[2].replace("-", "").split(",")
            named = tuple(int(word[1:]) for word in some if word)
            if words[1] == "gives-up":
                self.add(RebuildingKnown(self.time_us, node, named, int(words[3])))
            else:
                place = (*_span(words[3]), named, int(words[4]))
                self.add(BlockNames(self.time_us, node, self.log, *place))
        elif re.match(r"n\d", words[0]) and words[1:2] == ["has"]:
            node, value, limit = int(words[0][1:]), int(words[3]), int(words[5])
            self.add(Gauged(self.time_us, node, words[2], value, limit))
        elif re.match(r"n\d", words[0]) and words[1:2] == ["trims"]:
            node, lsn = int(words[0][1:]), parse_lsn(words[2])
            self.add(NodeTrimmed(self.time_us, node, self.log, lsn))
        elif re.match(r"n\d", words[0]):
            node, rack = words[0][1:].split("@")
            trim = parse_lsn(words.pop(1)[5:]) if words[1:] and words[1][:5] == "trim=" else 0
            tier = parse_lsn(words.pop(1)[5:]) if words[1:] and words[1][:5] == "tier=" else 0
            slots = tuple(_slots(word) for word in words[1:])
            self.add(NodeDumped(self.time_us, int(node), rack, self.log, slots, trim, tier))
        else:
            raise AssertionError(f"no such line: {' '.join(words)}")

    def add(self, event: Event) -> None:
        self.events.append(event)

    def do_tier(self, *words: str) -> None:
        """`tier e1n1 to e1n4 …`, or `tier unreadable` in words."""
        if words[0] == "unreadable":
            self.add(TierDumped(self.time_us, self.log, 1, 2, (), "a checksum"))
            return
        slots = tuple(_slots(word) for word in words[3:])
        span = parse_lsn(words[0]), parse_lsn(words[2]) + 1
        self.add(TierDumped(self.time_us, self.log, *span, slots))

    def do_run(self, *words: str) -> None:
        numbers = dict(word.split("=") for word in words if "=" in word)
        copies, racks = int(numbers.get("copies", 3)), int(numbers.get("racks", 1))
        self.add(RunStarted(self.time_us, copies, racks, "beyond" in words))

    def do_log(self, log: str) -> None:
        self.log = int(log)

    def do_take(self, epoch: str, node: str = "n1") -> None:
        self.add(EpochTaken(self.time_us, self.log, int(epoch[1:]), int(node[1:])))

    def do_clean(self, epoch: str, tail: str) -> None:
        self.add(CleanEpochSet(self.time_us, self.log, int(epoch[1:]), parse_lsn(tail)))

    def do_fault(self, kind: str, *nodes: str) -> None:
        self.add(FaultStruck(self.time_us, kind, tuple(int(node[1:]) for node in nodes)))

    def do_ease(self, kind: str) -> None:
        self.add(FaultEased(self.time_us, kind))

    def do_begin(self, node: str, rack: str) -> None:
        self.add(NodeStarting(self.time_us, int(node[1:]), rack))

    def do_start(self, node: str, rack: str = "", weight: str = "weight=1") -> None:
        weighs = float(weight.removeprefix("weight="))
        self.add(NodeStarted(self.time_us, int(node[1:]), 0, rack, weighs))

    def do_disk(self, node: str, whose: str) -> None:
        self.add(DiskGiven(self.time_us, int(node[1:]), whose == "own"))

    def do_lost(self, *nodes: str) -> None:
        self.add(NodesLost(self.time_us, tuple(int(node[1:]) for node in nodes)))

    def do_back(self, *nodes: str) -> None:
        self.add(NodesBack(self.time_us, tuple(int(node[1:]) for node in nodes)))

    def do_wiped(self, node: str) -> None:
        self.add(DiskLost(self.time_us, int(node[1:])))

    def do_disks(self, lost: str, *waits: str) -> None:
        self.add(DisksReplaced(self.time_us, int(lost), tuple(int(node[1:]) for node in waits)))

    def do_accept(self, node: str) -> None:
        self.add(LossAccepted(self.time_us, int(node[1:])))

    def do_pace(self, client: str, how: str = "") -> None:
        self.add(PaceBegan(self.time_us, client, how == "hampered"))

    def do_paced(self, client: str) -> None:
        self.add(PaceEnded(self.time_us, client))

    def do_idle(self, *words: str) -> None:
        numbers = {name: float(value) for name, value in (word.split("=") for word in words)}
        length_us = round(numbers["for"] * 1e6)
        self.add(Idled(self.time_us, int(numbers["nodes"]), length_us, int(numbers["steps"])))

    def do_group(self, consumer: str, generation: str, *logs: str) -> None:
        owners: dict[str, tuple[str, int]] = {}
        positions: dict[str, int] = {}
        resets: dict[str, int] = {}
        for word in logs:
            log, _, rest = word.partition(":")
            owner, _, position = rest.partition("=")
            if owner != "-":
                member, _, since = owner.partition("/")
                owners[log] = (member, int(since))
            position, _, times = position.partition("*")
            if position:
                positions[log] = parse_lsn(position)
            if times:
                resets[log] = int(times)
        number = int(generation.removeprefix("gen="))
        self.add(GroupChanged(self.time_us, consumer, number, owners, positions, resets))

    def do_reset(self, consumer: str, log: str, lsn: str) -> None:
        """Reset, from the line before on."""
        self.add(
            PositionsReset(self.time_us, consumer, {log: parse_lsn(lsn)}, self.time_us - STEP_US)
        )

    def do_ledger(self, what: str, *words: str) -> None:
        if what == "made":
            self.add(LedgerMade(self.time_us, words[0], LEDGER))
        elif what == "adds":
            self.add(EntryAdded(self.time_us, "w1", LEDGER, int(words[0]), mark(words[1])))
        elif what == "acked":
            self.add(EntryAcked(self.time_us, "w1", LEDGER, int(words[0]), int(words[1])))
        elif what == "refused":
            self.add(EntryRefused(self.time_us, "w1", LEDGER, int(words[0]), "Closed"))
        elif what == "read":
            self.add(EntryRead(self.time_us, words[0], LEDGER, int(words[1]), mark(words[2])))
        elif what == "ends":
            length = int(words[2]) if words[2:] else 64 * (int(words[1]) + 1)
            self.add(LedgerEnds(self.time_us, words[0], LEDGER, int(words[1]), length))
        elif what == "checked":
            counts = [int(word) for word in words[1:]]
            self.add(LedgerChecked(self.time_us, words[0], LEDGER, *counts))
        else:
            self.add(LedgerAudited(self.time_us, words[0], LEDGER, "".join(words[1:])))

    def do_name(self, what: str, *words: str) -> None:
        if what == "leads":
            self.add(NameLeads(self.time_us, int(words[0]), self.time_us))
        elif what == "made":
            self.add(LogMade(self.time_us, "c", int(words[0])))
        elif what == "sought":
            ways = [way in words for way in ("deleted", "found", "named", "listed")]
            self.add(LogSought(self.time_us, int(words[0]), *ways))
        elif what == "lost":
            self.add(NamedAppend(self.time_us, "c", self.time_us, parse_lsn(words[0]), False))
        else:
            wanted, log, consumer = words[0].split("/")
            given = [(int(a), int(b)) for a, b in (word.split(":") for word in words[1:])]
            self.add(NamedRead(
                self.time_us, "c", self.time_us, int(wanted), int(log), consumer, given,
                what == "gap",
            ))  # fmt: skip

    def on_member(self, who: str, words: list[str]) -> None:
        if words[0] != "of":
            self.on_reader(who, words)
        elif words[2] == "asks":
            self.asked_us[who] = self.time_us
        elif words[2] == "saved":
            positions = {log: parse_lsn(at) for log, at in (word.split("=") for word in words[3:])}
            asked_us = self.asked_us.pop(who, self.time_us)
            self.add(PositionsSaved(self.time_us, words[1], who, positions, asked_us))
        else:
            start = parse_lsn(words[3])
            self.add(ReadStarted(self.time_us, who, self.log, start, None, words[1]))

    def do_heal(self) -> None:
        self.add(FaultsHealed(self.time_us))

    def do_wait(self, seconds: str) -> None:
        self.time_us += round(float(seconds) * 1e6)

    def _left_alone(self, words: list[str]) -> int:
        """When the last try ended: ``after 3`` says 3 s ago; 0 is now."""
        if "after" not in words:
            return 0
        _, seconds = words[-2:]
        del words[-2:]
        return self.time_us - int(seconds) * 10**6

    def on_client(self, who: str, verb: str, words: list[str]) -> None:
        client, _, session = who.partition("#")
        if verb == "asks":
            self.asked_us[client] = self.time_us
        elif verb == "tail":
            asked_us = self.asked_us.pop(client, self.time_us)
            answer = TailAnswered(self.time_us, client, self.log, parse_lsn(words[0]), asked_us)
            self.add(answer)
        elif verb in ("send", "put", "sendgroup", "putgroup", "sendbatch", "putbatch"):
            batch = None
            if verb.endswith("batch"):
                query, number, trial = words.pop(0).split(":")
                batch = Batch(query, int(number), int(trial))
            said = _clauses(words)
            names = said[""]
            op = self.ops[names[0]] = len(self.ops) + 1
            timeout_us = int(said.get("within", ["0"])[0]) * 10**6
            producer, _, epoch = said.get("as", ["0/0"])[0].partition("/")
            expected = parse_lsn(said["expects"][0]) if "expects" in said else None
            self.add(
                AppendInvoked(
                    self.time_us, op, client, self.log, tuple(map(mark, names)),
                    int(session or 0), timeout_us, "group" in verb or batch is not None,
                    int(producer), int(epoch), expected, batch,
                    int(said.get("under", ["0"])[0]),
                    tuple(key.replace("-", "") for key in said.get("keys", [])),
                )
            )  # fmt: skip
            if verb.startswith("put"):
                self.time_us += STEP_US
                self.add(AppendOk(self.time_us, op, tuple(map(parse_lsn, said["@"]))))
        elif verb == "ack":
            lsns = tuple(map(parse_lsn, words[1:]))
            self.add(AppendOk(self.time_us, self.ops[words[0]], lsns))
        elif verb == "fail":
            ended_us = self._left_alone(words)
            error = words[1] if words[1:] else "NoSequencer"
            self.add(AppendFailed(self.time_us, self.ops[words[0]], error, ended_us))
        elif verb == "lose":
            ended_us = self._left_alone(words)
            error = words[1] if words[1:] else "OutcomeUnknown"
            self.add(AppendUnknown(self.time_us, self.ops[words[0]], error, ended_us))
        elif verb == "again":
            error = words[1] if words[1:] else "OutcomeUnknown"
            self.add(AppendAgain(self.time_us, self.ops[words[0]], error, self.time_us))
        elif verb == "finds":
            lsn, tail = parse_lsn(words[1]), parse_lsn(words[3])
            is_exact = "early" not in words
            wanted_us = int(words[0])
            self.add(TimeFound(self.time_us, client, self.log, wanted_us, lsn, tail, is_exact))
        elif verb == "bounds":
            trim, first, last, tail = (0 if w == "-" else parse_lsn(w) for w in words[:4])
            times = [int(word[1:]) for word in words[4:] if word[:1] == "~"] or [0, 0]
            sure = "partial" not in words
            place = (trim, first, times[0], last, times[-1], tail, sure, sure)
            self.add(ExtentTold(self.time_us, client, self.log, *place, self.time_us))
        elif verb == "seeks":
            before, at, tail = (0 if w == "-" else parse_lsn(w) for w in (*words[1:3], words[4]))
            is_exact = "lost" not in words
            place = (words[0], before, at, tail, is_exact)
            self.add(KeyFound(self.time_us, client, self.log, *place))
        elif verb == "trims":
            self.add(TrimAsked(self.time_us, client, self.log, parse_lsn(words[0])))
        elif verb == "trimmed":
            nodes = tuple(int(word[1:]) for word in words[1:])
            done = TrimAnswered(self.time_us, client, self.log, parse_lsn(words[0]), nodes)
            self.add(done)
        elif verb == "puts":
            first, took_us = parse_lsn(words[2]), round(float(words[4]) * 1e6)
            for number in range(int(words[0])):
                name, place = f"p{first + number}", format_lsn(first + number)
                self.on_client(who, "send", [name])
                self.time_us += took_us
                self.on_client(who, "ack", [name, place])
        elif verb == "fences":
            self.add(FenceAsked(self.time_us, client, self.log, int(words[0])))
        elif verb == "fenced":
            token, epoch = int(words[0]), int(words[1][1:])
            self.add(FenceAnswered(self.time_us, client, self.log, token, epoch))
        elif verb in ("says", "said"):
            type_ = StorageAsked if verb == "says" else StorageTold
            node, read_only = int(words[0][1:]), words[1] == "read-only"
            self.add(type_(self.time_us, client, node, read_only))
        elif verb in ("orders", "ordered", "sees"):
            order = {"orders": OrderAsked, "ordered": OrderTold, "sees": OrderSeen}[verb]
            self.add(order(self.time_us, client, words[0], words[1]))
        elif verb == "polls":
            self.add(ReleasedTold(self.time_us, client, self.log, parse_lsn(words[0])))
        elif verb == "told":
            self.add(CallFailed(self.time_us, client, "tail", words[0]))
        else:
            raise AssertionError(f"a client cannot {verb}")

    def on_reader(self, who: str, words: list[str]) -> None:
        if words[0] == "from":
            said = _clauses(words[2:])
            until = parse_lsn(said["to"][0]) if "to" in said else None
            keys = tuple(said.get("keys", ()))
            self.add(
                ReadStarted(
                    self.time_us, who, self.log, parse_lsn(words[1]), until, "", keys,
                    "heads" in said,
                    "barred" in said,
                )
            )  # fmt: skip
        elif words[0] == "end":
            error = (words[2:] or ["Unreachable"])[0] if words[1] == "error" else ""
            self.add(ReadEnded(self.time_us, who, EndReason(words[1]), error))
        else:
            for word in words:
                self.add(self.delivery(who, word))

    def delivery(self, who: str, word: str) -> Event:
        place, what = word.split("=")
        first, last = _span(place)
        if what in GAPS:
            return GapDelivered(self.time_us, who, first, last, GapKind(what))
        what, _, append_us = what.partition("~")
        return RecordDelivered(self.time_us, who, first, mark(what), int(append_us or 0))


CLAUSES = ("@", "within", "as", "expects", "keys", "under", "to", "heads", "barred")


def _clauses(words: list[str]) -> dict[str, list[str]]:
    """The words of an append by what they follow; its payloads follow nothing."""
    found: dict[str, list[str]] = {"": []}
    clause = ""
    for word in words:
        if word in CLAUSES:
            clause = word
        found.setdefault(clause, []).append(word)
    return {clause: each[1:] if clause else each for clause, each in found.items()}


def _span(place: str) -> tuple[int, int]:
    first, _, last = place.partition("-")
    return parse_lsn(first), parse_lsn(last or first)


def _entry(word: str) -> EpochsNodes:
    since, _, named = word.partition(":")
    nodes, _, racks = named.partition("@")
    places = tuple(racks.split(",")) if racks else ()
    return EpochsNodes(int(since[1:]), tuple(map(int, nodes.split(","))), 2, places)


def _slots(word: str) -> DumpedSlots:
    word, _, copyset = word.partition("@")
    if copyset:
        return msgspec.structs.replace(_slots(word), copyset=tuple(map(int, copyset.split(","))))
    place, what = word.split("=")
    what, _, seal = what.partition("/")
    first, last = _span(place)
    intact, what = not what.startswith("!"), what.lstrip("!")
    if what in ("hole", "bridge"):
        return DumpedSlots(first, last, SlotKind(what), seal_epoch=int(seal or 0), intact=intact)
    if what.startswith("crc"):
        return DumpedSlots(first, last, SlotKind.DATA, (), int(what[3:]), intact, int(seal or 0))
    marks = tuple(map(mark, what.split(",")))
    assert len(marks) == last - first + 1, word
    return DumpedSlots(first, last, SlotKind.DATA, marks, 7, intact, int(seal or 0))
