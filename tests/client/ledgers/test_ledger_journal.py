"""The journal of docs/ledgers.md: leaders and nodes are killed, and no change is lost or undone."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate

PAGE = Path(__file__).resolve().parents[3] / "docs" / "ledgers.md"


def example() -> dict[str, Any]:
    """The names that the page's journal defines."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (code,) = [block for block in blocks if "class KeyValues" in block]
    assert 80 <= len(code.splitlines()) <= 120
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_change_is_lost_while_leaders_and_nodes_are_killed(seed: int) -> None:
    names = example()
    key_values, deposed = names["KeyValues"], names["Deposed"]

    async def scenario(cluster: ClusterAtHand) -> None:
        known: dict[str, int] = {}
        tried: dict[str, set[int]] = {}
        count = 0
        async with cluster.client(timeout_s=10) as one, cluster.client(timeout_s=10) as other:
            leader = await key_values.lead(one)
            for turn in range(4):
                for number in range(15):
                    key = f"k{number % 7}"
                    count += 1
                    tried.setdefault(key, set()).add(count)
                    await leader.change(key, count)
                    known[key] = count
                    tried[key] = {count}
                    if number == 7:
                        dead = 1 + turn % 5
                        cluster.kill(dead)
                old = leader
                leader = await key_values.lead((other, one)[turn % 2])
                assert leader.data == known
                with pytest.raises(deposed):
                    await old.change("k0", -1)
                await cluster.start(dead)
            # Two at once: one of them leads in the end, with the same data.
            both = await asyncio.gather(key_values.lead(one), key_values.lead(other))
            assert both[0].data == both[1].data == known
            ends = await asyncio.gather(
                *(each.change("last", 1) for each in both), return_exceptions=True
            )
            assert sorted(type(end).__name__ for end in ends) == ["Deposed", "NoneType"]
            final = await key_values.lead(one)
            assert final.data == {**known, "last": 1}
            await final.close()

    simulate(scenario, nodes=5, seed=seed)


def test_the_first_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(PAGE), "exec"), {})
