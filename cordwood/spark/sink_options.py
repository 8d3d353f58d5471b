"""The options of writing with `format("cordwood")`, and the columns it takes.

Source: research digest on PySpark 4.3, §6 ("Sink input"), §8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cordwood.errors import BadSetting
from cordwood.spark.given import Given, refuse_unknown
from cordwood.spark.options import REQUEST_TIMEOUT_MS, SERVERS, TIMEOUT, parse_servers

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SINK_OPTIONS = {
    SERVERS: "host:port of one or more nodes, with commas, or a cordwood:// address",
    TIMEOUT: "how long an append may take, retries included, 30000",
    "log": "the log that records go to which have none in the column log",
    "deliveryMode": "atLeastOnce; exactlyOnce is what is meant to be, and is not built",
    "codec": "how blocks are compressed: none, lz4 or zstd",
}
"""What there is, and a word on each."""

SINK_NOT_YET = {
    "txnAppId": "it names an exactly-once write, which the store cannot keep yet",
    "txnVersion": "it numbers an exactly-once write, which the store cannot keep yet",
}

AT_LEAST_ONCE = "atLeastOnce"
EXACTLY_ONCE = "exactlyOnce"

TAKEN = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
    "log": ("string",),
}
"""Columns that are written, and the types they may have."""

PASSED_OVER = frozenset({"log_id", "lsn", "epoch", "offset"})
"""The source's own: where a record came from is no part of it, so a copy leaves them out."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Every option, checked.

    Attributes:
        log: with its slash, "" where the column says it.
    """

    servers: str
    log: str
    request_timeout_s: float
    codec: str


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Read all options.

    Raises:
        BadSetting: one is unknown, not built yet, missing or wrong; the text lists what
            there is.
    """
    # Spark hands its own on to every sink.
    ours = {name: value for name, value in given.items() if name.lower() not in _SPARKS}
    refuse_unknown(ours, SINK_OPTIONS, SINK_NOT_YET)
    options = Given(ours)
    mode = options.choice("deliveryMode", (AT_LEAST_ONCE, EXACTLY_ONCE), EXACTLY_ONCE)
    if mode == EXACTLY_ONCE:
        raise BadSetting(
            "writing exactly once (deliveryMode=exactlyOnce, the default) is not built yet: the "
            "store cannot stage and publish. With deliveryMode=atLeastOnce every record is "
            "written, and those of a task or batch that ran twice are written twice"
        )
    log = options.text("log") or ""
    return SinkOptions(
        servers=parse_servers(options),
        log=log if not log or log.startswith("/") else f"/{log}",
        request_timeout_s=options.count(TIMEOUT, REQUEST_TIMEOUT_MS) / 1000,
        codec=options.choice("codec", ("none", "lz4", "zstd"), "none"),
    )


_SPARKS = frozenset({"path", "checkpointlocation", "queryname"})


def check_columns(schema: StructType, log: str) -> None:
    """Check the columns of what is to be written.

    Args:
        log: the default log, "" for none.
    Raises:
        BadSetting: one is missing, unknown or of another type.
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
