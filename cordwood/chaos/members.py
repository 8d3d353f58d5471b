"""The members of a consumer in a chaos run: processes that are killed and stopped as nodes are.

Each member works for a while. Then it gets SIGKILL and is started again, or it gets SIGSTOP,
sometimes for so long that other members take its logs over and it comes back fenced. The items and
saves of each member are taken from its notes. Together with the states of the metadata store
(`chaos.store_audit`) they are judged as in the simulator: S24.

Source: docs/reliability.md, "Real processes"; `protocol.consumer_group`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from cordwood.chaos.store_audit import SAVE_EARLIER_US, audited, begin_audit
from cordwood.client.read.consumer import MEMBER_TTL_S
from cordwood.client.store import connected
from cordwood.errors import CordwoodError, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.message_consumers import ConsumerReply
from cordwood.lsn import format_lsn
from cordwood.settings import ClientSettings
from cordwood.sim.history import (
    Event,
    GapDelivered,
    PositionsSaved,
    ReadStarted,
    RecordDelivered,
    from_jsonl,
)
from cordwood.sim.position_clients import CONSUMER

MEMBERS = 3
"""One more member than there are logs, so that another member can always take over."""

WORK_S = 6.0
"""Mean time that a member works before it is struck."""

KILLED_S = (0.0, 3.0)
"""How long a killed member is away."""

STOPPED_S = (0.5, 1.3 * MEMBER_TTL_S)
"""How long a stopped member stands still: in a fourth of the cases long enough for others to take
its logs."""

STILL_S = 90.0
"""A consumer is stuck if no position moves for this long: the others wait 15 s for a member that is
gone, and a member that ends in disorder may cause a second wait of this length."""

JOIN_S = 60.0
"""Three Pythons that start at once take a second; on a busy machine a minute."""

LOOK_EVERY_S = 0.5
STOP_S = 30.0
"""A member that is told to end saves, leaves, and closes its connections."""

_NOTED = ReadStarted | RecordDelivered | GapDelivered | PositionsSaved


class Members:
    """See the module.

    Args:
        directory: for notes and logs, not on a disk that fails.
        addresses: of the cluster's nodes.
        logs: that are read.
        metadata: path of the cluster's metadata store, which no other program uses.

    Attributes:
        struck: number of kills and stops.
    """

    def __init__(
        self,
        directory: str,
        addresses: Sequence[str],
        logs: Sequence[str],
        seed: int,
        metadata: str,
    ) -> None:
        self.struck: Counter[str] = Counter()
        self._directory = directory
        self._addresses = tuple(addresses)
        self._logs = tuple(logs)
        self._seed = seed
        self._metadata = metadata
        self._lives: Counter[str] = Counter()
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._striking: list[asyncio.Task[None]] = []
        self._healing = asyncio.Event()

    async def start(self, tasks: asyncio.TaskGroup, host: Host) -> None:
        """Start all members, and strike them after they have joined.

        Raises:
            Unreachable: they did not join.
        """
        begin_audit(self._metadata)
        for name in self._names():
            await self._start(name)
        joined: list[str] = []
        try:
            async with asyncio.timeout(JOIN_S):
                while len(joined) < MEMBERS:
                    await asyncio.sleep(LOOK_EVERY_S)
                    joined = sorted((await self._group(host)).members)
        except TimeoutError:
            said = f"see {self._path('member-N', 'log')}"
            raise Unreachable(f"of {MEMBERS} members only {joined} came: {said}") from None
        for name in self._names():
            self._striking.append(tasks.create_task(self._strike(name)))

    async def heal(self) -> None:
        """Strike no more, and let all members run."""
        self._healing.set()
        await asyncio.gather(*self._striking)

    async def wait_all_read(self, tails: Mapping[str, int], host: Host) -> list[str]:
        """Wait until the saved positions are past these, and end. Returns the problems.

        Args:
            tails: by log, the last LSN that members must deal with.
        """
        moved_s, before, text = time.monotonic(), "", "no member says where it stands"
        while time.monotonic() < moved_s + STILL_S:
            try:
                group = await self._group(host)
            except CordwoodError as error:
                text = f"{type(error).__name__}: {error}"
            else:
                if all(group.positions.get(log, 0) > tail for log, tail in tails.items()):
                    return []
                text = _group_words(group, tails)
                if text != before:
                    moved_s, before = time.monotonic(), text
            await asyncio.sleep(LOOK_EVERY_S)
        return [f"the consumer's positions moved no more for {STILL_S:g} s: {text}"]

    async def stop(self) -> list[str]:
        """End all members in order. Returns the members that did not end."""
        late: list[str] = []
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.terminate()
        for name, process in self._processes.items():
            try:
                async with asyncio.timeout(STOP_S):
                    code = await process.wait()
            except TimeoutError:
                late.append(f"{name} did not end {STOP_S:g} s after it was told to")
            else:
                if code:
                    late.append(f"{name} ended with {code}: see {self._path(name, 'log')}")
        await self.kill()
        return late

    async def kill(self) -> None:
        """Kill all processes, after any result of the run."""
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()

    def events(self) -> list[Event]:
        """The members' notes and the states of the metadata store, in the order of their times."""
        noted = [event for name in self._names() for event in self._notes(name)]
        return sorted([*audited(self._metadata), *noted], key=lambda event: event.time_us)

    def _names(self) -> list[str]:
        return [f"member-{number}" for number in range(1, MEMBERS + 1)]

    def _path(self, name: str, what: str) -> str:
        return os.path.join(self._directory, f"{name}.{what}")

    async def _start(self, name: str) -> None:
        self._lives[name] += 1
        log = os.open(self._path(name, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        seed = f"{self._seed + 1000 * self._lives[name]}"
        try:
            self._processes[name] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "cordwood.chaos.member_process", name,
                self._path(name, f"{self._lives[name]}.notes"), seed, ",".join(self._addresses),
                *self._logs,
                stdin=asyncio.subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(log)

    async def _strike(self, name: str) -> None:
        """Kill and stop a member, again and again, until the strikes must end."""
        chance = random.Random(f"{name} {self._seed}")
        while not await self._is_healing(chance.expovariate(1 / WORK_S)):
            process = self._processes[name]
            if chance.random() < 0.5:
                self.struck["killed"] += 1
                process.kill()
                await process.wait()
                await self._is_healing(chance.uniform(*KILLED_S))
                await self._start(name)
            else:
                self.struck["stopped"] += 1
                process.send_signal(signal.SIGSTOP)
                await self._is_healing(chance.uniform(*STOPPED_S))
                process.send_signal(signal.SIGCONT)

    async def _is_healing(self, after_s: float) -> bool:
        """Wait at most this long for the end of strikes. Returns whether it has come."""
        try:
            async with asyncio.timeout(after_s):
                await self._healing.wait()
        except TimeoutError:
            return False
        return True

    async def _group(self, host: Host) -> ConsumerReply:
        async with connected(self._addresses, host, ClientSettings()) as store:
            (group,) = await store.cursors.list(CONSUMER)
            return group

    def _notes(self, name: str) -> list[Event]:
        """A member's notes over all its lives; a line that a kill cut short is left out."""
        noted: list[Event] = []
        for life in range(1, self._lives[name] + 1):
            try:
                with open(self._path(name, f"{life}.notes"), "rb") as file:
                    whole, _, _ = file.read().rpartition(b"\n")
            except FileNotFoundError:
                continue  # it was killed before it had begun
            events = from_jsonl(whole + b"\n") if whole else ()
            noted += [_saved_by(event) for event in events if isinstance(event, _NOTED)]
        return noted


def _saved_by(event: Event) -> Event:
    """The event; a save may have been made somewhat earlier, see `store_audit`."""
    if not isinstance(event, PositionsSaved):
        return event
    return msgspec.structs.replace(event, invoked_us=event.invoked_us - SAVE_EARLIER_US)


def _group_words(group: ConsumerReply, tails: Mapping[str, int]) -> str:
    """A consumer's positions, for people."""
    return ", ".join(
        f"{log} at {format_lsn(group.positions.get(log, 0))} of {format_lsn(tail)}, "
        f"read by {group.owners.get(log) or 'no member'}"
        for log, tail in sorted(tails.items())
    )
