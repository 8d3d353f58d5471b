"""Writes records and gaps for people and for programs, as `cordwood tail` does.

A payload is bytes. Text output writes bytes unchanged. In JSON, bytes that are not UTF-8 go as
base64 under another name, so that no byte is changed. Only verbs that print records load this.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

import typer

from cordwood.block import Gap, GapKind, Record
from cordwood.cli.form import Form
from cordwood.lsn import format_lsn

if TYPE_CHECKING:
    from cordwood.client.blocking.blocking_readers import BlockingReader

Json = dict[str, object]

_WHY = {
    GapKind.BRIDGE: "an epoch ended here, and nothing is missing",
    GapKind.HOLE: "nothing was ever acknowledged here",
    GapKind.TRIM: "deleted on purpose",
    GapKind.DATA_LOSS: "LOST: acknowledged once, and no intact copy is left",
    GapKind.ACCESS: "this reader may not see them",
    GapKind.NOT_IN_CONFIG: "the log is not there (any more)",
    GapKind.FILTERED: "there are records, and none that was asked for",
}


def gap_words(gap: Gap) -> str:
    """A gap as a sentence."""
    where = format_lsn(gap.first)
    if gap.last != gap.first:
        where += f" to {format_lsn(gap.last)}"
    return f"gap {where}: {_WHY[gap.kind]}"


def gap_json(gap: Gap) -> Json:
    """A gap as one JSON object."""
    return {"gap": gap.kind.value, "first": format_lsn(gap.first), "last": format_lsn(gap.last)}


def record_json(record: Record) -> Json:
    """A record as one JSON object; times in µs since 1970 UTC."""
    headers: Sequence[tuple[str, bytes | None]] = record.headers
    return {
        "lsn": format_lsn(record.lsn),
        **_bytes_json("key", record.key),
        **_bytes_json("value", record.value),
        "timestamp_us": record.timestamp_us,
        "append_time_us": record.append_time_us,
        "headers": [{"name": name, **_bytes_json("value", value)} for name, value in headers],
    }


def _bytes_json(name: str, value: bytes | None) -> Json:
    if value is None:
        return {name: None}
    try:
        return {name: str(value, "utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def portions(reader: BlockingReader) -> Iterator[Sequence[Record | Gap]]:
    """Records and gaps in the portions in which they came."""
    from cordwood.client.read.delivered import records_of

    for taken in reader.blocks():
        yield [taken] if isinstance(taken, Gap) else records_of(taken)


class Printer:
    """Writes portions of records to `output`, and tells gaps.

    Attributes:
        lost: number of data-loss gaps.
        is_denied: whether the client may not read the records.
    """

    def __init__(self, output: BinaryIO, form: Form = Form.RAW, *, gaps: bool = True) -> None:
        self.lost = 0
        self.is_denied = False
        self._output = output
        self._form = form
        self._gaps = gaps

    def print_all(
        self, portions: Iterable[Sequence[Record | Gap]], count_max: int | None = None
    ) -> None:
        """Write everything, or no more than the first `count_max` records."""
        left = sys.maxsize if count_max is None else count_max
        if not left:
            return
        for portion in portions:
            records: list[Record] = []
            for item in portion:
                if isinstance(item, Gap):
                    self._tell_gap(item)
                else:
                    records.append(item)
            self._write(records[:left])
            left -= len(records)
            if left <= 0:
                return

    def _write(self, records: Sequence[Record]) -> None:
        if self._form is Form.JSON:
            lines = [_json_line(record_json(record)) for record in records]
        elif self._form is Form.HEX:
            lines = [
                b"%b %b\n" % (format_lsn(record.lsn).encode(), record.value.hex().encode())
                for record in records
            ]
        else:
            lines = [b"%b\n" % record.value for record in records]
        self._output.write(b"".join(lines))
        self._output.flush()

    def _tell_gap(self, gap: Gap) -> None:
        """Report a gap. It is alone in its portion, so it stands between the right records."""
        self.lost += gap.kind is GapKind.DATA_LOSS
        self.is_denied |= gap.kind is GapKind.ACCESS
        if not self._gaps and gap.kind is not GapKind.DATA_LOSS:
            return
        if self._form is Form.JSON:
            self._output.write(_json_line(gap_json(gap)))
            self._output.flush()
        else:
            typer.echo(gap_words(gap), err=True)


def _json_line(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"
