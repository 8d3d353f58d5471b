"""Stores that do not answer, answer late, or tell too much."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest
from scenarios import as_scenario
from store_stages import KEYS, OBSTORE, need, on_real_host

from cordwood.errors import (
    BadSetting,
    CordwoodError,
    Malformed,
    NoObject,
    ObjectChanged,
    OutcomeUnknown,
    Overloaded,
    Unreachable,
)
from cordwood.host.seams import Host
from cordwood.sim.host import Simulation
from cordwood.sim.object_store import Bucket, BucketFaults
from cordwood.tier.obstore_store import ObstoreStore, open_obstore
from cordwood.tier.patient_store import (
    FIRST_TRY_S,
    PAUSE_S_MAX,
    TRY_S,
    PatientStore,
    pause_s,
    try_s,
)

IN = {"timeout_s": 5.0}


def simulate(act, seed: int = 1) -> None:
    """Run `act(simulation)` on the simulator's loop."""
    Simulation(seed).run(act)


class TestTheSimulatedStore:
    @as_scenario(simulate)
    async def test_a_quiet_one_draws_no_more_chance_than_its_latencies(
        self, simulation: Simulation
    ) -> None:
        chance = random.Random(1)
        store = Bucket(chance).store()
        await store.put("a", [b"x"], **IN)
        assert await store.get("a", 0, 1, **IN) == b"x"

    @pytest.mark.parametrize(
        ("faults", "happens"),
        [
            (BucketFaults(lost_request=1.0), False),
            (BucketFaults(lost_answer=1.0), True),
            (BucketFaults(late_request=1.0, late_s=10.0), True),
        ],
    )
    @as_scenario(simulate)
    async def test_no_answer_says_nothing_of_whether_it_happened(
        self, simulation: Simulation, *, faults, happens: bool
    ) -> None:
        bucket = Bucket(simulation.faults, faults)
        with pytest.raises(OutcomeUnknown):
            await bucket.store().put("a", [b"x"], **IN)
        with pytest.raises(Unreachable):
            await bucket.store().read("a", **IN)
        await asyncio.sleep(20)
        assert (bucket.names() == ["a"]) is happens

    @as_scenario(simulate)
    async def test_a_request_outlives_the_process_that_made_it(
        self, simulation: Simulation
    ) -> None:
        bucket = Bucket(simulation.faults, BucketFaults(late_request=1.0, late_s=10.0))
        machine = simulation.machine("node")

        async def main(host: Host) -> None:
            await bucket.store().put("a", [b"x"], **IN)

        machine.start(main)
        await asyncio.sleep(1)
        machine.kill()
        assert bucket.names() == []
        await asyncio.sleep(20)
        assert bucket.names() == ["a"]

    @as_scenario(simulate)
    async def test_a_late_condition_is_looked_at_when_it_arrives(
        self, simulation: Simulation
    ) -> None:
        bucket = Bucket(simulation.faults, BucketFaults())
        first = await bucket.store().put_if("head", b"1", None, **IN)
        bucket.faults = BucketFaults(late_request=1.0, late_s=10.0)
        with pytest.raises(OutcomeUnknown):
            await bucket.store().put_if("head", b"late", first, **IN)
        bucket.faults = BucketFaults()
        await bucket.store().put_if("head", b"2", first, **IN)
        await asyncio.sleep(20)
        assert bucket.content("head") == b"2"

    @as_scenario(simulate)
    async def test_a_listing_may_be_an_old_one_and_catches_up(self, simulation: Simulation) -> None:
        bucket = Bucket(simulation.faults, BucketFaults(stale_s=30.0))
        store = bucket.store()
        await store.put("old", [b"x"], **IN)
        await asyncio.sleep(40)
        await store.delete(["old"], **IN)
        await store.put("new", [b"x"], **IN)
        seen = set()
        for _ in range(60):
            seen.add(tuple(info.name for info in await store.list_page("", **IN)))
        assert ("old",) in seen
        await asyncio.sleep(40)
        assert [info.name for info in await store.list_page("", **IN)] == ["new"]

    @as_scenario(simulate)
    async def test_a_deletion_may_stop_half_way(self, simulation: Simulation) -> None:
        bucket = Bucket(simulation.faults, BucketFaults(cut_deletion=1.0))
        names = [f"o/{number}" for number in range(40)]
        for name in names:
            await bucket.store().put(name, [b"x"], **IN)
        with pytest.raises(OutcomeUnknown):
            await bucket.store().delete(names, **IN)
        assert bucket.names() != names


class TestPatience:
    @pytest.mark.parametrize("seed", range(20))
    def test_all_is_stored_read_and_deleted_on_a_bad_day(self, seed):
        async def act(simulation: Simulation) -> None:
            bucket = Bucket(simulation.faults, BucketFaults.bad())
            store = PatientStore(bucket.store(), simulation.workload, try_s=2.0)
            for number in range(20):
                await store.put(f"o/{number}", [b"%d" % number], timeout_s=300)
                assert (await store.read(f"o/{number}", timeout_s=300))[0] == b"%d" % number
            assert store.retries > 0
            await asyncio.sleep(120)
            await store.delete([f"o/{number}" for number in range(20)], timeout_s=300)
            await asyncio.sleep(120)
            assert bucket.names() == []

        simulate(act, seed)

    @as_scenario(simulate)
    async def test_a_conditional_put_is_not_made_again_after_no_answer(
        self, simulation: Simulation
    ) -> None:
        bucket = Bucket(simulation.faults, BucketFaults(lost_answer=1.0))
        store = PatientStore(bucket.store(), simulation.workload, try_s=2.0)
        with pytest.raises(OutcomeUnknown):
            await store.put_if("head", b"1", None, timeout_s=60)
        assert store.retries == 0

    @as_scenario(simulate)
    async def test_what_is_refused_is_not_tried_again(self, simulation: Simulation) -> None:
        store = PatientStore(Bucket(simulation.faults).store(), simulation.workload)
        await store.put_if("head", b"1", None, **IN)
        for call in (store.put_if("head", b"2", None, **IN), store.read("nothing", **IN)):
            with pytest.raises((ObjectChanged, NoObject)):
                await call
        assert store.retries == 0

    @pytest.mark.parametrize(
        ("faults", "kind"),
        [
            (BucketFaults(slow_down=1.0), Overloaded),
            (BucketFaults(slow_down=0.3, lost_request=1.0), OutcomeUnknown),
        ],
    )
    @as_scenario(simulate)
    async def test_the_deadline_holds_over_all_tries_and_the_worst_of_them_is_told(
        self, simulation: Simulation, *, faults, kind
    ) -> None:
        store = PatientStore(Bucket(simulation.faults, faults).store(), simulation.workload,
                             try_s=1.0)  # fmt: skip
        began = asyncio.get_running_loop().time()
        with pytest.raises(kind, match=r"after \d+ tries"):
            await store.put("a", [b"x"], timeout_s=60)
        assert asyncio.get_running_loop().time() - began <= 61

    def test_a_first_try_is_short_and_the_next_have_longer(self) -> None:
        assert [try_s(tries, 0) for tries in (1, 2, 3, 4, 99)] == [5, 10, 20, 30, 30]
        assert try_s(1, 16 << 20) == 13
        assert try_s(1, 64 << 20) == TRY_S
        assert try_s(1, None) == TRY_S

    @as_scenario(simulate)
    async def test_a_read_whose_answer_is_lost_is_made_again_soon(
        self, simulation: Simulation
    ) -> None:
        """Seed 11100269 with a tier: readers stood still for half a minute."""
        bucket = Bucket(simulation.faults)
        await bucket.store().put("a", [b"x"], **IN)
        store = PatientStore(bucket.store(), simulation.workload)
        bucket.faults = BucketFaults(lost_answer=1.0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        loop.call_later(1.0, lambda: setattr(bucket, "faults", BucketFaults()))
        assert (await store.read("a", timeout_s=60))[0] == b"x"
        assert loop.time() - began < FIRST_TRY_S + 2

    def test_pauses_grow_are_drawn_and_end_somewhere(self):
        chance = random.Random(1)
        error = Unreachable("x")
        for tries in range(1, 40):
            pauses = {pause_s(tries, error, chance) for _ in range(50)}
            assert len(pauses) > 40
            assert max(pauses) <= min(PAUSE_S_MAX, 0.1 * 2 ** (tries - 1))
        assert pause_s(1, Overloaded("x"), chance) > 0.2


SECRET = "tGvSECRETwXy0123"


class TestTheLibrary:
    @pytest.mark.parametrize(
        "url", ["history", "ftp://x/y", "s3:history", f"s3://key:{SECRET}@bucket/x", ""]
    )
    def test_an_address_that_is_none_is_refused_without_its_secrets(self, url: str):
        with pytest.raises(BadSetting) as caught:
            open_obstore(url)
        assert SECRET not in str(caught.value)

    def test_an_unknown_option_is_refused_without_its_value(self, require):
        need(OBSTORE, require)
        with pytest.raises(BadSetting) as caught:
            open_obstore("s3://bucket", {"secret_accesskey": SECRET})
        assert SECRET not in str(caught.value)

    def test_no_error_shows_a_credential(self, require):
        """Nobody listens at the address, and the library says where it called."""
        need(OBSTORE, require)
        options = {**KEYS, "aws_secret_access_key": SECRET, "region": "us-east-1",
                   "endpoint": f"http://127.0.0.1:9/?sig={SECRET}"}  # fmt: skip

        async def main(host: Host) -> None:
            store = open_obstore("s3://bucket/prefix", options)
            assert SECRET not in repr(store)
            for call in (
                store.put("a", [b"x"], **IN),
                store.put_if("a", b"x", None, **IN),
                store.read("a", **IN),
                store.get("a", 0, 1, **IN),
                store.list_page("", **IN),
            ):
                with pytest.raises(CordwoodError) as caught:
                    await call
                shown = f"{caught.value!r} {caught.value.__cause__!r}"
                assert SECRET not in shown
                assert caught.value.__suppress_context__

        on_real_host(main)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
    def test_a_server_without_tls_is_called_where_the_environment_names_it(
        self, require, monkeypatch: pytest.MonkeyPatch, name: str
    ):
        """Nodes have no other way to name one, and the library refused to call it."""
        need(OBSTORE, require)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            monkeypatch.setenv(name, f"http://127.0.0.1:{listener.getsockname()[1]}")

            async def main(host: Host) -> None:
                store = open_obstore("s3://bucket/prefix", KEYS)
                with pytest.raises(CordwoodError):
                    await store.put("a", [b"x"], timeout_s=1.0)

            on_real_host(main)
            listener.settimeout(5)
            listener.accept()[0].close()

    @pytest.mark.parametrize(
        ("text", "kind"),
        [
            ("Server returned non-2xx status code: 503 Slow Down: <Code>SlowDown", Overloaded),
            ("status code: 429 Too Many Requests", Overloaded),
            ("status code: 500 Internal Server Error", OutcomeUnknown),
            ("operation timed out", OutcomeUnknown),
        ],
    )
    def test_what_the_library_says_is_told_by_what_the_caller_may_do(
        self, text: str, kind, require
    ):
        need(OBSTORE, require)
        from obstore.exceptions import GenericError

        error = ObstoreStore(None, "s3://b")._ours(
            GenericError(text), "a", writes=True, ranged=False
        )
        assert type(error) is kind

    @pytest.mark.parametrize(
        "text",
        [
            "Error performing GET http://s3/orange/a in 2ms - HTTP error: error sending request",
            "Error performing GET http://s3/b/a in 416.2ms - HTTP error: error sending request",
            "Error performing GET http://s3/b/a in 503.1ms - HTTP error: error sending request",
            "Error performing GET http://s3/503/a in 2ms - HTTP error: operation timed out",
            "Error performing GET http://s3/orange/a in 2ms - Server returned non-2xx status code: "
            "500 Internal Server Error: <Error><Resource>/orange/416/503</Resource></Error>",
        ],
    )
    @pytest.mark.parametrize(("writes", "kind"), [(True, OutcomeUnknown), (False, Unreachable)])
    def test_a_lost_answer_is_no_other_error_whatever_the_address_and_the_time(
        self, text: str, writes: bool, kind, require
    ):
        """It was taken for a damaged object, or for a store that had done nothing."""
        need(OBSTORE, require)
        from obstore.exceptions import GenericError

        store = ObstoreStore(None, "s3://b")
        error = store._ours(GenericError(text), "a", writes=writes, ranged=not writes)
        assert type(error) is kind

    @pytest.mark.parametrize(
        "text",
        [
            "Error performing GET http://s3/b/a in 2ms - Server returned non-2xx status code: "
            "416 Range Not Satisfiable: <Error><Code>InvalidRange</Code></Error>",
            "Generic InMemory error: Invalid range: Wanted range starting at 5",
        ],
    )
    def test_an_object_that_ends_before_the_range_is_told_so(self, text: str, require):
        need(OBSTORE, require)
        from obstore.exceptions import GenericError

        error = ObstoreStore(None, "s3://b")._ours(
            GenericError(text), "a", writes=False, ranged=True
        )
        assert type(error) is Malformed
