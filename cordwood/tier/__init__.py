"""Main storage: an object store with a log's old records, as files that any engine reads."""
