"""The results of the demo, as values; `demo.summary` says them in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cordwood.demo.checks import Checks
from cordwood.demo.epoch_rows import EpochRow
from cordwood.demo.rejoin import Rejoined
from cordwood.demo.spark_messages import Answered, Audited, Booted, Landed
from cordwood.demo.victim import Victim


@dataclass(slots=True)
class Ingested:
    """The work of the first client.

    Attributes:
        records, bytes: acknowledged; bytes of keys and values.
        seconds: from the first append to the last acknowledgement.
    """

    records: int
    bytes: int
    seconds: float


@dataclass(slots=True)
class Stored:
    """The copies that envelopes named, as `demo.follow.Copies` counted them."""

    blocks: int
    bytes: int
    copies: int
    racks: int
    retried: int
    by_node: dict[int, int]


@dataclass(slots=True)
class Killed:
    """The facts about a victim.

    Attributes:
        rack: its rack.
        at_kill: records acknowledged when it was killed.
        ack_pause_s, read_pause_s: the longest pauses from its kill to the next kill.
    """

    victim: Victim
    rack: str
    at_kill: int
    ack_pause_s: float
    read_pause_s: float


@dataclass(slots=True)
class Report:
    """All results so far; None for steps that the demo did not reach.

    Attributes:
        title: the name of the input.
        killed: the storage node; `beheaded` is the sequencer's node, after whose kill the log has
            no sequencer.
        epochs: the log's epochs as they were read, oldest first.
        rejoined: the killed nodes, after they had caught up.
        query: `flights` or `files`.
        where: the demo's directory.
        kept: whether the cluster's data stays in it.
        seconds: from start to end.
    """

    title: str
    query: str
    where: Path
    kept: bool
    checks: Checks = field(default_factory=Checks)
    seconds: float = 0.0
    nodes: dict[int, str] = field(default_factory=dict)
    ingested: Ingested | None = None
    stored: Stored | None = None
    killed: Killed | None = None
    beheaded: Killed | None = None
    epochs: list[EpochRow] = field(default_factory=list)
    rejoined: list[Rejoined] = field(default_factory=list)
    rejoin_s: float = 0.0
    booted: Booted | None = None
    landed: Landed | None = None
    audited: Audited | None = None
    answered: Answered | None = None
    rebuilt: int | None = None
    failure: str = ""

    @property
    def parquet(self) -> Path:
        """What Spark wrote."""
        return self.where / "parquet"

    @property
    def held(self) -> bool:
        """Whether every check held and nothing failed."""
        return not self.failure and not self.checks.failed
