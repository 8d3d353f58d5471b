"""While a simulation runs, the machine is out of reach.

The import contract keeps our own rooms from sockets, threads and the wall clock. This module
catches code that gets past the contract (a library, a debugging line), because one real thread or
one real clock makes a seed worthless. Sockets, threads, processes and `time.sleep` raise;
`time.time` and `time.monotonic` tell virtual time, so that log lines of two runs are equal too.

The names are replaced for the whole process, so every stand-in asks which thread calls: other
threads (Spark's own, a test runner's) keep the real machine.

Source: docs/sources/reliability.md §4 (rules); CONTRIBUTING.md, "Determinism".
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from cordwood.errors import CordwoodError


class ForbiddenInSimulation(CordwoodError):
    """Code under the simulated loop reached for the real machine."""


def refuse(what: str) -> Callable[..., NoReturn]:
    """A stand-in for `what` that raises ForbiddenInSimulation."""

    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise ForbiddenInSimulation(
            f"{what} inside a simulation: reach the machine through the Host that was passed in"
        )

    refused.__qualname__ = refused.__name__ = f"refused_{what}"
    return refused


@contextlib.contextmanager
def machine_out_of_reach(virtual_s: Callable[[], float], wall_start_s: int) -> Iterator[None]:
    """Replace the ways to the machine for the length of the block.

    Args:
        virtual_s: seconds since the simulation began.
        wall_start_s: the wall clock at that time, in seconds since 1970.
    """

    def monotonic_ns() -> int:
        return int(virtual_s() * 1e9)

    simulating = threading.get_ident()

    def only_here(stand_in: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            chosen = stand_in if threading.get_ident() == simulating else original
            return chosen(*args, **kwargs)

        call.__qualname__ = call.__name__ = stand_in.__name__
        return call

    replacements: list[tuple[Any, str, Any]] = [
        (socket.socket, "__init__", refuse("socket.socket")),
        (threading.Thread, "start", refuse("threading.Thread.start")),
        (subprocess.Popen, "__init__", refuse("subprocess.Popen")),
        (time, "sleep", refuse("time.sleep")),
        (time, "time", lambda: wall_start_s + virtual_s()),
        (time, "time_ns", lambda: wall_start_s * 10**9 + monotonic_ns()),
        (time, "monotonic", virtual_s),
        (time, "monotonic_ns", monotonic_ns),
    ]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in replacements]
    for owner, name, replacement in replacements:
        setattr(owner, name, only_here(replacement, getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


class LoopWithoutMachine(asyncio.AbstractEventLoop):
    """The part of an event loop that reaches for the machine: all of it refused."""

    run_in_executor: Any = refuse("loop.run_in_executor")
    set_default_executor: Any = refuse("loop.set_default_executor")
    getaddrinfo: Any = refuse("loop.getaddrinfo")
    getnameinfo: Any = refuse("loop.getnameinfo")
    create_connection: Any = refuse("loop.create_connection")
    create_server: Any = refuse("loop.create_server")
    create_unix_connection: Any = refuse("loop.create_unix_connection")
    create_unix_server: Any = refuse("loop.create_unix_server")
    create_datagram_endpoint: Any = refuse("loop.create_datagram_endpoint")
    connect_accepted_socket: Any = refuse("loop.connect_accepted_socket")
    connect_read_pipe: Any = refuse("loop.connect_read_pipe")
    connect_write_pipe: Any = refuse("loop.connect_write_pipe")
    subprocess_shell: Any = refuse("loop.subprocess_shell")
    subprocess_exec: Any = refuse("loop.subprocess_exec")
    add_reader: Any = refuse("loop.add_reader")
    remove_reader: Any = refuse("loop.remove_reader")
    add_writer: Any = refuse("loop.add_writer")
    remove_writer: Any = refuse("loop.remove_writer")
    add_signal_handler: Any = refuse("loop.add_signal_handler")
    remove_signal_handler: Any = refuse("loop.remove_signal_handler")
    sendfile: Any = refuse("loop.sendfile")
    sock_sendfile: Any = refuse("loop.sock_sendfile")
    start_tls: Any = refuse("loop.start_tls")
    sock_recv: Any = refuse("loop.sock_recv")
    sock_recv_into: Any = refuse("loop.sock_recv_into")
    sock_recvfrom: Any = refuse("loop.sock_recvfrom")
    sock_recvfrom_into: Any = refuse("loop.sock_recvfrom_into")
    sock_sendall: Any = refuse("loop.sock_sendall")
    sock_sendto: Any = refuse("loop.sock_sendto")
    sock_connect: Any = refuse("loop.sock_connect")
    sock_accept: Any = refuse("loop.sock_accept")
    set_task_factory: Any = refuse("loop.set_task_factory")
    get_task_factory: Any = refuse("loop.get_task_factory")
