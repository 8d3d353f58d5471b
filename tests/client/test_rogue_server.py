"""What a server may say to a client that is no server of ours, or one with a bug.

Whatever it says, each call ends in its time with one of our errors, and the client keeps no more
of it than a frame. With nodes beside it that are well, the client goes on with them.
"""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario

from cordwood.admin.log_replies import member_infos
from cordwood.client.store import Store, connected
from cordwood.errors import CordwoodError, Overloaded
from cordwood.host.seams import Host
from cordwood.layout.answers import ANSWERS
from cordwood.layout.frame import Frame, FrameParser, Kind, frame, frame_header
from cordwood.layout.hello import Hello, pack_hello
from cordwood.layout.message import (
    AppendFault,
    AskTail,
    Call,
    DoneReply,
    Ping,
    Reply,
    TailReply,
    pack,
    read_call,
    to_fault,
)
from cordwood.layout.message_logs import EpochNodes, FindLog, LogReply
from cordwood.layout.message_nodes import AskMembers, MemberInfo, MembersReply
from cordwood.layout.reading import ReadStatus, pack_reading, read_read
from cordwood.layout.waves import pack_pairs
from cordwood.lsn import EPOCH_MAX, ESN_MAX, LSN_MAX
from cordwood.nodes import NodeId
from cordwood.settings import ClientSettings

CLUSTER = b"a rogue's own id"
ADDRESS = "rogue:4440"
TIMEOUT_S = 3.0
SLACK_S = 2.0
MEMORY_BYTES_MAX = 100 << 20
"""The longest frame that a client takes, and what it has of its own."""

MEMBER = MemberInfo(1, ADDRESS, "rack1", 1, 1.0)
EVERYONE = MembersReply(CLUSTER, [MEMBER], [])
LOG = LogReply(1, "/log", 1, 1, 0, [EpochNodes(1, [1], 1, 1)], [MEMBER], 1)


class Rogue:
    """One connection to it; by default it answers what a client asks first, as a node does."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.transport: Any = None
        self.parser = FrameParser()
        self.tasks: list[asyncio.Task[None]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for each in self.parser.feed(data):
            if each.kind == Kind.HELLO:
                self.on_hello()
                self.parser.greeted = True
                self.data_received(b"")
            elif each.kind == Kind.CALL:
                self.on_call(each.request, read_call(each.payload))
            else:
                self.on_data(each)

    def eof_received(self) -> bool | None:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        for task in self.tasks:
            task.cancel()

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...

    def say(self, kind: int, request: int, payload: Any) -> None:
        self.raw(*frame(kind, request, payload))

    def raw(self, *parts: Any) -> None:
        self.transport.writelines(parts)

    def reply(self, request: int, reply: Reply) -> None:
        self.say(Kind.REPLY, request, pack(reply))

    def again_and_again(self, say: Callable[[], None], every_s: float = 0.01) -> None:
        async def go_on() -> None:
            while True:
                say()
                await asyncio.sleep(every_s)

        self.tasks.append(asyncio.ensure_future(go_on()))

    # What a rogue does otherwise.

    def on_hello(self) -> None:
        self.say(Kind.WELCOME, 0, pack_hello(Hello(1, CLUSTER, 1)))

    def on_call(self, request: int, call: Call) -> None:
        match call:
            case AskMembers():
                self.reply(request, EVERYONE)
            case FindLog():
                self.reply(request, LOG)
            case AskTail():
                self.reply(request, TailReply(1, 1 << 32 | 5, 1))
            case _:
                self.on_other(request, call)

    def on_other(self, request: int, call: Call) -> None:
        """Silence."""

    def on_data(self, frame: Frame) -> None:
        """Silence."""


class SaysNothing(Rogue):
    def on_hello(self) -> None: ...


class Garbage(Rogue):
    def on_hello(self) -> None:
        self.raw(self.chance.randbytes(5000))


class GarbageLater(Rogue):
    def on_other(self, request: int, call: Call) -> None:
        self.raw(self.chance.randbytes(5000))

    def on_data(self, frame: Frame) -> None:
        self.raw(self.chance.randbytes(5000))


class EndlessGreeting(Rogue):
    def on_hello(self) -> None:
        self.again_and_again(lambda: self.raw(b"\0" * 100_000))


class HugeLengths(Rogue):
    def on_other(self, request: int, call: Call) -> None:
        self.raw(frame_header(Kind.REPLY, request, (1 << 32) - 1, 0))

    def on_data(self, frame: Frame) -> None:
        self.raw(frame_header(Kind.BLOCKS, 1, (1 << 32) - 1, 0))


class NeverEnds(Rogue):
    """The longest frame that a client takes, byte by byte."""

    def on_other(self, request: int, call: Call) -> None:
        self.raw(frame_header(Kind.REPLY, request, 4 << 20, 0))
        self.again_and_again(lambda: self.raw(b"\0"), 0.05)

    def on_data(self, frame: Frame) -> None:
        self.raw(frame_header(Kind.BLOCKS, 1, 72 << 20, 0))
        self.again_and_again(lambda: self.raw(b"\0"), 0.05)


class AnotherCluster(Rogue):
    """It greets as one, and answers as another."""

    def on_call(self, request: int, call: Call) -> None:
        if isinstance(call, AskMembers):
            self.reply(request, MembersReply(b"another cluster!", [MEMBER], []))
        else:
            super().on_call(request, call)


class WrongNode(Rogue):
    def on_hello(self) -> None:
        self.say(Kind.WELCOME, 0, pack_hello(Hello(7, CLUSTER, 1)))


class WrongReplies(Rogue):
    """To each call what answers another one."""

    def on_call(self, request: int, call: Call) -> None:
        if isinstance(call, AskMembers):
            super().on_call(request, call)
        else:
            wrong = EVERYONE if ANSWERS[type(call)] is DoneReply else DoneReply()
            self.reply(request, wrong)


class WrongFromTheStart(Rogue):
    def on_call(self, request: int, call: Call) -> None:
        self.reply(request, DoneReply())


class Unasked(Rogue):
    """Frames that nobody asked for, all the time."""

    def on_hello(self) -> None:
        super().on_hello()
        self.again_and_again(self.talk)

    def talk(self) -> None:
        kind = self.chance.choice(
            (Kind.REPLY, Kind.APPENDED, Kind.BLOCKS, Kind.READING, Kind.GAPS, Kind.SHARED)
        )
        if kind == Kind.APPENDED:
            self.say(kind, 0, pack_pairs([self.chance.randrange(1 << 60), 1 << 32 | 1]))
        elif kind == Kind.REPLY:
            self.say(kind, self.chance.randrange(1 << 40) + 1000, pack(DoneReply()))
        elif kind == Kind.READING:
            self.say(kind, 0, pack_reading(99, ReadStatus.OK, LSN_MAX, 0))


class OtherLogs(Rogue):
    """Numbers and names of other logs than were asked for."""

    def on_call(self, request: int, call: Call) -> None:
        if isinstance(call, FindLog):
            self.reply(request, msgspec.structs.replace(LOG, log=99, name="/another"))
        else:
            super().on_call(request, call)


class NoNodes(Rogue):
    """A log that no node has, and one of a hundred thousand nodesets."""

    def on_call(self, request: int, call: Call) -> None:
        if isinstance(call, FindLog):
            self.reply(request, msgspec.structs.replace(LOG, history=[]))
        else:
            super().on_call(request, call)


class WrongAcks(Rogue):
    """Each append is acknowledged where nothing can be."""

    def on_data(self, frame: Frame) -> None:
        if frame.kind == Kind.APPEND:
            token = int.from_bytes(frame.payload[16:24], "little")
            lsn = self.chance.choice((0, ESN_MAX, 1 << 32, LSN_MAX, EPOCH_MAX << 32))
            self.say(Kind.APPENDED, 0, pack_pairs([token, lsn]))


class FarReads(Rogue):
    """All is released, of all epochs, and there are no blocks."""

    def on_call(self, request: int, call: Call) -> None:
        if isinstance(call, AskTail):
            self.reply(request, TailReply(EPOCH_MAX, LSN_MAX, 1))
        else:
            super().on_call(request, call)

    def on_data(self, frame: Frame) -> None:
        if frame.kind == Kind.READ:
            asked = read_read(frame.payload)
            self.say(Kind.READING, 0, pack_reading(asked.stream, ReadStatus.OK, LSN_MAX, 0))


class Faults(Rogue):
    """Faults of a kind that there is not, with texts as long as they may be."""

    def on_other(self, request: int, call: Call) -> None:
        fault = {"error": "Nonsense", "text": "x" * 4096}
        self.say(Kind.FAULT, request, msgspec.msgpack.encode(fault))


class RefusesForOthers(Rogue):
    """It refuses appends that other nodes got: a client that believed it would send them again."""

    def on_hello(self) -> None:
        super().on_hello()
        fault = to_fault(Overloaded("nothing was stored"))
        told = pack([AppendFault(token, fault) for token in range(1, 40)])
        self.again_and_again(lambda: self.say(Kind.APPEND_FAULTS, 0, told), 0.001)


ROGUES = list(Rogue.__subclasses__())

Ask = Callable[[Store], Awaitable[Any]]


async def read_some(store: Store) -> None:
    """At most so many items: an endless log is no mistake of the client's."""
    count = 0
    async for _ in await store.read("log"):
        count += 1
        if count >= 5:
            break


CALLS: dict[str, Ask] = {
    "append": lambda store: store.append("log", b"value"),
    "tail": lambda store: store.tail("log"),
    "trim": lambda store: store.trim("log", 1 << 32 | 1),
    "extent": lambda store: store.extent("log"),
    "list": lambda store: store.logs("/"),
    "create": lambda store: store.create_log("new"),
    "epochs": lambda store: store.log_tree.epochs("log"),
    "status": lambda store: store.status(),
    "read": read_some,
}


async def listen(host: Host, kind: type[Rogue]) -> None:
    await host.network.listen(ADDRESS, lambda: kind(host.random))  # type: ignore[arg-type]
    await asyncio.Event().wait()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROGUES, ids=lambda kind: kind.__name__)
def test_each_call_to_a_rogue_ends_in_its_time_with_a_clear_error(kind: type[Rogue]) -> None:
    told: dict[str, str] = {}

    async def scenario(cluster: ClusterAtHand) -> None:
        rogue = cluster.simulation.machine("rogue")
        rogue.start(lambda host: listen(host, kind))
        await asyncio.sleep(0.1)
        settings = ClientSettings(timeout_s=TIMEOUT_S)
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            async with connected((ADDRESS,), cluster.client_host(), settings) as store:
                for name, ask in CALLS.items():
                    start = loop.time()
                    try:
                        await asyncio.wait_for(ask(store), 2 * TIMEOUT_S)
                    except CordwoodError as error:
                        told[name] = f"{type(error).__name__}: {error}"
                    except TimeoutError:
                        # A reader waits for nodes as long as it takes, and says that it does.
                        assert name == "read", name
                        continue
                    assert loop.time() - start <= TIMEOUT_S + SLACK_S, name
                start = loop.time()
        except CordwoodError as error:
            told["connect"] = f"{type(error).__name__}: {error}"
        assert loop.time() - start <= TIMEOUT_S + SLACK_S

    tracemalloc.start()
    try:
        simulate(scenario, nodes=0)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES_MAX
    finally:
        tracemalloc.stop()
    assert told.keys() & {"connect", "append"}, "what it says of an append is not believed"
    for text in told.values():
        assert 10 < len(text) < 5000
        assert "Traceback" not in text


BESIDE = [
    SaysNothing, Garbage, GarbageLater, HugeLengths, NeverEnds, WrongReplies, Unasked, Faults,
    RefusesForOthers,
]  # fmt: skip


@pytest.mark.parametrize("kind", BESIDE, ids=lambda kind: kind.__name__)
@as_scenario(simulate, nodes=3)
async def test_beside_nodes_that_are_well_a_client_goes_on_with_them(
    cluster: ClusterAtHand, *, kind: type[Rogue]
) -> None:
    """The rogue is a member of the cluster, and the first of the client's addresses."""
    ours = cluster.running[1]

    class Member(kind):  # type: ignore[misc, valid-type]
        def say(self, number: int, request: int, payload: Any) -> None:
            if number == Kind.WELCOME and kind is not SaysNothing:
                payload = pack_hello(Hello(4, ours._cluster, 1))
            super().say(number, request, payload)

        def on_call(self, request: int, call: Call) -> None:
            if isinstance(call, AskMembers):
                members = member_infos(ours._members)
                self.reply(request, MembersReply(ours._cluster, members, [4]))
            elif isinstance(call, Ping):
                self.reply(request, DoneReply())
            elif kind.on_call is Rogue.on_call:
                self.on_other(request, call)
            else:
                super().on_call(request, call)

    cluster.simulation.machine("rogue").start(lambda host: listen(host, Member))
    await ours._membership.register(NodeId(4), ADDRESS, "rack4")
    await asyncio.sleep(6)  # all take it for dead by now
    settings = ClientSettings(timeout_s=20)
    addresses = (ADDRESS, *cluster.addresses)
    async with connected(addresses, cluster.client_host(), settings) as store:
        for number in range(5):
            await store.append(f"log{number}", b"1")
            await store.append(f"log{number}", b"2")
            assert await values(store, f"log{number}") == [b"1", b"2"]
        assert (await store.trim("log1", await store.tail("log1"))).lsn
        assert len(await store.logs("/")) == 5
