"""Events about fencing tokens: who takes a log under which, and from which epoch on it holds."""

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
    """It was told that the log is held under it, from `epoch` on."""

    client: str
    log: int
    token: Token
    epoch: EpochValue


TokenEvent: TypeAlias = FenceAsked | FenceAnswered
