"""A measured figure: the median of repeats, and how it compares with a reference.

Source: docs/sources/hotpath.md ("ratios, measured interleaved in one run, are the result;
absolute numbers move by 30 %").
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from cordwood.errors import BadSetting


@dataclass(frozen=True, slots=True)
class Sample:
    """One repeat.

    Attributes:
        value, reference: in one unit, measured one right after the other; None if this machine has
            no reference.
        p50_ms, p99_ms: latencies in this repeat, None where there are none.
    """

    value: float
    reference: float | None
    p50_ms: float | None = None
    p99_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """The report of a bench command; `--json` prints these fields.

    Attributes:
        name: of the measurement, the same from run to run.
        value, unit: the median over the repeats.
        reference, reference_is: the median of the reference, and its description.
        ratio: value over reference, the median of the repeats' own ratios. Both are None if any
            repeat has no reference.
        p50_ms, p99_ms: medians over the repeats, None where there are none.
        repeats: number of repeats.
        parameters: other values that decide the result.
    """

    name: str
    value: float
    unit: str
    reference: float | None
    ratio: float | None
    reference_is: str
    p50_ms: float | None
    p99_ms: float | None
    repeats: int
    parameters: dict[str, int | float | str] = field(default_factory=dict)


def make_figure(
    name: str,
    unit: str,
    samples: Sequence[Sample],
    *,
    reference_is: str,
    parameters: dict[str, int | float | str],
) -> Figure:
    """Join repeats into a figure.

    Raises:
        BadSetting: no repeats.
    """
    if not samples:
        raise BadSetting(f"{name}: a figure takes at least one repeat")
    return Figure(
        name,
        _round(statistics.median(sample.value for sample in samples)),
        unit,
        _median([sample.reference for sample in samples]),
        _median(_ratios(samples)),
        reference_is,
        _median([sample.p50_ms for sample in samples]),
        _median([sample.p99_ms for sample in samples]),
        len(samples),
        parameters,
    )


def _ratios(samples: Sequence[Sample]) -> list[float | None]:
    return [sample.value / sample.reference if sample.reference else None for sample in samples]


def percentile_ms(ordered_s: Sequence[float], share: float) -> float:
    """A percentile of latencies, by nearest rank.

    Args:
        ordered_s: seconds, lowest first, not empty.
        share: 0.5 for the median, 0.99 for the 99th percentile.
    """
    rank = max(1, math.ceil(share * len(ordered_s)))
    return ordered_s[rank - 1] * 1000


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _round(statistics.median(known)) if len(known) == len(values) else None


def _round(value: float) -> float:
    """Four digits: more of them would be noise."""
    return float(f"{value:.4g}")
