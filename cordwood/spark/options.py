"""The options of `format("cordwood")`, read and checked in one place.

Names are Kafka's where Kafka has one, so that a job ports by changing the format and
two options. Case does not matter. An unknown, unfinished or wrong option is refused by one error
that lists all options: a silently ignored option costs its user a day.

Source: docs/sources/spark.md §6.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cordwood.client.address import SCHEME, parse_url
from cordwood.errors import BadSetting
from cordwood.layout.batch_columns import COLUMNS
from cordwood.spark.places import (
    At,
    Cursor,
    Edge,
    Places,
    is_number,
    log_key,
    parse_places,
    parse_times,
)
from cordwood.spark.raw_options import RawOptions, refuse_unknown

if TYPE_CHECKING:
    from cordwood.settings import ClientSettings

SERVERS = "cordwood.bootstrap.servers"
TIMEOUT = "cordwood.request.timeout.ms"
READ_TOKENS = "cordwood.read.tokens"

SELECTIONS = ("subscribe", "subscribePattern", "assign")

OPTIONS = {
    SERVERS: "host:port of one or more nodes, with commas, or a cordwood:// address",
    TIMEOUT: "how long one question to the cluster may take, 30000",
    READ_TOKENS: "with commas, for logs that ask for a read token",
    "subscribe": "names of logs, with commas",
    "subscribePattern": "a regular expression for whole names, as /orders/.*",
    "assign": 'logs by number or name, as JSON: [17, "/orders"]',
    "ledgers": "ids of ledgers, with commas; logs are not read then",
    "cordwood.ledgers.password": "of these ledgers, if they have one",
    "startingOffsets": "earliest (batch), latest (streams), cursor (of groupId) or JSON by log",
    "startingTimestamp": "ms since 1970 UTC: records appended then or later",
    "startingOffsetsByTimestamp": 'the same by log, as JSON: {"/orders": 1700000000000}',
    "startingOffsetsByTimestampStrategy": "where nothing is that late: error, or latest",
    "endingOffsets": "latest or JSON by log; the first LSN not to read",
    "endingTimestamp": "ms since 1970 UTC: records appended before (batch only)",
    "endingOffsetsByTimestamp": "the same by log, as JSON (batch only)",
    "groupId": "the store's consumer whose cursors follow this query, for its lag to be seen",
    "failOnDataLoss": "true: fail where records are gone; false: go on after them",
    "passedOver": 'names that may lead nowhere, as JSON by their deleted log: {"/orders": 17}',
    "includeHeaders": "true adds the column headers",
    "includePayload": "false leaves out the column value",
    "includeGaps": "true gives ranges without records as rows, and does not fail for them",
    "filterPushdown": "true lets a batch use filters on log, log_id and lsn to read less",
    "minPartitions": "at least this many tasks, if there are records for them",
    "targetPartitionBytes": "bytes of records for one task, 128m",
    "maxRecordsPerTrigger": "records of one micro-batch at most",
    "maxOffsetsPerTrigger": "Kafka's name for maxRecordsPerTrigger",
    "maxBytesPerTrigger": "bytes of records of one micro-batch at most, about",
    "minOffsetsPerTrigger": "wait for this many records before a micro-batch",
    "maxTriggerDelay": "wait for them no longer than this, 15m",
}
"""All options, with a short explanation each."""

NOT_YET = {
    "view": "`cordwood spark stats` and `cordwood spark audit` show this",
}
"""Planned options, and the reason why each is not there yet. They are refused until they work."""

TARGET_PARTITION_BYTES = 128 << 20
"""The default bytes in one task: as many as Spark itself reads of files in one task
(`spark.sql.files.maxPartitionBytes`)."""

REQUEST_TIMEOUT_MS = 30_000
"""The client's own default: it covers the restart of a node."""

MAX_TRIGGER_DELAY_S = 900.0
"""Kafka's default for its option of the same name."""

GAP_COLUMNS = ("record_type", "gap_type", "gap_end_lsn")
"""The columns that `includeGaps` adds: `record` or `gap`; for a gap also its kind and its last
LSN."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The logs that a query reads.

    Attributes:
        option: one of SELECTIONS.
        logs: for `subscribe` and `assign`, names with their slash, or numbers in digits.
        pattern: for `subscribePattern`.
    """

    option: str
    logs: tuple[str, ...] = ()
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Every option, checked; a small value that travels to the executors.

    Attributes:
        servers: what the client connects to.
        request_timeout_s: of the client's calls.
        selection: which logs.
        starts: None if it was not said: earliest for a batch, latest for a stream.
        ends: first LSNs that are not read.
        fail_on_data_loss: whether a lost range fails the query or is passed over.
        columns: in the order of the schema.
        min_partitions: 0 for no wish.
        target_partition_bytes: uncompressed bytes of bodies.
        max_records, max_bytes: of a micro-batch, None for no limit.
        min_records: that a micro-batch waits for, for at most `max_delay_s`; None for no wait.
        no_later: whether a log without records of the starting time or later is an error, or
            starts at its end.
        gaps: whether gaps are rows.
        pushdown: whether Spark's filters may narrow a batch.
        group: the consumer whose cursors follow a stream, "" for none.
        passed_over: the deleted logs of names that a new stream passes over (`selecting`).
        read_tokens: for logs that ask for a token; never shown.
    """

    servers: str
    selection: Selection
    request_timeout_s: float = REQUEST_TIMEOUT_MS / 1000
    starts: Places | None = None
    ends: Places = field(default_factory=lambda: Places(Edge.LATEST))
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = COLUMNS
    min_partitions: int = 0
    target_partition_bytes: int = TARGET_PARTITION_BYTES
    max_records: int | None = None
    max_bytes: int | None = None
    min_records: int | None = None
    max_delay_s: float = MAX_TRIGGER_DELAY_S
    no_later: str = "error"
    gaps: bool = False
    pushdown: bool = False
    group: str = ""
    passed_over: Mapping[str, int] = field(default_factory=dict)
    read_tokens: tuple[str, ...] = field(default=(), repr=False)

    def client_settings(self) -> ClientSettings:
        """Of the client that reads with these options."""
        from cordwood.settings import ClientSettings

        return ClientSettings(
            timeout_s=self.request_timeout_s, read_tokens=self.read_tokens, rare_collections=True
        )

    def check_batch(self) -> None:
        """Check what only a batch cannot do.

        Raises:
            BadSetting: it starts at latest, passes names over, or limits a trigger it has not.
        """
        starts = self.starts or Places(Edge.EARLIEST)
        if Edge.LATEST in starts.all:
            raise BadSetting(
                "startingOffsets is latest, and a batch from there on would always be empty: "
                "give earliest or JSON, or use readStream"
            )
        if self.passed_over:
            raise BadSetting("passedOver is for streams: a batch names the logs that are there")
        limits = {
            "maxRecordsPerTrigger (or maxOffsetsPerTrigger)": self.max_records,
            "maxBytesPerTrigger": self.max_bytes,
            "minOffsetsPerTrigger": self.min_records,
        }
        for name, value in limits.items():
            if value is not None:
                raise BadSetting(
                    f"{name} limits the micro-batches of readStream; a batch reads all of "
                    "startingOffsets to endingOffsets"
                )

    def check_stream(self) -> None:
        """Check what only a stream cannot do.

        Raises:
            BadSetting: it is to end at a time, or to push filters.
        """
        if any(isinstance(place, At) for place in self.ends.all):
            raise BadSetting(
                "endingTimestamp is for batches, which know what was appended before it; a stream "
                "ends at endingOffsets, or with the trigger AvailableNow"
            )
        if self.pushdown:
            raise BadSetting("filterPushdown is for batches: Spark pushes no filters to streams")


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Read all options.

    Raises:
        BadSetting: an option is unknown, unfinished, missing or wrong; the text lists all options.
    """
    refuse_unknown(given, OPTIONS, NOT_YET)
    options = RawOptions(given)
    starts = _starts(options)
    return SourceOptions(
        servers=parse_servers(options),
        selection=_selection(options),
        request_timeout_s=options.count(TIMEOUT, REQUEST_TIMEOUT_MS) / 1000,
        starts=starts,
        ends=_ends(options),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        columns=_columns(options),
        min_partitions=options.count("minPartitions", 0),
        target_partition_bytes=options.size("targetPartitionBytes", TARGET_PARTITION_BYTES),
        max_records=max_records(options),
        max_bytes=options.size("maxBytesPerTrigger", 0) or None,
        min_records=options.count("minOffsetsPerTrigger", 0) or None,
        max_delay_s=options.duration_s("maxTriggerDelay", MAX_TRIGGER_DELAY_S),
        no_later=options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error"),
        gaps=options.flag("includeGaps", False),
        pushdown=options.flag("filterPushdown", False),
        group=_group(options, starts),
        passed_over=_passed_over(options),
        read_tokens=parse_tokens(options, READ_TOKENS),
    )


def parse_tokens(options: RawOptions, name: str) -> tuple[str, ...]:
    """Tokens with commas between.

    Raises:
        BadSetting: a token is longer than any token of a log.
    """
    text = options.text(name)
    if not text:
        return ()
    # Most of a query's Python processes have none, and need not load what knows logs.
    from cordwood.log_attributes import check_token

    tokens = tuple(token for each in text.split(",") if (token := each.strip()))
    for token in tokens:
        check_token(token)
    return tokens


def parse_servers(options: RawOptions) -> str:
    """Where the cluster is, as an address with its scheme.

    Raises:
        BadSetting: it is missing, a directory, or no address.
    """
    servers = options.text(SERVERS)
    if not servers:
        raise BadSetting(
            f"{SERVERS} is missing: give host:port of one or more nodes, as `cordwood up` "
            "prints them"
        )
    if _is_directory(servers):
        raise BadSetting(
            f"{SERVERS} is {servers!r}, a directory: an embedded store lives inside the process "
            "that opened it, where Spark's executors cannot reach it. Serve it there, "
            "`address = store.serve()`, and give that address; or start a cluster with "
            "`cordwood up` and give its address"
        )
    try:
        parse_url(servers)
    except BadSetting as error:
        raise BadSetting(f"{SERVERS}: {error}") from None
    return servers if servers.startswith(SCHEME) else SCHEME + servers


def _is_directory(servers: str) -> bool:
    if servers.startswith(SCHEME):
        return False
    return servers.startswith((".", "/", "~", "file:")) or os.path.isdir(servers)


def _selection(options: RawOptions) -> Selection:
    given = [name for name in SELECTIONS if options.text(name) is not None]
    if len(given) != 1:
        told = f"{' and '.join(given)} exclude one another" if given else "no log is selected"
        raise BadSetting(f"{told}: give one of {', '.join(SELECTIONS)}, or ledgers")
    option = given[0]
    value = options.text(option) or ""
    if not value:
        raise BadSetting(f"{option} is empty; it takes {OPTIONS[option]}")
    match option:
        case "subscribe":
            return Selection(option, tuple(_subscribed(value)))
        case "subscribePattern":
            return Selection(option, pattern=_pattern(value))
        case _:
            return Selection(option, tuple(_assigned(value)))


def _subscribed(value: str) -> list[str]:
    names = [part.strip() for part in value.split(",")]
    if not all(names):
        raise BadSetting(f"subscribe is {value!r}; it takes {OPTIONS['subscribe']}")
    return sorted({name if name.startswith("/") else f"/{name}" for name in names})


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise BadSetting(
            f"subscribePattern is {value!r}, which is no regular expression ({error})"
        ) from None
    return value


def _assigned(value: str) -> list[str]:
    wrong = BadSetting(f"assign is {value!r}; it takes {OPTIONS['assign']}")
    try:
        logs = json.loads(value)
    except (ValueError, RecursionError):  # not JSON, a number of thousands of digits, a nest
        raise wrong from None
    if not isinstance(logs, list) or not logs:
        raise wrong
    keys = set()
    for log in logs:
        key = log_key(str(log))
        if isinstance(log, bool) or not isinstance(log, (int, str)) or key in ("", "/"):
            raise wrong
        if isinstance(log, int) and not is_number(key):
            raise wrong
        keys.add(key)
    return sorted(keys)


def _starts(options: RawOptions) -> Places | None:
    given = _one_of(options, "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
    if given is None:
        return None
    # A log that the JSON leaves out is read from its beginning: skipping its records would be an
    # unwanted loss.
    return _places(*given, Edge.EARLIEST)


def _ends(options: RawOptions) -> Places:
    given = _one_of(options, "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    if given is None:
        return Places(Edge.LATEST)
    ends = _places(*given, Edge.LATEST)
    if Edge.EARLIEST in ends.all:
        raise BadSetting("endingOffsets is earliest, which would read nothing: give latest or JSON")
    if Cursor.CURSOR in ends.all:
        raise BadSetting(
            "endingOffsets is cursor, which would read again what was dealt with: a cursor is "
            "where reading goes on, so give it as startingOffsets"
        )
    return ends


def _group(options: RawOptions, starts: Places | None) -> str:
    group = options.text("groupId")
    if group == "":
        raise BadSetting(f"groupId is empty; it is {OPTIONS['groupId']}")
    if group is None and starts is not None and Cursor.CURSOR in starts.all:
        raise BadSetting("startingOffsets is cursor: name the consumer with groupId")
    return group or ""


def _passed_over(options: RawOptions) -> dict[str, int]:
    text = options.text("passedOver")
    if text is None:
        return {}
    wrong = BadSetting(f"passedOver is {text!r}; it takes {OPTIONS['passedOver']}")
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(given, dict) or not all(type(log) is int for log in given.values()):
        raise wrong
    return {log_key(name): log for name, log in given.items()}


def _one_of(options: RawOptions, *names: str) -> tuple[str, str] | None:
    """The given option among these, which exclude one another, and its value."""
    given = [(name, text) for name in names if (text := options.text(name)) is not None]
    if len(given) > 1:
        told = " and ".join(name for name, _ in given)
        raise BadSetting(f"{told} exclude one another: give one of {', '.join(names)}")
    return given[0] if given else None


def _places(option: str, text: str, default: Edge) -> Places:
    by_time = option.endswith("Timestamp")
    return (parse_times if by_time else parse_places)(option, text, default)


def _columns(options: RawOptions) -> tuple[str, ...]:
    payload = options.flag("includePayload", True)
    columns = tuple(name for name in COLUMNS if payload or name != "value")
    if options.flag("includeHeaders", False):
        columns = (*columns, "headers")
    return (*columns, *GAP_COLUMNS) if options.flag("includeGaps", False) else columns


def max_records(options: RawOptions) -> int | None:
    """Records of a micro-batch at most, None for no limit.

    Raises:
        BadSetting: it is no number, or both of its names are given.
    """
    names = ("maxRecordsPerTrigger", "maxOffsetsPerTrigger")
    given = [name for name in names if options.text(name) is not None]
    if len(given) == 2:
        raise BadSetting("maxRecordsPerTrigger and maxOffsetsPerTrigger are one: give either")
    return options.count(given[0], 0) if given else None
