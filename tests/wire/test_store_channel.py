"""STORE frames: numbered on each connection, settled cumulatively, lost with it."""

from __future__ import annotations

import asyncio

import pytest
from scenarios import as_scenario
from wire_ends import CLUSTER, Keeping, RawEnd, host_with, raw_listen, run, until

from cordwood.errors import CordwoodError, Malformed
from cordwood.host.memory_network import MemoryNetwork
from cordwood.layout.frame import Frame, Kind, checksum
from cordwood.layout.hello import Hello, pack_hello
from cordwood.layout.waves import (
    STORE_HEAD_BYTES,
    Refusal,
    StoreRefusal,
    pack_stored,
    store_blocks,
    store_head,
)
from cordwood.nodes import NodeId
from cordwood.wire.connection import Connection
from cordwood.wire.peers import Peers
from cordwood.wire.store_channel import SPACE_UNTOLD_BYTES, StoreChannel

ONE = NodeId(1)
SEALED = StoreRefusal(2, 5, Refusal.SEALED, 9)
FULL = StoreRefusal(2, 6, Refusal.FULL)
LATER = StoreRefusal(3, 5, Refusal.FAILED)


class Sending(Keeping):
    """A node that stores on node 1, which the test plays by hand."""

    def __init__(self, network: MemoryNetwork, tasks: asyncio.TaskGroup) -> None:
        super().__init__()
        self.peers = Peers(host_with(network), lambda node: Hello(9, CLUSTER, 1, node), tasks, self)
        self.channel = StoreChannel(self.peers)
        self.settled: list[tuple[str, object]] = []

    def on_peer_down(self, node: NodeId, connection: Connection) -> None:
        self.channel.on_down(node, connection)

    def on_peer_frame(self, node: NodeId, connection: Connection, frame: Frame) -> None:
        self.channel.on_stored(node, connection, frame)

    def store(self, name: str) -> bool:
        """Send a payload; what becomes of it is kept in `settled` under its name."""
        return self.send([b"payload ", name.encode()], name)

    def store_blocks(self, name: str) -> bool:
        """The same, as a sequencer's payload of one block."""
        return self.send([store_head(1), name.encode()], name)

    def send(self, parts: list[bytes], name: str) -> bool:
        def settled(node: NodeId, refusals: object) -> None:
            self.settled.append((name, refusals if refusals is None else list(refusals)))

        return self.channel.send(ONE, parts, checksum(parts), settled)


def storing(scenario) -> None:
    """Run `scenario(sending, ends)` with node 1 connected; `ends[-1]` is its side."""

    async def main() -> None:
        network = MemoryNetwork()
        ends = await raw_listen(network, "a:1")
        async with asyncio.TaskGroup() as tasks:
            sending = Sending(network, tasks)
            assert not sending.store("nobody is there"), "a node that is not wanted"
            sending.peers.want({ONE: "a:1"})
            await greet(ends)
            await scenario(sending, ends)
            await sending.peers.close()

    run(main)


async def greet(ends: list[RawEnd]) -> None:
    """Wait for the next dial, and take it."""
    await until(lambda: bool(ends) and not ends[-1].is_lost)
    ends[-1].say_frame(Kind.WELCOME, 0, pack_hello(Hello(1, CLUSTER, 1)))
    await asyncio.sleep(0.01)


async def settle() -> None:
    await asyncio.sleep(0.01)


@as_scenario(storing)
async def test_frames_are_numbered_from_one_and_hold_what_was_given(
    sending: Sending, ends: list[RawEnd]
) -> None:
    assert all(sending.store(name) for name in "abc")
    await settle()
    stores = [each for each in ends[0].frames if each.kind == Kind.STORE]
    assert [(each.request, bytes(each.payload)) for each in stores] == [
        (1, b"payload a"),
        (2, b"payload b"),
        (3, b"payload c"),
    ]
    assert sending.settled == []


@as_scenario(storing)
async def test_one_answer_settles_all_before_it_each_with_its_own_refusals(
    sending: Sending, ends: list[RawEnd]
) -> None:
    for name in "abcd":
        sending.store(name)
    await settle()
    ends[0].say_frame(Kind.STORED, 0, pack_stored(3, [LATER, SEALED, FULL]))
    await settle()
    assert sending.settled == [("a", []), ("b", [SEALED, FULL]), ("c", [LATER])]
    ends[0].say_frame(Kind.STORED, 0, pack_stored(3, []))
    await settle()
    assert len(sending.settled) == 3
    ends[0].say_frame(Kind.STORED, 0, pack_stored(4, []))
    await settle()
    assert sending.settled[3:] == [("d", [])]


@as_scenario(storing)
async def test_what_is_open_when_the_connection_goes_is_lost_and_numbers_start_again(
    sending: Sending, ends: list[RawEnd]
) -> None:
    for name in "abc":
        sending.store(name)
    await settle()
    ends[0].say_frame(Kind.STORED, 0, pack_stored(1, []))
    await settle()
    ends[0].transport.close()
    await settle()
    assert sending.settled == [("a", []), ("b", None), ("c", None)]
    assert not sending.store("while it is down")
    await greet(ends)
    assert sending.store("d")
    await settle()
    assert ends[1].frames[-1].request == 1
    ends[1].say_frame(Kind.STORED, 0, pack_stored(1, []))
    await settle()
    assert sending.settled[3:] == [("d", [])]


def blocks_of(frame: Frame) -> tuple[int, bytes]:
    return store_blocks(frame.payload[:STORE_HEAD_BYTES]), bytes(frame.payload[STORE_HEAD_BYTES:])


@as_scenario(storing)
async def test_what_is_sent_together_is_one_frame_and_each_is_told(
    sending: Sending, ends: list[RawEnd]
) -> None:
    sending.channel.together_bytes = 100
    with sending.channel.together():
        for name in ("a", "bb", "c" * 90, "d", "e" * 200, "f"):
            assert sending.store_blocks(name)
        assert sending.channel.is_busy
    await settle()
    stores = [each for each in ends[0].frames if each.kind == Kind.STORE]
    assert [blocks_of(each) for each in stores] == [
        (2, b"abb"), (1, b"c" * 90), (1, b"d"), (1, b"e" * 200), (1, b"f"),
    ]  # fmt: skip
    assert sending.channel.room(ONE) == SPACE_UNTOLD_BYTES - 5 * 4096
    ends[0].say_frame(Kind.STORED, 0, pack_stored(1, [], SPACE_UNTOLD_BYTES))
    await settle()
    assert sending.settled == [("a", []), ("bb", [])]
    ends[0].say_frame(Kind.STORED, 0, pack_stored(5, [SEALED], SPACE_UNTOLD_BYTES))
    await settle()
    assert [what for _, what in sending.settled[2:]] == [[SEALED], [], [], []]
    assert not sending.channel.is_busy
    assert sending.channel.room(ONE) == SPACE_UNTOLD_BYTES


@as_scenario(storing)
async def test_what_was_sent_together_is_lost_together(
    sending: Sending, ends: list[RawEnd]
) -> None:
    with sending.channel.together():
        sending.store_blocks("a")
        sending.store_blocks("b")
    await settle()
    ends[0].transport.close()
    await settle()
    assert sending.settled == [("a", None), ("b", None)]
    assert not sending.channel.is_busy


@as_scenario(storing)
async def test_a_connection_that_goes_while_something_is_held_for_it(
    sending: Sending, ends: list[RawEnd]
) -> None:
    connection = sending.peers.get(ONE)
    assert connection is not None
    with sending.channel.together():
        sending.store_blocks("a")
        sending.channel.on_down(ONE, connection)
    assert sending.settled == [("a", None)]
    assert not sending.channel.is_busy
    assert not any(each.kind == Kind.STORE for each in ends[0].frames)


@pytest.mark.parametrize("wave", [2, 2**64 - 1])
def test_an_answer_to_what_was_never_sent_closes_the_connection(
    wave: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(sending: Sending, ends: list[RawEnd]) -> None:
        sending.store("a")
        await settle()
        ends[0].say_frame(Kind.STORED, 0, pack_stored(wave, []))
        await settle()
        assert ends[0].is_lost
        assert sending.settled == [("a", None)]

    storing(scenario)
    assert "settles a wave that was not sent" in caplog.text


@as_scenario(storing)
async def test_an_answer_before_anything_was_sent_is_refused(
    sending: Sending, ends: list[RawEnd]
) -> None:
    connection = await sending.peers.wait_for(ONE, timeout_s=1)
    with pytest.raises(Malformed):
        sending.channel.on_stored(
            ONE, connection, Frame(Kind.STORED, 0, memoryview(pack_stored(0, [])))
        )


@as_scenario(storing)
async def test_between_the_failure_and_the_loss_of_a_connection_nothing_is_sent(
    sending: Sending, ends: list[RawEnd]
) -> None:
    connection = await sending.peers.wait_for(ONE, timeout_s=1)
    sending.store("a")
    connection.fail(CordwoodError("because"))
    assert not sending.store("b")
    await settle()
    assert sending.settled == [("a", None)]


class TestRoom:
    @as_scenario(storing)
    async def test_it_is_what_was_told_less_what_was_sent_since(
        self, sending: Sending, ends: list[RawEnd]
    ) -> None:
        channel = sending.channel
        assert channel.room(ONE) == SPACE_UNTOLD_BYTES
        sending.store("a")
        sending.store("b")
        assert channel.room(ONE) == SPACE_UNTOLD_BYTES - 2 * 4096, "whole blocks"
        assert channel.is_busy
        await settle()
        ends[0].say_frame(Kind.STORED, 0, pack_stored(1, [], 10 * 4096))
        await settle()
        assert channel.room(ONE) == 9 * 4096
        ends[0].say_frame(Kind.STORED, 0, pack_stored(2, [], 0))
        await settle()
        assert (channel.room(ONE), channel.is_busy) == (0, False)
        ends[0].say_frame(Kind.STORED, 0, pack_stored(2, [], 5 * 4096))
        await settle()
        assert channel.room(ONE) == 5 * 4096, "room that came back, with nothing to settle"

    @as_scenario(storing)
    async def test_who_is_told_may_send_within_the_new_room_at_once(
        self, sending: Sending, ends: list[RawEnd]
    ) -> None:
        seen: list[int] = []
        parts = [b"payload"]
        for _ in range(2):
            sending.channel.send(
                ONE, parts, checksum(parts), lambda *_: seen.append(sending.channel.room(ONE))
            )
        await settle()
        ends[0].say_frame(Kind.STORED, 0, pack_stored(2, [], 8 * 4096))
        await settle()
        assert seen == [8 * 4096] * 2

    @as_scenario(storing)
    async def test_a_lost_connection_leaves_nothing_counted_and_a_new_one_begins_untold(
        self, sending: Sending, ends: list[RawEnd]
    ) -> None:
        sending.store("a")
        await settle()
        ends[0].say_frame(Kind.STORED, 0, pack_stored(0, [], 0))
        await settle()
        ends[0].transport.close()
        await settle()
        assert (sending.channel.room(ONE), sending.channel.is_busy) == (0, False)
        await greet(ends)
        assert sending.channel.room(ONE) == SPACE_UNTOLD_BYTES


@as_scenario(storing)
async def test_an_amend_leaves_by_itself_while_others_are_gathered(
    sending: Sending, ends: list[RawEnd]
) -> None:
    amend = store_head(1, amends=True)
    with sending.channel.together():
        assert sending.store_blocks("one")
        assert sending.channel.send_amend(ONE, [amend, b"head"], lambda *_: None)
        assert sending.store_blocks("two")
    await settle()
    sent = [bytes(each.payload) for each in ends[0].frames if each.kind == Kind.STORE]
    assert sorted(sent) == sorted([amend + b"head", store_head(2) + b"onetwo"])
