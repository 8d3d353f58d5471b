"""The options of writing with `format("cordwood")`, and the columns it takes.

Source: docs/sources/spark.md §6 ("Sink input"), §8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cordwood.errors import BadSetting
from cordwood.layout.log_names import normalise_name
from cordwood.spark.options import (
    REQUEST_TIMEOUT_MS,
    SERVERS,
    TIMEOUT,
    parse_servers,
    parse_tokens,
)
from cordwood.spark.raw_options import RawOptions, refuse_unknown

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

WRITE_TOKENS = "cordwood.write.tokens"
LOG_ID = "logId"

SINK_OPTIONS = {
    SERVERS: "host:port of one or more nodes, with commas, or a cordwood:// address",
    TIMEOUT: "how long an append may take, retries included, 30000",
    WRITE_TOKENS: "with commas, for logs that ask for a write token",
    "log": "the log that records go to which have none in the column log",
    LOG_ID: "the number of that log: records go there even if the name leads to another log",
    "deliveryMode": "exactlyOnce, idempotent (cheaper; for queries that only map) or atLeastOnce",
    "txnAppId": "names a write across restarts; a stream has its query's id without it",
    "txnVersion": "numbers the batch writes of txnAppId: a number written before is skipped "
    "(exactlyOnce)",
    "stageTtl": "how long a batch may take from its first row to its publish, 1h",
    "codec": "how blocks are compressed: none, lz4 or zstd",
}
"""All options, with a short explanation each."""

AT_LEAST_ONCE = "atLeastOnce"
IDEMPOTENT = "idempotent"
EXACTLY_ONCE = "exactlyOnce"

STAGE_TTL_S = 3600.0
"""Longer than any sane micro-batch; a killed query's blocks are gone after an hour."""

APP_MAX = 200
"""Characters of txnAppId, so that the store's bound also covers the prefix."""

TAKEN = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
    "log": ("string",),
}
"""Written columns, and their allowed types."""

PASSED_OVER = frozenset({"log_id", "lsn", "epoch", "offset"})
"""Columns of the source that the sink ignores: they tell where a record came from, and are no part
of the record."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Every option, checked.

    Attributes:
        log: with its slash, "" where the column says it.
        log_id: its number, if that is given; None to look the name up.
        delivery: one of the three modes.
        app, version: `txnAppId` and `txnVersion`; "" and None if not given.
        stage_ttl_s: lifetime of staged blocks.
        write_tokens: for logs that demand one; never shown.
        checkpoint: the stream's checkpoint directory, from Spark; "" for a batch.
        query_name: the stream's, from Spark; "" for none.
    """

    servers: str
    log: str
    request_timeout_s: float
    codec: str
    delivery: str = EXACTLY_ONCE
    app: str = ""
    version: int | None = None
    stage_ttl_s: float = STAGE_TTL_S
    write_tokens: tuple[str, ...] = field(default=(), repr=False)
    checkpoint: str = ""
    query_name: str = ""
    log_id: int | None = None

    def check_batch(self) -> None:
        """Check a batch's options.

        Raises:
            BadSetting: one of `txnAppId` and `txnVersion` is without the other, or they come with
                a mode in which nothing notes that a version was written.
        """
        if bool(self.app) != (self.version is not None):
            raise BadSetting(
                "txnAppId and txnVersion go together: the application, and a number that is higher "
                "for each of its writes"
            )
        self._check_mode()

    def _check_mode(self) -> None:
        if self.app and self.delivery != EXACTLY_ONCE:
            raise BadSetting(
                f"txnAppId and txnVersion are for deliveryMode={EXACTLY_ONCE}: with "
                f"{self.delivery} nothing notes that a version was written, and it would be "
                "written again. Leave deliveryMode out, or these two"
            )

    def check_stream(self) -> None:
        """Check a stream's options.

        Raises:
            BadSetting: it is given a version; its batches have numbers.
        """
        if self.version is not None:
            raise BadSetting("txnVersion is for batch writes: Spark numbers a stream's batches")


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Read all options.

    Raises:
        BadSetting: an option is unknown, missing or wrong; the text lists all options.
    """
    # Spark hands its own on to every sink.
    ours = {name: value for name, value in given.items() if name.lower() not in _SPARKS}
    refuse_unknown(ours, SINK_OPTIONS, {})
    options = RawOptions(ours)
    log = options.text("log") or ""
    return SinkOptions(
        servers=parse_servers(options),
        log=normalise_name(log) if log else "",
        request_timeout_s=options.count(TIMEOUT, REQUEST_TIMEOUT_MS) / 1000,
        codec=options.choice("codec", ("none", "lz4", "zstd"), "none"),
        delivery=options.choice(
            "deliveryMode", (EXACTLY_ONCE, IDEMPOTENT, AT_LEAST_ONCE), EXACTLY_ONCE
        ),
        app=_app(options),
        version=_version(options),
        stage_ttl_s=options.duration_s("stageTtl", STAGE_TTL_S),
        write_tokens=parse_tokens(options, WRITE_TOKENS),
        checkpoint=_sparks(given, "checkpointlocation"),
        query_name=_sparks(given, "queryname"),
        log_id=_log_id(options, log),
    )


def _sparks(given: Mapping[str, str], wanted: str) -> str:
    """An option of Spark's own, by its name in lower case."""
    return next((text for name, text in given.items() if name.lower() == wanted), "")


def _app(options: RawOptions) -> str:
    app = options.text("txnAppId")
    if app is not None and not 1 <= len(app) <= APP_MAX:
        raise BadSetting(f"txnAppId has {len(app)} characters; it takes 1 to {APP_MAX}")
    return app or ""


def _version(options: RawOptions) -> int | None:
    text = options.text("txnVersion")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _VERSION_DIGITS_MAX):
        raise BadSetting(f"txnVersion is {text!r}; it is a whole number from 0 on")
    return int(text)


def _log_id(options: RawOptions, log: str) -> int | None:
    found = options.count(LOG_ID, 0) or None
    if found is not None and not log:
        raise BadSetting(f"{LOG_ID} is the number of the log of the option log: give that too")
    return found


_VERSION_DIGITS_MAX = 9
"""A producer's epoch has 32 bits, and `deliveryMode=idempotent` takes the version for it."""

_SPARKS = frozenset({"path", "checkpointlocation", "queryname"})


def check_columns(schema: StructType, log: str) -> None:
    """Check the columns to write.

    Args:
        log: the default log, "" for none.
    Raises:
        BadSetting: a column is missing, unknown or of another type.
    """
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, type_ in types.items():
        if name in PASSED_OVER:
            continue
        if name not in TAKEN:
            raise BadSetting(
                f"there is no place for the column {name}: a record has {', '.join(TAKEN)}. "
                "Select those, or make the others part of value"
            )
        if type_ not in TAKEN[name]:
            raise BadSetting(f"the column {name} is {type_}; it is {' or '.join(TAKEN[name])}")
    if "value" not in types:
        raise BadSetting(f"there is no column value; the columns are {', '.join(types) or 'none'}")
    if "log" not in types and not log:
        raise BadSetting("to which log? give the option log, or a column log")
