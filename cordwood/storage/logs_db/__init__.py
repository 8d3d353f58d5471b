"""LogsDB: the blocks that left the WAL, in partitions by time."""
