"""A line of a log that is said once, and again when it says something else.

What has to wait is tried again each second, and fails with the same words: hundreds of equal
lines on the standard error of an application hide the first.
"""

from __future__ import annotations

import logging
import re

_FIGURES = re.compile(r"\d+")


class SaidOnce:
    """See the module; texts that differ in figures alone are the same."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._last = ""

    def warning(self, text: str) -> None:
        """Say it, unless it was said last."""
        plain = _FIGURES.sub("#", text)
        if plain != self._last:
            self._last = plain
            self._logger.warning("%s", text)

    def over(self, text: str) -> None:
        """It is over: say so if anything was said."""
        if self._last:
            self._last = ""
            self._logger.info("%s", text)
