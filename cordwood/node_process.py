"""A node as a process: `python -m cordwood.node_process SETTINGS.json`.

Reads its settings, runs on uvloop, says `ready HOST:PORT` on standard output, and
stops on SIGTERM, SIGINT or when standard input ends, so that a node never outlives
the process that started it.

Source: docs/design.md §4 (gc, uvloop), §11.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import sys
import time
from collections.abc import Callable

import msgspec
import uvloop

from cordwood.decisions import story_told
from cordwood.errors import CordwoodError
from cordwood.host.collector import rare_collections
from cordwood.host.kept_memory import keep_memory
from cordwood.host.process_log import BoundedLog, RareLines
from cordwood.host.real import real_host
from cordwood.host.seams import Clock
from cordwood.host.shortcut_network import ShortcutNetwork
from cordwood.metadata.where import open_metadata
from cordwood.node import running_node
from cordwood.settings import NodeSettings
from cordwood.storage.logs_db.rocks_logs import rocks_tables


def encode_settings(settings: NodeSettings) -> bytes:
    """Settings as the JSON that a node process reads."""
    return msgspec.json.encode(settings)


async def run(settings: NodeSettings, clock: Clock | None = None) -> None:
    """Run a node until told to stop.

    Args:
        clock: the node's clock; None for the machine's.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _stop_when_orphaned(loop, stop)
    async with real_host() as machine:
        host = dataclasses.replace(
            machine,
            network=ShortcutNetwork(machine.network),
            clock=machine.clock if clock is None else clock,
        )
        metadata = open_metadata(settings.metadata, host)
        try:
            async with running_node(settings, host, metadata, rocks_tables) as node:
                with rare_collections():
                    sys.stdout.write(f"ready {node.address}\n")
                    sys.stdout.flush()
                    await stop.wait()
        finally:
            await metadata.close()


def _stop_when_orphaned(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Stop at the end of standard input: the process that started this node holds its other end."""

    def on_input() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            stop.set()

    try:
        loop.add_reader(0, on_input)
    except (OSError, ValueError, RuntimeError):
        logging.getLogger(__name__).debug("standard input cannot be watched")


def main(clock_of: Callable[[NodeSettings], Clock] | None = None) -> int:
    """Run the node whose settings file is named on the command line.

    Args:
        clock_of: makes the clock that it takes the time from; None for the machine's.
    """
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m cordwood.node_process SETTINGS.json\n")
        return 2
    said = BoundedLog()
    said.addFilter(RareLines(time.monotonic))
    logging.basicConfig(
        level=os.environ.get("CORDWOOD_LOG", "INFO"),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[said],
    )
    keep_memory()
    with open(sys.argv[1], "rb") as file:
        settings = msgspec.json.decode(file.read(), type=NodeSettings)
    story = logging.getLogger("cordwood.story")
    story.setLevel(logging.INFO)  # the switch asks for it, whatever else is logged
    try:
        with (
            story_told(os.environ.get("CORDWOOD_STORY", ""), story.info),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(run(settings, None if clock_of is None else clock_of(settings)))
    except CordwoodError as error:
        sys.stderr.write(f"node {settings.node} stops: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
