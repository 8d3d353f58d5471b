"""What a stranger, a wrong client or a faulty peer says to a node: it neither grows, nor stalls,
nor loses a log by it.

Every field of every call is given its extremes, by the types of `layout.message`: a call that is
added later is in the table by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
import tracemalloc
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario
from wire_ends import Keeping

from cordwood.errors import (
    BadSetting,
    CordwoodError,
    Malformed,
    NotOurCluster,
    Rejected,
    Unreachable,
)
from cordwood.layout.frame import CONTROL_BYTES_MAX, Kind
from cordwood.layout.hello import ANY_CLUSTER, Hello
from cordwood.layout.log_questions import AskKept
from cordwood.layout.message import (
    AskEpoch,
    Call,
    Clean,
    Ping,
    Seal,
    TellNodesets,
    Yield,
    pack,
    read_call,
)
from cordwood.layout.message_consumers import JoinConsumer, SaveCursors
from cordwood.layout.message_logs import EpochNodes
from cordwood.layout.message_rebuilding import TellProducers
from cordwood.layout.reading import ReadRequest, pack_read
from cordwood.metadata.consumers import LOGS_MAX
from cordwood.wire.connection import Connection, dial

LOG = 1
MEMORY_BYTES_MAX = 32 << 20
"""What one hostile call may leave allocated at its worst moment: some full control frames."""

CALL_S_MAX = 2.0
"""Real time of one hostile call, on a slow machine with tracemalloc on."""

CALLS = typing.get_args(Call)
NODE_CALLS = [
    Seal(LOG, 2**32 - 1, 0),
    Clean(LOG, 1, 1, 2**63 - 1),
    Yield(LOG, 2**32 - 1, 2),
    AskEpoch(LOG, 1),
    TellNodesets(LOG, 2**32 - 1, []),
    TellProducers(LOG, 1, b"", 2**32 - 1, 1 << 32),
    AskKept(LOG, (2**63 - 1,)),
]


async def greet(cluster: ClusterAtHand, ours: Hello, node: int = 1) -> Connection:
    address = cluster.addresses[node - 1]
    return await dial(cluster.client_host().network, address, ours, Keeping(), timeout_s=5)


class TestIdentity:
    @pytest.mark.parametrize("number", [2, 99])
    @as_scenario(simulate, nodes=3)
    async def test_a_node_that_names_no_cluster_is_refused(
        self, cluster: ClusterAtHand, *, number: int
    ) -> None:
        """It was let in, and its one Seal took every node by memory and closed the log."""
        with pytest.raises(NotOurCluster, match=f"node {number} does not tell"):
            await greet(cluster, Hello(number, ANY_CLUSTER))

    @as_scenario(simulate, nodes=3)
    async def test_a_number_that_is_no_member_s_is_refused(self, cluster: ClusterAtHand) -> None:
        ours = cluster.running[1]._cluster
        with pytest.raises(Unreachable, match="node 99 is no member"):
            await greet(cluster, Hello(99, ours))
        assert (await greet(cluster, Hello(2, ours))).is_open

    @as_scenario(simulate, nodes=3)
    async def test_a_node_that_has_just_joined_is_let_in_soon(self, cluster: ClusterAtHand) -> None:
        """Long before the member list would be read again."""
        node = cluster.running[1]
        await node._membership.register(99, "node-99:4440", "r99")  # type: ignore[arg-type]
        with pytest.raises(Unreachable):
            await greet(cluster, Hello(99, node._cluster))
        await asyncio.sleep(0.5)
        assert (await greet(cluster, Hello(99, node._cluster))).is_open

    @pytest.mark.parametrize("call", NODE_CALLS, ids=lambda call: type(call).__name__)
    @as_scenario(simulate, nodes=3)
    async def test_calls_of_nodes_are_not_for_clients(
        self, cluster: ClusterAtHand, *, call: Any
    ) -> None:
        async with cluster.client() as store:
            await store.append("log", b"1")
            client = await greet(cluster, Hello(0, ANY_CLUSTER))
            with pytest.raises(Rejected, match="is for nodes, not for clients"):
                await client.call(call, timeout_s=5)
            assert await store.append("log", b"2")

    @pytest.mark.parametrize("kind", [Kind.STORE, Kind.RELEASE, Kind.GOSSIP])
    @as_scenario(simulate, nodes=3)
    async def test_frames_of_nodes_are_not_for_clients(
        self, cluster: ClusterAtHand, *, kind: Kind
    ) -> None:
        client = await greet(cluster, Hello(0, ANY_CLUSTER))
        client.send(kind, 1, (b"",))
        await asyncio.sleep(1)
        assert not client.is_open

    @as_scenario(simulate, nodes=3)
    async def test_a_digest_is_not_for_clients(self, cluster: ClusterAtHand) -> None:
        """It shows records that are not released, and may never be."""
        client = await greet(cluster, Hello(0, ANY_CLUSTER))
        request = ReadRequest(1, LOG, 1, 2**40, 2**40, 1 << 20, digest=True)
        client.send(Kind.READ, 0, (pack_read(request),))
        await asyncio.sleep(1)
        assert not client.is_open


class TestConsumers:
    @pytest.mark.parametrize("digits", ["²", "٣", "01"])
    @as_scenario(simulate, nodes=3)
    async def test_digits_that_are_no_number_of_a_log_end_no_node(
        self, cluster: ClusterAtHand, *, digits: str
    ) -> None:
        """They were kept as the number of a log. The next full call of this consumer ended the node
        that looked for deleted logs, and its client asked the other nodes, one after another."""
        async with cluster.client() as store:
            await store.append("log", b"1")
            client = await greet(cluster, Hello(0, ANY_CLUSTER))
            with pytest.raises(Rejected, match="by the names of logs"):
                await client.call(SaveCursors("c", "", 0, {digits: 5}, {}, False), timeout_s=5)
            many = {str(number): 5 for number in range(1, LOGS_MAX + 2)}
            with pytest.raises(BadSetting, match="may have"):
                await client.call(SaveCursors("c", "", 0, many, {}, False), timeout_s=20)
            assert await store.append("log", b"2")
            assert len(cluster.running) == 3

    @as_scenario(simulate, nodes=3)
    async def test_half_a_million_logs_are_refused_before_they_are_dealt_out(
        self, cluster: ClusterAtHand
    ) -> None:
        client = await greet(cluster, Hello(0, ANY_CLUSTER))
        call = JoinConsumer("c", "m", [str(number) for number in range(1, 450_000)], 15_000, 0)
        start = time.process_time()
        with pytest.raises(BadSetting, match="this call names 449999"):
            await client.call(call, timeout_s=20)
        assert time.process_time() - start < CALL_S_MAX


def extremes(kind: Any) -> list[Any]:
    """The lowest and the highest of a field's type, and for texts and lists the longest."""
    meta: list[msgspec.Meta] = []
    while typing.get_origin(kind) is Annotated:
        kind, *more = typing.get_args(kind)
        meta += more
    least = max((m.ge for m in meta if m.ge is not None), default=-(2**63))
    most = min((m.le for m in meta if m.le is not None), default=2**63 - 1)
    longest = min((m.max_length for m in meta if m.max_length is not None), default=60_000)
    shortest = max((m.min_length for m in meta if m.min_length is not None), default=0)
    origin = typing.get_origin(kind) or kind
    if origin is bool:
        return [False, True]
    if origin is int:
        return [least, most]
    if origin is float:
        return [-1e308, 1e308, float("inf"), float("nan")]
    if origin is str:
        return ["x" * longest, "/" * min(longest, 255), ""]
    if origin is bytes:
        return [b"x" * shortest, b"x" * longest]
    if origin is memoryview:
        return [memoryview(b"x" * shortest), memoryview(b"x" * longest)]
    if origin in (list, tuple):
        inner = typing.get_args(kind)
        if origin is tuple and inner[-1] is not Ellipsis:
            return [tuple(extremes(each)[end] for each in inner) for end in (0, -1)]
        some = extremes(inner[0])
        count = min(longest, 60_000)
        return [[some[end]] * count_of(some[end], count) for end in (0, -1)] + [[]] * (not shortest)
    if origin is dict:
        key, value = typing.get_args(kind)
        if msgspec_int(key):
            keys: list[Any] = list(range(1, 2000))
        else:
            keys = [f"/n{number}" for number in range(2000)]
        return [{each: extremes(value)[-1] for each in keys}, {}]
    if kind is EpochNodes:
        # Most extremes do not fit each other, and the decoder refuses them.
        most_nodes = list(range(1, 2000))
        return [
            EpochNodes(0, [1], 1, 1),
            EpochNodes(2**32 - 1, most_nodes, 16, 16, {}, [""] * len(most_nodes)),
        ]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return list(hostile(kind))
    if isinstance(kind, type) and hasattr(kind, "__members__"):
        return list(kind)
    if origin in (typing.Union, types.UnionType):
        return [each for one in typing.get_args(kind) for each in extremes(one)]
    if kind is type(None):
        return [None]
    raise AssertionError(f"no extremes are known for {kind}")


def msgspec_int(kind: Any) -> bool:
    while typing.get_origin(kind) is Annotated:
        kind = typing.get_args(kind)[0]
    return kind is int


def count_of(item: Any, count: int) -> int:
    """As many as a control frame holds."""
    return max(1, min(count, (CONTROL_BYTES_MAX // 2) // max(1, len(msgspec.msgpack.encode(item)))))


def hostile(kind: type[msgspec.Struct]) -> Iterator[Any]:
    """Structs of a kind with one field at an extreme, and all of them at theirs."""
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {name: extremes(hints[name]) for name in kind.__struct_fields__}
    modest = {name: some[0] for name, some in fields.items()}
    # So that a call gets past its first check: the log that is there, by number and by name.
    modest |= {name: "log" for name, value in modest.items() if isinstance(value, str)}
    if "log" in fields and msgspec_int(hints["log"]):
        modest["log"] = LOG
    rows = [{**modest, name: value} for name, some in fields.items() for value in some]
    rows.append({name: some[0] for name, some in fields.items()})
    rows.append({name: some[-1] for name, some in fields.items()})
    for row in rows:
        # Fields that do not fit each other: the decoder refuses these too.
        with contextlib.suppress(ValueError):
            yield kind(**row)


def test_the_table_has_every_call() -> None:
    assert len(CALLS) > 35
    for call in CALLS:
        assert any(True for _ in hostile(call)), call


def name_of(kind: type) -> str:
    return kind.__name__


@pytest.mark.slow
@pytest.mark.parametrize("kind", [each for each in CALLS if each is not Ping], ids=name_of)
def test_extremes_of_a_client_s_call_leave_the_node_and_its_log_alone(kind: Any) -> None:
    check(kind, as_node=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [Clean, Yield, AskEpoch, AskKept, TellNodesets, TellProducers], ids=name_of
)
def test_extremes_of_a_member_s_call_neither_grow_nor_stall_the_node(kind: Any) -> None:
    check(kind, as_node=True)


def check(kind: Any, *, as_node: bool) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.append("log", b"1")
            await store.append("kept", b"1")
            ours = Hello(2, cluster.running[1]._cluster) if as_node else Hello(0, ANY_CLUSTER)
            for call in hostile(kind):
                payload = pack(call)
                if len(payload) > CONTROL_BYTES_MAX:
                    continue
                try:
                    read_call(payload)
                except Malformed:
                    continue  # the decoder's bounds are bounds
                peer = await greet(cluster, ours)
                tracemalloc.reset_peak()
                before, start = tracemalloc.get_traced_memory()[0], time.process_time()
                with contextlib.suppress(CordwoodError):
                    await peer.call(call, timeout_s=20)
                grown = tracemalloc.get_traced_memory()[1] - before
                assert grown < MEMORY_BYTES_MAX, f"{grown:,} bytes for {str(call)[:200]}"
                assert time.process_time() - start < CALL_S_MAX, str(call)[:200]
                peer.close()
            assert await store.append("kept", b"2")
            assert len(cluster.running) == 3

    limit = resource.getrlimit(resource.RLIMIT_AS)
    # A bound that is missing ends this test, and not the machine it runs on.
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, limit[1]))
    tracemalloc.start()
    try:
        simulate(scenario, nodes=3)
    finally:
        tracemalloc.stop()
        resource.setrlimit(resource.RLIMIT_AS, limit)
