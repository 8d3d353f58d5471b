"""The Delta WAL: a ring of direct writes."""
