"""The tools that all appenders of one node share, clock and random numbers among them.

Source: CONTRIBUTING.md, "The idea" (what a room needs is passed to its constructor).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from cordwood.nodes import Authority, Member
from cordwood.protocol.node_states import NodeStates
from cordwood.protocol.store_times import StoreTimes
from cordwood.sequencer.settled_queries import AskSettled, SettledQueries
from cordwood.settings import SequencerSettings
from cordwood.wire.peers import Peers
from cordwood.wire.store_channel import StoreChannel


class AppenderTools:
    """The tools that all appenders of one node share.

    Attributes:
        settings: as given, and with what the smallest of the members can store.
        queries: which queries a log may forget.
    """

    def __init__(
        self,
        peers: Peers,
        channel: StoreChannel,
        states: NodeStates,
        times: StoreTimes,
        settings: SequencerSettings,
        now: Clock,
        random: Chance,
        ask_settled: AskSettled,
    ) -> None:
        self.peers = peers
        self.channel = channel
        self.states = states
        self.times = times
        self.settings = self._given = settings
        self.now = now
        self.random = random
        self.queries = SettledQueries(ask_settled)

    def fit(self, members: Iterable[Member]) -> None:
        """Number nothing that a member could never store.

        Trap: a node's own WAL says nothing about the WALs of other nodes. If one of a log's nodes
        has no space for a block, it refuses the block in every wave, and all later blocks wait.
        The same happened to each next sequencer, because its recovery stored the block again.
        """
        rooms = [
            each.room
            for each in members
            if each.room and each.authority is not Authority.UNDER_REPLICATED
        ]
        self.settings = self._given.fitted_to(min(rooms)) if rooms else self._given


class Clock(Protocol):
    """The loop's clock."""

    def __call__(self) -> float: ...


class Chance(Protocol):
    """A stream of random numbers; `random.Random` fits it."""

    def random(self) -> float: ...
