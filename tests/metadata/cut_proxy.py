"""A TCP proxy on loopback that loses what it is told to: requests, answers, connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class CutProxy:
    """Stands before one server.

    Attributes:
        loses_requests: what clients send is dropped.
        loses_answers: what the server sends is dropped.
        is_shut: new connections are closed at once.
        round_trips: how often a client spoke after the server had.
        latency_s: how long answers are under way. With more than the moment between two
            requests that do not wait for each other, these count as one round trip.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._server_spoke = True
        self.loses_requests = False
        self.loses_answers = False
        self.is_shut = False
        self.round_trips = 0
        self.latency_s = 0.0
        self._spawn(self._accept)

    @property
    def address(self) -> str:
        """What clients connect to."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Close every connection."""
        with self._lock:
            sockets, self._open = self._open, []
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def heal(self) -> None:
        """Lose nothing more."""
        self.loses_requests = self.loses_answers = self.is_shut = False

    def close(self) -> None:
        """Close everything."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join(5)
        self._listener.close()

    def _spawn(self, target, *arguments) -> None:  # type: ignore[no-untyped-def]
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self.is_shut:
                    raise OSError
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open += [client, server]
            self._spawn(self._pump, client, server, True)
            self._spawn(self._pump, server, client, False)

    def _pump(self, source: socket.socket, target: socket.socket, is_client: bool) -> None:
        with source:
            while True:
                try:
                    data = source.recv(65536)
                    if not data:
                        break
                    if self.latency_s and not is_client:
                        time.sleep(self.latency_s)
                    if is_client and self._server_spoke:
                        self.round_trips += 1
                    self._server_spoke = not is_client
                    if not (self.loses_requests if is_client else self.loses_answers):
                        target.sendall(data)
                except OSError:
                    break
            try:
                target.shutdown(socket.SHUT_RDWR)
            except OSError:
                return


@contextmanager
def cut_proxy(port: int) -> Iterator[CutProxy]:
    """A proxy for the length of the block."""
    proxy = CutProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
