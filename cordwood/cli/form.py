"""How records are printed."""

from __future__ import annotations

import enum


class Form(enum.StrEnum):
    """How records are printed."""

    RAW = "raw"
    JSON = "json"
    HEX = "hex"
