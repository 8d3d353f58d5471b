"""Events about fencing tokens: a client takes a log under a token, and the first epoch that has
it."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from cordwood.sim.event import EpochValue, HistoryEvent

Token: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class FenceAsked(HistoryEvent, frozen=True, gc=False, tag="fence-asked"):
    """A client is about to take a log under a fencing token."""

    client: str
    log: int
    token: Token


class FenceAnswered(HistoryEvent, frozen=True, gc=False, tag="fence-answered"):
    """The client was told that the log is held under the token, from `epoch` on."""

    client: str
    log: int
    token: Token
    epoch: EpochValue


TokenEvent: TypeAlias = FenceAsked | FenceAnswered
