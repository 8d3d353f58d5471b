"""The storage node: WAL, log cache, seals and read streams."""
