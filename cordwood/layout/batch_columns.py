"""The columns of an Arrow batch by name; `layout.arrow` makes them.

Apart from it, so that who only names columns loads neither numpy nor codecs.
"""

COLUMNS = ("key", "value", "log", "log_id", "lsn", "epoch", "offset", "timestamp")
"""What a batch has unless it is asked for something else."""

COLUMNS_ON_REQUEST = ("headers", "append_time")
