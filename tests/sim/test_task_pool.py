"""A task may wait for the machine as long as it likes, and compute only for so long."""

from __future__ import annotations

import time

from cordwood.sim.task_pool import Lost, TaskPool

LIMIT_S = 0.5


def work(task: str) -> str:
    """Wait for longer than the limit, or compute without end."""
    if task == "wait":
        time.sleep(2 * LIMIT_S)
        return "waited"
    while True:
        pass


def test_only_who_computes_too_long_is_lost() -> None:
    tasks = ["wait", "compute"]
    with TaskPool(work, jobs=1, timeout_s=LIMIT_S) as pool:
        ended = dict(each for each in pool.run(lambda: tasks.pop(0) if tasks else None) if each)
    assert ended["wait"] == "waited"
    assert isinstance(ended["compute"], Lost)
