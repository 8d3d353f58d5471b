"""The messages between the demo and its Spark process: JSON, one message a line.

The demo sends one Job; the process answers with Booted, Landed, Audited and Answered, in
this order, or with Failed in the place of any.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct


class Job(Struct, frozen=True):
    """The job.

    Attributes:
        servers: addresses of the cluster, with commas.
        log: the log to land.
        parquet: a directory, made by the landing; its checkpoint is in it.
        query: `flights` or `files`.
    """

    servers: str
    log: str
    parquet: str
    query: str


class Booted(Struct, frozen=True, tag="booted"):
    """Spark is up and warm."""

    seconds: float
    spark: str
    java: str


class Landed(Struct, frozen=True, tag="landed"):
    """The stream is done.

    Attributes:
        records: as Spark's own progress reports count them.
        batches: micro-batches that had records.
    """

    seconds: float
    records: int
    batches: int


class Audited(Struct, frozen=True, tag="audited"):
    """The Parquet rows, summed up by Spark.

    Attributes:
        records, lsns: rows, and different LSNs in them.
        first_lsn, last_lsn: 0 if there are no rows.
        first, second: the sums of their digest (`demo.digest`).
    """

    seconds: float
    records: int
    lsns: int
    first_lsn: int
    last_lsn: int
    first: int
    second: int


class Row(Struct, frozen=True):
    """One row of the query; the figures are those of `demo.input.Tally`."""

    key: bytes
    records: int
    units: int
    total: int


class Answered(Struct, frozen=True, tag="answered"):
    """The query's rows, in its own order."""

    seconds: float
    rows: list[Row]


class Failed(Struct, frozen=True, tag="failed"):
    """A step failed; the process ends."""

    text: str


Event = Booted | Landed | Audited | Answered | Failed

_encoder = msgspec.json.Encoder()
_jobs = msgspec.json.Decoder(Job)
_events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def pack(message: Job | Event) -> bytes:
    """A message as a line."""
    return _encoder.encode(message) + b"\n"


def read_job(line: bytes) -> Job:
    """A job from a line; raises msgspec.DecodeError if it is none."""
    return _jobs.decode(line)


def read_event(line: bytes) -> Event:
    """An event from a line; raises msgspec.DecodeError if it is none."""
    return _events.decode(line)
