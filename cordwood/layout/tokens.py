"""The payload of a TOKENS frame: the write tokens that a client has.

A list of texts as MessagePack. A client sends it once, before all else, on each connection to a
node that it may append at; a second list takes the place of the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from cordwood.errors import BadSetting, Malformed
from cordwood.layout.message_fields import Token
from cordwood.log_attributes import token_digest

TOKENS_MAX = 1000
"""Tokens of one client; each is hashed on arrival."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Annotated[list[Token], msgspec.Meta(max_length=TOKENS_MAX)])


def pack_tokens(tokens: Iterable[str]) -> bytes:
    """A TOKENS payload.

    Raises:
        BadSetting: there are too many.
    """
    shown = list(dict.fromkeys(tokens))
    if len(shown) > TOKENS_MAX:
        raise BadSetting(f"a client has {TOKENS_MAX} write tokens at most, not {len(shown)}")
    return _encoder.encode(shown)


def read_tokens(payload: memoryview) -> frozenset[str]:
    """The digests of the tokens of a TOKENS payload.

    Raises:
        Malformed: it is no list of tokens.
    """
    try:
        tokens = _decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"a TOKENS frame that this version does not know: {error}") from error
    return frozenset(map(token_digest, tokens))
