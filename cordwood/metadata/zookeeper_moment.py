"""The rule for a listing of one moment, from two walks over the keys while others write.

ZooKeeper reads one path at a time. A walk over many keys therefore shows each key at another
moment. A listing that began anew after every write never ended if writes came faster than walks.
Two walks and the last write between them tell the state at that write, although keys changed in
both walks.

Source: docs/design.md §6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cordwood.metadata.store import Versioned


@dataclass(frozen=True, slots=True)
class Seen:
    """One path as a walk read it.

    Attributes:
        value: None for a key that was deleted, or that never had a value.
        zxid: of the transaction that wrote it last.
        data_version: counts the writes to it; 0 when it is made.
    """

    value: Versioned | None
    zxid: int
    data_version: int


Walked = Mapping[str, Seen]


def at_moment(first: Walked, second: Walked, moment: int) -> dict[str, Versioned] | None:
    """The keys with values at one moment.

    Args:
        first: all keys, each read before the moment was asked for.
        second: all keys, each read after that.
        moment: the zxid of the last write to any of the keys, read between the two walks.
    Returns:
        By key, its value just after the transaction `moment`. None if a key was written too often
        for an answer: then the second walk may serve as the first walk of the next try.
    """
    if not first.keys() <= second.keys():
        # Paths stay after a deletion. Another program removed one, at an unknown moment.
        return None
    values: dict[str, Versioned] = {}
    for key, now in second.items():
        seen: Seen | None = now
        if now.zxid > moment:
            # The write came after the moment. The write before it counts, if the first walk saw
            # it.
            seen = first.get(key)
            if now.data_version != (0 if seen is None else seen.data_version + 1):
                return None
        if seen is not None and seen.value is not None:
            values[key] = seen.value
    return values
