"""kill -9 of a store under load, again and again on one directory: acknowledged records stay.

A process opens an embedded store whose flushes, partitions and WAL are small, so that kills come
between any two steps of a flush. It prints the records that it finds in the log, and appends until
it is killed. It prints each acknowledgement as it comes. The next process must find all
acknowledged records, each record once, each writer's records in order, and no other records.

::

    python -m cordwood.chaos.kill_rounds --rounds 100

Here RocksDB and the file system are real: a kill must leave the state that the simulator's twin of
RocksDB promises.

Source: docs/sources/reliability.md §5.2; docs/design.md §10 ("kill -9").
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import uvloop

from cordwood.block import Record
from cordwood.client.store import Store
from cordwood.embedded import embedded_store
from cordwood.errors import LogExists
from cordwood.settings import MIB, ClientSettings, StorageSettings

LOG = "kill"
WRITERS = 4
AT_ONCE = 10
BODY_BYTES_MAX = 4000

STORAGE = StorageSettings(
    wal_bytes=2 * MIB,
    cache_bytes=MIB,
    flush_bytes=128 << 10,
    flush_quiet_s=0,
    flush_age_s=0.05,
    partition_bytes=MIB,
    partition_files=4,
)
"""A flush each few hundred records, a lap of the WAL and a partition each second or so."""

LIFE_S = (0.02, 0.7)
"""How long a process appends before it is killed: from before its first flush to after many."""

Item = tuple[int, int]
"""A writer, and the number of its record."""


async def append_for_ever(directory: str) -> None:
    """Print the records found, then append and print acknowledgements, until killed."""
    async with embedded_store(directory, ClientSettings(), storage=STORAGE) as store:
        with contextlib.suppress(LogExists):
            await store.create_log(LOG)
        found = [
            _item(each.value) async for each in await store.read(LOG) if isinstance(each, Record)
        ]
        _say("found", found)
        last = dict.fromkeys(range(WRITERS), -1)
        for writer, number in found:
            last[writer] = number
        async with asyncio.TaskGroup() as tasks:
            for writer in range(WRITERS):
                tasks.create_task(_write(store, writer, last[writer] + 1))


def _item(value: bytes) -> Item:
    writer, number, _ = value.split(b" ", 2)
    return int(writer), int(number)


async def _write(store: Store, writer: int, number: int) -> None:
    while True:
        numbers = range(number, number + random.randint(1, AT_ONCE))
        body = bytes(random.randrange(BODY_BYTES_MAX))
        await store.append_many(LOG, [b"%d %d " % (writer, each) + body for each in numbers])
        _say("acked", [(writer, each) for each in numbers])
        number = numbers.stop


def _say(word: str, items: Sequence[Item]) -> None:
    sys.stdout.write(f"{word} {' '.join(f'{writer}:{number}' for writer, number in items)}\n")
    sys.stdout.flush()


@dataclass(slots=True)
class Killed:
    """The result of the rounds.

    Attributes:
        rounds: processes that were killed.
        acked, found: records acknowledged over all rounds, and in the log at the end.
        problem: the broken promise, "" for none.
    """

    rounds: int = 0
    acked: set[Item] = field(default_factory=set)
    found: int = 0
    problem: str = ""


def kill_rounds(directory: str, rounds: int, seed: int) -> Killed:
    """Start, check and kill this many times, then start and check once more."""
    chance = random.Random(seed)
    killed = Killed()
    for turn in range(rounds + 1):
        life_s = chance.uniform(*LIFE_S) if turn < rounds else 0.0
        lines = _one_life(directory, life_s)
        if not lines or not lines[0].startswith("found"):
            killed.problem = f"round {turn}: the store did not open: {lines}"
            return killed
        killed.problem = _judge(_items(lines[0]), killed.acked)
        if killed.problem:
            killed.problem = f"round {turn}: {killed.problem}"
            return killed
        killed.found = len(_items(lines[0]))
        for line in lines[1:]:
            killed.acked.update(_items(line))
        killed.rounds += turn < rounds
    return killed


def _one_life(directory: str, life_s: float) -> list[str]:
    """The output of a process until it was killed; its first line has the records found."""
    command = [sys.executable, "-m", "cordwood.chaos.kill_rounds", "--directory", directory]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            time.sleep(life_s)
        finally:
            process.kill()
        rest = process.stdout.read().splitlines(keepends=True)
    # The last line may have been cut short by the kill.
    return [line for line in (first, *rest) if line.endswith("\n")]


def _items(line: str) -> list[Item]:
    pairs = (each.split(":") for each in line.split()[1:])
    return [(int(writer), int(number)) for writer, number in pairs]


def _judge(found: Sequence[Item], acked: set[Item]) -> str:
    """The error in the records that a start found; "" for none."""
    lost = sorted(acked - {*found})
    if lost:
        return f"{len(lost)} acknowledged records are gone, the first {lost[:5]}"
    for writer in range(WRITERS):
        numbers = [number for each, number in found if each == writer]
        if numbers != list(range(len(numbers))):
            return f"writer {writer}'s records are not 0 to {len(numbers) - 1}, each once"
    return ""


def main() -> int:
    """With `--directory`, be the process that is killed; otherwise run the rounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--directory", help="append here until killed")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if asked.directory:
        uvloop.run(append_for_ever(asked.directory))
        return 0
    with tempfile.TemporaryDirectory() as directory:
        killed = kill_rounds(f"{directory}/store", asked.rounds, asked.seed)
    sys.stdout.write(
        f"{killed.rounds} kills, {len(killed.acked)} records acknowledged, {killed.found} found: "
        f"{killed.problem or 'all that was acknowledged is there'}\n"
    )
    return 1 if killed.problem else 0


if __name__ == "__main__":
    sys.exit(main())
