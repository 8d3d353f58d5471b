"""A pipeline as a drawing, for `cordwood pipeline show`: a rule."""

from __future__ import annotations

from cordwood.spark.jobs.landing import Landing
from cordwood.spark.options import SERVERS
from cordwood.spark.pipeline.spec import ObjectSink, Pipeline, Sink


def draw(pipeline: Pipeline) -> list[str]:
    """Lines of text: the source on the left, decoding in the middle, sinks on the right."""
    source = pipeline.source
    logs = source.get("subscribe", "").replace(",", ", ") or source.get("subscribePattern", "")
    left = [logs, f"at {source[SERVERS]}", f"from {source['startingOffsets']}"]
    if pipeline.read_tokens:
        left.append(f"tokens from {pipeline.read_tokens}")
    width = max(map(len, left))
    middle = f" ──► {pipeline.decode}" if pipeline.decode else ""
    sinks = [_sink(sink) for sink in pipeline.sinks]
    rows = max(len(left), len(sinks))
    when = "once" if pipeline.trigger_s is None else f"every {pipeline.trigger_s:g} s"
    lines = [f"{pipeline.name}, {when}", ""]
    for row in range(rows):
        start = left[row] if row < len(left) else ""
        between = middle if row == 0 else " " * len(middle)
        end = f"{_branch(row, len(sinks))} {sinks[row]}" if row < len(sinks) else ""
        lines.append(f"  {start:<{width}}{between}{end}".rstrip())
    return lines


def _branch(row: int, count: int) -> str:
    if count == 1:
        return " ───►"
    if row == 0:
        return " ─┬─►"
    return "  └─►" if row == count - 1 else "  ├─►"


def _sink(sink: Sink) -> str:
    if isinstance(sink, ObjectSink):
        return f"objects in {sink.address}, merged up to {sink.object_mib} MiB"
    if not isinstance(sink, Landing):
        tokens = f", tokens from {sink.write_tokens}" if sink.write_tokens else ""
        kept = f"checkpoint {sink.checkpoint}{tokens}"
        return f"log {sink.options['log']}, each record once ({kept})"
    by = f" by {', '.join(sink.partition_by)}" if sink.partition_by else ""
    joined = ", small files joined" if sink.compact else ""
    return f"{sink.format} {sink.table}{by}, each record once{joined}"
