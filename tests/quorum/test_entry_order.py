"""The nodes of an entry are asked best first."""

from __future__ import annotations

import pytest

from cordwood.quorum.entry_order import Rank, read_order

H, S, R, A, G = Rank.HEALTHY, Rank.SLOW, Rank.READ_ONLY, Rank.AWAY, Rank.GONE


@pytest.mark.parametrize(
    ("known", "order"),
    [
        ({1: (H, 0), 2: (H, 0), 3: (H, 0)}, [1, 2, 3]),  # the write set's own order
        ({1: (G, 0), 2: (A, 0), 3: (R, 0), 4: (S, 1), 5: (H, 0)}, [5, 4, 3, 2, 1]),
        ({1: (S, 2), 2: (S, 1), 3: (H, 0)}, [3, 2, 1]),
        ({1: (R, 5), 2: (A, 0)}, [1, 2]),  # one that answered badly is better than none
    ],
)
def test_healthy_then_slow_then_read_only_then_away_then_gone(known, order):
    assert read_order([*known], known.__getitem__) == order
