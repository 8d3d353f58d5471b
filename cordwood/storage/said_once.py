"""A log line that is written once, and again only when its text changes.

A blocked action is retried each second and fails with the same text: hundreds of equal lines on an
application's standard error would hide the first.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection

_FIGURES = re.compile(r"\d+")


class SaidOnce:
    """See the module; texts that differ in figures alone are the same."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._last = ""

    def warning(self, text: str) -> None:
        """Log a text, unless it was the last one."""
        plain = _FIGURES.sub("#", text)
        if plain != self._last:
            self._last = plain
            self._logger.warning("%s", text)

    def over(self, text: str) -> None:
        """Log the end of the trouble, if a text was logged."""
        if self._last:
            self._last = ""
            self._logger.info("%s", text)


class SaidOfEach:
    """`SaidOnce` for each of many logs or other things by number; kept of those in trouble only."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._said: dict[int, SaidOnce] = {}

    def warning(self, number: int, text: str) -> None:
        """As `SaidOnce.warning`, for one of them."""
        self._said.setdefault(number, SaidOnce(self._logger)).warning(text)

    def over(self, number: int, text: str) -> None:
        """As `SaidOnce.over`, for one of them."""
        said = self._said.pop(number, None)
        if said is not None:
            said.over(text)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all but these."""
        self._said = {each: said for each, said in self._said.items() if each in numbers}
