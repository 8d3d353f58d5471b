"""Releases: told soon, told again, told to whoever comes; and silent when nothing moves."""

from __future__ import annotations

import asyncio

from scenarios import as_scenario

from cordwood.layout.frame import Kind
from cordwood.layout.waves import read_pairs
from cordwood.sequencer.releases import RELEASE_REPEAT_S, RELEASE_REPEATS, Releases


class Wire:
    """Peers, and what they were told."""

    def __init__(self, *up: int) -> None:
        self.up, self.told = set(up), []

    def get(self, node):
        return Peer(self, node) if node in self.up else None


class Peer:
    def __init__(self, wire, node) -> None:
        self.wire, self.node = wire, node

    def send(self, kind, request, parts) -> None:
        assert kind == Kind.RELEASE
        self.wire.told.append((self.node, dict(read_pairs(memoryview(parts[0])))))


def take(wire: Wire) -> list:
    told, wire.told = wire.told, []
    return told


def played(script) -> None:
    async def main():
        wire = Wire(1, 2, 3)
        await script(wire, Releases(wire))

    asyncio.run(main())


@as_scenario(played)
async def test_what_moved_in_one_go_is_one_frame_to_each_node_of_any_epoch(wire, releases) -> None:
    releases.tell(7, (1, 2), 100)
    releases.tell(7, (1, 2), 101)
    releases.tell(8, (2, 3), 50)
    assert wire.told == []
    await asyncio.sleep(0.05)
    assert take(wire) == [(1, {7: 101}), (2, {7: 101, 8: 50}), (3, {8: 50})]


@as_scenario(played)
async def test_it_is_said_again_for_some_time_and_then_no_more(wire, releases) -> None:
    releases.tell(7, (1,), 100)
    releases.send()
    take(wire)
    for _ in range(RELEASE_REPEATS):
        assert not releases.is_idle
        releases.tick(RELEASE_REPEAT_S)
        releases.send()
        assert take(wire) == [(1, {7: 100})]
    assert releases.is_idle
    releases.tick(RELEASE_REPEAT_S)
    releases.send()
    assert take(wire) == []


@as_scenario(played)
async def test_a_node_that_connects_hears_of_every_log_that_concerns_it(wire, releases) -> None:
    releases.tell(7, (1, 4), 100)
    releases.tell(8, (1,), 50)
    releases.send()
    take(wire)
    wire.up.add(4)
    releases.on_peer_up(4)
    releases.send()
    assert take(wire) == [(4, {7: 100})]
    releases.forget(7)
    releases.on_peer_up(4)
    releases.send()
    assert take(wire) == []
