"""Logs: names, numbers that are never used twice, and makers that stop half way."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from metadata_play import run_patiently
from scenarios import as_scenario, awaited_by
from swaps import swap_value

from cordwood.errors import (
    AccessDenied,
    BadSetting,
    LogExists,
    Malformed,
    OutcomeUnknown,
    Overloaded,
    Rejected,
    UnknownLog,
    Unreachable,
)
from cordwood.layout.log_names import NAME_BYTES_MAX, normalise_directory, normalise_name
from cordwood.log_attributes import DEFAULTS, LogAttributes, token_digest
from cordwood.lsn import LogId
from cordwood.metadata import pages
from cordwood.metadata.log_changes import CHANGES_PREFIX
from cordwood.metadata.log_entries import id_key, numbers_of
from cordwood.metadata.log_numbers import LOG_ID_MAX
from cordwood.metadata.log_rights import who_has
from cordwood.metadata.log_tree import LogInfo, LogTree
from cordwood.metadata.memory import MemoryData, MemoryMetadata
from cordwood.metadata.store import Page, Versioned, check_key
from cordwood.nodes import Replication
from cordwood.sim.planted import find_bug, planted

THREE = LogAttributes(replicate_across={"node": 3, "rack": 2})
ONE = LogAttributes(replicate_across={"node": 1})


class TestNames:
    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("orders", "/orders"),
            ("/orders", "/orders"),
            ("orders/eu", "/orders/eu"),
            ("/Orders/EU-west_1/v2.0", "/Orders/EU-west_1/v2.0"),
            ("_internal", "/_internal"),
            ("a" * (NAME_BYTES_MAX - 1), "/" + "a" * (NAME_BYTES_MAX - 1)),
        ],
    )
    def test_how_a_name_is_kept(self, text, name):
        assert normalise_name(text) == name
        assert normalise_name(name) == name

    @pytest.mark.parametrize(
        "text",
        ["", "/", "//", "//a", "a/", "a//b", ".", "..", "/a/../b", "a/.", ".hidden", "-flag",
         "a/-b", "a b", "a\n", "\na", "naïve", "a%2e", "a\x00", "a*", "a:b",
         "a" * NAME_BYTES_MAX, "/" + "a" * NAME_BYTES_MAX],
    )  # fmt: skip
    def test_what_is_no_name(self, text):
        with pytest.raises(BadSetting, match="no log name"):
            normalise_name(text)

    @given(st.text(st.sampled_from("ab/.-_ \n"), max_size=12))
    def test_a_name_is_kept_once_and_for_all_and_makes_a_key(self, text):
        try:
            name = normalise_name(text)
        except BadSetting:
            return
        assert normalise_name(name) == name == "/" + text.removeprefix("/")
        check_key(f"logs{name}")


class TestCreating:
    @as_scenario("play")
    async def test_a_log_is_found_by_name_and_by_number(self, store) -> None:
        tree = LogTree(store)
        made = await tree.create("orders/eu", THREE, created_us=5)
        whole = THREE.over(DEFAULTS)
        assert made == LogInfo(made.log_id, "/orders/eu", 5, THREE, whole)
        assert made.replication == Replication(3, 2)
        assert await tree.get("orders/eu") == await tree.get("/orders/eu") == made
        assert await tree.by_id(made.log_id) == made
        assert await tree.get("orders") is None

    @as_scenario("play")
    async def test_numbers_count_from_one_and_differ(self, store) -> None:
        tree = LogTree(store)
        made = [await tree.create(name, THREE) for name in ("a", "b", "a/b")]
        assert [log.log_id for log in made] == [1, 2, 3]

    @as_scenario("play")
    async def test_a_taken_name_costs_no_number(self, store) -> None:
        tree = LogTree(store)
        first = await tree.create("a", THREE)
        for name in ("a", "/a"):
            with pytest.raises(LogExists, match="/a"):
                await tree.create(name, ONE)
        assert await tree.get("a") == first
        assert (await tree.create("b", THREE)).log_id == 2

    @as_scenario("play")
    async def test_of_those_who_race_for_a_name_one_makes_it(self, store) -> None:
        tree = LogTree(store)
        ends = await asyncio.gather(
            *(tree.create("a", THREE, created_us=n) for n in range(6)), return_exceptions=True
        )
        made = [end for end in ends if isinstance(end, LogInfo)]
        assert len(made) == 1
        assert sum(isinstance(end, LogExists) for end in ends) == 5
        assert await tree.get("a") == made[0]
        found = [await tree.by_id(number) for number in range(1, 8)]
        assert [log for log in found if log] == made

    @as_scenario(awaited_by(run_patiently))
    async def test_many_made_at_once_do_not_race_with_each_other(self) -> None:
        store = Far(random.Random(1))
        tree = LogTree(store)
        made = await asyncio.gather(*(tree.create(f"a{n}", THREE) for n in range(200)))
        assert {log.log_id for log in made} == set(range(1, 201))
        # One for who came first, and then one for all the others, who waited.
        assert store.tries == 2

    @as_scenario(awaited_by(run_patiently))
    async def test_the_numbers_end(self, *, memory: MemoryMetadata) -> None:
        value = b'{"next_id":%d}' % (LOG_ID_MAX - 1)
        await memory.compare_and_set("next_log_id", value, 0)
        assert (await LogTree(memory).create("a", THREE)).log_id == LOG_ID_MAX - 1
        with pytest.raises(Rejected, match="used up"):
            await LogTree(memory).create("b", THREE)


class Far(MemoryMetadata):
    """A store that others reach before a writing is answered."""

    tries = 0

    async def compare_and_set(self, key: str, value: bytes | None, expected: int) -> int | None:
        self.tries += key == "next_log_id"
        await asyncio.sleep(0.005)
        return await super().compare_and_set(key, value, expected)


class Stopping(MemoryMetadata):
    """A way to the store on which the maker stops after so many writes."""

    writes_left = 0

    async def compare_and_set(self, key: str, value: bytes | None, expected: int) -> int | None:
        if not self.writes_left:
            raise asyncio.CancelledError
        self.writes_left -= 1
        return await super().compare_and_set(key, value, expected)


class Between(MemoryMetadata):
    """A way to the store on which something else happens once, right after a key was written."""

    then: tuple[str, Callable[[], Awaitable[None]]] | None = None

    async def compare_and_set(self, key: str, value: bytes | None, expected: int) -> int | None:
        version = await super().compare_and_set(key, value, expected)
        if self.then is not None and self.then[0] == key:
            (_, happens), self.then = self.then, None
            await happens()
        return version


class LosesOnce(Between):
    """A way to the store on which the answer to one write is lost, before something else happens.

    Args:
        comes: whether it is written; otherwise the test may write `lost` later.
    """

    before_give_up: Callable[[], Awaitable[None]] | None = None

    def __init__(self, chance: random.Random, *, comes: bool = True) -> None:
        super().__init__(chance)
        self._comes = comes
        self.lost: tuple[str, bytes | None, int] = ("", None, 0)

    async def compare_and_set(self, key: str, value: bytes | None, expected: int) -> int | None:
        if self.then is None or self.then[0] != key:
            return await super().compare_and_set(key, value, expected)
        self.lost = key, value, expected
        (_, happens), self.then = self.then, None
        if self._comes:
            await super().compare_and_set(key, value, expected)
        await happens()
        raise OutcomeUnknown("the answer was lost")

    async def get(self, key: str) -> Versioned | None:
        found = await super().get(key)
        if self.lost[0] and key == "log_ids/1" and self.before_give_up is not None:
            happens, self.before_give_up = self.before_give_up, None
            await happens()
        return found


CALLS = ("rename", "rename", "create", "delete")
"""Calls of somebody who changes the tree, by weight."""


class Slow(MemoryMetadata):
    """A way to the store whose calls take so long that those of others come between any two."""

    async def get(self, key: str) -> Versioned | None:
        found = await super().get(key)
        await self._pause()
        return found

    async def compare_and_set(self, key: str, value: bytes | None, expected: int) -> int | None:
        await self._pause()
        return await super().compare_and_set(key, value, expected)

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.choice((0.001, 0.01, 0.05, 0.3)))


class AtPages(MemoryMetadata):
    """A way to the store on which something happens once, right before a page is read.

    Args:
        page: the number of that page, from 1 on.
    """

    def __init__(self, data: MemoryData, page: int, happens: Callable[[], Awaitable[None]]) -> None:
        super().__init__(random.Random(2), data)
        self.left = page
        self._happens = happens

    async def page(self, prefix: str, after: str, limit: int) -> Page:
        self.left -= 1
        if self.left == 0:
            await self._happens()
        return await super().page(prefix, after, limit)


async def listed_while_names_move(page: int) -> tuple[bool, dict[str, int]]:
    """A listing during which a log is renamed, another is replaced and a third is deleted.

    Returns:
        Whether there was such a page, and the logs of the listing.
    """
    data = MemoryData()
    tree = LogTree(MemoryMetadata(random.Random(1), data))
    for name in ("a", "c", "gone"):
        await tree.create(name)

    async def move() -> None:
        await tree.rename("a", "b")
        await tree.delete("c")
        await tree.create("c")
        await tree.delete("gone")

    store = AtPages(data, page, move)
    listed = await LogTree(store).list()
    return store.left <= 0, {info.name: int(info.log_id) for info in listed}


class TestMakersThatStop:
    @pytest.mark.parametrize("writes", [0, 1, 2])
    @as_scenario(awaited_by(run_patiently))
    async def test_there_is_no_log_and_the_next_maker_gets_the_name(self, *, writes: int) -> None:
        store = Stopping(random.Random(1))
        store.writes_left = writes
        with pytest.raises(asyncio.CancelledError):
            await LogTree(store).create("a", THREE)
        tree = LogTree(MemoryMetadata(random.Random(1), store.data))
        assert await tree.get("a") is None
        assert await tree.by_id(1) is None
        assert await tree.list() == []
        made = await tree.create("a", ONE)
        assert made.log_id == (1 if writes == 0 else 2)
        # The number that was left behind leads to the name, and still to no log.
        assert await tree.by_id(made.log_id) == made
        assert [await tree.by_id(n) for n in range(1, made.log_id)] == [None] * (made.log_id - 1)

    @pytest.mark.parametrize("seed", range(40))
    @as_scenario(awaited_by(run_patiently))
    async def test_however_answers_are_lost_a_log_said_to_be_made_is_there_and_alone(
        self, *, seed
    ) -> None:
        chance = random.Random(seed)
        data = MemoryMetadata(chance).data

        async def maker(number: int) -> LogInfo | None:
            store = MemoryMetadata(chance, data)
            store.answer_loss = 0.3
            try:
                return await LogTree(store).create("a", THREE, created_us=number)
            except (LogExists, OutcomeUnknown, Unreachable):
                return None

        ends = await asyncio.gather(*(maker(number) for number in range(5)))
        await asyncio.sleep(60)
        tree = LogTree(MemoryMetadata(chance, data))
        found = await tree.get("a")
        said = [end for end in ends if end is not None]
        assert said in ([], [found])
        listed = await tree.list()
        assert listed == ([found] if found else [])
        if found:
            assert await tree.by_id(found.log_id) == found

    def test_a_maker_whose_own_write_was_lost_and_done_is_not_told_that_it_exists(self):
        """Its number is in the entry it finds, so it knows its own work."""

        async def outcome(seed: int) -> str:
            store = MemoryMetadata(random.Random(seed))
            tree = LogTree(store)
            claim = store.compare_and_set

            async def lossy(key: str, value: bytes | None, expected: int) -> int | None:
                store.answer_loss = float(key == "logs/a" and await store.get(key) is None)
                return await claim(key, value, expected)

            store.compare_and_set = lossy  # type: ignore[method-assign]
            try:
                return f"made {(await tree.create('a', THREE)).log_id}"
            except OutcomeUnknown:
                return "unknown"

        async def main() -> set[str]:
            return {await outcome(seed) for seed in range(20)}

        assert run_patiently(main()) == {"made 1", "unknown"}

    @as_scenario("play")
    async def test_of_makers_that_lost_the_race_for_a_name_nothing_is_read_again(
        self, store
    ) -> None:
        """Each left a number for good, which every later listing read eight times."""
        tree = LogTree(store)
        await asyncio.gather(*(tree.create("a") for _ in range(5)), return_exceptions=True)
        entries = await store.list("log_ids/")
        assert len(entries) > 1
        assert sum(b'"is_deleted":true' in found.value for _, found in entries) == len(entries) - 1
        [info] = await tree.list()
        assert await tree.get("a") == info

    @as_scenario(awaited_by(run_patiently))
    async def test_a_number_that_a_maker_left_is_read_once_by_a_listing(self) -> None:
        store = Stopping(random.Random(1))
        for _ in range(3):
            store.writes_left = 2
            with pytest.raises(asyncio.CancelledError):
                await LogTree(store).create("a")
        reads = AtReads(store.data, (), ())
        assert await LogTree(reads).list() == []
        assert reads.reads == 3 + 2, "once each, and the directories before and after"

    @pytest.mark.parametrize("is_planted", [False, True])
    @as_scenario(awaited_by(run_patiently))
    async def test_a_maker_that_is_told_that_another_log_exists_leaves_its_own(
        self, *, is_planted: bool
    ) -> None:
        """The answer to its claim was lost. Until it asked again, its log got another name and the
        name got another log."""
        store = LosesOnce(random.Random(1))
        other = LogTree(MemoryMetadata(random.Random(1), store.data))

        async def moves() -> None:
            await other.rename("a", "b")
            await other.create("a")

        store.then = ("logs/a", moves)
        bug = planted(find_bug("given-up-blindly")) if is_planted else contextlib.nullcontext()
        with bug, pytest.raises(LogExists):
            await LogTree(store).create("a")
        found = {info.name: info.log_id for info in await other.list()}
        assert found == ({"/a": 2} if is_planted else {"/a": 2, "/b": 1})

    @as_scenario(awaited_by(run_patiently))
    async def test_a_rename_that_was_done_and_renamed_back_is_not_refused_as_one_not_done(
        self,
    ) -> None:
        """The caller would rename the log again."""
        store = LosesOnce(random.Random(1))
        other = LogTree(MemoryMetadata(random.Random(1), store.data))
        made = await other.create("a")
        key = id_key(made.log_id)
        found = await store.get(key)
        assert found is not None

        async def back() -> None:
            await other.rename("b", "a")

        store.then = (key, back)
        with pytest.raises(Unreachable, match="was changed since it was looked at"):
            await LogTree(store).rename("a", "b", version=found.version)
        assert [info.name for info in await other.list()] == ["/a"]

    @pytest.mark.parametrize("bug_name", ["", "claim-of-the-overtaken"])
    @as_scenario(awaited_by(run_patiently))
    async def test_a_rename_of_unknown_outcome_that_was_not_done_gives_the_new_name_back(
        self, *, bug_name: str
    ) -> None:
        """Nobody could make a log of the new name, and no listing showed why."""
        store = LosesOnce(random.Random(1), comes=False)
        other = LogTree(MemoryMetadata(random.Random(1), store.data))
        made = await other.create("a")
        key = id_key(made.log_id)
        found = await store.get(key)
        assert found is not None

        async def changes() -> None:
            await other.set_attributes("a", LogAttributes(backlog_s=5.0))

        store.then = (key, changes)
        bug = planted(find_bug(bug_name)) if bug_name else contextlib.nullcontext()
        with bug, pytest.raises(Unreachable, match="was changed since it was looked at"):
            await LogTree(store).rename("a", "b", version=found.version)
        assert [info.name for info in await other.list()] == ["/a"]
        # The write that had no answer changes nothing if it comes late.
        assert not store.data.compare_and_set(*store.lost)
        with pytest.raises(LogExists) if bug_name else contextlib.nullcontext():
            await other.create("b")

    @as_scenario(awaited_by(run_patiently))
    async def test_a_claim_that_comes_late_leaves_no_log_and_a_free_name(self) -> None:
        """Its maker was told that another log has the name, and that one is deleted by now."""
        store = LosesOnce(random.Random(1), comes=False)
        other = LogTree(MemoryMetadata(random.Random(1), store.data))

        async def makes() -> None:
            await other.create("a")

        store.then = ("logs/a", makes)
        with pytest.raises(LogExists):
            await LogTree(store).create("a")
        await other.delete("a")
        assert store.data.compare_and_set(*store.lost)
        assert await other.get("a") is None
        assert await other.list() == []
        assert (await other.create("a")).log_id == 3

    @as_scenario(awaited_by(run_patiently))
    async def test_a_claim_that_comes_before_its_maker_gives_up_makes_the_log(self) -> None:
        store = LosesOnce(random.Random(1), comes=False)
        other = LogTree(MemoryMetadata(random.Random(1), store.data))

        async def makes() -> None:
            await other.create("a")

        async def deletes() -> None:
            await other.delete("a")
            assert store.data.compare_and_set(*store.lost)

        store.then, store.before_give_up = ("logs/a", makes), deletes
        with pytest.raises(LogExists):
            await LogTree(store).create("a")
        assert [info.log_id for info in await other.list()] == [1]


class TestListing:
    @as_scenario("play")
    async def test_a_path_and_what_is_below_it(self, store) -> None:
        tree = LogTree(store)
        for name in ("orders", "orders/eu", "orders/eu/west", "orders-old", "orders.x", "a"):
            await tree.create(name, THREE)

        async def names(*prefix: str) -> list[str]:
            return [log.name for log in await tree.list(*prefix)]

        everything = ["/a", "/orders", "/orders-old", "/orders.x", "/orders/eu",
                      "/orders/eu/west"]  # fmt: skip
        assert await names() == await names("/") == await names("") == everything
        below = ["/orders", "/orders/eu", "/orders/eu/west"]
        assert await names("orders") == await names("/orders") == await names("/orders/") == below
        assert await names("orders/e") == []
        with pytest.raises(BadSetting):
            await tree.list("no such/*")

    @as_scenario("play")
    async def test_the_trees_own_entries_are_not_logs(self, store) -> None:
        tree = LogTree(store)
        await tree.create("next_log_id", THREE)
        await tree.create("log_ids/1", THREE)
        assert [log.name for log in await tree.list()] == ["/log_ids/1", "/next_log_id"]
        assert await tree.by_id(0) is None
        assert await tree.by_id(-1) is None
        assert await tree.by_id(2**70) is None


class TestAttributes:
    @as_scenario("play")
    async def test_what_is_nearer_counts_and_the_rest_is_inherited(self, store) -> None:
        tree = LogTree(store)
        await tree.set_attributes("/", LogAttributes(backlog_s=60.0, nodeset_size=9))
        await tree.set_attributes("a/", LogAttributes(backlog_s=70.0))
        await tree.set_attributes("/a/b/", LogAttributes(scd_enabled=False))
        made = await tree.create("a/b/c", LogAttributes(sticky_copysets=False))
        beside = await tree.create("a")
        assert made.attributes == msgspec.structs.replace(
            DEFAULTS,
            backlog_s=70.0, nodeset_size=9, scd_enabled=False, sticky_copysets=False,
        )  # fmt: skip
        # A directory is what lies below it, and not the log of the same name.
        assert beside.attributes == msgspec.structs.replace(
            DEFAULTS, backlog_s=60.0, nodeset_size=9
        )
        assert await tree.get("a/b/c") == await tree.by_id(made.log_id) == made
        assert await tree.list("a") == [beside, made]
        assert (await tree.inherited("/a/b/")).backlog_s == 70.0

    @as_scenario("play")
    async def test_setting_and_unsetting(self, store) -> None:
        tree = LogTree(store)
        made = await tree.create("a", LogAttributes(backlog_s=5.0, nodeset_size=7))
        await tree.set_attributes("a", LogAttributes(backlog_s=6.0), ("nodeset_size",))
        found = await tree.get("a")
        assert found
        assert found.own == LogAttributes(backlog_s=6.0)
        assert found.attributes.nodeset_size == 0
        assert found.log_id == made.log_id
        await tree.set_attributes("/", LogAttributes(nodeset_size=3))
        await tree.set_attributes("/", LogAttributes(), ("nodeset_size",))
        assert await tree.directories() == {}

    @as_scenario("play")
    async def test_a_log_with_a_read_token_does_not_go_to_main_storage(self, store) -> None:
        """Whoever may read the store would read it without the token."""
        tree = LogTree(store)
        token = LogAttributes(read_token=token_digest("secret"))
        await tree.set_attributes("/old/", LogAttributes(tier=True))
        await tree.create("secrets/a", token)
        for refused in (
            tree.create("old/b", token),
            tree.set_attributes("secrets/a", LogAttributes(tier=True)),
            tree.set_attributes("secrets/", LogAttributes(tier=True)),
            tree.set_attributes("old/", token),
        ):
            with pytest.raises(BadSetting, match=r"tier=off"):
                await refused
        made = await tree.create("old/c", LogAttributes(tier=False).over(token))
        assert made.attributes.tier is False

    @as_scenario("play")
    async def test_what_no_log_can_have_is_refused_and_changes_nothing(self, store) -> None:
        tree = LogTree(store)
        await tree.create("a/b", LogAttributes(replicate_across={"node": 5}))
        with pytest.raises(BadSetting, match="nodeset_size 4"):
            await tree.set_attributes("a/b", LogAttributes(nodeset_size=4))
        with pytest.raises(BadSetting, match="/a/b could not be so"):
            await tree.set_attributes("a/", LogAttributes(nodeset_size=4))
        with pytest.raises(BadSetting, match="synced_copies"):
            await tree.create("c", LogAttributes(synced_copies=4))
        with pytest.raises(UnknownLog):
            await tree.set_attributes("a", LogAttributes(nodeset_size=4))
        with pytest.raises(BadSetting, match="no attribute"):
            await tree.set_attributes("a/b", LogAttributes(), ("colour",))
        assert await tree.directories() == {}
        assert [log.name for log in await tree.list()] == ["/a/b"]

    @as_scenario("play")
    async def test_who_watches_is_told_of_changes_and_not_of_new_logs(self, store) -> None:
        tree = LogTree(store)
        await tree.create("a")
        assert await tree.changes() == 0
        mark = await store.changed(CHANGES_PREFIX, None, 5)
        await tree.set_attributes("a", LogAttributes(backlog_s=5.0))
        await tree.set_attributes("/", LogAttributes(backlog_s=6.0))
        assert await store.changed(CHANGES_PREFIX, mark, 5) != mark
        assert await tree.changes() == 2

    @pytest.mark.parametrize(
        ("text", "path"),
        [("/", "/"), ("a/", "/a/"), ("/a/", "/a/"), ("/a/b.c/", "/a/b.c/")],
    )
    def test_directories(self, text: str, path: str):
        assert normalise_directory(text) == normalise_directory(path) == path

    @pytest.mark.parametrize("text", ["", "a", "/a", "//", "a//", "/../", "-/", "a/ /", "a" * 256])
    def test_what_is_no_directory(self, text: str):
        with pytest.raises(BadSetting, match="no directory"):
            normalise_directory(text)


class TestDeletingAndRenaming:
    @as_scenario("play")
    async def test_a_deleted_log_is_gone_and_its_name_is_free(self, store) -> None:
        tree = LogTree(store)
        old = await tree.create("a", ONE)
        assert await tree.delete("a") == old
        assert await tree.get("a") is None
        assert await tree.by_id(old.log_id) is None
        assert await tree.list() == []
        with pytest.raises(UnknownLog):
            await tree.delete("a")
        new = await tree.create("a")
        assert new.log_id != old.log_id
        assert await tree.by_id(old.log_id) is None

    @as_scenario("play")
    async def test_a_renamed_log_keeps_number_and_attributes(self, store) -> None:
        tree = LogTree(store)
        old = await tree.create("a", ONE, created_us=3)
        await tree.set_attributes("new/", LogAttributes(backlog_s=9.0))
        renamed = await tree.rename("a", "new/b")
        assert (renamed.log_id, renamed.name, renamed.own) == (old.log_id, "/new/b", ONE)
        assert renamed.created_us == 3
        assert renamed.attributes.backlog_s == 9.0
        assert await tree.list() == [renamed]
        assert await tree.by_id(old.log_id) == renamed
        assert await tree.get("a") is None

    @as_scenario("play")
    async def test_renaming_onto_another_is_refused(self, store) -> None:
        tree = LogTree(store)
        one, other = await tree.create("a"), await tree.create("b")
        with pytest.raises(LogExists):
            await tree.rename("a", "b")
        with pytest.raises(UnknownLog):
            await tree.rename("c", "d")
        assert await tree.rename("a", "/a") == one
        assert await tree.list() == [one, other]

    @pytest.mark.parametrize("damaged", ["logs/a", "log_ids/1"])
    @as_scenario("play")
    async def test_a_listing_leaves_out_what_cannot_be_read_if_its_caller_wants_that(
        self, store, *, damaged: str
    ) -> None:
        tree = LogTree(store)
        await tree.create("a")
        other = await tree.create("b")
        found = await store.get(damaged)
        await store.compare_and_set(damaged, b'{"of a newer version":1}', found.version)
        with pytest.raises(Malformed):
            await tree.list()
        assert await tree.list(only_readable=True) == [other]
        unread: dict[str, Malformed] = {}
        assert await tree.list(unread=unread) == [other]
        assert "cannot be read" in str(unread[damaged])
        assert numbers_of(unread) == {1}, "its log was not deleted"

    @pytest.mark.parametrize("key", ["log_ids/x", "log_ids/01", f"log_ids/{1 << 70}"])
    @as_scenario("play")
    async def test_a_key_that_no_version_wrote_holds_up_no_log(self, store, *, key: str) -> None:
        tree = LogTree(store)
        log = await tree.create("a")
        await store.compare_and_set(key, b"{}", 0)
        with pytest.raises(Malformed, match="is no log's entry"):
            await tree.list()
        unread: dict[str, Malformed] = {}
        assert await tree.list(unread=unread) == [log]
        assert unread.keys() == {key}
        assert numbers_of(unread) == set()

    @as_scenario("play")
    async def test_a_listing_tells_of_the_entries_of_its_path_alone(self, store) -> None:
        tree = LogTree(store)
        await tree.create("a/one")
        await tree.create("a/two")
        other = await tree.create("b/one")
        for key in ("log_ids/1", "logs/a/two"):
            found = await store.get(key)
            await store.compare_and_set(key, b"?", found.version)
        unread: dict[str, Malformed] = {}
        assert await tree.list("b", unread=unread) == [other]
        assert unread == {}
        assert await tree.list("a", unread=unread) == []
        assert numbers_of(unread) == {1, 2}

    @as_scenario("play")
    async def test_a_number_tells_that_its_log_was_deleted(self, store) -> None:
        tree = LogTree(store)
        log = (await tree.create("a")).log_id
        described = await tree.described(log)
        assert described is not None
        assert not described.is_deleted
        await tree.delete("a")
        described = await tree.described(log)
        assert described is not None
        assert described.is_deleted

    @pytest.mark.parametrize("keys", [1, 2, 100])
    @as_scenario(awaited_by(run_patiently))
    async def test_a_listing_shows_a_log_that_is_renamed_or_made_while_it_reads(
        self, *, monkeypatch, keys: int
    ) -> None:
        """Each page of names and of numbers is a reading: whenever it comes, no log is left out."""
        swap_value(monkeypatch, lambda: pages.PAGE_KEYS, keys)
        numbers = {1: 5, 2: 3, 100: 2}[keys]
        for page in itertools.count(1):
            moved, found = await listed_while_names_move(page)
            found.pop("/gone", None)
            if not moved:
                break
            number = found.pop("/c")
            assert number in (2, 4), page
            assert found in ({"/a": 1}, {"/b": 1}), page
            if page == numbers:  # between the last number and the first name
                assert (number, found) == (4, {"/b": 1})
        assert page == {1: 9, 2: 5, 100: 3}[keys], "all pages had their turn"

    @as_scenario(awaited_by(run_patiently))
    async def test_a_listing_that_leaves_out_what_moved_meanwhile_is_caught(self) -> None:
        with planted(find_bug("moved-left-out")):
            _, found = await listed_while_names_move(2)
        assert 1 not in found.values()

    @as_scenario(awaited_by(run_patiently))
    async def test_a_listing_shows_a_log_whose_name_another_log_takes_meanwhile(self) -> None:
        data = MemoryData()
        tree = LogTree(MemoryMetadata(random.Random(1), data))
        await tree.create("a")
        await tree.create("y")

        class AtGet(AtPages):
            """Here the rest of it comes right before the log that has moved is read again."""

            async def get(self, key: str) -> Versioned | None:
                if key == "log_ids/2" and self._happens is first:
                    self._happens = second
                    await second()
                return await super().get(key)

        async def first() -> None:
            await tree.rename("y", "z")

        async def second() -> None:
            await tree.rename("a", "c")
            await tree.rename("z", "a")

        listed = await LogTree(AtGet(data, 2, first)).list()
        assert [(info.name, info.log_id) for info in listed] == [("/a", 2), ("/c", 1)]

    @pytest.mark.parametrize("writes", [0, 1, 2])
    @as_scenario(awaited_by(run_patiently))
    async def test_one_who_stops_half_way_may_be_followed_by_another(self, *, writes: int) -> None:
        store = Stopping(random.Random(1))
        store.writes_left = 100
        log = await LogTree(store).create("a")
        store.writes_left = writes
        with pytest.raises(asyncio.CancelledError):
            await LogTree(store).rename("a", "b")
        tree = LogTree(MemoryMetadata(random.Random(1), store.data))
        assert await tree.by_id(log.log_id)
        assert (await tree.rename("a", "b")).log_id == log.log_id
        assert [found.name for found in await tree.list()] == ["/b"]

    @pytest.mark.parametrize("writes", range(5))
    @pytest.mark.parametrize("name", ["a", "b"])
    @as_scenario(awaited_by(run_patiently))
    async def test_deleting_what_a_stopped_rename_left_deletes_the_log_or_only_the_name(
        self, *, writes, name: str
    ) -> None:
        """Whatever is left, no name leads to a log that was deleted."""
        store = Stopping(random.Random(1))
        store.writes_left = 100
        log = await LogTree(store).create("a")
        store.writes_left = writes
        with contextlib.suppress(asyncio.CancelledError):
            await LogTree(store).rename("a", "b")
        tree = LogTree(MemoryMetadata(random.Random(1), store.data))
        (listed,) = await tree.list()
        try:
            deleted = await tree.delete(name)
        except UnknownLog:
            deleted = None
        if deleted is None:
            assert await tree.list() == [listed]
            assert await tree.by_id(log.log_id) == listed
            assert (await tree.get(listed.name)) == listed
        else:
            assert deleted.log_id == log.log_id
            assert await tree.list() == []
            assert await tree.by_id(log.log_id) is None
            for each in ("a", "b"):
                assert await tree.get(each) is None
                assert (await tree.create(each)).log_id != log.log_id

    @as_scenario(awaited_by(run_patiently))
    async def test_an_attribute_that_is_set_while_a_log_is_renamed_stays(self) -> None:
        store = Between(random.Random(1))
        tree = LogTree(store)
        await tree.create("a")

        async def set_it() -> None:
            other = LogTree(MemoryMetadata(random.Random(1), store.data))
            await other.set_attributes("a", ONE)

        store.then = ("logs/b", set_it)
        renamed = await tree.rename("a", "b")
        assert renamed.own == ONE

    @as_scenario(awaited_by(run_patiently))
    async def test_of_two_renames_at_once_one_is_done(self) -> None:
        store = Between(random.Random(1))
        tree = LogTree(store)
        log = await tree.create("a")

        async def rename_it() -> None:
            other = LogTree(MemoryMetadata(random.Random(1), store.data))
            await other.rename("a", "c")

        store.then = ("logs/b", rename_it)
        with pytest.raises(UnknownLog):
            await tree.rename("a", "b")
        assert [each.name for each in await tree.list()] == ["/c"]
        assert (await tree.get("c")).log_id == log.log_id
        # The rename that lost gave its new name back.
        assert (await tree.create("b")).log_id != log.log_id

    @as_scenario(awaited_by(run_patiently))
    async def test_a_rename_that_is_refused_meanwhile_gives_the_new_name_back(self) -> None:
        """The name led to no log, and was said to be taken by one."""
        store = Between(random.Random(1))
        tree = LogTree(store)
        log = await tree.create("a")
        guarded = LogAttributes(write_token=token_digest("a secret"))

        async def guard() -> None:
            other = LogTree(MemoryMetadata(random.Random(1), store.data))
            await other.set_attributes("a", guarded)

        store.then = ("logs/b", guard)
        with pytest.raises(AccessDenied):
            await tree.rename("a", "b", who_has(()))
        found = await tree.get("a")
        assert found is not None
        assert (found.log_id, found.own) == (log.log_id, guarded)
        assert (await tree.create("b")).log_id != log.log_id

    @pytest.mark.parametrize("is_left", [True, False])
    @as_scenario(awaited_by(run_patiently))
    async def test_a_log_whose_new_name_was_given_to_another_has_its_old_one(
        self, *, is_left: bool
    ) -> None:
        """No name led to it, so neither its name nor its number found it."""
        store = Between(random.Random(1))
        tree = LogTree(store)
        log = await tree.create("a")

        async def give_away() -> None:
            other = LogTree(MemoryMetadata(random.Random(1), store.data))
            assert await other.delete("b") is None
            await other.create("b")
            if not is_left:
                assert await other.delete("a") == log
                await other.create("a")

        store.then = ("logs/b", give_away)
        with pytest.raises(LogExists if is_left else UnknownLog):
            await tree.rename("a", "b")
        assert [each.name for each in await tree.list()] == ["/a", "/b"]
        assert await tree.by_id(log.log_id) == (log if is_left else None)
        assert (await tree.rename("a", "c")).name == "/c"

    @as_scenario(awaited_by(run_patiently))
    async def test_a_log_that_comes_back_to_a_name_keeps_it(self) -> None:
        """The first rename took the old name away last, and the log had come back to it."""
        near = MemoryMetadata(random.Random(1))
        log = await LogTree(near).create("a")

        class Before(MemoryMetadata):
            async def compare_and_set(self, key, value, expected):
                if key == "logs/a" and value is None:
                    await LogTree(near).rename("b", "a")
                return await super().compare_and_set(key, value, expected)

        tree = LogTree(Before(random.Random(1), near.data))
        with pytest.raises(UnknownLog):
            await tree.rename("a", "b")
        assert await tree.by_id(log.log_id) == await tree.get("a") == log

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("calls", "gives_up"),
        [(("rename",), False), (CALLS, False), (CALLS, True)],
        ids=["renames", "all", "given up and tried again"],
    )
    @pytest.mark.parametrize("seeds", [range(70), range(70, 140)])
    def test_however_calls_of_several_cross_every_log_is_found(self, calls, gives_up: bool, seeds):
        """Logs that no name led to took no appends and no reads: not by their numbers either."""

        async def main(seed: int) -> None:
            data = MemoryData()
            store = MemoryMetadata(random.Random(seed), data)
            near = LogTree(store)
            made = {(await near.create(name)).log_id for name in "ab"}

            async def once(tree: LogTree, kind: str, name: str, new_name: str) -> None:
                match kind:
                    case "rename":
                        await tree.rename(name, new_name)
                    case "create":
                        made.add((await tree.create(name)).log_id)
                    case "delete":
                        await tree.delete(name)

            async def call(number: int) -> None:
                chance = random.Random(f"{seed} {number}")
                tree = LogTree(Slow(chance, data))
                for _ in range(4):
                    kind, names = chance.choice(calls), chance.sample("abc", 2)
                    with contextlib.suppress(LogExists, UnknownLog):
                        if gives_up and chance.random() < 0.5:
                            with contextlib.suppress(TimeoutError):
                                async with asyncio.timeout(1.5 * chance.random()):
                                    await once(tree, kind, *names)
                        await once(tree, kind, *names)

            await asyncio.gather(*map(call, range(3)))
            listed = {info.log_id for info in await near.list()}
            for log_id in made:
                if not await near.is_deleted(log_id):
                    info = await near.by_id(log_id)
                    assert info is not None, (seed, log_id)
                    assert await near.get(info.name) == info
                    assert log_id in listed
            for key, found in [] if gives_up else await store.list("logs/"):
                number = msgspec.json.decode(found.value)["log_id"]
                is_free = await near.is_deleted(number)
                assert is_free or await near.get(key.removeprefix("logs")), (seed, key)

        for seed in seeds:
            run_patiently(main(seed))

    @as_scenario(awaited_by(run_patiently))
    async def test_a_log_that_is_deleted_while_it_is_renamed_is_gone(self) -> None:
        store = Between(random.Random(1))
        tree = LogTree(store)
        log = await tree.create("a")

        async def delete_it() -> None:
            other = LogTree(MemoryMetadata(random.Random(1), store.data))
            assert await other.delete("a") is not None

        store.then = ("logs/b", delete_it)
        with pytest.raises(UnknownLog):
            await tree.rename("a", "b")
        assert await tree.list() == []
        assert await tree.by_id(log.log_id) is None
        assert (await tree.create("b")).log_id != log.log_id


@pytest.mark.parametrize("value", [b"", b"[]", b'{"log_id":1,"copies":1}', b'{"log_id":0}'])
@as_scenario(awaited_by(run_patiently))
async def test_an_entry_that_cannot_be_read_names_the_log(
    *, memory: MemoryMetadata, value: bytes
) -> None:
    await memory.compare_and_set("logs/a", value, 0)
    with pytest.raises(Malformed, match="/a"):
        await LogTree(memory).get("a")
    with pytest.raises(Malformed, match="/a"):
        await LogTree(memory).list()


@pytest.mark.parametrize("moves_to_directory", [True, False])
@as_scenario(awaited_by(asyncio.run))
async def test_a_listing_gives_no_attributes_that_a_log_never_had(
    *, moves_to_directory: bool
) -> None:
    """A retention moves between a log and its directory while the logs are read."""
    long, short = LogAttributes(backlog_s=86_400), LogAttributes(backlog_s=5)
    data = MemoryData()
    operator = LogTree(MemoryMetadata(random.Random(1), data))

    class Slow(MemoryMetadata):
        moved = False

        async def move(self) -> None:
            self.moved = True
            if moves_to_directory:
                await operator.set_attributes("/a/", long)
                await operator.set_attributes("a/log", LogAttributes(), unset=("backlog_s",))
            else:
                await operator.set_attributes("a/log", long)
                await operator.set_attributes("/a/", short)

        async def page(self, prefix: str, after: str, limit: int) -> Page:
            if moves_to_directory and prefix == "log_ids/" and not self.moved:
                await asyncio.sleep(0)
                await self.move()
            found = await super().page(prefix, after, limit)
            if prefix == "log_ids/" and not self.moved:
                await self.move()
            return found

    await operator.set_attributes("/a/", short if moves_to_directory else long)
    await operator.create("a/log", long if moves_to_directory else None)
    [info] = await LogTree(Slow(random.Random(2), data)).list()
    assert info.attributes.backlog_s == 86_400


Step = Callable[[LogTree], Awaitable[object]]


class Prompt(MemoryMetadata):
    """A way to the store that takes no time."""

    def __init__(self, chance: random.Random, data: MemoryData) -> None:
        super().__init__(chance, data)
        self.delay_s = (0.0, 0.0)


class AtReads(Prompt):
    """A way to the store on which the steps of an operator happen right before these reads."""

    def __init__(self, data: MemoryData, steps: Sequence[Step], reads: Sequence[int]) -> None:
        super().__init__(random.Random(2), data)
        self._operator = LogTree(Prompt(random.Random(3), data))
        self._steps = list(zip(reads, steps, strict=True))
        self.reads = 0

    async def get(self, key: str) -> Versioned | None:
        self.reads += 1
        while self._steps and self._steps[0][0] <= self.reads:
            _, step = self._steps.pop(0)
            await step(self._operator)
        return await super().get(key)


READERS: dict[str, Callable[[LogTree], Awaitable[LogInfo | None]]] = {
    "get": lambda tree: tree.get("a/log"),
    "by_id": lambda tree: tree.by_id(1),
    "of_one_moment": lambda tree: tree.of_one_moment(LogId(1)),
}

TOKEN = LogAttributes(read_token=token_digest("secret"))
NO_TOKEN = {"attributes": LogAttributes(), "unset": ("read_token",)}


async def torn(reader: str, *, moves_to_directory: bool) -> list[tuple[int, int]]:
    """Between which reads an operator moved a token, so that the log came without one."""
    places = ("a/log", "/a/") if moves_to_directory else ("/a/", "a/log")
    found = []
    for reads in itertools.combinations_with_replacement(range(1, 9), 2):
        data = MemoryData()
        tree = LogTree(Prompt(random.Random(1), data))
        await tree.create("a/log")
        await tree.set_attributes(places[0], TOKEN)
        steps: list[Step] = [
            lambda operator: operator.set_attributes(places[1], TOKEN),
            lambda operator: operator.set_attributes(places[0], **NO_TOKEN),
        ]
        info = await READERS[reader](LogTree(AtReads(data, steps, reads)))
        assert info is not None
        if info.attributes.read_token != TOKEN.read_token:
            found.append(reads)
    return found


@pytest.mark.parametrize("moves_to_directory", [True, False])
@pytest.mark.parametrize("reader", READERS)
@as_scenario(awaited_by(asyncio.run))
async def test_a_log_has_no_attributes_that_it_never_had(
    *, reader: str, moves_to_directory: bool
) -> None:
    """A token moves between a log and its directory while a node reads both. Without the token in
    either, any client could read the log."""
    assert await torn(reader, moves_to_directory=moves_to_directory) == []


@pytest.mark.parametrize("reader", READERS)
@as_scenario(awaited_by(asyncio.run))
async def test_a_log_and_directories_of_two_moments_are_caught(*, reader: str) -> None:
    with planted(find_bug("torn-attributes")):
        assert await torn(reader, moves_to_directory=False)


@as_scenario(awaited_by(asyncio.run))
async def test_a_log_that_is_renamed_all_the_time_is_there() -> None:
    data = MemoryData()
    tree = LogTree(Prompt(random.Random(1), data))
    made = await tree.create("0")

    def renamed(at: int) -> Step:
        return lambda operator: operator.rename(str(at), str(at + 1))

    # Each time before the read of the name: a reading of the log is four reads, and then its name.
    once = await LogTree(AtReads(data, [renamed(0)], [5])).by_id(made.log_id)
    assert once is not None
    assert once.name == "/1"
    often = AtReads(data, [renamed(at) for at in range(1, 9)], range(5, 45, 5))
    with pytest.raises(Overloaded, match="log number 1 changed during each of 4 readings"):
        await LogTree(often).by_id(made.log_id)


@as_scenario(awaited_by(asyncio.run))
async def test_a_token_that_moves_to_a_directory_is_asked_for_all_the_while() -> None:
    """A stranger deletes the log, between any two of whose reads the owner moves the token."""
    guarded = LogAttributes(write_token=token_digest("secret"))
    for reads in itertools.combinations_with_replacement(range(1, 9), 2):
        data = MemoryData()
        owner = LogTree(Prompt(random.Random(1), data))
        await owner.create("a/log", guarded)
        steps: list[Step] = [
            lambda tree: tree.set_attributes("/a/", guarded),
            lambda tree: tree.set_attributes("a/log", LogAttributes(), ("write_token",)),
        ]
        with pytest.raises(AccessDenied):
            await LogTree(AtReads(data, steps, reads)).delete("a/log", who_has(()))
