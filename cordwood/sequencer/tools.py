"""The tools that all appenders of one node share, clock and random numbers among them.

Source: CONTRIBUTING.md, "The idea" (what a room needs is passed to its constructor).
"""

from __future__ import annotations

from typing import Protocol

from cordwood.protocol.node_states import NodeStates
from cordwood.protocol.store_times import StoreTimes
from cordwood.settings import SequencerSettings
from cordwood.wire.peers import Peers
from cordwood.wire.store_channel import StoreChannel


class AppenderTools:
    """The tools that all appenders of one node share."""

    def __init__(
        self,
        peers: Peers,
        channel: StoreChannel,
        states: NodeStates,
        times: StoreTimes,
        settings: SequencerSettings,
        now: Clock,
        random: Chance,
    ) -> None:
        self.peers = peers
        self.channel = channel
        self.states = states
        self.times = times
        self.settings = settings
        self.now = now
        self.random = random


class Clock(Protocol):
    """The loop's clock."""

    def __call__(self) -> float: ...


class Chance(Protocol):
    """A stream of random numbers; `random.Random` fits it."""

    def random(self) -> float: ...
