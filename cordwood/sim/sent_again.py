"""A producer's call that is sent again at its place after an error, by the recipe of docs/api.md.

Several calls of one lane may fail at once. Each call sends its own records again, in any order. A
call that may not be sent again is refused, and ends with its first error.

Source: docs/protocol/producers.md.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Protocol

from cordwood.client.append.producer import Producer
from cordwood.errors import BadSetting, CordwoodError, OutcomeUnknown, Retryable

SENT_AGAIN = 0.5
"""Share of a producer's calls that are sent again."""

AGAIN_MAX = 3
AGAIN_PAUSE_S = 1.0
"""Most tries of a call after its first one, and the longest pause before each."""


class Hand(Protocol):
    """A lane, which has one producer at a time."""

    producer: Producer | None


def draw_tries(producer: Producer | None, chance: random.Random) -> int:
    """The number of times that a call is sent again."""
    if producer is None or chance.random() >= SENT_AGAIN:
        return 0
    return chance.randint(1, AGAIN_MAX)


def patience_s(timeout_s: float, tries: int) -> float:
    """The longest time of a call that is sent again that often."""
    return timeout_s * (1 + tries) + AGAIN_PAUSE_S * tries


async def sent_again(
    hand: Hand,
    log: int,
    ask: Callable[[Producer | None], Awaitable[list[int]]],
    tries: int,
    pause: Callable[[], Awaitable[None]],
) -> list[int]:
    """Make a call, and after an error make it again at its place.

    Raises:
        OutcomeUnknown: one try ended so, and no later try was answered.
        CordwoodError: the error of the last try.
    """
    producer = hand.producer
    place = producer.next_sequence(log) if producer is not None else 0
    first = producer
    doubt: OutcomeUnknown | None = None
    while True:
        try:
            return await ask(producer)
        except CordwoodError as error:
            if isinstance(error, OutcomeUnknown):
                doubt = doubt or error
            last = doubt or error
            if not tries or not isinstance(error, OutcomeUnknown | Retryable):
                raise last from None
        tries -= 1
        await pause()
        # Other calls of this lane failed too, and may have begun another epoch.
        if hand.producer is None or not are_one(first, hand.producer):
            raise last
        try:
            producer = hand.producer = hand.producer.again(log, place)
        except BadSetting:
            raise last from None


def are_one(one: Producer | None, other: Producer | None) -> bool:
    """Whether two producers have one identity and epoch."""
    return repr(one) == repr(other)
