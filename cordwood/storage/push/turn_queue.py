"""Who is next, when many clients want many things: each client in turn, one thing each.

A client with a thousand streams gets no more turns than one with a single stream; among its
own things they go in the order in which they came.

Source: docs/sources/logdevice.md 2.10 ("per-client round-robin catchup queue").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Client = TypeVar("Client", bound=Hashable)
Thing = TypeVar("Thing")


class TurnQueue(Generic[Client, Thing]):
    """See the module."""

    def __init__(self) -> None:
        # Clients in turn, each once; a dictionary keeps order and finds them at once.
        self._queues: dict[Client, deque[Thing]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, client: Client, thing: Thing) -> None:
        """A client wants something; a new client goes behind all others."""
        self._queues.setdefault(client, deque()).append(thing)
        self._count += 1

    def push_back(self, client: Client, things: deque[Thing]) -> None:
        """What was popped and could not be done yet goes before the client's other things."""
        if not things:
            return
        self._queues.setdefault(client, deque()).extendleft(reversed(things))
        self._count += len(things)

    def take_all(self, client: Client) -> deque[Thing]:
        """All that a client wants, in its order; it wants nothing any more."""
        things = self._queues.pop(client, None) or deque()
        self._count -= len(things)
        return things

    def pop(self) -> Thing:
        """The next thing; its client goes behind all others.

        Raises:
            LookupError: nobody wants anything.
        """
        for client in self._queues:
            things = self._queues.pop(client)
            thing = things.popleft()
            if things:
                self._queues[client] = things
            self._count -= 1
            return thing
        raise LookupError("nobody wants anything")
