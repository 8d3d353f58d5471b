"""Why readers are not at their end: the state of readers, nodes and processor at that moment.

A reader that waits for an event that never comes, and a reader whose processes get no processor
time, look the same from outside. So this module gathers the facts while readers are late: the place
of each reader, its progress in a few seconds, and the nodes it waits for; the nodes' knowledge of
its log, of its epochs and of its streams; and for how long each process ran and was kept from
running. With these facts in the verdict, a person need not wait for another run with late readers.

Source: docs/sources/logdevice.md 2.11 (read streams' state for people); proc_pid_schedstat(5).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cordwood.client.read.read_stream import ReadStream
from cordwood.client.store import Store, connected
from cordwood.errors import CordwoodError
from cordwood.host.seams import Host
from cordwood.layout.message import StatusReply, StreamsReply
from cordwood.layout.message_logs import EpochsReply
from cordwood.lsn import LSN_MAX, format_lsn
from cordwood.nodes import NodeId
from cordwood.settings import ClientSettings

SAMPLE_S = 2.0
"""How long a reader's progress is watched: a window takes milliseconds."""

ASK_S = 15.0
"""The deadline of all calls together. A node has 2 s for each call."""

CLIENTS = "the clients"


@dataclass(frozen=True, slots=True)
class LateReader:
    """A reader that should be at its end.

    Attributes:
        log: path of the log that it reads.
        due: the last LSN that it must reach; 0 while that is not known.
        stream: its present stream; None between two reads.
    """

    name: str
    log: str
    due: int
    stream: ReadStream | None


async def why_late(
    late: Sequence[LateReader],
    addresses: Sequence[str],
    host: Host,
    processes: Mapping[NodeId, int],
) -> list[str]:
    """The known facts about these readers, line by line.

    Args:
        processes: processes of the nodes that run on this machine.
    """
    names = {CLIENTS: os.getpid(), **{f"node {node}": pid for node, pid in processes.items()}}
    before = {each.name: _at(each) for each in late}
    ran = {name: processor_s(pid) for name, pid in names.items()}
    began_s = time.monotonic()
    await asyncio.sleep(SAMPLE_S)
    took_s = time.monotonic() - began_s
    lines = [line for each in late for line in _reader_lines(each, before[each.name], took_s)]
    shares = [_share(name, ran[name], processor_s(pid), took_s) for name, pid in names.items()]
    lines.append(f"in {took_s:.1f} s: {', '.join(shares)}; load {os.getloadavg()[0]:.1f}")
    logs = sorted({each.log for each in late})
    try:
        async with (
            asyncio.timeout(ASK_S),
            connected(tuple(addresses), host, ClientSettings(timeout_s=ASK_S / 3)) as store,
        ):
            lines += await _cluster_lines(store, logs)
    except (CordwoodError, TimeoutError) as error:
        lines.append(f"the cluster does not say how it is: {type(error).__name__}: {error}")
    return lines


def processor_s(pid: int) -> tuple[float, float] | None:
    """Seconds for which a process ran, and for which it waited for a core, since its start.

    None if this machine does not tell, or the process is gone. Counts only its first thread, which
    runs the event loop in Cordwood's processes.
    """
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            ran, waited, *_ = file.read().split()
    except (OSError, ValueError):
        return None
    return int(ran) / 1e9, int(waited) / 1e9


def _at(late: LateReader) -> int:
    return 0 if late.stream is None else late.stream.next_lsn


def _share(
    name: str,
    before: tuple[float, float] | None,
    after: tuple[float, float] | None,
    took_s: float,
) -> str:
    if before is None or after is None:
        return f"{name} not known"
    ran, waited = (100 * (new - old) / took_s for old, new in zip(before, after, strict=True))
    return f"{name} ran {ran:.0f} %, kept from it {waited:.0f} %"


def _reader_lines(late: LateReader, before: int, took_s: float) -> Iterator[str]:
    """The place of a reader and the nodes it waits for."""
    stream = late.stream
    due = format_lsn(late.due) if late.due else "a tail that no node told it"
    if stream is None:
        yield f"{late.name} reads nothing of {late.log} now, it is between two reads; due {due}"
        return
    if stream.is_closed:
        at = format_lsn(stream.next_lsn)
        yield f"{late.name} ended its read of {late.log} at {at} meanwhile"
        return
    moved = "did not move" if stream.next_lsn == before else f"came from {format_lsn(before)}"
    low, high = stream.senders.window
    yield (
        f"{late.name} at {format_lsn(stream.next_lsn)} of {late.log} ({moved} in {took_s:.1f} s, "
        f"due {due}); window {format_lsn(low)} to {_lsn(high)}, "
        f"{'one copy' if stream.senders.choice.is_single else 'all copies'} by order "
        f"{stream.senders.choice.version}; epochs known up to {stream.info.epoch}"
        + (f"; {stream.trouble}" if stream.trouble else "")
    )
    for view in stream.senders.views():
        state = "connected" if view.is_connected else "not connected"
        heard = "" if view.is_heard or not view.is_connected else ", has not answered its order"
        doubt = f", not counted on: {view.doubt}" if view.doubt else ""
        upto = f"said all below {_lsn(view.upto)}" if view.upto else "said nothing"
        yield f"  node {view.node}: {state}{heard}{doubt}, {upto}, sent {view.blocks} blocks"


async def _cluster_lines(store: Store, logs: Sequence[str]) -> list[str]:
    """The nodes' knowledge of these logs, and of their readers."""
    statuses, streams = await store.status(), await store.streams()
    lines: list[str] = []
    for node, status in statuses.items():
        if isinstance(status, CordwoodError):
            lines.append(f"node {node} says nothing: {status}")
        elif status.failed:
            lines.append(f"node {node} cannot store: {status.failed}")
    for log in logs:
        lines += await _log_lines(store, log, statuses, streams)
    return lines


async def _log_lines(
    store: Store,
    log: str,
    statuses: Mapping[NodeId, StatusReply | CordwoodError],
    streams: Mapping[NodeId, StreamsReply | CordwoodError],
) -> list[str]:
    try:
        epochs = await store.log_tree.epochs(log)
    except CordwoodError as error:
        return [f"{log}: no epochs: {type(error).__name__}: {error}"]
    lines = [f"{log} (log {epochs.log}): {_epochs_words(epochs)}; {await _tail_words(store, log)}"]
    for node, status in statuses.items():
        if isinstance(status, CordwoodError):
            continue
        known = next((state for state in status.logs if state.log == epochs.log), None)
        if known is None:
            lines.append(f"  node {node}: knows nothing of it")
            continue
        lines.append(
            f"  node {node}: {f'sequences epoch {known.epoch}, ' if known.sequencing else ''}"
            f"LNG {format_lsn(known.lng)}, released {format_lsn(known.released)}, "
            f"sealed {known.sealed}, {known.blocks} blocks, up {status.uptime_s:.0f} s"
        )
    for node, reply in streams.items():
        if isinstance(reply, CordwoodError):
            continue
        lines += [
            f"  node {node} sends to {each.reader} from {_lsn(each.next)} on, window to "
            f"{_lsn(each.window_high)}, waits for {each.waits or 'new records'}"
            for each in reply.streams
            if each.log == epochs.log
        ]
    return lines


def _epochs_words(epochs: EpochsReply) -> str:
    newest = epochs.next_epoch - 1
    # Each epoch below the newest must be recovered before readers can pass it.
    open_ones = range(epochs.clean_epoch + 1, newest)
    stuck = f", epochs {', '.join(map(str, open_ones))} are not recovered" if open_ones else ""
    return f"epoch {newest} by node {epochs.owner}, recovered up to {epochs.clean_epoch}{stuck}"


async def _tail_words(store: Store, log: str) -> str:
    """The answer to a call for the tail: if a recovery is stuck, its sequencer says why."""
    try:
        return f"tail {format_lsn(await store.tail(log))}"
    except CordwoodError as error:
        return f"no tail: {type(error).__name__}: {error}"


def _lsn(lsn: int) -> str:
    return "the end" if lsn >= LSN_MAX else format_lsn(lsn)
