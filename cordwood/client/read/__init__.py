"""Reads of the client: streams, readers of several logs, and consumers."""
