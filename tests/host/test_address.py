"""Texts of addresses: what both networks take, and what they refuse in the same words."""

from __future__ import annotations

import pytest

from cordwood.errors import BadSetting
from cordwood.host.address import join_address, split_address


@pytest.mark.parametrize(
    ("address", "halves"),
    [
        ("node-1:4440", ("node-1", 4440)),
        ("[::1]:4440", ("::1", 4440)),
        ("10.0.0.1:0", ("10.0.0.1", 0)),
        ("node.lan.:1", ("node.lan.", 1)),
        ("m\u00fcller.example:1", ("m\u00fcller.example", 1)),
    ],
)
def test_halves(address: str, halves: tuple[str, int]) -> None:
    assert split_address(address) == halves
    assert join_address(*halves) == address


@pytest.mark.parametrize(
    "address",
    ["", "node", "node:", ":1", "node:65536", "::1:1", "node..lan:1", ".node:1", "a" * 64 + ":1"],
)
def test_what_no_network_can_look_up_is_refused(address: str) -> None:
    """A host with an empty part raised an error of Python's, which ended a client for good."""
    with pytest.raises(BadSetting, match="address"):
        split_address(address)
