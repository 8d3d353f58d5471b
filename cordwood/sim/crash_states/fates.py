"""The possible remains of one change that was not on stable storage at a crash.

A name changed or it did not. Any units (512 B sectors, 4 KiB pages) of written bytes arrived. The
other units have their old bytes, or zeros, as after drives and file systems that drop promised
writes. A write that extends its file may also leave it longer than the arrived bytes, or just as
long.

All subsets of a small write's units are gone through. Of a large write, these subsets are gone
through: a beginning, an end, and all units except one or one alone. Chance draws others.

Source: docs/sources/reliability.md §5.1 (power cut), §5.4; `host.seams.DirectFile` ("old, new or
torn at 512 B"); Pillai et al., OSDI 2014 (size before bytes).
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator
from dataclasses import dataclass

from cordwood.host.seams import DISK_BLOCK_BYTES
from cordwood.sim.crash_states.content import FileBytes
from cordwood.sim.crash_states.disk_log import Bytes
from cordwood.sim.stored_file import SECTOR_BYTES


class Rest(enum.Enum):
    """The bytes of a unit that did not arrive."""

    STALE = "stale"
    ZERO = "zeroed"
    SHORT = "stale, and the file ends with what arrived"


@dataclass(frozen=True, slots=True)
class Fate:
    """The fate of one change.

    Attributes:
        arrived: bit i says whether unit i arrived; -1 for all units, 0 for none.
        unit: bytes that arrive whole or not at all; 0 if no unit or all units arrived.
        rest: the bytes of the other units.
    """

    arrived: int
    unit: int = 0
    rest: Rest = Rest.STALE

    def __str__(self) -> str:
        if self == LOST:
            return "lost"
        if self == KEPT:
            return "kept"
        units = [str(at) for at in range(self.arrived.bit_length()) if self.arrived >> at & 1]
        return (
            f"torn: of its {self.unit} B units {' '.join(units) or 'none'}, rest {self.rest.value}"
        )


LOST = Fate(0)
KEPT = Fate(-1)


@dataclass(frozen=True, slots=True)
class Tearing:
    """How writes may be torn.

    Attributes:
        units: sizes of units that arrive whole, in bytes;
        none: a write arrives whole or not at all.
        is_zeroed: whether other units may read as zeros.
        subsets_max: all subsets are gone through if there are no more than this.
    """

    units: tuple[int, ...] = (DISK_BLOCK_BYTES, SECTOR_BYTES)
    is_zeroed: bool = True
    subsets_max: int = 16


UNTORN = Tearing(())


def fates_of(change: Bytes, tearing: Tearing, *, extends: bool) -> tuple[Fate, ...]:
    """The fates of a write that a full enumeration goes through."""
    rests = _rests(tearing, extends)
    torn = [
        Fate(arrived, unit, rest)
        for unit in tearing.units
        for arrived in _subsets(_units(change, unit), tearing.subsets_max)
        for rest in rests
    ]
    if tearing.units and extends:
        torn.append(Fate(0, tearing.units[0]))  # only the size arrived
    if tearing.units and tearing.is_zeroed:
        torn.append(Fate(0, tearing.units[0], Rest.ZERO))
    return (LOST, KEPT, *torn)


def draw_fate(change: Bytes, tearing: Tearing, chance: random.Random, *, extends: bool) -> Fate:
    """Draw any fate of a write: lost, kept and torn have a third each."""
    draw = chance.randrange(3)
    if draw < 2 or not tearing.units:
        return LOST if draw == 0 else KEPT
    unit = chance.choice(tearing.units)
    arrived = chance.getrandbits(_units(change, unit))
    return Fate(arrived, unit, chance.choice(_rests(tearing, extends)))


def leave(file: FileBytes, change: Bytes, fate: Fate) -> None:
    """Change `file` as a write with this fate does."""
    if fate == LOST:
        return
    if fate == KEPT:
        file.write(change.offset, change.data)
        return
    length = len(change.data)
    if fate.rest is Rest.SHORT:
        length = min(length, fate.arrived.bit_length() * fate.unit)
        length = max(length, min(len(change.data), file.size - change.offset))
    if length <= 0:
        return
    old = bytes(length) if fate.rest is Rest.ZERO else file.read(change.offset, length)
    pieces = [
        (change.data if fate.arrived >> number & 1 else old)[at : min(at + fate.unit, length)]
        for number, at in enumerate(range(0, length, fate.unit))
    ]
    file.write(change.offset, b"".join(pieces))


def _rests(tearing: Tearing, extends: bool) -> tuple[Rest, ...]:
    zeroed = (Rest.ZERO,) if tearing.is_zeroed else ()
    return (Rest.STALE, *zeroed, *((Rest.SHORT,) if extends else ()))


def _units(change: Bytes, unit: int) -> int:
    return -(-len(change.data) // unit)


def _subsets(units: int, most: int) -> Iterator[int]:
    """Subsets of this many units, except the empty and the full subset."""
    everything = (1 << units) - 1
    if everything < most:
        yield from range(1, everything)
        return
    seen = {0, everything}
    for at in range(units):
        start = (1 << at) - 1
        for subset in (start, everything ^ start, 1 << at, everything ^ 1 << at):
            if subset not in seen:
                seen.add(subset)
                yield subset
