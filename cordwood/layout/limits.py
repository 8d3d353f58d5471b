"""Limits of records, bodies and blocks, with their reasons.

Hard limits are part of the format: every decoder refuses larger values before it allocates, so
raising a limit needs a new format version. Soft limits are defaults that a client's settings may
move, below the hard ones.

Source: docs/design.md §2 ("a block is bounded in bytes and records", "a decoder bounds
what it will inflate").
"""

from __future__ import annotations

BODY_BYTES_MAX = 32 << 20
"""Hard: bytes of a body, both as stored and uncompressed.

A node keeps a body whole in a frame, in its WAL and in its cache, and a reader inflates
it whole. 32 MiB is LogDevice's hard cap for a payload, a 64th of what int32 offsets
reach, and a quarter of the WAL that `cordwood up` gives a node.
"""

BLOCK_RECORDS_MAX = 65_536
"""Hard: records of a data block.

Past some thousand records the cost per record no longer falls, while a reader that
clips one record out of a block still checks all of its offsets. At 65,536 the
offsets are 256 KiB.
"""

GROUP_BYTES_MAX = 64 << 20
"""Hard: bytes of the bodies of an atomic group, as stored.

A group travels to the sequencer as one entry of one frame, and a frame holds 72 MiB. The sequencer
keeps the whole group in memory until it is stored. A larger batch becomes several groups, and each
of them is atomic.
"""

GROUP_BLOCKS_MAX = 4096
"""Hard: blocks of an atomic group; at 16 KiB a block they reach the limit in bytes."""

RECORD_BYTES_DEFAULT = 1 << 20
"""Soft: bytes of one record (value, key and headers) that a client takes.

LogDevice and Kafka have the same default, so an application can move to Cordwood without a setting.
"""

RECORD_BYTES_MAX = BODY_BYTES_MAX - (64 << 10)
"""Hard: bytes of one record; a record never spans blocks.

64 KiB below the body's limit leaves room for the fixed fields and for the 8⅛ bytes
of offsets and validity that each header of a record takes, up to 8,000 headers. Beyond
that, `encode_body` still refuses a body over BODY_BYTES_MAX.
"""
