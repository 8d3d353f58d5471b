"""Nodes upload the old records of a log, and drop records that main storage holds."""
