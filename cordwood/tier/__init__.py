"""Main storage: a log's old records lie in an object store, as files that any engine reads."""
