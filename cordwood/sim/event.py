"""The base of every event of a history, and the fields that several kinds of event share.

See `sim.history` for the form and the meaning of the events.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from cordwood.lsn import EPOCH_MAX, LSN_MAX

TimeUs: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
LsnValue: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=LSN_MAX)]
EpochValue: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)]
Crc: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]


class HistoryEvent(
    msgspec.Struct,
    frozen=True,
    gc=False,
    tag_field="event",
    tag=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Common to all events: the time of recording, in µs of the run's one clock."""

    time_us: TimeUs
