"""The columns of an Arrow batch by name; `layout.arrow` makes them.

A module of its own, so that code that only names columns loads neither numpy nor codecs.
"""

COLUMNS = ("key", "value", "log", "log_id", "lsn", "epoch", "offset", "timestamp")
"""The default columns of a batch."""

COLUMNS_ON_REQUEST = ("headers", "append_time")
