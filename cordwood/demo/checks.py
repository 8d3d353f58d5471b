"""The claims of the demo, one by one, and whether each held.

Most checks are noted and the demo goes on, so that its end shows all of them. A step that cannot go
on after a failed check raises CheckFailed.
"""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.errors import CordwoodError


class CheckFailed(CordwoodError):
    """A claim that must hold does not hold; the text names it, with the values."""


@dataclass(frozen=True, slots=True)
class Check:
    """One claim.

    Attributes:
        claim: the claim, as a sentence without a full stop.
        holds: whether it holds.
        found: the observed figures.
    """

    claim: str
    holds: bool
    found: str


class Checks:
    """All claims so far, in the order in which they were checked."""

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
