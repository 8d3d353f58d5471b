"""Main storage: what is old of a log lies in an object store, as files that any engine reads."""
