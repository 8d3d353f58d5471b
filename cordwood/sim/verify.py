"""A history file, judged and told: what `cordwood verify` prints.

Source: `sim.verdict`; `sim.history` for the form of the file.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Sequence

import msgspec

from cordwood.errors import Malformed
from cordwood.sim.checkers import NOT_YET
from cordwood.sim.history import Event, RunStarted, from_jsonl
from cordwood.sim.verdict import EVIDENCE, Verdict, judge, promise_words, violation_words

VIOLATIONS_SHOWN_MAX = 20
"""Most violations shown to people; --json has all of them."""

WIDTH = 96


def show(path: str, *, as_json: bool) -> int:
    """Judge the history at `path` ("-": standard input) and print the verdict.

    Returns:
        1 if a promise was broken, else 0.
    Raises:
        Malformed: it is no history, or contradicts itself; the text names file and line.
        OSError: it cannot be read.
    """
    history = read_history(path)
    try:
        verdict = judge(history)
    except Malformed as error:
        # An event is a line, so that the number is the same.
        raise Malformed(f"{path}: {str(error).replace('event', 'line', 1)}") from error
    lines = {id(event): number for number, event in enumerate(history, start=1)}
    if as_json:
        print(json.dumps(verdict_json(verdict, lines)))
    else:
        print("\n".join(verdict_lines(path, history, verdict, lines)))
    return 1 if verdict.violations else 0


def read_history(path: str) -> tuple[Event, ...]:
    """Read a history file.

    Raises:
        Malformed: a line is no event; the text names file and line.
        OSError: it cannot be read.
    """
    if path == "-":
        data = sys.stdin.buffer.read()
    else:
        with open(path, "rb") as file:
            data = file.read()
    try:
        return from_jsonl(data)
    except Malformed as error:
        raise Malformed(f"{path}: {error}") from error


def verdict_lines(
    path: str, history: Sequence[Event], verdict: Verdict, lines: dict[int, int]
) -> Iterable[str]:
    """The verdict for people, line by line."""
    run = history[0]
    seed = f", seed {run.seed}" if isinstance(run, RunStarted) and run.seed is not None else ""
    yield f"{path}: {len(history):,} events in {verdict.length_s:,.1f} s{seed}"
    counts = verdict.counts
    yield (
        f"  appends   {verdict.acked:,} records acknowledged in {counts.get('append-ok', 0):,}"
        f" calls; {counts.get('append-failed', 0):,} failed,"
        f" {counts.get('append-unknown', 0):,} of unknown outcome"
    )
    yield (
        f"  reads     {verdict.delivered:,} records and {counts.get('gap', 0):,} gaps"
        f" in {counts.get('read-started', 0):,} reads"
    )
    struck = ", ".join(f"{kind} {count}" for kind, count in verdict.faults.items())
    yield f"  cluster   {counts.get('epoch-taken', 0):,} epochs; faults: {struck or 'none'}"
    yield ""
    yield from _broken(verdict, lines)
    if verdict.missing:
        yield "\nThe history does not have all that could be judged:"
        yield from (f"  no {name}: {_left_open(name)}" for name in verdict.missing)
    if not verdict.validity:
        yield "\nA simulated seed must try more than this to count:"
        yield from (f"  {reason}" for reason in verdict.validity.reasons)
    yield "\nCannot be checked yet: " + _wrapped(NOT_YET)


def _broken(verdict: Verdict, lines: dict[int, int]) -> Iterable[str]:
    if not verdict.violations:
        yield "No promise was broken. Checked: " + _wrapped(verdict.checked)
        return
    yield f"BROKEN: {', '.join(verdict.broken)} ({len(verdict.violations)} violations)"
    invariant = ""
    for violation in verdict.violations[:VIOLATIONS_SHOWN_MAX]:
        if violation.invariant != invariant:
            invariant = violation.invariant
            yield promise_words(invariant)
        yield violation_words(violation, lines)
    more = len(verdict.violations) - VIOLATIONS_SHOWN_MAX
    if more > 0:
        yield f"  and {more} more; --json has all of them"
    yield "\nKept: " + _wrapped(each for each in verdict.checked if each not in verdict.broken)


def _left_open(name: str) -> str:
    """The promises that are not checked because some evidence is missing."""
    parts = [", ".join(EVIDENCE[name].all_of), ", ".join(EVIDENCE[name].part_of)]
    words = [f"nothing of {parts[0]}"] if parts[0] else []
    words += [f"only a part of {parts[1]}"] if parts[1] else []
    return ", ".join(words)


def _wrapped(words: Iterable[str]) -> str:
    return textwrap.fill(", ".join(words), WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def verdict_json(verdict: Verdict, lines: dict[int, int]) -> dict[str, object]:
    """The verdict for programs."""
    return {
        "broken": verdict.broken,
        "violations": [
            {
                "invariant": each.invariant,
                "text": each.text,
                "log": each.log,
                "lsn": each.lsn,
                "evidence": [
                    {"line": lines.get(id(event)), **msgspec.to_builtins(event)}
                    for event in each.evidence
                ],
            }
            for each in verdict.violations
        ],
        "checked": verdict.checked,
        "not_yet": dict(NOT_YET),
        "missing": verdict.missing,
        "counts_as_a_seed": bool(verdict.validity),
        "why_not": verdict.validity.reasons,
        "events": dict(verdict.counts),
        "records_acknowledged": verdict.acked,
        "records_delivered": verdict.delivered,
        "faults": dict(verdict.faults),
        "seconds": verdict.length_s,
    }
