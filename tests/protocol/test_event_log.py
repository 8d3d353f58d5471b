"""The event log: what each event makes of the rebuilding set, and what is said of nodes by it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.nodes import Authority, NodeId
from cordwood.protocol.event_log import (
    Verdict,
    apply,
    authorities,
    authority_of,
    gives_last,
    left_out,
    refuses,
    replay,
    with_holder,
    work_of,
)
from cordwood.rebuilding import (
    RANGES_MAX,
    Aborted,
    Acked,
    DonorProgress,
    IsRebuilt,
    NeedsRebuild,
    RebuildEvent,
    RebuildingSet,
    TimeRange,
    Undrained,
    Unrecoverable,
)

LETTERS = {
    Authority.UNDER_REPLICATED: "u",
    Authority.AUTHORITATIVE_EMPTY: "e",
    Authority.UNAVAILABLE: "d",
}

FIRST_LSN = 10


def event(text: str) -> RebuildEvent:
    """`lost 3/6` (of nodes 1 to 6), `done 3 by 1 @10`, … ; see the tables."""
    word, _, rest = text.partition(" ")
    numbers = [int(number) for number in re.findall(r"\d+", rest)]
    match word:
        case "lost" | "again" | "drain" | "insist":
            node, count = numbers[:2]
            version = numbers[2] if "@" in rest else None
            return NeedsRebuild(
                node, tuple(range(1, count + 1)), word == "drain", if_version=version,
                restart=word == "again", forced=word == "insist",
            )  # fmt: skip
        case "range":
            node, count, first, last = numbers
            return NeedsRebuild(node, tuple(range(1, count + 1)), ranges=(TimeRange(first, last),))
        case "done" | "unsure":
            node, donor, version = numbers
            return IsRebuilt(node, donor, version, word == "done")
        case "progress":
            donor, version, reached = numbers
            return DonorProgress(donor, version, reached)
        case "ack":
            return Acked(*numbers)
        case "abort":
            return Aborted(numbers[0], numbers[1] if "@" in rest else None)
        case "undrain":
            return Undrained(*numbers)
        case "gone":
            return Unrecoverable(*numbers)
    raise AssertionError(text)


def events(story: str) -> list[tuple[int, RebuildEvent]]:
    """Events joined by `;`, from LSN 10 on."""
    texts = [text.strip() for text in story.split(";") if text.strip()]
    return [(FIRST_LSN + at, event(text)) for at, text in enumerate(texts)]


def told(found: RebuildingSet) -> str:
    """`3e 4d`: as the tables have it."""
    return " ".join(f"{node}{LETTERS[it]}" for node, it in sorted(authorities(found).items()))


def verdicts(story: str) -> list[Verdict]:
    """What became of each event."""
    found, given = RebuildingSet(), []
    for lsn, each in events(story):
        found, verdict = apply(found, lsn, each)
        given.append(verdict)
    return given


ALL_OF_3 = "done 3 by 1 @10; done 3 by 2 @10; done 3 by 4 @10; done 3 by 5 @10; done 3 by 6 @10"


class TestStatuses:
    @pytest.mark.parametrize(
        ("story", "said"),
        [
            ("", ""),
            # A lost node may come back with its data, unless somebody says that it never will.
            ("lost 3/6", "3d"),
            ("lost 3/6; gone 3", "3u"),
            ("gone 3", ""),
            # Every donor has given: as if it had never been in a nodeset.
            (f"lost 3/6; {ALL_OF_3}", "3e"),
            ("lost 3/6; done 3 by 1 @10; done 3 by 2 @10; done 3 by 4 @10; done 3 by 5 @10", "3d"),
            # It says so itself when it is back; a drained one is to stay empty.
            (f"lost 3/6; {ALL_OF_3}; ack 3 @10", ""),
            (f"lost 3/6; {ALL_OF_3}; drain 3/6; ack 3 @10", "3e"),
            (f"lost 3/6; {ALL_OF_3}; drain 3/6; undrain 3", "3e"),
            (f"lost 3/6; {ALL_OF_3}; drain 3/6; undrain 3; ack 3 @10", ""),
            ("lost 3/6; ack 3 @10", "3d"),
            (f"lost 3/6; {ALL_OF_3}; lost 3/6", "3e"),
            # A drained node has its data until it gave all of it, and is a donor of its own.
            ("drain 3/6", ""),
            (f"drain 3/6; {ALL_OF_3}", ""),
            (f"drain 3/6; {ALL_OF_3}; done 3 by 3 @10", "3e"),
            ("drain 3/6; undrain 3", ""),
            # It dies half-way: what it had is lost, and the others are asked again …
            (f"drain 3/6; {ALL_OF_3}; lost 3/6", "3d"),
            # … unless it was done with its own part.
            ("drain 3/6; done 3 by 3 @10; done 3 by 1 @10; lost 3/6", "3d"),
            # A range only: the node stays in service, whatever happens to that.
            ("range 3/6 5 9", ""),
            ("range 3/6 5 9; lost 3/6", "3d"),
            # It is back with its data.
            ("lost 3/6; abort 3", ""),
            (f"lost 3/6; {ALL_OF_3}; abort 3", "3e"),
            # More than one.
            ("lost 3/6; lost 4/6", "3d 4d"),
            ("lost 3/6; lost 4/6; gone 3", "3u 4d"),
        ],
    )
    def test_what_is_said_of_nodes(self, story: str, said: str) -> None:
        assert told(replay(events(story))) == said

    def test_where_donors_are_unsure_all_that_may_come_back_is_waited_for(self) -> None:
        unsure = ALL_OF_3.replace("done 3 by 1", "unsure 3 by 1")
        assert told(replay(events(f"lost 3/6; {unsure}"))) == "3d"
        assert told(replay(events(f"lost 3/6; {unsure}; gone 3"))) == "3e"
        other = "; ".join(f"done 3 by {donor} @11" for donor in (1, 2, 5))
        two = f"lost 3/6; lost 4/6; {other}; unsure 3 by 6 @11; gone 3"
        assert told(replay(events(two))) == "3u 4d", "node 4 may have a block that no other has"
        assert told(replay(events(f"{two}; gone 4"))) == "3e 4u"
        assert told(replay(events(f"{two}; abort 4"))) == "3u", "asked again: node 4 has its data"

    def test_the_doubt_of_a_donor_outlives_the_donor(self) -> None:
        rest = "; ".join(f"done 3 by {donor} @12" for donor in (1, 2, 5, 6))
        story = f"lost 3/6; unsure 3 by 4 @10; lost 4/6; {rest}"
        assert told(replay(events(story))) == "3d 4d"
        assert told(replay(events(f"{story}; gone 3; gone 4"))) == "3e 4u"

    def test_a_node_that_no_donor_is_left_for_is_empty_only_if_nobody_may_come_back(self) -> None:
        story = "insist 1/2; insist 2/2"
        assert told(replay(events(story))) == "1d 2d"
        assert told(replay(events(f"{story}; gone 1"))) == "1u 2d"
        assert told(replay(events(f"{story}; gone 1; gone 2"))) == "1e 2e"


class TestVerdicts:
    @pytest.mark.parametrize(
        ("story", "verdict"),
        [
            ("lost 3/6", Verdict.TAKEN),
            ("lost 3/6; lost 3/6", Verdict.UNCHANGED),
            ("lost 3/6; again 3/6", Verdict.TAKEN),
            ("lost 3/6; range 3/6 1 2", Verdict.UNCHANGED),
            ("lost 7/6", Verdict.UNKNOWN_NODE),
            ("lost 3/6; lost 4/6 @10", Verdict.TAKEN),
            ("lost 3/6; lost 4/6 @9", Verdict.STALE),
            ("lost 3/6; lost 4/6; abort 3 @10", Verdict.STALE),
            ("lost 3/6; lost 4/6; abort 3 @11", Verdict.TAKEN),
            # 35 %: two of six, one of three, none of two.
            ("lost 3/6; lost 4/6; lost 5/6", Verdict.TOO_MANY),
            ("lost 3/6; lost 4/6; drain 5/6", Verdict.TOO_MANY),
            ("lost 3/6; lost 4/6; insist 5/6", Verdict.TAKEN),
            ("lost 1/3", Verdict.TAKEN),
            ("lost 1/2", Verdict.TOO_MANY),
            ("lost 3/6; lost 4/6; range 5/6 1 2", Verdict.TAKEN),
            ("range 5/6 1 2; lost 3/6; lost 4/6; lost 5/6", Verdict.TOO_MANY),
            (f"lost 3/6; {ALL_OF_3}; lost 4/6; lost 5/6", Verdict.TAKEN),
            # A node that is drained and lost counts once.
            ("drain 3/6; drain 4/6; lost 3/6", Verdict.TAKEN),
            ("drain 3/6; drain 3/6", Verdict.UNCHANGED),
            # Donors.
            ("done 3 by 1 @10", Verdict.UNKNOWN_NODE),
            ("lost 3/6; done 3 by 3 @10", Verdict.UNKNOWN_NODE),
            ("lost 3/6; done 3 by 1 @9", Verdict.STALE),
            ("lost 3/6; done 3 by 1 @10; done 3 by 1 @10", Verdict.UNCHANGED),
            ("lost 3/6; lost 4/6; done 3 by 4 @11", Verdict.UNKNOWN_NODE),
            ("lost 3/6; lost 4/6; done 3 by 1 @10", Verdict.STALE),
            ("lost 3/6; progress 1 @10 77", Verdict.TAKEN),
            ("lost 3/6; progress 3 @10 77", Verdict.UNKNOWN_NODE),
            ("lost 3/6; progress 1 @9 77", Verdict.STALE),
            # Coming back.
            ("ack 3 @10", Verdict.UNKNOWN_NODE),
            ("lost 3/6; ack 3 @10", Verdict.NOT_DONE),
            (f"lost 3/6; {ALL_OF_3}; ack 3 @9", Verdict.STALE),
            (f"lost 3/6; {ALL_OF_3}; drain 3/6; ack 3 @10", Verdict.DRAINED),
            (f"lost 3/6; {ALL_OF_3}; abort 3", Verdict.DONE_ALREADY),
            ("abort 3", Verdict.UNKNOWN_NODE),
            ("undrain 3", Verdict.UNKNOWN_NODE),
            ("lost 3/6; undrain 3", Verdict.UNCHANGED),
            ("lost 3/6; gone 3; gone 3", Verdict.UNCHANGED),
            ("drain 3/6; gone 3", Verdict.UNCHANGED),
            ("range 3/6 1 2; gone 3", Verdict.UNCHANGED),
            ("range 3/6 1 5; range 3/6 2 4", Verdict.UNCHANGED),
            ("range 3/6 1 5; range 3/6 2 7", Verdict.TAKEN),
        ],
    )
    def test_what_becomes_of_the_last_event(self, story: str, verdict: Verdict) -> None:
        assert verdicts(story)[-1] is verdict

    def test_an_event_that_comes_again_changes_nothing(self) -> None:
        after = replay(events("lost 3/6; done 3 by 1 @10"))
        assert apply(after, 10, event("lost 3/6")) == (after, Verdict.SEEN)
        assert apply(after, 11, event("gone 3")) == (after, Verdict.SEEN)

    def test_a_refused_event_moves_nothing_but_where_the_log_was_read_to(self) -> None:
        before = replay(events("lost 3/6"))
        after, verdict = apply(before, 11, event("ack 3 @10"))
        assert verdict is Verdict.NOT_DONE
        assert (after.through, after.version, after.lost) == (11, 10, before.lost)


class TestDonors:
    def donors(self, story: str, lost: int) -> tuple[str, str]:
        entry = replay(events(story)).entry(lost)
        assert entry is not None
        return "".join(map(str, entry.donors)), "".join(map(str, entry.done))

    @pytest.mark.parametrize(
        ("story", "donors", "done"),
        [
            ("lost 3/6", "12456", ""),
            ("drain 3/6", "123456", ""),
            ("drain 4/6; lost 3/6", "12456", ""),
            ("lost 4/6; lost 3/6", "1256", ""),
            # A donor is lost before it was done: those behind it have more to give.
            ("lost 3/6; done 3 by 1 @10; lost 4/6", "1256", ""),
            # It was done: what all have given stands.
            ("lost 3/6; done 3 by 1 @10; done 3 by 4 @10; lost 4/6", "1256", "1"),
            # It lost a range: likewise, and it is a donor still.
            ("lost 3/6; done 3 by 1 @10; range 4/6 1 2", "12456", ""),
            ("lost 3/6; done 3 by 1 @10; done 3 by 4 @10; range 4/6 1 2", "12456", "14"),
            # One that is drained has its data.
            ("lost 3/6; done 3 by 1 @10; drain 4/6", "12456", "1"),
            # A node is back with its data: it stands before those behind it.
            ("lost 4/6; lost 3/6; done 3 by 1 @11; abort 4", "12456", "1"),
            # Unsure, for want of that node: asked again.
            ("lost 4/6; lost 3/6; unsure 3 by 1 @11; abort 4", "12456", ""),
            ("drain 4/6; lost 3/6; done 3 by 4 @11; undrain 4", "12456", "4"),
        ],
    )
    def test_who_has_to_give_for_node_3(self, story: str, donors: str, done: str) -> None:
        assert self.donors(story, 3) == (donors, done)

    def test_a_drained_node_that_is_empty_is_waited_for_no_more(self) -> None:
        story = "drain 4/6; lost 3/6; " + "; ".join(f"done 4 by {n} @11" for n in (1, 2, 4, 5, 6))
        assert told(replay(events(story))) == "3d 4e"
        assert self.donors(story, 3) == ("1256", "")

    def test_that_a_node_is_empty_may_end_anothers_wait(self) -> None:
        others = "; ".join(f"done 3 by {n} @11; done 4 by {n} @11" for n in (1, 2, 5, 6))
        story = f"drain 4/6; lost 3/6; {others}; done 4 by 4 @11"
        assert told(replay(events(story))) == "3e 4e"

    def test_what_is_left_to_do(self) -> None:
        found = replay(events("lost 3/6; drain 4/6; done 3 by 1 @11; range 5/6 1 2"))
        assert [work_of(found, donor) for donor in range(1, 7)] == [
            (3, 4, 5), (3, 4, 5), (), (3, 4, 5), (3, 4), (3, 4, 5),
        ]  # fmt: skip
        assert refuses(found) == {3, 4}

    def test_progress_is_of_one_version(self) -> None:
        story = "lost 3/6; progress 2 @10 50; progress 1 @10 60; progress 2 @10 40"
        found = replay(events(story))
        assert [(each.donor, each.reached_us) for each in found.progress] == [(1, 60), (2, 40)]
        assert replay(events(f"{story}; lost 4/6")).progress == ()


class TestRanges:
    def ranges(self, story: str) -> list[tuple[int, int]]:
        entry = replay(events(story)).entry(3)
        assert entry is not None
        return [(each.first_us, each.last_us) for each in entry.ranges]

    def test_those_that_meet_are_one(self) -> None:
        assert self.ranges("range 3/6 5 9; range 3/6 1 2") == [(1, 2), (5, 9)]
        assert self.ranges("range 3/6 5 9; range 3/6 1 4") == [(1, 9)]
        assert self.ranges("range 3/6 5 9; lost 3/6") == []

    def test_too_many_become_one(self) -> None:
        story = "; ".join(f"range 3/6 {10 * at} {10 * at}" for at in range(RANGES_MAX + 1))
        assert self.ranges(story) == [(0, 10 * RANGES_MAX)]

    def test_the_node_acks_once_its_ranges_are_there_again(self) -> None:
        assert verdicts("range 3/6 5 9; done 3 by 1 @10; ack 3 @10")[-1] is Verdict.NOT_DONE
        assert verdicts(f"range 3/6 5 9; {ALL_OF_3}; ack 3 @10")[-1] is Verdict.TAKEN
        unsure = ALL_OF_3.replace("done", "unsure")
        assert verdicts(f"range 3/6 5 9; {unsure}; ack 3 @10")[-1] is Verdict.TAKEN
        story = f"lost 4/6; range 3/6 5 9; {unsure.replace('@10', '@11')}; ack 3 @11"
        assert verdicts(story)[-1] is Verdict.NOT_DONE, "node 4 may have what all others lack"

    def test_a_node_that_is_drained_and_lost_a_range_is_a_lost_one(self) -> None:
        """It could not give the blocks of that range, and no other donor would."""
        assert told(replay(events("drain 3/6; range 3/6 5 9"))) == "3d"
        assert told(replay(events("range 3/6 5 9; drain 3/6"))) == "3d"
        drained = replay(events("range 3/6 5 9; drain 3/6")).entry(3)
        assert drained is not None
        assert drained.drain
        assert 3 not in drained.donors


# The twin: when each donor was asked last, and when it said last that it was done.


@dataclass
class Entry:
    """What the twin knows of a lost node."""

    version: int
    kind: str
    drain: bool
    ranges: list[tuple[int, int]]
    asked: dict[int, int]
    told: dict[int, int] = field(default_factory=dict)
    doubt: bool = False
    hopeless: bool = False
    empty: bool = False

    def pending(self) -> list[int]:
        return [donor for donor, lsn in self.asked.items() if self.told.get(donor, -1) < lsn]

    def ask_all(self, lsn: int) -> None:
        self.asked = dict.fromkeys(self.asked, lsn)
        self.doubt = False


class Twin:
    """Slow and obvious: one rule after the other, in words of times."""

    def __init__(self) -> None:
        self.at = 0
        self.version = 0
        self.lost: dict[int, Entry] = {}

    def whole(self) -> dict[int, Entry]:
        return {n: e for n, e in self.lost.items() if e.kind != "range"}

    def take(self, lsn: int, it: RebuildEvent) -> None:
        self.at = lsn
        if isinstance(it, NeedsRebuild):
            self.need(it)
        elif isinstance(it, Undrained) and it.node in self.lost:
            entry = self.lost[it.node]
            if entry.kind == "drain" and not entry.empty:
                self.back(it.node)
            else:
                entry.drain = False
        elif isinstance(it, Aborted) and it.node in self.lost:
            if it.if_version in (None, self.version) and not self.lost[it.node].empty:
                self.back(it.node)
        elif isinstance(it, IsRebuilt) and it.node in self.lost and it.version == self.version:
            entry = self.lost[it.node]
            if it.donor in entry.pending():
                entry.told[it.donor] = lsn
                entry.doubt |= not it.is_authoritative
        elif isinstance(it, Unrecoverable) and it.node in self.lost:
            entry = self.lost[it.node]
            entry.hopeless |= entry.kind == "lost" and not entry.empty
        elif isinstance(it, Acked) and it.node in self.lost:
            entry = self.lost[it.node]
            over = entry.empty or (entry.kind == "range" and self.is_over(entry))
            if over and not entry.drain and entry.version == it.version:
                del self.lost[it.node]
        while any(self.empty_one(node) for node in list(self.lost)):
            pass

    def need(self, it: NeedsRebuild) -> None:
        known = self.lost.get(it.node)
        if it.if_version not in (None, self.version) or it.node not in it.nodes:
            return
        if known and known.empty:
            known.drain |= it.drain
            return
        if known and known.kind == "lost" and not it.restart:
            known.drain |= it.drain
            return
        if known and known.kind == "drain" and it.drain and not it.restart:
            return
        if it.ranges and (known is None or known.kind == "range"):
            kind = "range"
        elif it.drain and (known is None or known.kind == "drain"):
            kind = "drain"
        else:
            kind = "lost"
        others = [n for n, e in self.whole().items() if not e.empty and n != it.node]
        new = known is None or known.kind == "range"
        many = len(others) + 1 > 0.35 * len(set(it.nodes))
        if kind != "range" and new and many and not it.forced:
            return
        ranges = [(r.first_us, r.last_us) for r in it.ranges] if kind == "range" else []
        if kind == "range" and known:
            covered = {t for a, b in known.ranges for t in range(a, b + 1)}
            if not it.restart and all(t in covered for a, b in ranges for t in range(a, b + 1)):
                return
            ranges += known.ranges
        without = {n for n, e in self.whole().items() if e.empty or e.kind == "lost"} - {it.node}
        donors = set(it.nodes) - without - ({it.node} if kind != "drain" else set())
        fresh = Entry(
            self.at, kind, it.drain or bool(known and known.drain), ranges,
            dict.fromkeys(donors, self.at), hopeless=bool(known and known.hopeless),
        )  # fmt: skip
        was_drained = known and known.kind == "drain" and not it.restart
        if was_drained and it.node in known.asked and it.node not in known.pending():
            fresh.doubt = known.doubt
            for donor in donors & known.asked.keys():
                fresh.asked[donor] = known.asked[donor]
                if donor in known.told:
                    fresh.told[donor] = known.told[donor]
        if kind != "drain":
            for other, entry in self.lost.items():
                if other != it.node and not entry.empty and it.node in entry.asked:
                    if it.node in entry.pending():
                        entry.ask_all(self.at)
                    if kind == "lost":
                        entry.asked.pop(it.node)
                        entry.told.pop(it.node, None)
        self.lost[it.node] = fresh
        self.version = self.at

    def back(self, node: int) -> None:
        del self.lost[node]
        self.version = self.at
        for entry in self.lost.values():
            if not entry.empty:
                if entry.doubt:
                    entry.ask_all(self.at)
                entry.asked.setdefault(node, self.at)

    def hope(self) -> bool:
        return any(e.kind == "lost" and not e.hopeless and not e.empty for e in self.lost.values())

    def is_over(self, entry: Entry) -> bool:
        if entry.pending():
            return False
        return entry.kind == "drain" or bool(entry.asked and not entry.doubt) or not self.hope()

    def empty_one(self, node: int) -> bool:
        entry = self.lost[node]
        if entry.empty or entry.kind == "range" or not self.is_over(entry):
            return False
        entry.empty = True
        for other in self.lost.values():
            other.asked.pop(node, None)
            other.told.pop(node, None)
        return True

    def said(self) -> dict[int, Authority]:
        found = {}
        for node, entry in self.whole().items():
            if entry.empty:
                found[node] = Authority.AUTHORITATIVE_EMPTY
            elif entry.kind == "lost":
                hopeless = Authority.UNDER_REPLICATED if entry.hopeless else Authority.UNAVAILABLE
                found[node] = hopeless
        return found


NODES = st.integers(1, 6)
VERSIONS = st.sampled_from([0, 1, 2])
"""How many versions ago."""


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[int, RebuildEvent]]:
    """Events that are mostly of the version that the set has by then."""
    made: list[tuple[int, RebuildEvent]] = []
    found = RebuildingSet()
    known = [0]
    for at in range(draw(st.integers(1, 40))):
        node, lsn = draw(NODES), FIRST_LSN + at
        version = known[max(0, len(known) - 1 - draw(VERSIONS))]
        every = tuple(range(1, 7))
        kind = draw(st.sampled_from(["need", "done", "done", "done", "all", "back", "word"]))
        it: list[RebuildEvent] = []
        if kind == "need":
            drain = draw(st.booleans())
            first = draw(st.integers(0, 8))
            ranged = not drain and draw(st.booleans())
            ranges = (TimeRange(first, first + draw(st.integers(0, 3))),) if ranged else ()
            it = [
                NeedsRebuild(
                    node, every, drain, ranges,
                    version if draw(st.booleans()) else None, draw(st.booleans()),
                    draw(st.booleans()),
                )
            ]  # fmt: skip
        elif kind == "done":
            it = [IsRebuilt(node, draw(NODES), version, draw(st.booleans()))]
        elif kind == "all":
            sure = draw(st.booleans())
            it = [IsRebuilt(node, donor, found.version, sure) for donor in every]
        elif kind == "back":
            entry = found.entry(node)
            acked = Acked(node, entry.version if entry else version)
            it = [draw(st.sampled_from([acked, Aborted(node), Aborted(node, version)]))]
        else:
            it = [draw(st.sampled_from([Undrained(node), Unrecoverable(node)]))]
        for each in it:
            lsn = made[-1][0] + 1 if made else lsn
            made.append((lsn, each))
            found = apply(found, lsn, each).after
            known.append(found.version)
    return made


@pytest.mark.slow
@settings(max_examples=400)
@given(stories())
def test_against_a_twin_that_knows_when_each_donor_was_asked(
    story: list[tuple[int, RebuildEvent]],
) -> None:
    found, twin = RebuildingSet(), Twin()
    for lsn, each in story:
        found = apply(found, lsn, each).after
        twin.take(lsn, each)
        assert authorities(found) == twin.said()
        assert found.version == twin.version
        assert {e.node: e.drain for e in found.lost} == {n: e.drain for n, e in twin.lost.items()}
        for donor in range(1, 7):
            pending = {n for n, e in twin.lost.items() if donor in e.pending() and not e.empty}
            assert set(work_of(found, donor)) == pending


@given(stories(), st.integers(0, 40), st.integers(0, 40))
def test_a_replay_from_any_snapshot_is_a_replay_of_all(
    story: list[tuple[int, RebuildEvent]], cut: int, back: int
) -> None:
    """Also where some events before the snapshot are read once more."""
    whole = replay(story)
    snapshot = replay(story[:cut])
    assert replay(story[max(0, cut - back) :], snapshot) == whole


@given(stories())
def test_what_holds_of_every_set(story: list[tuple[int, RebuildEvent]]) -> None:
    found = RebuildingSet()
    for lsn, each in story:
        before, (found, verdict) = found, apply(found, lsn, each)
        assert found.through == lsn
        assert found.version in (before.version, lsn)
        if verdict is not Verdict.TAKEN:
            assert (found.lost, found.version) == (before.lost, before.version)
        for entry in found.lost:
            assert set(entry.done) <= set(entry.donors)
            assert entry.relocates or entry.is_empty or entry.node not in entry.donors
        for entry in before.lost:
            if entry.is_empty and (after := found.entry(entry.node)) is not None:
                assert after.is_empty, "empty is for good"
        assert {node for node in range(1, 7) if node in refuses(found)} >= {
            node
            for node in map(NodeId, range(1, 7))
            if authority_of(found, node) is not Authority.FULLY_AUTHORITATIVE
        }


@pytest.mark.parametrize(
    ("story", "members", "donor", "donors"),
    [
        ("lost 3/5", 5, 1, None),
        ("lost 3/5", 6, 1, (1, 2, 4, 5, 6)),
        ("lost 3/5", 6, 6, None),  # it has no work, so it reports nothing
        ("lost 3/5; done 3 by 1 @10", 6, 1, None),
        ("lost 3/5; done 3 by 1 @10", 6, 2, (1, 2, 4, 5, 6)),
        ("drain 3/5", 6, 1, (1, 2, 3, 4, 5, 6)),
        ("lost 6/6; lost 3/5", 6, 1, None),  # node 6 has no data
        ("range 3/5 of 1 to 9", 6, 1, None),
        ("drain 2/2; lost 3/5", 2, 4, None),  # a donor that few know stays a donor
        ("lost 3/8; gone 3; lost 4/7", 8, 1, (1, 2, 5, 6, 7, 8)),
    ],
)
def test_a_member_that_an_event_leaves_out_becomes_a_donor(
    story: str, members: int, donor: int, donors: tuple[int, ...] | None
) -> None:
    before = replay(events(story))
    asked = left_out(before, range(1, members + 1), donor)
    if donors is None:
        assert asked is None
        return
    assert asked is not None
    after, verdict = apply(before, 50, asked)
    entry, known = after.entry(asked.node), before.entry(asked.node)
    assert entry is not None
    assert known is not None
    assert (verdict, entry.donors, entry.done) == (Verdict.TAKEN, donors, ())
    assert (entry.relocates, entry.drain) == (known.relocates, known.drain)
    assert left_out(after, range(1, members + 1), donor) is None
    assert apply(after, 51, asked).verdict is Verdict.STALE, "two donors find it"


@pytest.mark.parametrize(
    ("joined", "donors"),
    [
        ({}, (1, 2, 4, 5, 6, 7)),
        ({6: 9, 7: 9}, (1, 2, 4, 5, 6, 7)),
        ({6: 10}, (1, 2, 4, 5, 7)),
        ({6: 10, 7: 30}, None),
    ],
)
def test_a_member_that_knew_the_event_as_it_joined_stays_left_out(
    joined: dict[int, int], donors: tuple[int, ...] | None
) -> None:
    before = replay(events("lost 3/5; done 3 by 2 @10"))
    asked = left_out(before, range(1, 8), 1, joined)
    if donors is None:
        assert asked is None
        return
    assert asked is not None
    entry = apply(before, 50, asked).after.entry(3)
    assert entry is not None
    assert entry.donors == donors


def test_a_node_that_holds_a_short_end_becomes_a_donor_once() -> None:
    before = replay(events("lost 3/5; done 3 by 2 @10"))
    asked = with_holder(before, {3}, 7)
    assert asked is not None
    after, verdict = apply(before, 50, asked)
    entry = after.entry(3)
    assert verdict is Verdict.TAKEN
    assert entry is not None
    assert (entry.donors, entry.done) == ((1, 2, 4, 5, 7), ())
    assert with_holder(after, {3}, 7) is None
    assert with_holder(after, {3}, 3) is None
    assert with_holder(after, {6}, 7) is None


def _done(node: int, *donors: int, at: int = 11) -> str:
    return "".join(f"; done {node} by {donor} @{at}" for donor in donors)


@pytest.mark.parametrize(
    ("story", "last"),
    [
        ("", {1, 2, 3}),
        ("drain 3/3", {1, 2}),
        ("drain 3/3; done 3 by 1 @10", {1, 2}),
        ("drain 3/3; done 3 by 1 @10; done 3 by 2 @10", {1, 2, 3}),
        ("lost 3/3", {1, 2, 3}),
        # Each reports about the other one at once, and the later drain waits for the earlier one.
        ("drain 3/6; drain 2/6", {1}),
        (f"drain 3/6; drain 2/6{_done(3, 1, 2, 4, 5, 6)}", {1, 3}),
        (f"drain 3/6; drain 2/6{_done(2, 1, 3, 4, 5, 6)}", {1}),
        (f"drain 3/6; drain 2/6{_done(3, 1, 2, 4, 5, 6)}{_done(2, 1, 3, 4, 5, 6)}", {1, 3}),
        (f"drain 3/6; drain 2/6{_done(3, 1, 2, 3, 4, 5, 6)}{_done(2, 1, 4, 5, 6)}", {1, 2, 3}),
        # A drain that was taken back, or whose node was lost, is waited for no more.
        (f"drain 3/6; drain 2/6{_done(2, 1, 3, 4, 5, 6)}; undrain 3", {1, 2, 3}),
        (f"drain 3/6; drain 2/6; lost 3/6{_done(2, 1, 4, 5, 6, at=12)}", {1, 2, 3}),
    ],
)
def test_a_drained_node_gives_last(story: str, last: set[int]) -> None:
    found = replay(events(story))
    assert {node for node in (1, 2, 3) if gives_last(found, node)} == last
