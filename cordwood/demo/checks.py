"""What the demo claims, claim by claim, and whether it held.

Most checks are noted and the demo goes on, so that its end shows all of them; a step
that cannot go on without one raises CheckFailed.
"""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.errors import CordwoodError


class CheckFailed(CordwoodError):
    """Something that must hold does not; the text says what, with the values."""


@dataclass(frozen=True, slots=True)
class Check:
    """One claim.

    Attributes:
        claim: what must hold, as a sentence without a full stop.
        holds: whether it does.
        found: what was seen, in figures.
    """

    claim: str
    holds: bool
    found: str


class Checks:
    """All claims so far, in the order in which they were looked at."""

    def __init__(self) -> None:
        self.all: list[Check] = []

    def note(self, claim: str, holds: bool, found: str) -> None:
        """Note whether a claim holds."""
        self.all.append(Check(claim, holds, found))

    def compare(self, claim: str, expected: object, found: object) -> None:
        """Note whether two values are the same; their text is shown."""
        same = expected == found
        self.note(claim, same, str(found) if same else f"{found}, not {expected}")

    @property
    def failed(self) -> list[Check]:
        """The claims that do not hold."""
        return [check for check in self.all if not check.holds]
