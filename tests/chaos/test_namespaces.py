"""Networks of several clusters at once do not meet, whoever made them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pytest
from swaps import swap_value

from cordwood.chaos import namespaces as module
from cordwood.chaos.namespaces import namespaces, why_not
from cordwood.errors import Unreachable
from cordwood.nodes import NodeId


@pytest.mark.real
def test_two_clusters_at_once_have_addresses_of_their_own(
    require: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have this process's number, from which the first try comes."""
    if reason := why_not():
        require("namespaces", reason)
    node = NodeId(1)
    with namespaces([node]) as one, namespaces([node]) as two:
        assert one.id != two.id
        assert one.host(node) != two.host(node)
        assert one.command(node) != two.command(node)

    swap_value(monkeypatch, lambda: module.IDENTITIES, 1)
    with ExitStack() as held:
        with suppress(Unreachable):  # somebody else may have the only one
            first = held.enter_context(namespaces([node]))
            assert first.id == 0
        with pytest.raises(Unreachable, match="networks for clusters are taken"), namespaces([]):
            pass
        # Whoever was refused takes nothing away from who was not.
        assert _has_bridge(0)


def _has_bridge(identity: int) -> bool:
    command = ["ip", "link", "show", f"cwb{identity}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
