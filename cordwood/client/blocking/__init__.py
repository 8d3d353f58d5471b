"""The client for callers without an event loop."""
