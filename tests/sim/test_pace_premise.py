"""That appends beside a slow node are judged only once somebody has stored there."""

import asyncio
from types import SimpleNamespace

from cordwood.protocol.append_window import AppendWindow
from cordwood.sim import aftermath


def window(*copysets: tuple[int, ...]) -> AppendWindow[None]:
    made: AppendWindow[None] = AppendWindow(1)
    for copyset in copysets:
        run = made.number(1, None)
        run.send_to(copyset, 0.0)
    return made


def is_stored(*copysets: tuple[int, ...]) -> bool:
    cluster = SimpleNamespace(numbers=(1, 2), windows=lambda number: [window(*copysets)])
    return asyncio.run(aftermath.is_stored_on(cluster, 3))


def test_a_slow_node_that_no_copyset_has_is_noticed_by_nobody(monkeypatch):
    """Seed 1000325. Copysets stick, so nothing came to the slow node in the ten seconds that
    the others had to notice it; the first stores there, within the measured stretch, were late."""
    monkeypatch.setattr(aftermath, "TRIED_S", 0.1)
    assert not is_stored((1, 2), (1, 4))
    assert is_stored((1, 2), (1, 3))
