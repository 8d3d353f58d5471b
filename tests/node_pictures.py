"""Nodes and nodesets written as text, for tables of tests: `a:1 a:2 b:3` has two racks."""

from __future__ import annotations

from cordwood.nodes import Member, NodeId, Nodeset


def nodes(text: str) -> frozenset[NodeId]:
    """The nodes of `1 2 3`."""
    return frozenset(NodeId(int(number)) for number in text.split())


def nodeset(picture: str) -> Nodeset:
    """`a:1 2` is node 1 in rack a and node 2 without a location."""
    words = [word.rpartition(":") for word in picture.split()]
    return Nodeset(tuple(Member(NodeId(int(n)), f"host:{n}", rack) for rack, _, n in words))
