"""Seeded streams of chance, one for each purpose.

Streams are derived from one seed by name, so that a change in what the network
draws does not shift what the disk draws: a failing seed stays close to itself
while its plan is being cut down.

Source: docs/sources/reliability.md §4 (rules).
"""

from __future__ import annotations

import hashlib
import random


def stream(seed: int, *names: str) -> random.Random:
    """The stream of `seed` for the purpose that `names` spell; equal on every machine."""
    text = "\x1f".join([str(seed), *names])
    return random.Random(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest()))
