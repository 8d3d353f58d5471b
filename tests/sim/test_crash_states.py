"""The enumerator on logs made by hand, of which every legal state is known."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable

import pytest
from scenarios import as_scenario

from cordwood.errors import BadSetting
from cordwood.sim.crash_states.content import DIRECTORY, Content, FileBytes
from cordwood.sim.crash_states.disk_log import (
    Bytes,
    DiskLog,
    Names,
    Outcome,
    SyncFile,
    SyncNames,
)
from cordwood.sim.crash_states.enumerate import CrashState, CrashStates
from cordwood.sim.crash_states.fates import KEPT, LOST, UNTORN, Fate, Rest, Tearing, leave
from cordwood.sim.crash_states.recorder import RecordingDisk
from cordwood.sim.disk import SimDisk
from cordwood.sim.host import Simulation
from cordwood.sim.process import Process

PAGE = 4096
SECTOR = 512
PAGES = Tearing((PAGE,), is_zeroed=False)
SECTORS = Tearing((SECTOR,), is_zeroed=False, subsets_max=256)


def page(letter: str) -> bytes:
    return letter.encode() * PAGE


def log_of_file(size: int = 4 * PAGE) -> tuple[DiskLog, int]:
    """A log that starts with one file, `/file`, of zeros."""
    base = Content()
    base.files[1] = FileBytes(size)
    base.names["/file"] = 1
    return DiskLog(base), 1


def letters(state: CrashState, path: str = "/file") -> str:
    """The first letter of each page of a file, `.` for zeros; "" if it is not there."""
    number = dict(state.content.in_reach()).get(path)
    if number is None:
        return ""
    data = state.content.files[number].read(0, state.content.files[number].size)
    return data[::PAGE].replace(b"\0", b".").decode()


def all_letters(log: DiskLog, tearing: Tearing = UNTORN) -> list[str]:
    return [letters(state) for state in CrashStates(log, tearing=tearing)]


def names(state: CrashState) -> set[str]:
    return {path for path, _ in state.content.in_reach() if path != "/"}


class TestDirectWrites:
    def test_a_write_that_ended_is_there_and_one_in_flight_may_be(self):
        log, file = log_of_file()
        log.end(log.begin("a", [Bytes(file, 0, page("a"))]))
        log.begin("b", [Bytes(file, PAGE, page("b"))])
        # Before the end of `a` a crash may find it or not; from then on it must be there.
        assert all_letters(log) == ["....", "a...", "ab.."]

    def test_two_in_flight_leave_exactly_four_states(self):
        log, file = log_of_file()
        log.begin("a", [Bytes(file, 0, page("a"))])
        log.begin("b", [Bytes(file, PAGE, page("b"))])
        states = CrashStates(log, tearing=UNTORN)
        assert {letters(state) for state in states} == {"....", "a...", ".b..", "ab.."}
        assert (states.count.states, states.count.combinations) == (4, 4)
        assert (states.count.points, states.count.whole_points) == (1, 1)

    def test_the_second_may_land_and_the_first_not_until_the_first_has_ended(self):
        log, file = log_of_file()
        a = log.begin("a", [Bytes(file, 0, page("a"))])
        b = log.begin("b", [Bytes(file, PAGE, page("b"))])
        log.end(b)
        log.end(a)
        by_event: dict[int, set[str]] = {}
        for state in CrashStates(log, tearing=UNTORN):
            by_event.setdefault(state.event, set()).add(letters(state))
        # A state that was seen before is not shown again.
        assert by_event == {2: {"....", "a...", ".b..", "ab.."}}
        log.promise("something")
        log.begin("c", [Bytes(file, 2 * PAGE, page("c"))])
        assert [letters(s) for s in CrashStates(log, tearing=UNTORN) if s.facts] == ["ab..", "abc."]

    def test_what_is_torn_by_pages_is_any_of_them(self):
        log, file = log_of_file()
        log.begin("ab", [Bytes(file, PAGE, page("a") + page("b"))])
        assert sorted(all_letters(log, PAGES)) == ["....", "..b.", ".a..", ".ab."]

    def test_zeroed_pages_may_stand_where_something_was(self):
        log, file = log_of_file()
        log.end(log.begin("old", [Bytes(file, 0, page("o") * 2)]))
        log.promise("old")
        log.begin("new", [Bytes(file, 0, page("n") * 2)])
        states = CrashStates(log, tearing=Tearing((PAGE,)))
        found = [letters(state) for state in states if state.facts]
        assert sorted(found) == sorted(["oo..", "nn..", "no..", "on..", "n...", ".n..", "...."])

    def test_sectors_are_torn_in_every_way(self):
        """Against a slow, obvious twin: each of eight sectors is old or new."""
        log, file = log_of_file(PAGE)
        old, new = bytes(range(1, 9)), bytes(range(11, 19))
        log.end(log.begin("old", [Bytes(file, 0, b"".join(bytes([x]) * SECTOR for x in old))]))
        log.promise("old")
        log.begin("new", [Bytes(file, 0, b"".join(bytes([x]) * SECTOR for x in new))])
        states = CrashStates(log, tearing=SECTORS)
        found = {
            state.content.files[file].read(0, PAGE)[::SECTOR] for state in states if state.facts
        }
        expected = {bytes(each) for each in itertools.product(*zip(old, new, strict=True))}
        assert found == expected
        assert len(found) == 256

    def test_a_write_that_failed_is_in_doubt_until_another_stands_over_it(self):
        log, file = log_of_file()
        log.end(log.begin("a", [Bytes(file, 0, page("a") * 2)]), Outcome.FAILED)
        log.promise("failed")
        log.end(log.begin("b", [Bytes(file, 0, page("b"))]))
        log.promise("written")
        found = [(state.facts[-1], letters(state)) for state in CrashStates(log, tearing=UNTORN)
                 if state.facts]  # fmt: skip
        # What was in doubt cannot undo what came after it.
        assert found == [
            ("failed", "...."),
            ("failed", "b..."),
            ("failed", "aa.."),
            ("failed", "ba.."),
            ("written", "b..."),
            ("written", "ba.."),
        ]

    def test_two_in_flight_over_the_same_bytes_are_refused(self):
        log, file = log_of_file()
        log.begin("first", [Bytes(file, 0, page("a") * 2)])
        with pytest.raises(AssertionError, match="second overlaps first"):
            log.begin("second", [Bytes(file, PAGE, page("b"))])


class TestWeakerFiles:
    """Buffered writes, bare renames and syncs, as partitions and SST files will need."""

    def test_a_write_that_ended_is_in_doubt_until_a_sync_that_began_after_it_ended(self):
        log, file = log_of_file()
        a = log.begin("a", [Bytes(file, 0, page("a"))], is_durable=False)
        sync = log.begin("sync", [SyncFile(file)], is_durable=False)
        log.end(a)
        log.end(sync)
        log.promise("synced too early")
        assert all_letters(log)[-2:] == ["....", "a..."]
        log.end(log.begin("sync", [SyncFile(file)], is_durable=False))
        log.promise("synced")
        assert all_letters(log)[-1] == "a..."
        assert [letters(s) for s in CrashStates(log) if "synced" in s.facts] == ["a..."]

    def test_a_sync_settles_its_own_file_only(self):
        base = Content()
        for number, path in ((1, "/file"), (2, "/other")):
            base.files[number] = FileBytes(PAGE)
            base.names[path] = number
        log = DiskLog(base)
        for number in (1, 2):
            log.end(log.begin("w", [Bytes(number, 0, page("w"))], is_durable=False))
        log.end(log.begin("sync", [SyncFile(2)], is_durable=False))
        log.promise("synced")
        found = [(letters(s), letters(s, "/other")) for s in CrashStates(log, tearing=UNTORN)
                 if s.facts]  # fmt: skip
        assert sorted(found) == [(".", "w"), ("w", "w")]

    def test_an_appended_page_may_leave_only_the_size(self):
        log, file = log_of_file(PAGE)
        log.begin("append", [Bytes(file, PAGE, page("a") + page("b"))], is_durable=False)
        found = sorted(all_letters(log, Tearing((PAGE,), is_zeroed=False)))
        # Nothing; the first page, with and without the size of both; the second alone,
        # which needs the size; both; and the size alone.
        assert found == [".", "...", "..b", ".a", ".a.", ".ab"]

    def test_a_rename_waits_for_its_directory(self):
        log = DiskLog()
        made = log.new_file(FileBytes())
        log.end(log.begin("create", [Names((("/new", made),))], is_durable=False))
        log.end(log.begin("write", [Bytes(made, 0, b"x")], is_durable=False))
        log.end(log.begin("fsync", [SyncFile(made)], is_durable=False))
        log.end(log.begin("rename", [Names((("/new", None), ("/file", made)))], is_durable=False))
        log.promise("renamed")
        left = {frozenset(names(state)) for state in CrashStates(log) if state.facts}
        assert left == {frozenset(), frozenset({"/new"}), frozenset({"/file"})}
        log.end(log.begin("fsync of the directory", [SyncNames("/")], is_durable=False))
        log.promise("synced")
        last = [state for state in CrashStates(log) if "synced" in state.facts]
        assert [names(state) for state in last] == [{"/file"}]
        assert letters(last[0]) == "x"

    def test_a_rename_into_another_directory_does_not_come_back_over_a_later_one(self):
        """The first one's source is still open when the second one is on stable storage."""
        log = DiskLog()
        log.base.names["/in"] = log.base.names["/out"] = DIRECTORY
        for source, letter in (("/in/one", "1"), ("/in/two", "2")):
            number = log.new_file(FileBytes())
            written = [Names(((source, number),)), Bytes(number, 0, page(letter))]
            renamed = Names(((source, None), ("/out/file", number)))
            for effects in (written, [SyncFile(number)], [renamed], [SyncNames("/out")]):
                log.end(log.begin("step", effects, is_durable=False))
            log.promise(letter)
        ends = [state for state in CrashStates(log, tearing=UNTORN) if "2" in state.facts]
        assert {letters(state, "/out/file") for state in ends} == {"2"}

    def test_a_rename_before_its_bytes_shows_an_empty_file(self):
        """The oldest one in the book: replaced without a sync of what replaces it."""
        base = Content()
        base.files[1] = FileBytes.holding(b"old")
        base.names["/file"] = 1
        log = DiskLog(base)
        made = log.new_file(FileBytes())
        log.end(log.begin("create", [Names((("/new", made),))], is_durable=False))
        log.end(log.begin("write", [Bytes(made, 0, b"new")], is_durable=False))
        log.end(log.begin("rename", [Names((("/new", None), ("/file", made)))], is_durable=False))
        contents = {
            state.content.files[number].read(0, state.content.files[number].size)
            for state in CrashStates(log, tearing=UNTORN)
            for path, number in state.content.in_reach()
            if path == "/file"
        }
        assert contents == {b"old", b"", b"new"}

    def test_what_lies_in_a_directory_that_was_lost_is_out_of_reach(self):
        log = DiskLog()
        log.end(log.begin("mkdir", [Names((("/dir", DIRECTORY),))], is_durable=False))
        made = log.new_file(FileBytes.holding(b"x"))
        log.end(log.begin("create", [Names((("/dir/file", made),))], is_durable=False))
        log.promise("made")
        left = [frozenset(names(state)) for state in CrashStates(log) if state.facts]
        assert sorted(left, key=len) == [
            frozenset(),
            frozenset({"/dir"}),
            frozenset({"/dir", "/dir/file"}),
        ]


class TestMarks:
    def test_a_crash_just_before_a_waiver_is_looked_at_with_all_that_was_promised(self):
        log, file = log_of_file()
        log.begin("a", [Bytes(file, 0, page("a"))])
        log.promise("kept")
        log.waive("let go")
        found = [(tuple(s.facts), letters(s)) for s in CrashStates(log, tearing=UNTORN)]
        assert (("kept",), "a...") in found
        assert (("kept",), "....") in found

    def test_equal_bytes_are_looked_at_again_after_a_promise_and_only_then(self):
        log, file = log_of_file()
        for fact, mark in (("news", log.news), ("promise", log.promise)):
            mark(fact)
            log.end(log.begin("same", [Bytes(file, 0, bytes(PAGE))]))
        assert [tuple(state.facts) for state in CrashStates(log)] == [
            ("news",),
            ("news", "promise"),
        ]


class TestChoice:
    def many(self) -> DiskLog:
        log, file = log_of_file(16 * PAGE)
        for number in range(8):
            log.begin("w", [Bytes(file, number * PAGE, page("w"))])
        return log

    def test_all_are_gone_through_while_they_are_few_enough(self):
        states = CrashStates(self.many(), tearing=UNTORN, per_point=256)
        assert len(list(states)) == 256
        assert states.count.whole_points == 1

    def test_else_some_are_drawn_the_corners_first_and_the_count_says_of_how_many(self):
        states = CrashStates(self.many(), tearing=UNTORN, per_point=40)
        found = [letters(state) for state in states]
        assert found[:2] == ["." * 16, "w" * 8 + "." * 8]
        assert len(set(found)) == 40
        assert (states.count.whole_points, states.count.combinations) == (0, 256)

    def test_draws_do_not_go_round_in_circles(self):
        states = CrashStates(self.many(), tearing=UNTORN, per_point=150)
        assert len({letters(state) for state in states}) == 150

    def test_one_seed_draws_one_set(self):
        def drawn(seed: int) -> list[str]:
            log = self.many()
            return [s.story() for s in CrashStates(log, per_point=30, chance=random.Random(seed))]

        assert drawn(1) == drawn(1)
        assert drawn(1) != drawn(2)

    def test_a_story_tells_what_became_of_each_open_change(self):
        log, file = log_of_file()
        log.begin("write the header", [Bytes(file, 0, page("h") * 2)])
        stories = [state.story() for state in CrashStates(log, tearing=PAGES)]
        assert stories[0] == "state 0, crash after event 1; #1 write the header: lost"
        assert "torn: of its 4096 B units 1, rest stale" in stories[3]


@pytest.mark.parametrize(
    ("fate", "expected"),
    [
        (LOST, b"oooo"),
        (KEPT, b"onnnnn"),
        (Fate(0b001, 2), b"onno\0\0"),
        (Fate(0b010, 2), b"ooonn\0"),
        (Fate(0b001, 2, Rest.ZERO), b"onn\0\0\0"),
        (Fate(0b001, 2, Rest.SHORT), b"onno"),
        (Fate(0b010, 2, Rest.SHORT), b"ooonn"),
    ],
)
def test_a_fate_is_left_byte_by_byte(fate: Fate, expected: bytes):
    file = FileBytes.holding(b"oooo")
    leave(file, Bytes(1, 1, b"nnnnn"), fate)
    assert file.read(0, file.size) == expected


class TestContent:
    def test_equal_bytes_have_equal_keys_however_they_came_about(self):
        one, other = Content(), Content()
        one.names["/file"] = 1
        one.files[1] = FileBytes.holding(page("a") + page("b"))
        other.names["/file"] = 7
        other.files[7] = FileBytes(2 * PAGE)
        other.files[7].write(PAGE, page("x"))
        other.files[7].write(0, page("a") + page("b"))
        other.files[8] = FileBytes.holding(b"nobody names me")
        assert one.key() == other.key()
        other.own(7).write(5000, b"c")
        assert one.key() != other.key()

    def test_a_tree_holds_the_same(self):
        content = Content()
        content.names |= {"/dir": DIRECTORY, "/dir/file": 1, "/lost/file": 1}
        content.files[1] = FileBytes.holding(page("a") + b"tail")
        tree = content.tree()
        assert tree.content("/dir/file") == page("a") + b"tail"
        assert tree.names("/") == ["dir"]


def recorded(scenario: Callable[[RecordingDisk, SimDisk], object]) -> DiskLog:
    """Run a scenario on a recorded disk of a machine."""
    log = DiskLog()

    async def main(simulation: Simulation) -> None:
        disk = SimDisk(simulation.loop, random.Random(0))
        await scenario(RecordingDisk(disk.host(Process("life")), log), disk)  # type: ignore[misc]

    Simulation(1).run(main)
    return log


def words(log: DiskLog) -> list[str]:
    """What was begun, by its words."""
    return [event.operation.words for event in log.events if hasattr(event, "operation")][::2]


class TestRecorder:
    def test_all_that_changes_the_disk_is_in_the_log(self):
        async def scenario(disk: RecordingDisk, _: SimDisk) -> None:
            await disk.make_dir("/a/b")
            lock = disk.lock_dir("/a/b", "me")
            await disk.write_file("/a/b/small", b"text")
            file = await disk.open_direct("/a/b/ring", create_bytes=2 * PAGE)
            await file.write(PAGE, [b"x", b"y"])
            assert await file.read(PAGE, PAGE) == b"xy".ljust(PAGE, b"\0")
            assert await disk.read_file("/a/b/small") == b"text"
            assert await disk.list_dir("/a/b") == ["lock", "ring", "small"]
            await file.close()
            lock.release()

        log = recorded(scenario)
        assert words(log) == [
            "make directory /a/b",
            "lock /a/b/lock",
            "replace /a/b/small",
            "create /a/b/ring",
            "write /a/b/ring [4096, 8192)",
        ]
        *_, last = CrashStates(log, tearing=UNTORN)
        tree = last.tree()
        assert tree.content("/a/b/small") == b"text"
        assert tree.content("/a/b/ring") == bytes(PAGE) + b"xy".ljust(PAGE, b"\0")

    def test_directories_are_made_from_the_top_and_nothing_is_half_there(self):
        async def scenario(disk: RecordingDisk, _: SimDisk) -> None:
            await disk.make_dir("/a/b")
            await disk.write_file("/a/b/small", b"old")
            await disk.write_file("/a/b/small", b"new")

        found = {
            (frozenset(names(state)), state.tree().content("/a/b/small"))
            for state in CrashStates(recorded(scenario))
        }
        dirs = frozenset({"/a", "/a/b"})
        assert found == {
            (frozenset(), None),
            (frozenset({"/a"}), None),
            (dirs, None),
            (dirs | {"/a/b/small"}, b"old"),
            (dirs | {"/a/b/small"}, b"new"),
        }

    def test_a_direct_write_is_durable_when_its_future_is_done(self):
        async def scenario(disk: RecordingDisk, _: SimDisk) -> None:
            file = await disk.open_direct("/ring", create_bytes=2 * PAGE)
            first, second = file.write(0, [page("a")]), file.write(PAGE, [page("b")])
            await first
            disk.log.promise("first")
            await second
            disk.log.promise("second")

        log = recorded(scenario)
        by_facts: dict[int, set[str]] = {}
        for state in CrashStates(log, tearing=UNTORN):
            by_facts.setdefault(len(state.facts), set()).add(letters(state, "/ring"))
        assert by_facts[0] >= {"..", "a.", ".b", "ab"}
        assert by_facts[1] == {"a.", "ab"}
        assert by_facts[2] == {"ab"}

    def test_a_state_goes_on_as_a_disk_and_its_log_starts_there(self):
        async def scenario(disk: RecordingDisk, _: SimDisk) -> None:
            file = await disk.open_direct("/ring", create_bytes=2 * PAGE)
            await file.write(0, [page("a")])
            disk.log.promise("written")

        *_, last = CrashStates(recorded(scenario))
        again = DiskLog(last.content)

        async def main(simulation: Simulation) -> None:
            disk = SimDisk(simulation.loop, random.Random(0))
            disk.tree = last.tree()
            recording = RecordingDisk(disk.host(Process("next life")), again)
            file = await recording.open_direct("/ring")
            assert await file.read(0, PAGE) == page("a")
            await file.write(PAGE, [page("b")])

        Simulation(2).run(main)
        assert all_letters_of(again, "/ring") == ["a.", "ab"]
        assert letters(last, "/ring") == "a."  # a state is a value

    def test_what_was_refused_left_nothing_and_what_failed_may_have(self):
        async def scenario(disk: RecordingDisk, machine: SimDisk) -> None:
            file = await disk.open_direct("/ring", create_bytes=PAGE)
            with pytest.raises(FileExistsError):
                await disk.open_direct("/ring", create_bytes=2 * PAGE)
            with pytest.raises(BadSetting):
                file.write(PAGE, [page("x")])
            machine.fail("write", 5)
            with pytest.raises(OSError, match="/ring"):
                await file.write(0, [page("f")])
            disk.log.promise("failed")

        log = recorded(scenario)
        found = {letters(s, "/ring") for s in CrashStates(log, tearing=UNTORN) if s.facts}
        assert found == {".", "f"}

    def test_a_write_whose_caller_left_stays_in_flight(self):
        async def scenario(disk: RecordingDisk, _: SimDisk) -> None:
            file = await disk.open_direct("/ring", create_bytes=PAGE)
            file.write(0, [page("a")]).cancel()
            await asyncio.sleep(1)
            disk.log.promise("left")

        log = recorded(scenario)
        assert {letters(s, "/ring") for s in CrashStates(log, tearing=UNTORN) if s.facts} == {
            ".",
            "a",
        }

    @as_scenario(recorded)
    async def test_two_writes_in_flight_over_one_block_are_refused(
        self, disk: RecordingDisk, machine_disk: SimDisk
    ) -> None:
        file = await disk.open_direct("/ring", create_bytes=PAGE)
        file.write(0, [page("a")])
        with pytest.raises(AssertionError, match="overlaps"):
            file.write(0, [page("b")])


def all_letters_of(log: DiskLog, path: str) -> list[str]:
    return [letters(state, path) for state in CrashStates(log, tearing=UNTORN)]
