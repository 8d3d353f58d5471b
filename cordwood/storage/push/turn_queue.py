"""A fair queue for the items of many clients. The clients take turns, with one item in each turn.

A client with a thousand streams gets no more turns than a client with one stream. The things of one
client go in the order in which they came.

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
        # Clients in turn, each once; a dictionary keeps the order and finds a client at once.
        self._queues: dict[Client, deque[Thing]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, client: Client, thing: Thing) -> None:
        """Add a client's thing; a new client goes after all others."""
        self._queues.setdefault(client, deque()).append(thing)
        self._count += 1

    def push_back(self, client: Client, things: deque[Thing]) -> None:
        """Put things that could not be done yet back before the client's other things."""
        if not things:
            return
        self._queues.setdefault(client, deque()).extendleft(reversed(things))
        self._count += len(things)

    def take_all(self, client: Client) -> deque[Thing]:
        """Remove and return all things of a client, in order."""
        things = self._queues.pop(client, None) or deque()
        self._count -= len(things)
        return things

    def pop(self) -> Thing:
        """The next thing; its client goes after all others.

        Raises:
            LookupError: the queue is empty.
        """
        for client in self._queues:
            things = self._queues.pop(client)
            thing = things.popleft()
            if things:
                self._queues[client] = things
            self._count -= 1
            return thing
        raise LookupError("the queue is empty")
