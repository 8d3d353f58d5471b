"""One contract suite for the metadata store: what `store.py` says, on SQLite, in memory and on a
real ZooKeeper."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from metadata_play import Act, run_on_sqlite, run_on_zookeeper, run_patiently
from scenarios import as_scenario
from swaps import swap_value

from cordwood.errors import BadSetting, Closed
from cordwood.metadata import pages
from cordwood.metadata import store as store_rules
from cordwood.metadata.memory import MemoryMetadata
from cordwood.metadata.store import KEY_BYTES_MAX, VALUE_BYTES_MAX, MetadataStore, Versioned


class TestValues:
    @as_scenario("play")
    async def test_a_new_store_is_empty(self, store: MetadataStore) -> None:
        assert await store.get("a") is None
        assert await store.list("") == []

    @as_scenario("play")
    async def test_what_was_set_is_got_with_its_version(self, store: MetadataStore) -> None:
        version = await store.compare_and_set("a/b", b"one", 0)
        assert version
        assert await store.get("a/b") == Versioned(b"one", version)
        assert await store.get("a") is None

    def test_what_was_set_outlives_its_writer(self, play: Callable[[Act[Any]], Any]):
        async def write(store: MetadataStore) -> int | None:
            return await store.compare_and_set("a", b"\x00\xff", 0)

        async def read(store: MetadataStore) -> Versioned | None:
            return await store.get("a")

        version = play(write)
        assert play(read) == Versioned(b"\x00\xff", version)

    @pytest.mark.parametrize("value", [b"", b"\x00" * VALUE_BYTES_MAX])
    @as_scenario("play")
    async def test_values_from_nothing_to_the_limit(self, store: MetadataStore, *, value) -> None:
        version = await store.compare_and_set("a", value, 0)
        assert version
        assert await store.get("a") == Versioned(value, version)


class TestCompareAndSet:
    @as_scenario("play")
    async def test_only_the_version_that_is_there_is_replaced(self, store: MetadataStore) -> None:
        first = await store.compare_and_set("a", b"1", 0)
        assert first
        assert await store.compare_and_set("a", b"x", 0) is None
        assert await store.compare_and_set("a", b"x", first + 1) is None
        assert await store.get("a") == Versioned(b"1", first)
        second = await store.compare_and_set("a", b"2", first)
        assert second
        assert second > first
        assert await store.compare_and_set("a", b"x", first) is None
        assert await store.get("a") == Versioned(b"2", second)

    @as_scenario("play")
    async def test_nothing_is_set_where_something_was_expected(self, store: MetadataStore) -> None:
        assert await store.compare_and_set("a", b"1", 7) is None
        assert await store.get("a") is None

    @as_scenario("play")
    async def test_deleting_takes_the_version_too(self, store: MetadataStore) -> None:
        version = await store.compare_and_set("a", b"1", 0)
        assert version
        assert await store.compare_and_set("a", None, version + 1) is None
        assert await store.get("a")
        assert await store.compare_and_set("a", None, version)
        assert await store.get("a") is None
        assert await store.compare_and_set("a", None, version) is None

    def test_versions_never_repeat_even_after_a_delete(self, play: Callable[[Act[Any]], Any]):
        """Or a compare-and-set from before the delete would hit what was made after it."""

        async def act(store: MetadataStore) -> list[int]:
            seen: list[int] = []
            for value in (b"1", None, b"1", None, b"1"):
                found = await store.get("a")
                version = await store.compare_and_set("a", value, found.version if found else 0)
                assert version
                seen.append(version)
                other = await store.get("b")
                version = await store.compare_and_set("b", b"", other.version if other else 0)
                assert version
                seen.append(version)
            return seen

        seen = play(act)
        assert seen == sorted(set(seen))
        assert 0 not in seen

    @as_scenario("play")
    async def test_of_those_who_race_for_one_version_one_wins(self, store: MetadataStore) -> None:
        version = 0
        for turn in range(5):
            tries = [store.compare_and_set("a", b"%d" % n, version) for n in range(8)]
            won = [found for found in await asyncio.gather(*tries) if found is not None]
            assert len(won) == 1, f"turn {turn}"
            (version,) = won


class TestList:
    @as_scenario("play")
    async def test_keys_come_in_pages_without_those_that_were_deleted(
        self, store: MetadataStore
    ) -> None:
        made = ["b", "b/1", "b/1/x", "b/10", "b/2", "b-c/1", "b_c", "c/1", "d/1"]
        versions = {key: await store.compare_and_set(key, b"v", 0) for key in made}
        await store.compare_and_set("b/10", None, versions["b/10"] or 0)
        left = sorted({*made} - {"b/10"})
        for prefix in ("", "b", "b/", "b/1", "c/", "x"):
            wanted = [key for key in left if key.startswith(prefix)]
            assert await store.keys_after(prefix, "", 100) == wanted
            page = await store.page(prefix, "", 100)
            assert page == [(key, Versioned(b"v", versions[key] or 0)) for key in wanted]
            assert await store.page(prefix, "", 2) == page[:2]
            pages: list[str] = []
            while page := await store.keys_after(prefix, pages[-1] if pages else "", 2):
                pages += page
            assert pages == wanted
        assert await store.keys_after("b", "b/15", 2) == ["b/2", "b_c"]
        for limit in (0, 100_001):
            with pytest.raises(BadSetting, match="a page of"):
                await store.keys_after("b", "", limit)
            with pytest.raises(BadSetting, match="a page of"):
                await store.page("b", "", limit)

    @as_scenario("play")
    async def test_keys_with_the_prefix_sorted(self, store: MetadataStore) -> None:
        versions = {}
        for key in ("b/2", "b/10", "ba", "b", "B", "c/1", "a_"):
            versions[key] = await store.compare_and_set(key, key.encode(), 0)
        keys = {p: [k for k, _ in await store.list(p)] for p in ("", "b", "b/", "b/1", "x")}
        assert keys[""] == sorted(versions)
        assert keys["b"] == ["b", "b/10", "b/2", "ba"]
        assert keys["b/"] == ["b/10", "b/2"]
        assert keys["b/1"] == ["b/10"]
        assert keys["x"] == []
        assert await store.list("c") == [("c/1", Versioned(b"c/1", versions["c/1"]))]


class TestWatch:
    @as_scenario("play")
    async def test_a_mark_moves_with_what_is_below_the_prefix(self, store: MetadataStore) -> None:
        mark = await store.changed("a/", None, 5)
        assert await store.changed("a/", mark, 0) == mark
        version = await store.compare_and_set("a/b", b"1", 0)
        moved = await store.changed("a/", mark, 5)
        assert moved != mark
        await store.compare_and_set("a/b", None, version)
        assert await store.changed("a/", moved, 5) != moved

    @as_scenario("play")
    async def test_who_waits_is_told(self, store: MetadataStore) -> None:
        mark = await store.changed("a/", None, 5)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(store.changed("a/", mark, 20))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            assert await store.compare_and_set("a/b", b"1", 0)
        assert waiting.result() != mark

    @as_scenario("play")
    async def test_who_waits_in_vain_gets_the_same_mark(self, store: MetadataStore) -> None:
        mark = await store.changed("a/", None, 5)
        assert await store.changed("a/", mark, 0.05) == mark

    @pytest.mark.parametrize("prefix", ["", "a", "/", "a//"])
    @as_scenario("play")
    async def test_a_prefix_without_a_whole_part_is_refused(
        self, store: MetadataStore, *, prefix: str
    ) -> None:
        with pytest.raises(BadSetting):
            await store.changed(prefix, None, 1)


class TestLeases:
    @as_scenario("play")
    async def test_a_lease_is_taken_renewed_told_and_dropped(self, store: MetadataStore) -> None:
        assert await store.leases("") == []
        assert await store.take_lease("up/1", b"one", 60)
        assert await store.take_lease("up/1", b"two", 60)
        assert await store.take_lease("up/2", b"", 60)
        assert await store.take_lease("down", b"x", 60)
        assert await store.leases("up/") == [("up/1", b"two"), ("up/2", b"")]
        await store.drop_lease("up/1")
        await store.drop_lease("up/1")
        await store.drop_lease("nobody-has-it")
        assert await store.leases("") == [("down", b"x"), ("up/2", b"")]
        assert await store.get("up/2") is None

    @as_scenario("play")
    async def test_of_a_lease_that_was_dropped_nothing_stays(self, store: MetadataStore) -> None:
        """An entry stayed for every log and ledger that ever had work."""
        for number in range(3):
            assert await store.take_lease(f"up/{number}", b"x", 60)
            await store.drop_lease(f"up/{number}")
        assert await store.list("") == []

    @as_scenario("play")
    async def test_no_number_of_leases_is_too_many(
        self, store: MetadataStore, *, monkeypatch
    ) -> None:
        swap_value(monkeypatch, lambda: store_rules.LIST_KEYS_MAX, 3)
        swap_value(monkeypatch, lambda: pages.PAGE_KEYS, 2)
        for number in range(5):
            assert await store.take_lease(f"up/{number}", b"x", 60)
        assert len(await store.leases("up/")) == 5

    @as_scenario("pair")
    async def test_what_one_has_another_does_not_get_until_it_is_let_go(
        self, one: MetadataStore, other: MetadataStore
    ) -> None:
        assert await one.take_lease("a", b"1", 60)
        assert not await other.take_lease("a", b"2", 60)
        await other.drop_lease("a")
        assert await other.leases("") == [("a", b"1")]
        await one.drop_lease("a")
        assert await other.take_lease("a", b"2", 60)
        assert not await one.take_lease("a", b"1", 60)

    @pytest.mark.parametrize(
        ("key", "value", "ttl_s"),
        [("", b"", 1), ("a//b", b"", 1), ("a", b"x" * 1025, 1), ("a", b"", 0), ("a", b"", 1e9)],
    )
    @as_scenario("play")
    async def test_leases_that_cannot_be(
        self, store: MetadataStore, *, key: str, value: bytes, ttl_s: float
    ) -> None:
        with pytest.raises(BadSetting):
            await store.take_lease(key, value, ttl_s)


class TestTwoUsers:
    @as_scenario("pair")
    async def test_what_one_writes_the_other_reads_at_once(
        self, one: MetadataStore, other: MetadataStore
    ) -> None:
        version = 0
        for turn in range(5):
            value = b"%d" % turn
            version = await one.compare_and_set("a", value, version) or 0
            assert await other.get("a") == Versioned(value, version)
            one, other = other, one

    @as_scenario("pair")
    async def test_a_version_that_was_deleted_and_made_anew_is_another(
        self, one: MetadataStore, other: MetadataStore
    ) -> None:
        """Even for one who read it before, and does not read again."""
        old = await one.compare_and_set("a", b"1", 0)
        assert old
        assert await other.get("a") == Versioned(b"1", old)
        assert await one.compare_and_set("a", None, old)
        new = await one.compare_and_set("a", b"1", 0)
        assert await other.compare_and_set("a", b"2", old) is None
        assert await one.get("a") == Versioned(b"1", new)


class TestRefusals:
    @pytest.mark.parametrize(
        "key",
        ["", "/a", "a/", "a//b", ".", "..", "a/../b", "-a", "a/.b", "a b", "ä", "a\n", "a%",
         "a" * (KEY_BYTES_MAX + 1)],
    )  # fmt: skip
    @as_scenario("play")
    async def test_keys(self, store: MetadataStore, *, key) -> None:
        with pytest.raises(BadSetting):
            await store.get(key)
        with pytest.raises(BadSetting):
            await store.compare_and_set(key, b"", 0)

    @as_scenario("play")
    async def test_the_longest_key_is_fine(self, store: MetadataStore) -> None:
        assert await store.compare_and_set("a" * KEY_BYTES_MAX, b"", 0)

    @pytest.mark.parametrize("prefix", ["/", "a//", "-", "a/.", "%", "a\n", "a" * 5000 + "!"])
    @as_scenario("play")
    async def test_prefixes_that_no_key_has(self, store: MetadataStore, *, prefix: str) -> None:
        with pytest.raises(BadSetting):
            await store.list(prefix)

    @pytest.mark.parametrize(
        ("value", "expected"), [(b"\x00" * (VALUE_BYTES_MAX + 1), 0), (b"", -1), (None, 0)]
    )
    @as_scenario("play")
    async def test_writes(self, store: MetadataStore, *, value, expected: int) -> None:
        with pytest.raises(BadSetting):
            await store.compare_and_set("a", value, expected)
        assert await store.get("a") is None

    @as_scenario("play")
    async def test_a_closed_store(self, store: MetadataStore) -> None:
        assert await store.compare_and_set("a", b"", 0)
        await store.close()
        await store.close()
        with pytest.raises(Closed):
            await store.get("a")
        with pytest.raises(Closed):
            await store.compare_and_set("b", b"", 0)
        with pytest.raises(Closed):
            await store.list("")


# The twin: a dict and a counter.

keys = st.sampled_from(["a", "a/b", "a-b", "ab", "b"])
steps = st.lists(
    st.tuples(keys, st.none() | st.binary(max_size=3), st.sampled_from(["right", "stale", "none"])),
    min_size=1,
    max_size=25,
)


plans = itertools.count(1)


async def same_as_a_dict(store: MetadataStore, plan) -> None:
    model: dict[str, Versioned] = {}
    newest = 0
    for key, value, expecting in plan:
        there = model.get(key)
        right = there.version if there else 0
        expected = {"right": right, "stale": max(right - 1, 0), "none": 0}[expecting]
        if value is None and expected == 0:
            continue
        version = await store.compare_and_set(key, value, expected)
        assert (version is not None) == (expected == right)
        if version is not None:
            assert version > newest
            newest = version
            model.pop(key, None)
            if value is not None:
                model[key] = Versioned(value, version)
        assert await store.get(key) == model.get(key)
    for prefix in ("", "a", "a/", "b"):
        assert await store.list(prefix) == sorted(
            (item for item in model.items() if item[0].startswith(prefix)), key=lambda i: i[0]
        )


@given(steps)
def test_memory_does_as_a_dict_would(plan):
    run_patiently(same_as_a_dict(MemoryMetadata(random.Random(1)), plan))


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=steps)
def test_zookeeper_does_as_a_dict_would(zookeeper: str, plan):
    where = f"{zookeeper}/{next(plans)}"
    run_on_zookeeper(where, lambda store: same_as_a_dict(store, plan))


@settings(max_examples=25)
@given(steps)
def test_sqlite_does_as_a_dict_would(plan):
    with tempfile.TemporaryDirectory() as directory:
        run_on_sqlite(Path(directory) / "m", lambda store: same_as_a_dict(store, plan))
