"""The options of `format("cordwood")`, read and checked in one place.

Names are Kafka's where Kafka has one, so that a job ports by changing the format and
two options. Case does not matter. Whatever is not known, or not built yet, or has a
wrong value is refused by one error that lists what there is: an option that is
silently ignored costs its user a day.

Source: research digest on PySpark 4.3, §6.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cordwood.client.cluster import SCHEME, parse_url
from cordwood.errors import BadSetting
from cordwood.layout.arrow import COLUMNS
from cordwood.spark.places import Edge, Places, is_number, log_key, parse_places

SERVERS = "cordwood.bootstrap.servers"
TIMEOUT = "cordwood.request.timeout.ms"

SELECTIONS = ("subscribe", "subscribePattern", "assign")

OPTIONS = {
    SERVERS: "host:port of one or more nodes, with commas, or a cordwood:// address",
    TIMEOUT: "how long one question to the cluster may take, 30000",
    "subscribe": "names of logs, with commas",
    "subscribePattern": "a regular expression for whole names, as /orders/.*",
    "assign": 'logs by number or name, as JSON: [17, "/orders"]',
    "startingOffsets": "earliest (batch), latest (streams) or JSON by log",
    "endingOffsets": "latest or JSON by log; the first LSN that is not read",
    "failOnDataLoss": "true: fail where records are gone; false: go on after them",
    "includeHeaders": "true adds the column headers",
    "includePayload": "false leaves out the column value",
    "minPartitions": "at least so many tasks, where there are records for them",
    "targetPartitionBytes": "bytes of records for one task, 128m",
    "maxRecordsPerTrigger": "records of one micro-batch at most",
    "maxOffsetsPerTrigger": "Kafka's name for maxRecordsPerTrigger",
}
"""What there is, and a word on each."""

NOT_YET = (
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "groupId",
    "includeGaps",
    "filterPushdown",
    "view",
)
"""Planned. They are refused until they do what they say."""

TARGET_PARTITION_BYTES = 128 << 20
"""What Spark itself reads of files in one task (`spark.sql.files.maxPartitionBytes`)."""

REQUEST_TIMEOUT_MS = 30_000
"""The client's own default: it covers the restart of a node."""

_SIZE = re.compile(r"(\d{1,15})\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which logs are read.

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
        max_records: of a micro-batch, None for no limit.
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

    def check_batch(self) -> None:
        """Check what only a batch cannot do.

        Raises:
            BadSetting: it starts at latest, or limits a trigger it has not.
        """
        starts = self.starts or Places(Edge.EARLIEST)
        if Edge.LATEST in (starts.default, *starts.by_log.values()):
            raise BadSetting(
                "startingOffsets is latest, and a batch from there on would always be empty: "
                "give earliest or JSON, or use readStream"
            )
        if self.max_records is not None:
            raise BadSetting(
                "maxRecordsPerTrigger (or maxOffsetsPerTrigger) limits the micro-batches of "
                "readStream; a batch reads all of startingOffsets to endingOffsets"
            )


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Read all options.

    Raises:
        BadSetting: one is unknown, not built yet, missing or wrong; the text lists
            what there is.
    """
    options = _Given(given)
    return SourceOptions(
        servers=_servers(options),
        selection=_selection(options),
        request_timeout_s=options.count(TIMEOUT, REQUEST_TIMEOUT_MS) / 1000,
        starts=_starts(options),
        ends=_ends(options),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        columns=_columns(options),
        min_partitions=options.count("minPartitions", 0),
        target_partition_bytes=options.size("targetPartitionBytes", TARGET_PARTITION_BYTES),
        max_records=_max_records(options),
    )


class _Given:
    """What the user gave, every name of which is known."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._values = {name.lower(): str(value) for name, value in given.items()}
        _refuse_unknown(given)

    def text(self, name: str) -> str | None:
        """The value without blanks around it; None if it was not given."""
        found = self._values.get(name.lower())
        return None if found is None else found.strip()

    def flag(self, name: str, default: bool) -> bool:
        """`true` or `false`."""
        found = self.text(name)
        if found is None:
            return default
        if found.lower() not in ("true", "false"):
            raise BadSetting(f"{name} is {found!r}; it is true or false")
        return found.lower() == "true"

    def count(self, name: str, default: int) -> int:
        """A whole number from 1 on, if it was given."""
        found = self.text(name)
        if found is None:
            return default
        if not re.fullmatch(r"\d{1,18}", found, re.ASCII) or int(found) < 1:
            raise BadSetting(f"{name} is {found!r}; it is a whole number from 1 on")
        return int(found)

    def size(self, name: str, default: int) -> int:
        """Bytes, with Spark's units: `64m`, `1gb`, `1048576`."""
        found = self.text(name)
        if found is None:
            return default
        match = _SIZE.fullmatch(found)
        if match is None or int(match[1]) < 1:
            raise BadSetting(f"{name} is {found!r}; it is a number of bytes, as 64m or 1g")
        return int(match[1]) * _UNITS[(match[2] or "").lower()]


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = {name.lower() for name in OPTIONS}
    later = {name.lower(): name for name in NOT_YET}
    wrong = [name for name in given if name.lower() not in known]
    if not wrong:
        return
    told = [
        f"{later[name.lower()]} is not built yet"
        if name.lower() in later
        else f"there is no {name}{_nearest(name)}"
        for name in wrong
    ]
    raise BadSetting(f"{'; '.join(told)}. The options are: {', '.join(OPTIONS)}")


def _nearest(name: str) -> str:
    """What may have been meant."""
    by_lower = {known.lower(): known for known in OPTIONS}
    wanted = name.lower().replace("kafka.", "cordwood.")
    near = difflib.get_close_matches(wanted, by_lower, n=1, cutoff=0.75)
    return f" (did you mean {by_lower[near[0]]}?)" if near else ""


def _servers(options: _Given) -> str:
    servers = options.text(SERVERS)
    if not servers:
        raise BadSetting(
            f"{SERVERS} is missing: give host:port of one or more nodes, as `cordwood up` "
            "prints them"
        )
    if _is_directory(servers):
        raise BadSetting(
            f"{SERVERS} is {servers!r}, a directory: an embedded store lives inside the process "
            "that opened it, where Spark's executors cannot reach it, and serving one is not "
            "built yet. Start a cluster with `cordwood up` and give its address"
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


def _selection(options: _Given) -> Selection:
    given = [name for name in SELECTIONS if options.text(name) is not None]
    if len(given) != 1:
        told = f"{' and '.join(given)} exclude one another" if given else "no log is selected"
        raise BadSetting(f"{told}: give one of {', '.join(SELECTIONS)}")
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
    except json.JSONDecodeError:
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


def _starts(options: _Given) -> Places | None:
    text = options.text("startingOffsets")
    # A log that the JSON leaves out is read whole: to skip it would be a loss nobody asked for.
    return None if text is None else parse_places("startingOffsets", text, Edge.EARLIEST)


def _ends(options: _Given) -> Places:
    ends = parse_places("endingOffsets", options.text("endingOffsets") or "latest", Edge.LATEST)
    if Edge.EARLIEST in (ends.default, *ends.by_log.values()):
        raise BadSetting("endingOffsets is earliest, which would read nothing: give latest or JSON")
    return ends


def _columns(options: _Given) -> tuple[str, ...]:
    payload = options.flag("includePayload", True)
    columns = tuple(name for name in COLUMNS if payload or name != "value")
    return (*columns, "headers") if options.flag("includeHeaders", False) else columns


def _max_records(options: _Given) -> int | None:
    names = ("maxRecordsPerTrigger", "maxOffsetsPerTrigger")
    given = [name for name in names if options.text(name) is not None]
    if len(given) == 2:
        raise BadSetting("maxRecordsPerTrigger and maxOffsetsPerTrigger are one: give either")
    return options.count(given[0], 0) if given else None
