"""Nodes upload what is old of a log, and let go of what main storage holds."""
