"""The simulated network's faults. What it shares with the real one is in the contract suite."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from scenarios import as_scenario

from cordwood.errors import BadSetting, Unreachable
from cordwood.host.seams import Host, StreamHandler, Transport
from cordwood.sim.host import SimMachine, Simulation
from cordwood.sim.links import LinkSettings

FOREVER_S = 10_000.0


class Recorder(asyncio.Protocol):
    """Remembers what it was told and when."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.chunks: list[bytes] = []
        self.times: list[float] = []
        self.lost_with: Exception | None = None

    @property
    def received(self) -> bytes:
        return b"".join(self.chunks)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Transport = transport
        self.calls.append("made")

    def data_received(self, data: bytes) -> None:
        self.chunks.append(data)
        self.times.append(asyncio.get_running_loop().time())

    def eof_received(self) -> bool | None:
        self.calls.append("eof")
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost_with = exc
        self.calls.append("lost")

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")


class Pair:
    """Machines `a` and `b`, a process on each, and a connection from a to b."""

    def __init__(self, simulation: Simulation) -> None:
        self.network = simulation.network
        self.a, self.b = simulation.machine("a"), simulation.machine("b")
        self.near = Recorder()
        self.far = Recorder()

    async def connect(self) -> None:
        await listening(self.b, lambda: self.far)

        async def dial(host: Host) -> None:
            await host.network.connect("b:1", lambda: self.near, timeout_s=5)
            await asyncio.sleep(FOREVER_S)

        self.a.start(dial)
        await asyncio.sleep(1)
        assert self.near.calls == self.far.calls == ["made"]

    def send(self, data: bytes) -> None:
        self.near.transport.writelines([data])


async def listening(machine: SimMachine, accept: Callable[[], StreamHandler]) -> None:
    async def serve(host: Host) -> None:
        await host.network.listen(f"{machine.name}:1", accept)
        await asyncio.sleep(FOREVER_S)

    machine.start(serve)
    await asyncio.sleep(0.1)


def with_pair(
    act: Callable[[Pair], Awaitable[None]], seed: int = 1, link: LinkSettings | None = None
) -> Simulation:
    async def scenario(simulation: Simulation) -> None:
        pair = Pair(simulation)
        await pair.connect()
        await act(pair)

    simulation = Simulation(seed, link=link)
    simulation.run(scenario)
    assert simulation.loop.unhandled == []
    return simulation


# ---- the stream ----


def test_a_stream_is_cut_and_merged_but_never_reordered() -> None:
    link = LinkSettings(split_chance=0.5, slow_chance=0.2, loss_chance=0.05)

    async def act(pair: Pair) -> None:
        lines = [b"line %d;" % number for number in range(1000)]
        for number, line in enumerate(lines):
            pair.send(line)
            if number % 7 == 0:
                await asyncio.sleep(0.0001)
        await asyncio.sleep(600)
        assert pair.far.received == b"".join(lines)
        whole = set(lines)
        assert any(chunk not in whole and chunk.count(b";") > 1 for chunk in pair.far.chunks)
        assert any(not chunk.endswith(b";") for chunk in pair.far.chunks)

    with_pair(act, link=link)


def test_one_seed_delivers_alike_and_seeds_differ() -> None:
    runs: list[tuple[str, list[bytes], list[float]]] = []

    async def act(pair: Pair) -> None:
        for _ in range(50):
            pair.send(bytes(100))
            await asyncio.sleep(0.0001)
        await asyncio.sleep(1)
        runs[-1:] = [("", pair.far.chunks, pair.far.times)]

    for seed in (5, 5, 6):
        runs.append(("", [], []))
        simulation = with_pair(act, seed, LinkSettings(split_chance=0.5))
        runs[-1] = (simulation.trace_hash(), *runs[-1][1:])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[2][0]
    assert runs[0][1:] != runs[2][1:]


def test_the_trace_tells_the_bytes_apart() -> None:
    def run(data: bytes) -> str:
        async def act(pair: Pair) -> None:
            pair.send(data)
            await asyncio.sleep(1)

        return with_pair(act).trace_hash()

    assert run(b"same length") == run(b"same length")
    assert run(b"same length") != run(b"SAME LENGTH")


def test_connections_overtake_one_another() -> None:
    async def scenario(simulation: Simulation) -> None:
        arrived: list[int] = []

        class Numbered(Recorder):
            def data_received(self, data: bytes) -> None:
                arrived.append(data[0])

        async def dial(host: Host) -> None:
            handlers = [await host.network.connect("b:1", Recorder, timeout_s=5) for _ in range(20)]
            for number, handler in enumerate(handlers):
                assert isinstance(handler, Recorder)
                handler.transport.writelines([bytes([number])])
            await asyncio.sleep(10)

        await listening(simulation.machine("b"), Numbered)
        await simulation.machine("a").start(dial)
        assert sorted(arrived) == list(range(20))
        assert arrived != list(range(20))

    Simulation(1).run(scenario)


def test_loss_stalls_a_stream_for_a_retransmission() -> None:
    async def act(pair: Pair) -> None:
        begun = asyncio.get_running_loop().time()
        pair.send(b"lost at first")
        await asyncio.sleep(60)
        assert pair.far.received == b"lost at first"
        assert pair.far.times[0] - begun > 0.2

    async def lossy(pair: Pair) -> None:
        pair.network.links.change(["a"], ["b"], LinkSettings(loss_chance=1.0, split_chance=0))
        await act(pair)

    with_pair(lossy)


@as_scenario(with_pair)
async def test_a_slow_wire_takes_its_time(pair: Pair) -> None:
    pair.network.links.change(["a"], ["b"], LinkSettings(bytes_per_s=1000))
    begun = asyncio.get_running_loop().time()
    pair.send(bytes(5000))
    await asyncio.sleep(60)
    assert 5 <= pair.far.times[-1] - begun < 6


@as_scenario(with_pair)
async def test_a_flipped_bit_arrives_flipped(pair: Pair) -> None:
    link = LinkSettings(corrupt_chance=1, split_chance=0)
    pair.network.links.change(["a"], ["b"], link)
    pair.send(bytes(100))
    await asyncio.sleep(1)
    assert sum(byte.bit_count() for byte in pair.far.received) == 1


# ---- back-pressure ----


@as_scenario(with_pair)
async def test_what_is_in_flight_is_bounded_by_the_window(pair: Pair) -> None:
    pair.far.transport.pause_reading()
    pair.send(bytes(1 << 20))
    await asyncio.sleep(10)
    assert pair.near.transport.get_write_buffer_size() == (1 << 20) - (256 << 10)
    assert pair.near.calls == ["made", "pause"]


@as_scenario(with_pair)
async def test_a_paused_process_pushes_back(pair: Pair) -> None:
    pair.b.pause()
    for _ in range(64):
        pair.send(bytes(16 << 10))
    await asyncio.sleep(10)
    assert pair.far.chunks == []
    assert "pause" in pair.near.calls
    pair.b.resume()
    await asyncio.sleep(10)
    assert len(pair.far.received) == 1 << 20
    assert pair.near.calls == ["made", "pause", "resume"]


# ---- cuts ----


@as_scenario(with_pair)
async def test_a_cut_stalls_traffic_and_mending_lets_it_go_on(pair: Pair) -> None:
    pair.network.partition(["a"], ["b"])
    pair.send(b"wait for it")
    await asyncio.sleep(100)
    assert pair.far.received == b""
    assert not pair.near.transport.is_closing()
    pair.network.mend(["a"], ["b"])
    await asyncio.sleep(10)
    assert pair.far.received == b"wait for it"


@as_scenario(with_pair)
async def test_a_cut_of_one_direction_lets_the_other_speak(pair: Pair) -> None:
    pair.network.cut(["a"], ["b"])
    pair.send(b"unheard")
    pair.far.transport.writelines([b"heard"])
    await asyncio.sleep(10)
    assert pair.near.received == b"heard"
    assert pair.far.received == b""
    pair.network.mend_all()
    await asyncio.sleep(10)
    assert pair.far.received == b"unheard"


@as_scenario(with_pair)
async def test_without_acks_a_sender_stops_at_its_window(pair: Pair) -> None:
    pair.network.cut(["b"], ["a"])  # the acks' way
    for _ in range(64):
        pair.send(bytes(16 << 10))
        await asyncio.sleep(0.1)
    assert len(pair.far.received) == 256 << 10
    assert pair.near.transport.get_write_buffer_size() == (1 << 20) - (256 << 10)
    pair.network.mend_all()
    await asyncio.sleep(10)
    assert len(pair.far.received) == 1 << 20


@as_scenario(with_pair)
async def test_a_mended_cut_may_be_cut_again(pair: Pair) -> None:
    sent = b""
    for number in range(20):
        pair.network.partition(["a"], ["b"])
        sent += b"%d " % number
        pair.send(b"%d " % number)
        await asyncio.sleep(0.1)
        pair.network.mend_all()
        await asyncio.sleep(0.05)
    await asyncio.sleep(10)
    assert pair.far.received == sent


def test_connecting_over_a_cut_times_out_and_comes_through_when_mended() -> None:
    async def scenario(simulation: Simulation) -> None:
        outcomes: list[str] = []
        times: list[float] = []

        async def dial(host: Host) -> None:
            loop = asyncio.get_running_loop()
            with pytest.raises(Unreachable, match="b:1 did not answer within 2 s"):
                await host.network.connect("b:1", Recorder, timeout_s=2)
            times.append(loop.time())
            await host.network.connect("b:1", Recorder, timeout_s=60)
            outcomes.append("connected")

        await listening(simulation.machine("b"), Recorder)
        simulation.network.cut(["b"], ["a"])
        begun = simulation.loop.time()
        task = simulation.machine("a").start(dial)
        await asyncio.sleep(10)
        assert times == [begun + 2]
        assert outcomes == []
        simulation.network.mend_all()
        await task
        assert outcomes == ["connected"]

    Simulation(1).run(scenario)


def test_a_machine_reaches_itself_whatever_is_cut() -> None:
    async def scenario(simulation: Simulation) -> None:
        simulation.network.partition(["a"], ["a"])

        async def main(host: Host) -> None:
            far = Recorder()
            await host.network.listen("127.0.0.1:7", lambda: far)
            near = await host.network.connect("a:7", Recorder, timeout_s=1)
            assert isinstance(near, Recorder)
            near.transport.writelines([b"me"])
            await asyncio.sleep(1)
            assert far.received == b"me"

        await simulation.machine("a").start(main)

    Simulation(1).run(scenario)


# ---- refusals and resets ----


def test_names_and_ports_that_are_not_there() -> None:
    async def scenario(simulation: Simulation) -> None:
        async def main(host: Host) -> None:
            with pytest.raises(Unreachable, match=r"nowhere:1: Name or service not known"):
                await host.network.connect("nowhere:1", Recorder, timeout_s=1)
            with pytest.raises(Unreachable, match=r"a:9: Connection refused"):
                await host.network.connect("a:9", Recorder, timeout_s=1)
            with pytest.raises(BadSetting, match="a has no such address"):
                await host.network.listen("b:1", Recorder)

        await simulation.machine("a").start(main)

    Simulation(1).run(scenario)


def test_a_link_may_refuse_connects() -> None:
    async def act(pair: Pair) -> None:
        pair.network.links.change(["c"], ["b"], LinkSettings(refuse_chance=1))

        async def dial(host: Host) -> None:
            with pytest.raises(Unreachable, match="refused"):
                await host.network.connect("b:1", Recorder, timeout_s=1)

        await simulations[0].machine("c").start(dial)

    simulations: list[Simulation] = []

    async def scenario(simulation: Simulation) -> None:
        simulations.append(simulation)
        pair = Pair(simulation)
        await pair.connect()
        await act(pair)

    Simulation(1).run(scenario)


@as_scenario(with_pair)
async def test_a_reset_takes_both_sides(pair: Pair) -> None:
    assert pair.network.reset(["a"], ["c"]) == 0
    assert pair.network.reset(["a"], ["b"]) == 1
    pair.send(b"into the void")
    await asyncio.sleep(1)
    for side in (pair.near, pair.far):
        assert side.calls == ["made", "lost"]
        assert isinstance(side.lost_with, ConnectionResetError)
        assert side.transport.is_closing()


@as_scenario(with_pair)
async def test_a_link_may_reset_what_is_sent(pair: Pair) -> None:
    pair.network.links.change(["a"], ["b"], LinkSettings(reset_chance=1))
    pair.send(b"x")
    pair.send(b"y")
    await asyncio.sleep(1)
    assert pair.far.received == b""
    assert pair.near.calls == pair.far.calls == ["made", "lost"]


@as_scenario(with_pair)
async def test_a_reset_is_not_seen_by_one_who_does_not_read(pair: Pair) -> None:
    pair.far.transport.pause_reading()
    pair.network.reset(["a"], ["b"])
    await asyncio.sleep(1)
    assert pair.far.calls == ["made"]
    pair.far.transport.resume_reading()
    await asyncio.sleep(1)
    assert pair.far.calls == ["made", "lost"]


@as_scenario(with_pair)
async def test_closing_with_bytes_unread_resets_the_peer(pair: Pair) -> None:
    pair.far.transport.pause_reading()
    pair.send(b"never read")
    await asyncio.sleep(1)
    pair.far.transport.close()
    await asyncio.sleep(1)
    assert pair.far.calls == ["made", "lost"]
    assert isinstance(pair.near.lost_with, ConnectionResetError)


# ---- deaths ----


@pytest.mark.parametrize("seed", range(8))
def test_a_killed_process_is_missed_by_its_peers(seed: int) -> None:
    async def act(pair: Pair) -> None:
        pair.a.kill()
        await asyncio.sleep(1)
        assert pair.near.calls == ["made"]  # the dead hear nothing
        assert pair.far.calls in (["made", "eof", "lost"], ["made", "lost"])

    with_pair(act, seed)


def test_kills_end_connections_in_both_ways() -> None:
    endings: set[type[Exception] | None] = set()

    async def act(pair: Pair) -> None:
        pair.a.kill()
        await asyncio.sleep(1)
        endings.add(type(pair.far.lost_with) if pair.far.lost_with else None)

    for seed in range(12):
        with_pair(act, seed)
    assert endings == {None, ConnectionResetError}


def test_a_killed_process_took_its_outbox_but_not_what_was_sent() -> None:
    received: list[int] = []

    async def act(pair: Pair) -> None:
        pair.far.transport.pause_reading()
        pair.send(bytes(1 << 20))
        await asyncio.sleep(1)
        pair.a.kill()
        await asyncio.sleep(1)
        pair.far.transport.resume_reading()
        await asyncio.sleep(1)
        assert pair.far.calls[-1] == "lost"
        received.append(len(pair.far.received))

    for seed in range(8):
        with_pair(act, seed)
    assert set(received) == {0, 256 << 10}  # all that the kernels held, or a reset ate it


@as_scenario(with_pair)
async def test_a_restarted_process_may_listen_again_at_once(pair: Pair) -> None:
    pair.b.kill()
    again = Recorder()
    await listening(pair.b, lambda: again)

    async def dial(host: Host) -> None:
        await host.network.connect("b:1", Recorder, timeout_s=1)
        await asyncio.sleep(FOREVER_S)

    pair.a.kill()
    pair.a.start(dial)
    await asyncio.sleep(1)
    assert again.calls == ["made"]


@as_scenario(with_pair)
async def test_a_machine_without_power_says_nothing(pair: Pair) -> None:
    pair.b.cut_power()
    pair.send(b"anybody?")
    await asyncio.sleep(1000)
    assert pair.near.calls == ["made"]
    pair.b.start(lambda host: asyncio.sleep(FOREVER_S))
    await asyncio.sleep(100)
    assert pair.near.calls == ["made", "lost"]
    assert isinstance(pair.near.lost_with, ConnectionResetError)


@as_scenario(with_pair)
async def test_what_was_in_flight_to_a_machine_without_power_is_answered_when_it_is_back(
    pair: Pair,
) -> None:
    pair.send(b"on the wire")
    pair.b.cut_power()
    await asyncio.sleep(10)
    pair.b.start(lambda host: asyncio.sleep(FOREVER_S))
    await asyncio.sleep(10)
    assert pair.near.calls == ["made", "lost"]


@as_scenario(with_pair)
async def test_connecting_to_a_machine_without_power_times_out(pair: Pair) -> None:
    pair.b.cut_power()

    async def dial(host: Host) -> None:
        with pytest.raises(Unreachable, match="did not answer"):
            await host.network.connect("b:1", Recorder, timeout_s=3)

    pair.a.kill()
    await pair.a.start(dial)


@as_scenario(with_pair)
async def test_a_paused_process_is_connected_to_by_its_kernel(pair: Pair) -> None:
    pair.b.pause()
    pair.a.kill()
    near = Recorder()

    async def dial(host: Host) -> None:
        await host.network.connect("b:1", lambda: near, timeout_s=1)
        near.transport.writelines([b"are you there?"])
        await asyncio.sleep(FOREVER_S)

    pair.far.__init__()  # the same handler takes the next connection
    pair.a.start(dial)
    await asyncio.sleep(10)
    assert near.calls == ["made"]
    assert pair.far.received == b""
    pair.b.resume()
    await asyncio.sleep(1)
    assert pair.far.received == b"are you there?"


def test_a_connect_that_is_given_up_leaves_no_connection() -> None:
    async def act(pair: Pair) -> None:
        pair.network.links.change(["b"], ["c"], LinkSettings(delay_min_s=5))
        far = pair.far = Recorder()

        async def dial(host: Host) -> None:
            with pytest.raises(Unreachable):
                await host.network.connect("b:1", Recorder, timeout_s=1)
            await asyncio.sleep(FOREVER_S)

        simulations[0].machine("c").start(dial)
        await asyncio.sleep(20)
        assert far.calls[0] == "made"
        assert far.calls[-1] == "lost"

    simulations: list[Simulation] = []

    async def scenario(simulation: Simulation) -> None:
        simulations.append(simulation)
        pair = Pair(simulation)
        await listening(pair.b, lambda: pair.far)
        await act(pair)

    Simulation(1).run(scenario)


@as_scenario(with_pair)
async def test_handlers_run_in_the_process_that_owns_them(pair: Pair) -> None:
    seen: list[str] = []

    class Spawning(Recorder):
        def data_received(self, data: bytes) -> None:
            task = asyncio.get_running_loop().create_task(asyncio.sleep(0))
            seen.append(task.process.name)

    pair.far.data_received = Spawning.data_received.__get__(Spawning())
    pair.send(b"x")
    await asyncio.sleep(1)
    assert seen == ["b#1"]
