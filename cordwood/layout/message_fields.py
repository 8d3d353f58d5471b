"""Types of the fields of control messages, with bounds that are checked on arrival."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from cordwood.log_attributes import TOKEN_BYTES_MAX
from cordwood.nodes import LOCATION_CHARS_MAX

U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Attempt = Annotated[int, Meta(ge=1, le=2**32 - 1)]
U62 = Annotated[int, Meta(ge=1, le=2**62 - 1)]
AnyLog = Annotated[int, Meta(ge=0, le=2**62 - 1)]
AnyLsn = Annotated[int, Meta(ge=0, le=2**63 - 1)]
TimeUs = Annotated[int, Meta(ge=-(2**62), le=2**62)]
Sequence = Annotated[int, Meta(ge=0)]
Name = Annotated[str, Meta(max_length=255)]
Location = Annotated[str, Meta(max_length=LOCATION_CHARS_MAX)]
Token = Annotated[str, Meta(max_length=TOKEN_BYTES_MAX)]
Mark = Annotated[str, Meta(max_length=32)]
SENTENCE_CHARS_MAX = 4096

Sentence = Annotated[str, Meta(max_length=SENTENCE_CHARS_MAX)]


def shown(text: str) -> str:
    """A text of any length as a `Sentence`: cut where it is longer than one may be."""
    return text[:SENTENCE_CHARS_MAX]
